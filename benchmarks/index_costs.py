"""What an index and its order cost: the parts of the suite `index` that read no images."""

import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import can_drop, drop_from_page_cache, large_folder, own_memory_bytes
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import Run
from tfds_torch.plan.block_order import BlockShuffle, block_order_at
from tfds_torch.plan.order import Int64Array, order_at
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord.framing import TfrecordWriter
from tfds_torch.storage.tfrecord.index import RecordIndex

SLICE = 4096
"""Positions of a slice of the order."""

_FULL_PHOTOS, _SMALL_RECORDS = 4096, 1_280_000
_SMALL_SIZES, _LARGE_SIZES = range(64, 201), range(100_000, 100_001)
_MOST_BUILDS = 3
_NUM_BYTES, _RECORDS_AT_A_TIME = 1 << 20, 1024
_NUM_SLICES, _SEED = 200, 42
_BLOCKS = BlockShuffle(1024, 8)

Find = Callable[[Int64Array], object]
"""Looks up positions of an order, int64 [n]."""

BUILDING = Table(
    "building",
    "building and opening an index",
    "Records in {num_shards} TFRecord files. Every index is built, and opened when it is there, in fresh processes "
    "whose imports are not counted; memory is the resident size at its greatest above the one before. Cold: the files "
    "are dropped from the page cache (posix_fadvise) before. Opening holds the whole index against its checksum.",
    "records",
    [
        Column("build_s", "build, s", "{:.2f}"),
        Column("peak_mb", "memory for it, MB", "{:.1f}"),
        Column("open_ms", "open, ms", "{:.1f}"),
        Column("index_mb", "index, MB", "{:.2f}", has_spread=False),
    ],
)
SLICE_COLUMNS = (
    Column("slice_ms", "a slice, ms", "{:.2f}"),
    Column("peak_kb", "memory for it, KB", has_spread=False),
)
ORDER = Table(
    "order",
    f"a slice of {SLICE:,} positions of the order",
    f"{_NUM_SLICES} slices all over the order; memory is what numpy and Python allocate for one, its result of "
    f"{8 * SLICE / 1e3:.0f} KB included.",
    "order",
    [
        *SLICE_COLUMNS,
        Column("growth", "x that of 10^6", "{:.2f}", has_spread=False, ratio=Ratio("peak_kb", by="10^6")),
    ],
)
LOCALITY = Table(
    "locality",
    "how far apart the examples of a shuffled order lie",
    "{num_examples:,} examples, `shuffle_buffer` 8,192: separate places on the disk (runs of direct neighbours) of the "
    "examples of a batch, and of all examples of a window.",
    "block_records",
    [
        Column("in_a_batch", "places of 128 consecutive examples", "{:,.1f}", has_spread=False),
        Column("in_a_window", "places of 8,192 consecutive examples", "{:,.1f}", has_spread=False),
    ],
)


