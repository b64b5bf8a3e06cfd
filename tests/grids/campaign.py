"""Which grids there are, and the few in which all that can go wrong together comes together.

A quick run reads each kind of data once; `make test-slow` every pair of (data, ranks, workers, task, start method, kept
workers, kind of loader, order of set-up, how epochs are set); `make campaign` every triple of them. That global batches
are the same in every world is arithmetic, and proven in tests/plan.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from covering import covering

from grids.cell import (
    COUNTED,
    EVALUATION,
    EVALUATION_EXAMPLES,
    FORK,
    FORK_AFTER_TENSORFLOW,
    FORKSERVER,
    NO_WORKERS,
    SPAWN,
    TRAIN_EXAMPLES,
    TRAIN_FILES,
    TRAIN_INDEX,
    Cell,
)
from grids.splits import NUM_FILES

DATA = tuple(NUM_FILES)
BY_INDEX, STREAMS = (TRAIN_INDEX, EVALUATION), (TRAIN_EXAMPLES, TRAIN_FILES, EVALUATION_EXAMPLES)
TASKS = (*BY_INDEX, *STREAMS)
REPLICAS, WORKERS = (1, 2, 3, 4), (1, 2, 3)
METHODS = (FORK, FORKSERVER, SPAWN, FORK_AFTER_TENSORFLOW)

BALANCED = ("own dataset, balanced subset", "balanced subset", "own dataset, weighted", "mixture of windows")
"""Trained on only."""

IN_STORES = ("objects in a store", "objects in a bucket")
BY_NUMBER = ("image folder", "own dataset", "subset", "windows", "groups of blocks", *IN_STORES, *BALANCED)
"""Never read as streams."""

_SECONDS = {FORK: 0.2, FORKSERVER: 0.4, SPAWN: 5.0, FORK_AFTER_TENSORFLOW: 0.2, NO_WORKERS: 0.2}
"""What a pipeline costs: a spawned worker imports torch and tensorflow."""


def tasks_of(data: str, grid: tuple[int, int]) -> list[str]:
    """What can be read: mode `files` needs a file for each pipeline."""
    if data in BY_NUMBER:
        return [TRAIN_INDEX] if data in BALANCED else list(BY_INDEX)
    num_replicas, num_workers = grid
    has_files = NUM_FILES[data] >= num_replicas * max(1, num_workers)
    return [task for task in TASKS if has_files or task != TRAIN_FILES]


def epochs_of(task: str, method: str, persistent: bool) -> list[tuple[int | None, ...]]:
    """How iterations of training are numbered: they count themselves, the last is set by hand, or all are."""
    if task in (EVALUATION, EVALUATION_EXAMPLES):
        return [(COUNTED, COUNTED)]
    keeps_count = persistent or method == NO_WORKERS
    return [(COUNTED, COUNTED), (1, 0), *([(COUNTED, COUNTED, 0)] if keeps_count else [])]


@cache
def every_cell(method: str) -> Sequence[Cell]:
    """Returns every grid whose workers start in one way."""
    return list(_make_cells(method))


def _make_cells(method: str) -> Iterator[Cell]:
    grids = product(REPLICAS, (0,) if method == NO_WORKERS else WORKERS)
    for data, grid, group_first in product(DATA, grids, (True, False)):
        for task in tasks_of(data, grid):
            # Such ranks are parents that have run tensorflow; they may fork only what reads by index.
            if method == FORK_AFTER_TENSORFLOW and (grid != (2, 1) or task not in BY_INDEX):
                continue
            for persistent in (False,) if method == NO_WORKERS else (False, True):
                for epochs in epochs_of(task, method, persistent):
                    for without_torch in (False, True) if method == FORK else (False,):
                        yield Cell(
                            *(data, *grid, task, method, persistent, group_first),
                            epochs=epochs,
                            without_torch=without_torch,
                        )


def factors(cell: Cell) -> tuple[object, ...]:
    """Returns what a cell puts together."""
    how = (cell.method, cell.persistent, cell.without_torch, cell.group_first, cell.epochs)
    return (cell.data, cell.num_replicas, cell.num_workers, cell.task, *how)


def seconds(cell: Cell) -> float:
    """Returns about what a cell costs."""
    return 0.3 + cell.num_pipelines * _SECONDS[cell.method]


@cache
def quick_cells() -> Sequence[Cell]:
    """What `make test` runs: each kind of data, each grid, each task, each way of (forked) workers, at least once."""
    cells = [*every_cell(NO_WORKERS), *every_cell(FORK)]
    return covering(cells, lambda cell: ((cell.num_replicas, cell.num_workers), *factors(cell)), strength=1)


@cache
def slow_cells() -> Sequence[Cell]:
    """What `make test-slow` runs: every pair; of spawned workers, which take long to start, each value once."""
    spawned = covering(
        [cell for cell in every_cell(SPAWN) if cell.num_pipelines < 4], lambda cell: factors(cell)[1:], 1
    )
    return [*covering(_without_spawn(), factors, cost=seconds), *spawned]


@cache
def all_cells() -> Sequence[Cell]:
    """What `python -m grids` runs: every triple; of spawned workers each kind of data, and every pair of the rest."""
    of_data = covering(every_cell(SPAWN), lambda cell: (cell.data,), strength=1, cost=seconds)
    spawned = covering(every_cell(SPAWN), lambda cell: factors(cell)[1:], cost=seconds)
    return [*covering(_without_spawn(), factors, strength=3, cost=seconds), *dict.fromkeys([*of_data, *spawned])]


def _without_spawn() -> Sequence[Cell]:
    return [cell for method in (NO_WORKERS, FORK, FORKSERVER, FORK_AFTER_TENSORFLOW) for cell in every_cell(method)]
