"""The suites `ready`, `feeder` and `multi`: the cost of loaders that have little or nothing to read.

`ready`: torch's DataLoader is inside of the Loader. Without workers the Loader adds its watchdog, metrics and state;
with workers, a batch lies in memory that both processes see, where torch sends a file descriptor for every tensor.
`feeder`: a chunk goes through two queues and three threads: the one that fetched it, the one that makes batches, and
the loop's. Chunks of other sizes than a batch's are joined, which copies every row once. `multi`: of small images,
the transfer is all of the work: arrays are copied once, into shared memory, where WebDataset pickles, sends and
unpickles them. Of photographs, decoding is nearly all of the work; torch resizes faster than Pillow.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers import multi_items
from benchmarks.peers.multi_items import LOADER, SHARED, WEBDATASET, ZMQ
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import Run
from tfds_torch.loaders.feeder import Feeder
from tfds_torch.loaders.rebatching import Chunk, RowQueue, join_pieces
from tfds_torch.runtime import subprocess_call

SMALL_SHAPE = (256, 3, 32, 32)
LARGE_SHAPE = (128, 3, 224, 224)
"""Of uint8 images: 786 kB, and 19 MB as a batch of photographs has."""
WORKER_COUNTS = (0, 1, 2)

BATCH_SIZE = 256
SMALL, IMAGES = (8,), (3, 32, 32)
"""Shapes of a row: so small that overhead remains; and 786 kB a batch."""
CASES = ((256, SMALL), (100, SMALL), (100, IMAGES))
"""Rows of a chunk, and their shape: as many as a batch has, and others, which are joined."""
CUTS = ((1, BATCH_SIZE), (4096, 1))
"""Rows of a chunk, and of a batch that is cut out of such chunks, without a thread."""

Sample = tuple[str, dict[str, float]]

_NUM_BATCHES, _NUM_LARGE = 1500, 100
_NUM_FED = 2000
_FEW, _MANY = 1 << 16, 1 << 20
_NUM_ITEMS = 2000


def _ready(name: str, title: str, shape: tuple[int, ...]) -> Table:
    return Table(
        name,
        title,
        f"A map-style dataset returns the same batch again and again: uint8 {list(shape)} and int64 [{shape[0]}]. The "
        "loaders take turns, epoch by epoch; the first batch is not counted. Hand-over: the batch was ready and the "
        "training process waited.",
        "loader",
        [Column("batch_us", "time of a batch, us"), Column("hand_over_us", "hand-over, us")],
    )


READY = _ready("ready", "a ready batch", SMALL_SHAPE)
LARGE = _ready("large", "a ready batch as large as one of photographs", LARGE_SHAPE)
FEED = Table(
    "feed",
    f"a batch of {BATCH_SIZE} out of a Feeder",
    "A fetch function returns the same chunk again and again: uint8 rows, and an int64 label for each. Two threads "
    "fetch; one loop takes, and does nothing else.",
    "source",
    [Column("batch_us", "time of a batch, us")],
)
CUT = Table(
    "cut",
    "rebatching",
    "All chunks of int64 rows wait before the first batch is taken; no threads.",
    "rows",
    [
        Column("few_ns", f"time of a row, {_FEW:,} rows, ns"),
        Column("many_ns", f"{_MANY:,} rows, ns"),
        Column("growth", "ratio", "{:.2f}"),
    ],
)


def _turns(name: str, title: str, unit: str) -> Table:
    return Table(
        name,
        title,
        "The loaders take turns in one process; the first items of a turn are not counted, of photographs an epoch.",
        "loader",
        [
            Column("per_s", unit),
            Column("ours_by_it", "MultiLoader by it", "{:.2f}", ratio=Ratio("per_s", of=SHARED)),
        ],
    )


ITEMS = _turns("items", f"items of {' x '.join(map(str, multi_items.ITEM_SHAPE))} a second", "items/s")
PHOTOS = _turns("photos", "photographs a second", "examples/s")
WORKERS = Table(
    "memory",
    "memory of a worker",
    "Resident memory of a spawned worker that reads photographs, after three epochs, without shared memory.",
    "process",
    [Column("mebibytes", "MiB")],
)


def measure_ready(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `ready`."""
    from benchmarks.peers.ready_batches import run_ready_epochs

    num_rounds = run.settings.num_repeats
    for table, num_batches, counts in ((READY, _NUM_BATCHES, WORKER_COUNTS), (LARGE, _NUM_LARGE, (2,))):
        run.show_progress(table.title)
        shape = SMALL_SHAPE if table is READY else LARGE_SHAPE
        samples = collect(subprocess_call.iterate(run_ready_epochs, num_batches, shape, counts, num_rounds))
        yield table.fill(samples, {name: _ready_title(name) for name in samples})


def _ready_title(name: str) -> str:
    loader, _, number = name.partition("_")
    workers = {"0": "no workers", "1": "1 worker"}.get(number, f"{number} workers")
    return f"{'Loader' if loader == 'loader' else 'DataLoader of torch'}, {workers}"


def measure_feeder(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `feeder`."""
    run.show_progress("taking batches out of a Feeder")
    yield FEED.fill(collect(subprocess_call.iterate(run_feeds, _NUM_FED, run.settings.num_repeats)))
    run.show_progress("cutting chunks into batches")
    yield CUT.fill(collect(subprocess_call.iterate(run_cuts, _FEW, _MANY, run.settings.num_repeats)))


def run_feeds(num_batches: int, num_rounds: int) -> Iterator[Sample]:
    """Yields the times of all cases in turn, each with a Feeder of its own whose queue is full at the beginning."""
    for _ in range(num_rounds):
        for chunk_size, shape in CASES:
            yield f"chunks of {chunk_size} x {list(shape)}", {"batch_us": _batch_us(chunk_size, shape, num_batches)}


def run_cuts(few: int, many: int, num_rounds: int) -> Iterator[Sample]:
    """Yields nanoseconds of a row that is cut out of chunks, when few and when many rows wait, and their ratio.

    Both numbers of rows are multiples of 4096.
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


def measure_multi(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `multi`."""
    settings, data_dir = run.settings, str(run.data_dir)
    num_workers, num_turns = max(1, settings.num_workers), settings.num_repeats
    run.show_progress("handing over small images")
    yield _in_order(
        ITEMS, collect(subprocess_call.iterate(multi_items.run_item_turns, _NUM_ITEMS, num_workers, num_turns))
    )
    run.show_progress("reading photographs")
    turns = subprocess_call.iterate(multi_items.run_photo_turns, data_dir, settings.batch_size, num_workers, num_turns)
    yield _in_order(PHOTOS, collect(turns))
    run.show_progress("measuring workers")
    sizes = subprocess_call.call(multi_items.worker_bytes, data_dir, settings.batch_size, num_workers)
    yield WORKERS.fill({"worker": {"mebibytes": [size and size / 2**20 for size in sizes]}}, {"worker": "a worker"})


def _in_order(table: Table, samples: dict[str, dict[str, list[float | None]]]) -> Table:
    known = [name for name in (SHARED, ZMQ, WEBDATASET, LOADER) if name in samples]
    return table.fill({name: samples[name] for name in known})
