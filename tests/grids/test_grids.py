"""DESIGN's guarantees on grids of real ranks and workers; promises.py is what each grid must show."""

from itertools import groupby, product

import pytest

from grids import promises
from grids.campaign import (
    BY_INDEX,
    BY_NUMBER,
    DATA,
    LARGE,
    STREAMS,
    TASKS,
    VARIATIONS,
    all_cells,
    quick_cells,
    slow_cells,
    tasks_of,
)
from grids.cell import (
    COUNTED,
    EVALUATION,
    FORK,
    FORKSERVER,
    NO_WORKERS,
    SPAWN,
    TRAIN_EXAMPLES,
    TRAIN_FILES,
    TRAIN_INDEX,
    Cell,
    RankLedger,
    Split,
)
from grids.counts import GridCounts, run_cells
from grids.fleet import Fleet
from grids.rank import read_cell
from grids.splits import NUM_FILES, Truth

IN_EVERY_RUN = ("uneven shards",)
"""Splits whose many grids are read in every run; the others have some there, and many in the campaign."""
QUICK = {data: list(cells) for data, cells in groupby(sorted(quick_cells(), key=str), key=lambda cell: cell.data)}


@pytest.mark.parametrize("data", DATA)
def test_every_promise_holds_on_some_grids(
    data: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth], counts: GridCounts
) -> None:
    broken = run_cells(fleet, QUICK[data], splits, truths, counts)
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.timeout(900)  # A watchdog ends ranks that hang; this is for slow machines.
@pytest.mark.parametrize(
    "data", [pytest.param(data, marks=() if data in IN_EVERY_RUN else pytest.mark.campaign) for data in DATA]
)
def test_every_promise_holds_on_many_grids(
    data: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth], counts: GridCounts
) -> None:
    broken = run_cells(fleet, slow_cells(data), splits, truths, counts)
    assert not broken, "\n".join(broken)


def test_the_splits_are_what_their_names_say(truths: dict[str, Truth], splits: dict[str, Split]) -> None:
    assert truths.keys() == splits.keys() == set(DATA)
    for data, num_files in NUM_FILES.items():
        assert num_files in (0, len(truths[data].file_lengths)), data
    assert len(truths["uneven shards"]) == 211  # Divisible by nothing.
    assert len(truths["fewer examples than pipelines"]) == 3
    assert len(set(truths["uneven shards"].file_lengths)) == 7
    for data, truth in truths.items():
        assert len(set(truth.ids)) == len(truth.ids), data
        assert len(set(truth.contents)) == len(truth.ids) or data == "mixture of windows", data
        assert len(truth) == len(truth.ids) or data in BY_NUMBER, data
    assert len(truths["own dataset"]) == 83
    assert len(truths["subset"]) == 169
    assert (len(truths["windows"]), len(truths["mixture of windows"])) == (41, 42)
    assert len(truths["mixture of windows"].ids) == 52
    for data in ("own dataset, balanced subset", "balanced subset"):
        sizes = sorted(map(len, truths[data].choice.classes))
        assert len(sizes) > 1, data
        assert sizes[0] < sizes[-1], data


def test_the_grids_are_all_there() -> None:
    every = [cell for data in DATA for cell in slow_cells(data)]
    assert len(set(every)) == len(every)
    for data in DATA:
        methods = (FORK, NO_WORKERS)
        forked = {(c.num_replicas, c.num_workers, c.task) for c in every if c.data == data and c.method in methods}
        grids = set(product((1, 2, 3, 4), (0, 1, 2, 3)))
        wanted = {(*grid, task) for grid in grids for task in tasks_of(data, grid)}
        assert forked <= wanted
        if data not in VARIATIONS:
            assert {(r, w) for r, w, _ in forked} == grids
            for tasks in (BY_INDEX, STREAMS):
                assert {(r, w) for r, w, task in forked if task in tasks} >= {(r, w) for r, w in grids if r * w < LARGE}
        for cells in (list(all_cells(data)), [cell for cell in all_cells(data) if cell.method == FORKSERVER]):
            assert {(c.num_replicas, c.num_workers, c.task) for c in cells if c.num_workers} == {
                (r, w, task) for r, w, task in wanted if w
            }
    small = {(c.num_replicas, c.num_workers, c.task) for c in every if c.num_pipelines < LARGE}
    assert small >= set(product((1, 2, 3, 4), (0, 1), TASKS))
    assert small >= {(r, w, task) for r, w, task in product((1, 2, 3, 4), (1, 2, 3), BY_INDEX) if r * w < LARGE}
    large = [cell for cell in every if cell.num_pipelines >= LARGE and cell.method == FORK]
    wanted_large = set(product(((4, 3), (3, 3), (4, 2)), (TRAIN_INDEX, TRAIN_EXAMPLES, EVALUATION)))
    assert {((c.num_replicas, c.num_workers), c.task) for c in large} >= wanted_large
    for cells in (every, list(quick_cells())):
        assert {cell.data for cell in cells} == set(DATA)
        assert {cell.num_replicas for cell in cells} == {1, 2, 3, 4}
        assert {cell.num_workers for cell in cells} == {0, 1, 2, 3}
        assert {cell.task for cell in cells} == set(TASKS)
        assert {(cell.method, cell.persistent) for cell in cells} >= {(FORK, True), (FORK, False)}
        assert {cell.group_first for cell in cells} == {True, False}
    assert {cell.persistent for cell in every if cell.method == FORKSERVER} == {True, False}
    assert sum(cell.method == SPAWN for data in DATA if data not in VARIATIONS for cell in slow_cells(data)) == 4
    spawned = [cell for data in DATA for cell in all_cells(data) if cell.method == SPAWN]
    assert {cell.data for cell in spawned} == set(DATA)
    assert {(cell.num_replicas, cell.num_workers) for cell in spawned} >= set(product((1, 4), (1, 3)))
    assert {cell.persistent for cell in spawned} == {True, False}


@pytest.mark.parametrize(
    ("task", "num_workers", "method"),
    [
        (TRAIN_EXAMPLES, 2, FORK),
        (TRAIN_FILES, 0, NO_WORKERS),
        pytest.param(TRAIN_FILES, 2, FORK, marks=pytest.mark.slow),
        pytest.param(TRAIN_EXAMPLES, 0, NO_WORKERS, marks=pytest.mark.slow),
    ],
)
def test_shards_move_between_ranks_and_workers_from_epoch_to_epoch(
    task: str, num_workers: int, method: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth]
) -> None:
    data = "more shards than pipelines"
    cell = Cell(data, 2, num_workers, task, method, num_workers > 0, epochs=(COUNTED,) * 6)
    ranks: list[RankLedger] = fleet.call(read_cell, cell, splits[data], num_replicas=2, reads=num_workers == 0)
    assert promises.judge(cell, truths[data], True, ranks).broken == []
    epochs = [promises.shares(cell, [rank.epochs[at] for rank in ranks]) for at in range(len(cell.epochs))]
    readers: dict[str, set[tuple[int, int]]] = {}
    for place in cell.pipelines:
        seen = [frozenset(row.id.rpartition("__")[0] for row in epoch[place]) for epoch in epochs]
        assert len(set(seen)) == len(seen), f"{place} saw the same shards in two epochs"
        for shard in frozenset().union(*seen):
            readers.setdefault(shard, set()).add(place)
    assert len(readers) == NUM_FILES[data]
    assert min(map(len, readers.values())) > 1, f"shards that stay where they are: {readers}"


def test_the_ranks_complained_about_nothing(fleet: Fleet) -> None:
    assert fleet.complaints() == []
