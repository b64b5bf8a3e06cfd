"""All comparisons of several competitors, as data, and the measurements that are made of them."""

import importlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.comparison import Comparison, compare
from benchmarks.figures import (
    BY_TIMM,
    CPU,
    DISK,
    FIRST_BATCH,
    MEMORY,
    NUM_EXAMPLES,
    OURS_BY_IT,
    SPEED,
    SPEED_WITHOUT_TAIL,
    START,
    TAIL,
    VERY_FIRST_BATCH,
)
from benchmarks.index_costs import measure_building, measure_locality, measure_order
from benchmarks.machine import can_drop
from benchmarks.tables import COMPETITORS, Column, Ratio, Table
from benchmarks.task import EIGHT, EVAL, IMAGE_SHAPE, OURS, OURS_8, PLAIN, Peer, Run
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.limits import num_cores

PNGS_FOR_A_PHOTO = 5

_HALF = {"split": "train[:50%]"}
_BATCHES_OF_A_WORKER = 2  # `create_loader` has it read two batches ahead.
_BATCH_SIZES = (32, 128, 256)
_BLOCK_RECORDS = 64
_IMPORTED = "torch"
_PEERS = "benchmarks.peers"


def _competitors(*columns: Column) -> Table:
    return Table(COMPETITORS, "", "", "competitor", columns)


_WHOLE_BATCHES = _competitors(
    SPEED,
    OURS_BY_IT,
    BY_TIMM,
    SPEED_WITHOUT_TAIL,
    *(replace(column, has_spread=False) for column in (FIRST_BATCH, TAIL, CPU)),
    NUM_EXAMPLES,
)
_TIMES = (START, VERY_FIRST_BATCH, FIRST_BATCH, TAIL, *MEMORY)
_SMALL = {"image_shape": (3, 32, 32), "work": PLAIN}

SAMPLE = Comparison(_competitors(SPEED, OURS_BY_IT, FIRST_BATCH, TAIL, NUM_EXAMPLES), most_turns=1)
STARTING = Comparison(_competitors(*_TIMES), is_fresh=True)
JPEG = Comparison(_WHOLE_BATCHES)
JPEG_EVAL = Comparison(_WHOLE_BATCHES, task={"work": EVAL}, most_turns=1)
PNG32 = Comparison(_WHOLE_BATCHES, dataset="cifar10", num_for_a_photo=PNGS_FOR_A_PHOTO, task=_SMALL)

IMPORTS = Table(
    "imports",
    "the time of an import alone",
    "In a fresh process that has imported nothing else, in the same run.",
    "module",
    [Column("import_s", "import, s", "{:.2f}")],
)
BEYOND = Table(
    "beyond",
    "what this package adds to the import",
    f"From the start of the process to the first batch beyond an import of {_IMPORTED}; and of every worker up to "
    f"{EIGHT}, memory beyond the {_BATCHES_OF_A_WORKER} batches that it holds.",
    "competitor",
    [
        Column("start_s", "first batch beyond the import, s", "{:.2f}", has_spread=False),
        Column("worker_mb", "a further worker, MB", has_spread=False),
    ],
)


