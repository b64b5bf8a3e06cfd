"""The suite `order`: what a slice of a shuffled order costs, and how far apart its examples lie."""

import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import Run, Suite
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.passes import BlockShuffle, Passes

SLICE = 4096
"""Positions of a slice of the order."""

_NUM_SLICES, _SEED = 200, 42
_BLOCKS = BlockShuffle(1024, 8)
_EXAMPLES_FOR_A_PHOTO = 312
_WINDOW = 8192

Find = Callable[[Int64Array], object]
"""Looks up positions of an order, int64 [n]."""

ORDER = Table(
    "order",
    f"a slice of {SLICE:,} positions of the order",
    f"{_NUM_SLICES} slices all over the order; memory is what numpy and Python allocate for one, its result of "
    f"{8 * SLICE / 1e3:.0f} KB included.",
    "order",
    [
        Column("slice_ms", "a slice, ms", "{:.2f}"),
        Column("peak_kb", "memory for it, KB", has_spread=False),
        Column("growth", "x that of 10^6", "{:.2f}", has_spread=False, ratio=Ratio("peak_kb", by="10^6")),
    ],
)
LOCALITY = Table(
    "locality",
    "how far apart the examples of a shuffled order lie",
    f"{{num_examples:,}} examples, `shuffle_buffer` {_WINDOW:,}: separate places on the disk (runs of direct "
    "neighbours) of the examples of a batch, and of all examples of a window.",
    "block_records",
    [
        Column("in_a_batch", "places of 128 consecutive examples", "{:,.1f}", has_spread=False),
        Column("in_a_window", f"places of {_WINDOW:,} consecutive examples", "{:,.1f}", has_spread=False),
    ],
)


def _measure(run: Run) -> Iterator[Table]:
    run.show_progress("slices of the order")
    samples, titles = {}, {}
    for blocks, suffix, more in ((None, "", ""), (_BLOCKS, "_blocks", ", blocks of 1,024 in windows of 8")):
        for exponent in (6, 10):
            name, num_examples = f"10^{exponent}{suffix}", 10**exponent
            titles[name] = f"10^{exponent} examples{more}"
            last = num_examples - SLICE
            starts = [last * number // _NUM_SLICES for number in range(1, _NUM_SLICES + 1)]
            samples[name] = slice_figures(order_of(num_examples, blocks), starts)
    yield ORDER.fill(samples, titles)
    num_examples = max(1 << 14, _EXAMPLES_FOR_A_PHOTO * run.settings.num_photos)
    places = {}
    for block_records in (None, 64, 256, 1024):
        blocks = None if block_records is None else BlockShuffle(block_records, max(1, _WINDOW // block_records))
        places["none" if block_records is None else f"{block_records:,}"] = {
            "in_a_batch": [num_places(num_examples, 128, blocks)],
            "in_a_window": [num_places(num_examples, _WINDOW, blocks)],
        }
    yield LOCALITY.fill(places, num_examples=num_examples)


def slice_figures(find: Find, starts: Sequence[int]) -> dict[str, list[float]]:
    """Returns the times of slices that begin at some positions, and the greatest memory of the middle one."""
    times = []
    for start in (starts[0], *starts):
        positions = np.arange(start, start + SLICE)
        began = time.perf_counter()
        find(positions)
        times.append((time.perf_counter() - began) * 1e3)
    middle = starts[len(starts) // 2]
    positions = np.arange(middle, middle + SLICE)
    tracemalloc.start()
    find(positions)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"slice_ms": times[1:], "peak_kb": [peak_bytes / 1e3]}  # The first one also loads code.


def num_places(num_examples: int, num_consecutive: int, blocks: BlockShuffle | None = None) -> float:
    """Returns the mean number of places, not adjacent to each other, of so many consecutive examples of an order."""
    find = order_of(num_examples, blocks)
    starts = range(0, num_examples - num_consecutive + 1, num_consecutive)[:64]
    counts = [
        1 + np.count_nonzero(np.diff(np.sort(find(np.arange(start, start + num_consecutive)))) != 1) for start in starts
    ]
    return float(np.mean(counts))


def order_of(num_examples: int, blocks: BlockShuffle | None = None) -> Callable[[Int64Array], Int64Array]:
    """Returns the function that looks up positions of a dataset's order."""
    order = Passes(num_examples, _SEED, shuffle=True, blocks=blocks)
    return lambda positions: order.at(positions)[1]


SUITE = Suite(
    "order",
    "what a slice of a shuffled order costs, and how far apart its examples lie",
    "This package alone, in this process, without files: median (least to greatest).",
    _measure,
)
