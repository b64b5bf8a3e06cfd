"""What a slice of the order costs, and how far apart on the disk the examples of a batch lie."""

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from tfds_torch.plan.order import BlockShuffle, Int64Array, block_order_at, order_at

SLICE = 4096
"""Positions of a slice."""

_SEED = 42


def slice_times_s(num_examples: int, num_slices: int, blocks: BlockShuffle | None = None) -> list[float]:
    """Returns the seconds that slices of SLICE positions take, all over the order."""
    find = _order(num_examples, blocks)
    times = []
    for number in range(num_slices + 1):
        start = (num_examples - SLICE) * number // max(1, num_slices)
        positions = np.arange(start, start + SLICE)
        began = time.perf_counter()
        find(positions)
        times.append(time.perf_counter() - began)
    return times[1:]  # The first one also loads code.


def slice_peak_bytes(num_examples: int, blocks: BlockShuffle | None = None) -> int:
    """Returns the memory that a slice from the middle needs at its greatest, its result included."""
    find, start = _order(num_examples, blocks), (num_examples - SLICE) // 2
    positions = np.arange(start, start + SLICE)
    tracemalloc.start()
    find(positions)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes


def num_places(num_examples: int, num_consecutive: int, blocks: BlockShuffle | None = None) -> float:
    """Returns in how many places, not adjacent to each other, this many consecutive examples of an order lie; a mean.

    Args:
        num_examples: of the dataset.
        num_consecutive: of the order, the same number in every stretch that is looked at.
        blocks: the block shuffle; None: none.
    """
    find = _order(num_examples, blocks)
    starts = range(0, num_examples - num_consecutive + 1, num_consecutive)[:64]
    counts = [
        1 + np.count_nonzero(np.diff(np.sort(find(np.arange(start, start + num_consecutive)))) != 1) for start in starts
    ]
    return float(np.mean(counts))


def _order(num_examples: int, blocks: BlockShuffle | None) -> Callable[[Int64Array], Int64Array]:
    if blocks is None:
        return lambda positions: order_at(positions, num_examples, _SEED, 0)
    return lambda positions: block_order_at(positions, num_examples, _SEED, 0, blocks)