def measure_memory(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `memory`."""
    run.show_progress(f"importing {_IMPORTED}")
    took_s = [subprocess_call.call(import_s, _IMPORTED) for _ in range(run.settings.num_repeats)]
    imports = IMPORTS.fill({_IMPORTED: {"import_s": took_s}})
    table = compare(STARTING, run)
    yield table
    yield imports
    yield beyond(table, imports, run.settings.num_workers, run.settings.batch_size)


def beyond(table: Table, imports: Table, num_workers: int, batch_size: int) -> Table:
    """Returns the table of differences between figures of the suite `memory`; None where a figure is missing."""
    start, imported = table.spread(OURS, START.key), imports.spread(_IMPORTED, "import_s")
    few, eight = table.spread(OURS, "memory_mb"), table.spread(OURS_8, "memory_mb")
    held_mb = _BATCHES_OF_A_WORKER * batch_size * math.prod(IMAGE_SHAPE) / 1e6
    worker_mb = None
    if few is not None and eight is not None and num_workers < EIGHT:
        worker_mb = (eight.median - few.median) / (EIGHT - num_workers) - held_mb
    start_s = None if start is None or imported is None else start.median - imported.median
    return BEYOND.fill({OURS: {"start_s": [start_s], "worker_mb": [worker_mb]}}, {OURS: "tfds_torch"})


def import_s(module: str) -> float:
    """Imports a module that this process has not imported, and returns how long that took, seconds."""
    start = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - start


INDEX, EXAMPLES, UNVERIFIED, BLOCKS = "index", "examples", "index_unverified", "index_blocks"
_READ = {
    INDEX: ("index", {"mode": "index"}),
    UNVERIFIED: ("index, not verified", {"mode": "index", "verify_checksums": False}),
    BLOCKS: (
        "index, blocks",
        {"mode": "index", "block_records": _BLOCK_RECORDS, "shuffle_buffer": 8 * _BLOCK_RECORDS},
    ),
    EXAMPLES: ("examples", {"mode": "examples"}),
}
_LEVELS = {
    "parser_level": "`ParserTfds.batches` in one process.",
    "decoded": "`ImageDataset` behind a DataLoader with {num_workers} workers; only the size of each image travels on.",
    "as_arrays": "`ImageDataset` behind a DataLoader with {num_workers} workers, batches of pixels.",
    "load_single": "`ImageDataset` behind a DataLoader with {num_workers} workers, the suite `sample`'s transform.",
}


def _modes(
    name: str, title: str, level: str, modes: tuple[str, ...], *, is_png: bool = False, is_cold: bool = False
) -> Comparison:
    ratio = Column("by_examples", "x examples, turn by turn", "{:.2f}", ratio=Ratio(SPEED.key, by=EXAMPLES))
    note = f"{{num_examples:,}} examples an epoch, files in the page cache; {_LEVELS[level]}"
    if is_cold:
        note = (
            f"Before every epoch the files are dropped from the page cache. Blocks: {_BLOCK_RECORDS} records, shuffled "
            f"within windows of {8 * _BLOCK_RECORDS}."
        )
    columns = (SPEED, ratio, CPU, FIRST_BATCH, *((DISK,) if is_cold else ()))
    shape = {} if level == "load_single" else {"image_shape": None}
    peers = [
        Peer(mode, _READ[mode][0], f"{_PEERS}.ours:{level}", changes={"read": _READ[mode][1], **shape})
        for mode in modes
    ]
    return Comparison(
        Table(name, title, note, "read mode", columns),
        peers,
        dataset="cifar10" if is_png else "photos",
        num_for_a_photo=PNGS_FOR_A_PHOTO if is_png else 0.5,
        task={} if is_png else _HALF,
        turns_for_a_repeat=2 if is_png else 1,
        is_cold=is_cold,
        most_turns=3 if is_cold else None,
    )


WARM_MODES = (
    _modes("photos_parser", "photographs, one process", "parser_level", (INDEX, UNVERIFIED, EXAMPLES)),
    _modes("photos_decoded", "photographs behind workers, decoded", "decoded", (INDEX, EXAMPLES)),
    _modes("photos_transformed", "photographs behind workers, transformed", "load_single", (INDEX, EXAMPLES)),
    _modes("png_parser", "32x32 PNG, one process", "parser_level", (INDEX, UNVERIFIED, EXAMPLES), is_png=True),
    _modes("png_arrays", "32x32 PNG behind workers", "as_arrays", (INDEX, EXAMPLES), is_png=True),
)
COLD_MODES = _modes(
    "photos_cold", "photographs from the disk, one process", "parser_level", (INDEX, BLOCKS, EXAMPLES), is_cold=True
)


def measure_index(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `index`."""
    yield measure_building(run)
    yield measure_order(run)
    yield measure_locality(run)
    for comparison in (*WARM_MODES, *((COLD_MODES,) if can_drop() else ())):
        yield compare(comparison, run)


FRESH, AFTER = "fresh", "after_reading"


def _notebook(mode: str) -> Comparison:
    table = Table(
        mode,
        f"the second loader of a process, read mode {mode}",
        "Whole batches of photographs, with the work of the suite `jpeg`. Both processes take turns, epoch by epoch; a "
        "warm-up epoch is not counted, except for its first batch, which contains the start of the workers.",
        "process",
        [
            SPEED,
            Column("by_fresh", "x a fresh process, turn by turn", "{:.2f}", ratio=Ratio(SPEED.key, by=FRESH)),
            VERY_FIRST_BATCH,
        ],
    )
    peers = (
        Peer(FRESH, "fresh", f"{_PEERS}.ours:load"),
        Peer(AFTER, "after an epoch without workers", f"{_PEERS}.ours:load_after_reading"),
    )
    return Comparison(table, peers, task={"read": {"mode": mode}})


NOTEBOOK = (_notebook(INDEX), _notebook(EXAMPLES))


def measure_notebook(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `notebook`: there is at least one worker."""
    settings = replace(run.settings, num_workers=max(1, run.settings.num_workers))
    for comparison in NOTEBOOK:
        yield compare(comparison, replace(run, settings=settings))


SCALE = Table(
    "batches_of_{batch_size}",
    "batches of {batch_size}",
    "Examples per second of whole epochs; ratios are those of epochs of one turn.",
    "workers",
    [
        SPEED,
        Column("by_no_workers", "x without workers", "{:.2f}", ratio=Ratio(SPEED.key, by="0")),
        CPU,
        FIRST_BATCH,
        TAIL,
    ],
)


def measure_scale(run: Run) -> Iterator[Table]:
    """Yields a table for every batch size: from no workers to one for every core."""
    counts = list(worker_counts(num_cores()))
    peers = [
        Peer(
            str(count),
            f"{count} worker{'s' * (count != 1)}",
            f"{_PEERS}.ours:load",
            changes={"num_workers": count},
        )
        for count in counts
    ]
    most = run.settings.num_photos // 2 // counts[-1]
    for batch_size in sorted({min(size, most) for size in _BATCH_SIZES}):
        name, title = (text.format(batch_size=batch_size) for text in (SCALE.name, SCALE.title))
        table = replace(SCALE, name=name, title=title)
        task = {**_HALF, "batch_size": batch_size}
        yield compare(Comparison(table, peers, num_for_a_photo=0.5, task=task, most_turns=1), run)


def worker_counts(cores: int) -> Iterator[int]:
    """Yields 0, the powers of two below the number of cores, and that number."""
    yield 0
    power = 1
    while power < cores:
        yield power
        power *= 2
    yield cores
