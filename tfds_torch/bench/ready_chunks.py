"""What a Feeder costs that has nothing to fetch: chunks that lie ready, taken as batches."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch.loaders.feeder import Feeder
from tfds_torch.loaders.rebatching import Chunk, RowQueue, join_pieces

BATCH_SIZE = 256
SMALL, IMAGES = (8,), (3, 32, 32)
"""Shapes of a row: what is left is overhead; and 786 kB a batch."""
CASES = ((256, SMALL), (100, SMALL), (100, IMAGES))
"""Rows of a chunk, and their shape: as many as a batch has, and others, which are joined."""


@dataclass(frozen=True)
class FeedTime:
    """Batches that a loop took out of a Feeder.

    Attributes:
        chunk_size: rows of a chunk.
        shape: of a row.
        batch_us: of a batch, microseconds, a mean.
    """

    chunk_size: int
    shape: tuple[int, ...]
    batch_us: float


@dataclass(frozen=True)
class CutTime:
    """Rows that were cut out of chunks into batches, without a thread.

    Attributes:
        chunk_size: rows of a chunk.
        batch_size: rows of a batch.
        num_rows: of all chunks, which were there before the first batch was taken.
        row_ns: of a row, nanoseconds, a mean.
    """

    chunk_size: int
    batch_size: int
    num_rows: int
    row_ns: float


def run_feeds(num_batches: int, num_rounds: int) -> Iterator[FeedTime]:
    """Yields the times of all cases in turn, each with a Feeder of its own whose queue is full at the beginning.

    Args:
        num_batches: that are timed.
        num_rounds: of all cases.
    """
    for _ in range(num_rounds):
        for chunk_size, shape in CASES:
            yield FeedTime(chunk_size, shape, _batch_us(chunk_size, shape, num_batches))


def run_cuts(sizes: tuple[int, ...], num_rounds: int) -> Iterator[CutTime]:
    """Yields how long rebatching takes for several numbers of rows, in turn.

    Args:
        sizes: numbers of rows, each a multiple of 4096.
        num_rounds: of all sizes.
    """
    for _ in range(num_rounds):
        for chunk_size, batch_size in ((1, BATCH_SIZE), (4096, 1)):
            for num_rows in sizes:
                yield CutTime(chunk_size, batch_size, num_rows, _row_ns(chunk_size, batch_size, num_rows))


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
