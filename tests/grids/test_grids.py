"""DESIGN's guarantees on grids of real ranks and workers; promises.py is what each grid must show."""

from collections.abc import Sequence

import pytest
from covering import tuples_of

from grids import promises
from grids.campaign import (
    BY_NUMBER,
    DATA,
    METHODS,
    all_cells,
    every_cell,
    factors,
    quick_cells,
    slow_cells,
)
from grids.cell import (
    COUNTED,
    FORK,
    NO_WORKERS,
    SPAWN,
    TRAIN_EXAMPLES,
    TRAIN_FILES,
    Cell,
    RankLedger,
    Split,
)
from grids.counts import GridCounts, run_cells
from grids.fleet import Fleet
from grids.rank import read_cell
from grids.splits import NUM_FILES, Truth


def of(data: str, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.data == data]


@pytest.mark.parametrize("data", DATA)
def test_every_promise_holds_on_some_grids(
    data: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth], counts: GridCounts
) -> None:
    broken = run_cells(fleet, of(data, quick_cells()), splits, truths, counts)
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.timeout(900)  # A watchdog ends ranks that hang; this is for slow machines.
@pytest.mark.parametrize("data", DATA)
def test_every_promise_holds_on_many_grids(
    data: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth], counts: GridCounts
) -> None:
    broken = run_cells(fleet, of(data, slow_cells()), splits, truths, counts)
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
    chosen = quick_cells(), slow_cells(), all_cells()
    every = [cell for method in (NO_WORKERS, *METHODS) for cell in every_cell(method)]
    assert all(set(cells) <= set(every) for cells in chosen)
    values = [{(at, value) for cell in cells for at, value in enumerate(factors(cell))} for cells in (*chosen, every)]
    assert values[1] == values[2] == values[3]
    assert [value for _, value in values[3] - values[0] if value not in METHODS] == []
    without_spawn = [cell for cell in every if cell.method != SPAWN]
    assert pairs_in(chosen[1]) >= pairs_in(without_spawn)
    assert pairs_in(chosen[2]) >= pairs_in(chosen[1])


def pairs_in(cells: Sequence[Cell]) -> set[object]:
    return {pair for cell in cells for pair in tuples_of(factors(cell))}


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
