"""Which grids there are: all of them, and the parts that the tests run."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product

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

BALANCED = ("own dataset, balanced subset", "balanced subset", "own dataset, weighted", "mixture of windows")
"""Trained on only."""

IN_STORES = ("objects in a store", "objects in a bucket")
BY_NUMBER = ("own dataset", "subset", "windows", "groups of blocks", *IN_STORES, *BALANCED)
"""Never read as streams."""

VARIATIONS = (
    *("halves", "sub-split", "empty shards in train+test", "shuffling disabled", "image folder"),
    *BY_NUMBER,
)
"""What differs from other splits in what is read, not in how it is dealt.

`make test` reads a cell of each, `make campaign` all.
"""

LARGE = 6
"""Pipelines from which on `make test-slow` reads a grid for one task only, another one for other data."""

# A spawned worker imports torch and tensorflow (five seconds of a core), so each kind of data has one cell, four of
# them in `make test-slow`, and only small grids start their workers anew.
_SPAWNED = (
    (2, 1, False),
    (1, 3, True),
    (4, 1, True),
    (1, 1, False),
    (2, 1, True),
    (2, 2, True),
    (1, 2, False),
    (1, 2, True),
    (4, 3, True),
    (3, 1, True),
    (1, 1, True),
    (2, 2, True),
    (2, 1, False),
    (1, 2, True),
    (2, 2, False),
    (1, 3, True),
    (2, 1, True),
    (1, 2, False),
    (2, 2, True),
    (2, 2, False),
    (1, 2, True),
)
_ON_FORK_SERVER = (
    *((1, 1), (2, 2), (1, 3), (2, 1), (3, 2), (1, 2), (4, 3), (2, 3), (4, 1), (3, 3), (4, 2)),
    *((2, 2), (3, 1), (1, 2), (4, 1), (2, 3), (3, 2), (2, 2), (4, 1), (2, 1), (3, 2)),
)
_QUICK_ALONE = (TRAIN_INDEX, EVALUATION, TRAIN_EXAMPLES, EVALUATION_EXAMPLES)
_QUICK = (
    *((2, 2), (1, 3), (3, 1), (4, 2), (2, 1), (3, 3), (1, 2), (2, 2), (1, 2), (3, 1), (2, 1)),
    *((2, 2), (2, 3), (2, 1), (3, 2), (2, 2), (2, 2), (3, 2), (4, 1), (2, 2), (3, 1)),
)


def make_cell(data: str, grid: tuple[int, int], task: str, method: str, persistent: bool, number: int) -> Cell:
    """Returns a cell; its number decides what else is varied.

    Iterations of training count themselves, some are then set by hand, or are set by hand in another order.
    """
    epochs: tuple[int | None, ...] = (COUNTED, COUNTED)
    is_training = task not in (EVALUATION, EVALUATION_EXAMPLES)
    if is_training and (persistent or method == NO_WORKERS) and number % 4 < 2:
        epochs = (COUNTED, COUNTED, 0)
    elif is_training and number % 3 == 0:
        epochs = (1, 0)
    return Cell(data, *grid, task, method, persistent, group_first=number % 2 == 0, epochs=epochs)


def tasks_of(data: str, grid: tuple[int, int]) -> list[str]:
    """What can be read: mode `files` needs a file for each pipeline."""
    if data in BY_NUMBER:
        return [TRAIN_INDEX] if data in BALANCED else list(BY_INDEX)
    num_replicas, num_workers = grid
    has_files = NUM_FILES[data] >= num_replicas * max(1, num_workers)
    return [task for task in TASKS if has_files or task != TRAIN_FILES]


def every_cell(data: str, method: str, persistent: bool | None) -> list[Cell]:
    """All R x W x tasks; persistent None: every other cell's workers are."""
    grids = product(REPLICAS, (0,) if method == NO_WORKERS else WORKERS)
    pairs = [(grid, task) for grid in grids for task in tasks_of(data, grid)]
    first = DATA.index(data)
    return [
        make_cell(data, grid, task, method, _keeps_workers(method, persistent, first + at), first + at)
        for at, (grid, task) in enumerate(pairs)
    ]


def _keeps_workers(method: str, persistent: bool | None, number: int) -> bool:
    if method == NO_WORKERS:
        return False  # torch refuses it.
    return number % 2 == 1 if persistent is None else persistent


