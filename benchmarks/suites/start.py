"""The suites `start` and `memory`: how training begins, in fresh processes, and in how much memory it goes on."""

import importlib
import math
import time
from collections.abc import Iterator

from benchmarks.suites.epochs import BASELINE, FFCV, OURS_0, OURS_PEER, SINGLE, SINGLES, TIMM_PEER, competitors, names
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import (
    FIRST_BATCH,
    MEMORY,
    MEMORY_PARTS,
    OURS,
    START,
    TAIL,
    TIMM,
    TRAINING_MEMORY,
    VERY_FIRST_BATCH,
    Peer,
    Run,
    Suite,
    compare,
)
from tfds_torch.runtime import subprocess_call

EIGHT = 8
"""Workers of a further row."""

_FRESH = """In turns, peers are started afresh and alone, for a first and a later epoch, as often as a measurement is
repeated. The first column counts from the start of the process, imports included, the second one from asking for the
first epoch's iterator. Memory is the proportional set size (PSS), summed over all processes and sampled throughout one
more epoch, at its greatest."""
_BATCHES_OF_A_WORKER = 2  # `create_loader` has it read two batches ahead.
_IMPORTED = "torch"
_OURS_8 = Peer("ours_8", "tfds_torch, 8 workers", "ours", {"num_workers": EIGHT})
_PEERS = (OURS_PEER, BASELINE, OURS_0, _OURS_8, TIMM_PEER, FFCV)

STARTING = competitors(
    START,
    VERY_FIRST_BATCH,
    FIRST_BATCH,
    TAIL,
    MEMORY,
    Column("memory_by_timm", "x timm's", "{:.2f}", has_spread=False, ratio=Ratio(MEMORY.key, by=TIMM)),
    TRAINING_MEMORY,
    MEMORY_PARTS,
)
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


def _measure_start(run: Run) -> Iterator[Table]:
    task = run.task(run.data_dir(), run.settings.num_photos)
    yield compare(run, STARTING, SINGLES, task, is_fresh=True)


def _measure_memory(run: Run) -> Iterator[Table]:
    run.show_progress(f"importing {_IMPORTED}")
    took_s = [subprocess_call.call(import_s, _IMPORTED) for _ in range(run.settings.num_repeats)]
    imports = IMPORTS.fill({_IMPORTED: {"import_s": took_s}})
    task = run.task(run.data_dir(), run.settings.num_photos)
    table = compare(run, STARTING, _PEERS, task, is_fresh=True)
    yield table
    yield imports
    yield beyond(table, imports, task.num_workers, task.batch_size)


def beyond(table: Table, imports: Table, num_workers: int, batch_size: int) -> Table:
    """Returns the table of differences between figures of the suite `memory`; None where a figure is missing."""
    start, imported = table.spread(OURS, START.key), imports.spread(_IMPORTED, "import_s")
    few, eight = table.spread(OURS, MEMORY.key), table.spread(_OURS_8.name, MEMORY.key)
    held_mb = _BATCHES_OF_A_WORKER * batch_size * math.prod((3, 224, 224)) / 1e6
    worker_mb = None
    if few is not None and eight is not None and num_workers < EIGHT:
        worker_mb = (eight.median - few.median) / (EIGHT - num_workers) - held_mb
    start_s = None if start is None or imported is None else start.median - imported.median
    return BEYOND.fill({OURS: {"start_s": [start_s], "worker_mb": [worker_mb]}}, {OURS: "tfds_torch"})


def import_s(module: str) -> float:
    """Imports a module that this process has not imported, and returns how long that took, seconds."""
    began_s = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - began_s


SUITES = (
    Suite(
        "start",
        "how training and its epochs begin and end, and in how much memory",
        f"{SINGLE} {_FRESH}",
        _measure_start,
        names(SINGLES),
    ),
    Suite(
        "memory",
        "how training in whole batches begins, and in how much memory",
        f"The work of the suite `jpeg`; WebDataset and Grain do the same in the suite `start`. {_FRESH}",
        _measure_memory,
        names(_PEERS),
    ),
)