def measure_building(run: Run) -> Table:
    """Builds and opens indices of small and of large records, cold and warm."""
    settings = run.settings
    num_small = max(settings.num_shards, _SMALL_RECORDS * settings.num_photos // _FULL_PHOTOS)
    samples, titles = [], {}
    with large_folder() as folder:
        for size, num_records, sizes, text in (
            ("small", num_small, _SMALL_SIZES, "64 to 200 bytes"),
            ("large", settings.num_photos, _LARGE_SIZES, "100 KB"),
        ):
            run.show_progress(f"writing {num_records:,} records")
            instructions = write_shards(folder / size, num_records, sizes, settings.num_shards)
            for kind in ("cold", "warm") if can_drop() else ("warm",):
                run.show_progress(f"building the index of {num_records:,} records, {kind}")
                name = f"{size}_{kind}"
                titles[name] = f"{num_records:,} x {text}, {kind}"
                for number in range(min(_MOST_BUILDS, settings.num_repeats)):
                    dataset = f"made/{name}:{number}.0.0"
                    samples.append(
                        (name, measure_index(instructions, dataset, folder / "cache", is_cold=kind == "cold"))
                    )
    return BUILDING.fill(collect(samples), titles, num_shards=settings.num_shards)


def measure_index(
    instructions: Sequence[FileInstruction], dataset: str, cache_dir: Path, *, is_cold: bool
) -> dict[str, float | None]:
    """Builds and opens the index of whole files, each in a fresh process, and returns the columns.

    Args:
        instructions: of whole files.
        dataset: a name that is new in this cache.
        cache_dir: where the index is stored (on Linux; elsewhere in its usual place).
        is_cold: whether the files are read from their disk.
    """
    if is_cold:
        drop_from_page_cache(item.path for item in instructions)
    build_s, peak_bytes = subprocess_call.call(_open, instructions, dataset, str(cache_dir))
    open_s, _ = subprocess_call.call(_open, instructions, dataset, str(cache_dir))
    return {
        "build_s": build_s,
        "peak_mb": peak_bytes and peak_bytes / 1e6,
        "open_ms": open_s * 1e3,
        "index_mb": 8 * sum(item.take + 1 for item in instructions) / 1e6,
    }


def _open(instructions: Sequence[FileInstruction], dataset: str, cache_dir: str) -> tuple[float, int | None]:
    os.environ["XDG_CACHE_HOME"] = cache_dir
    (before, _), start = own_memory_bytes(), time.perf_counter()
    RecordIndex.open(InstructionTable(instructions, dataset))
    took_s, (_, greatest) = time.perf_counter() - start, own_memory_bytes()
    return took_s, None if greatest is None else greatest - before


def write_shards(
    folder: Path, num_records: int, sizes: range, num_shards: int, seed: int = 0
) -> tuple[FileInstruction, ...]:
    """Writes TFRecord shards of made-up records, with right checksums, and returns an instruction for each shard.

    Args:
        folder: is made if need be.
        num_records: of all shards together, at least num_shards.
        sizes: of a record's data, bytes, each as likely.
        num_shards: how many files.
        seed: of sizes and bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)  # noqa: S311 (nothing secret)
    instructions, first = [], 0
    for number in range(num_shards):
        stop = num_records * (number + 1) // num_shards
        path = folder / f"made.tfrecord-{number:05d}-of-{num_shards:05d}"
        with path.open("wb") as file:
            writer = TfrecordWriter(file.write)
            for start in range(first, stop, _RECORDS_AT_A_TIME):
                for record in _records(draw, sizes, min(_RECORDS_AT_A_TIME, stop - start)):
                    writer.add(record)
        instructions.append(FileInstruction(str(path), 0, stop - first, first, stop - first))
        first = stop
    return tuple(instructions)


def _records(draw: random.Random, sizes: range, num_records: int) -> Iterator[bytes]:
    content = draw.randbytes(max(_NUM_BYTES, 2 * sizes[-1]))
    last = len(content) - sizes[-1]
    for _ in range(num_records):
        start = int(draw.random() * last)
        yield content[start : start + sizes[int(draw.random() * len(sizes))]]


def measure_order(run: Run) -> Table:
    """Times slices of orders, and looks at their memory."""
    run.show_progress("slices of the order")
    samples, titles = {}, {}
    for blocks, suffix, more in ((None, "", ""), (_BLOCKS, "_blocks", ", blocks of 1,024 in windows of 8")):
        for exponent in (6, 10):
            name, num_examples = f"10^{exponent}{suffix}", 10**exponent
            titles[name] = f"10^{exponent} examples{more}"
            last = num_examples - SLICE
            starts = [last * number // _NUM_SLICES for number in range(1, _NUM_SLICES + 1)]
            samples[name] = slice_figures(order_of(num_examples, blocks), starts)
    return ORDER.fill(samples, titles)


def slice_figures(find: Find, starts: Sequence[int]) -> dict[str, list[float]]:
    """Returns the time of slices that begin at some positions, and the memory of the middle one.

    Args:
        find: looks up positions, int64 [n].
        starts: the first position of each slice.
    """
    middle = starts[len(starts) // 2]
    return {
        "slice_ms": [seconds * 1e3 for seconds in slice_times_s(find, starts)],
        "peak_kb": [slice_peak_bytes(find, middle) / 1e3],
    }


def slice_times_s(find: Find, starts: Sequence[int]) -> list[float]:
    """Returns the seconds that slices of SLICE positions take, each with its first position."""
    times = []
    for start in (starts[0], *starts):
        positions = np.arange(start, start + SLICE)
        began = time.perf_counter()
        find(positions)
        times.append(time.perf_counter() - began)
    return times[1:]  # The first one also loads code.


def slice_peak_bytes(find: Find, start: int) -> int:
    """Returns the memory that a slice of SLICE positions needs at its greatest, its result included."""
    positions = np.arange(start, start + SLICE)
    tracemalloc.start()
    find(positions)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes


def measure_locality(run: Run) -> Table:
    """Counts the places on the disk that consecutive examples of an order have."""
    num_examples = max(1 << 14, _SMALL_RECORDS * run.settings.num_photos // _FULL_PHOTOS)
    samples = {}
    for block_records in (None, 64, 256, 1024):
        blocks = None if block_records is None else BlockShuffle(block_records, max(1, 8192 // block_records))
        samples["none" if block_records is None else f"{block_records:,}"] = {
            "in_a_batch": [num_places(num_examples, 128, blocks)],
            "in_a_window": [num_places(num_examples, 8192, blocks)],
        }
    return LOCALITY.fill(samples, num_examples=num_examples)


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
    if blocks is None:
        return lambda positions: order_at(positions, num_examples, _SEED, 0)
    return lambda positions: block_order_at(positions, num_examples, _SEED, 0, blocks)
