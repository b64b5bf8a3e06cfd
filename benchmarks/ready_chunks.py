"""What a Feeder costs that has nothing to fetch: chunks that lie ready, taken as batches."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfds_torch.loaders.feeder import Feeder
from tfds_torch.loaders.rebatching import Chunk, RowQueue, join_pieces

BATCH_SIZE = 256
SMALL, IMAGES = (8,), (3, 32, 32)
"""Shapes of a row: what is left is overhead; and 786 kB a batch."""
CASES = ((256, SMALL), (100, SMALL), (100, IMAGES))
"""Rows of a chunk, and their shape: as many as a batch has, and others, which are joined."""
CUTS = ((1, BATCH_SIZE), (4096, 1))
"""Rows of a chunk, and of a batch that is cut out of such chunks, without a thread."""

Sample = tuple[str, dict[str, float]]


def feed_name(chunk_size: int, shape: tuple[int, ...]) -> str:
    """Returns the name of a case of a Feeder."""
    return f"chunks of {chunk_size} x {list(shape)}"


def run_feeds(num_batches: int, num_rounds: int) -> Iterator[Sample]:
    """Yields the times of all cases in turn, each with a Feeder of its own whose queue is full at the beginning.

    Args:
        num_batches: that are timed.
        num_rounds: of all cases.
    """
    for _ in range(num_rounds):
        for chunk_size, shape in CASES:
            yield feed_name(chunk_size, shape), {"batch_us": _batch_us(chunk_size, shape, num_batches)}


def run_cuts(few: int, many: int, num_rounds: int) -> Iterator[Sample]:
    """Yields nanoseconds of a row that is cut out of chunks, when few and when many rows wait, and their ratio.

    Args:
        few: a number of rows, a multiple of 4096.
        many: another one.
        num_rounds: of all cases.
    """
    for _ in range(num_rounds):
        for chunk_size, batch_size in CUTS:
            few_ns, many_ns = (_row_ns(chunk_size, batch_size, num_rows) for num_rows in (few, many))
            name = f"chunks of {chunk_size} to batches of {batch_size}"
            yield name, {"few_ns": few_ns, "many_ns": many_ns, "growth": many_ns / few_ns}


def _batch_us(chunk_size: int, shape: tuple[int, ...], num_batches: int) -> float:
    chunk = [np.zeros((chunk_size, *shape), np.uint8), np.zeros(chunk_size, np.int64)]

    def fetch(worker: int, batch_size: int) -> Any:
        return chunk

    with Feeder() as feeder:
        feeder.add_source("train", fetch, ["image", "label"], BATCH_SIZE)
        feeder.start()
        batches = iter(feeder.batches("train"))
        for _ in range(1 + num_batches // 10):
            next(batches)
        began = time.perf_counter()
        for _ in range(num_batches):
            next(batches)
        return (time.perf_counter() - began) / num_batches * 1e6


def _row_ns(chunk_size: int, batch_size: int, num_rows: int) -> float:
    rows, queue = np.zeros(chunk_size, np.int64), RowQueue((0,))
    began = time.perf_counter()
    for _ in range(num_rows // chunk_size):
        queue.append(Chunk((rows,), chunk_size))
    for _ in range(num_rows // batch_size):
        join_pieces(queue.take(batch_size), ("label",), (0,))
    return (time.perf_counter() - began) / num_rows * 1e9