def some_cells(data: str, method: str) -> list[Cell]:
    """Of a costly start method: a cell, on grids and of tasks that differ from data to data."""
    first = DATA.index(data)
    if method == SPAWN:
        num_replicas, num_workers, persistent = _SPAWNED[first]
        tasks = tasks_of(data, (num_replicas, num_workers))
        return [make_cell(data, (num_replicas, num_workers), tasks[first // 2 % len(tasks)], method, persistent, first)]
    if method == FORK_AFTER_TENSORFLOW:
        tasks = [task for task in BY_INDEX if task in tasks_of(data, (2, 1))]
        return [make_cell(data, (2, 1), tasks[first % len(tasks)], method, True, 1)]
    grid = _ON_FORK_SERVER[first]
    tasks = tasks_of(data, grid)
    return [make_cell(data, grid, tasks[first % len(tasks)], method, first % 2 == 0, first)]


def slow_cells(data: str) -> list[Cell]:
    """What `make test-slow` runs."""
    spawned = some_cells(data, SPAWN) if data in (*DATA[:4], *VARIATIONS) else []
    after_tensorflow = some_cells(data, FORK_AFTER_TENSORFLOW) if data in DATA[:2] else []
    return [
        *spawned,
        *after_tensorflow,
        *_most_cells(data, NO_WORKERS),
        *_most_cells(data, FORK),
        *_some_without_torch(data),
        *some_cells(data, FORKSERVER),
    ]


def _most_cells(data: str, method: str) -> Iterator[Cell]:
    """Of small grids a task by index, another one for other data, and a stream; of large grids one task."""
    for at, cell in enumerate(every_cell(data, method, None)):
        grid = cell.num_replicas, cell.num_workers
        turn = DATA.index(data) + sum(grid)
        tasks, stream = tasks_of(data, grid), _stream_of_turn(data, grid, turn)
        if cell.num_pipelines >= LARGE:
            chosen: tuple[str, ...] = (tasks[turn % len(tasks)],)
        else:
            chosen = (BY_INDEX[turn % 2], stream)
        is_left_out = data in VARIATIONS and method != NO_WORKERS and at % 4 > 0
        if not is_left_out and cell.task in chosen:
            yield cell


def _some_without_torch(data: str) -> Iterator[Cell]:
    """With a MultiLoader every thirteenth cell, others for every kind of data."""
    yield from map(_without_torch, every_cell(data, FORK, None)[DATA.index(data) :: 13])


def _stream_of_turn(data: str, grid: tuple[int, int], turn: int) -> str:
    """Mode `files`, where it can deal, every other time."""
    if TRAIN_FILES in tasks_of(data, grid) and turn // 2 % 2 == 0:
        return TRAIN_FILES
    return (TRAIN_EXAMPLES, EVALUATION_EXAMPLES)[turn % 2]


def quick_cells() -> Iterator[Cell]:
    """What `make test` runs: every kind of data, number of ranks and of (forked) workers."""
    replicas = cycle(REPLICAS)
    for number, (data, grid) in enumerate(zip(DATA, _QUICK, strict=True)):
        tasks, alone = tasks_of(data, grid), (next(replicas), 0)
        reads_both = data not in VARIATIONS or data in BY_NUMBER
        if reads_both or number % 2 == 0:
            yield make_cell(data, grid, tasks[number % len(tasks)], FORK, number % 2 == 0, number)
        if reads_both or number % 2 == 1:
            task = tasks[(number + 1) % len(tasks)] if data in BY_NUMBER else _QUICK_ALONE[number % len(_QUICK_ALONE)]
            yield make_cell(data, alone, task, NO_WORKERS, False, number)
    # Of the same epochs as a DataLoader's: counts.py compares what came.
    for number, (data, grid) in enumerate(zip(DATA, _QUICK, strict=True)):
        if number % 3 == 1:
            tasks = tasks_of(data, grid)
            task = tasks[number % 5 % 3 % len(tasks)]
            yield _without_torch(make_cell(data, grid, task, FORK, number % 2 == 1, number))


def _without_torch(cell: Cell) -> Cell:
    return replace(cell, without_torch=True)


def all_cells(data: str) -> Iterator[Cell]:
    """What `python -m grids` runs: fork with either persistence, forkserver with one on every grid, spawn on some."""
    yield from some_cells(data, SPAWN)
    yield from some_cells(data, FORK_AFTER_TENSORFLOW)
    yield from every_cell(data, NO_WORKERS, None)
    for method, persistent in ((FORK, True), (FORK, False), (FORKSERVER, None)):
        yield from every_cell(data, method, persistent)
    yield from map(_without_torch, every_cell(data, FORK, None))
