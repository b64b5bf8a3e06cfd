"""The judge can fail: every way of being wrong that is planted here is found, and named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from numbered_episodes import member_ranges

from grids import promises
from grids.cell import (
    COUNTED,
    EVALUATION,
    FORK,
    TRAIN_EXAMPLES,
    TRAIN_FILES,
    TRAIN_INDEX,
    Cell,
    RankLedger,
    Row,
    Split,
)
from grids.counts import GridCounts, run_cells
from grids.fleet import Failure, Fleet, Task
from grids.rank import read_cell
from grids.splits import Truth

pytestmark = pytest.mark.slow

DATA = "uneven shards"
CELLS = {
    task: Cell(DATA, 2, 2, task, FORK, persistent=True, epochs=(COUNTED, COUNTED, 0))
    for task in (EVALUATION, TRAIN_INDEX, TRAIN_EXAMPLES, TRAIN_FILES)
}
CELLS["pictures"] = replace(CELLS[EVALUATION], num_workers=1)
CELLS["in order"] = replace(CELLS[TRAIN_EXAMPLES], data="shuffling disabled")
CELLS["by index in order"] = replace(CELLS[TRAIN_INDEX], data="shuffling disabled")
CELLS["subset"] = replace(CELLS[TRAIN_INDEX], data="subset")
CELLS["subset in order"] = replace(CELLS[EVALUATION], data="subset", num_workers=1)
CELLS["classes"] = replace(CELLS[TRAIN_INDEX], data="own dataset, balanced subset")
CELLS["weighted"] = replace(CELLS[TRAIN_INDEX], data="own dataset, weighted")
CELLS["windows"] = replace(CELLS[EVALUATION], data="windows")
CELLS["mixture of windows"] = replace(CELLS[TRAIN_INDEX], data="mixture of windows")
IN_ORDER = ("in order", "by index in order")

Ranks = list[RankLedger]
Change = Callable[[Ranks], object]


@pytest.fixture(scope="module")
def ledgers(fleet: Fleet, splits: dict[str, Split]) -> dict[str, Ranks]:
    """Cells that keep every promise."""
    ledgers = {}
    tasks = [Task(read_cell, (cell, splits[cell.data]), cell.num_replicas) for cell in CELLS.values()]
    for number, result in fleet.run(tasks):
        assert not isinstance(result, Failure), result.text
        ledgers[list(CELLS)[number]] = result
    return ledgers


def swap(rows: list[Row], one: int, other: int) -> None:
    rows[one], rows[other] = rows[other], rows[one]


def put(rows: list[Row], at: int, **changes: Any) -> None:
    rows[at] = replace(rows[at], **changes)


def announce(ranks: Ranks, **changes: Any) -> None:
    ranks[1] = replace(ranks[1], **changes)


def epoch(ranks: Ranks, at: int = 1, rank: int = 1) -> list[list[Row]]:
    return ranks[rank].epochs[at]


FAULTS: dict[str, tuple[str, Change, str]] = {
    "an example is lost": (EVALUATION, lambda ranks: epoch(ranks)[3].pop(), "rank 1, batch 3 has 3 examples, not 4"),
    "an example comes twice": (
        EVALUATION,
        lambda ranks: epoch(ranks)[3].__setitem__(0, epoch(ranks, rank=0)[5][2]),
        "1 missing: shapes-train",
    ),
    "an example comes twice in training": (
        TRAIN_EXAMPLES,
        lambda ranks: epoch(ranks)[3].__setitem__(0, epoch(ranks, rank=0)[5][2]),
        "1 missing: shapes-train",
    ),
    "an example comes twice in training by index": (
        TRAIN_INDEX,
        lambda ranks: epoch(ranks)[3].__setitem__(0, epoch(ranks, rank=0)[5][2]),
        "1 missing: shapes-train",
    ),
    "a batch less on a rank": (TRAIN_EXAMPLES, lambda ranks: epoch(ranks).pop(), "rank 1: (26, 104) batches and"),
    "a batch more on a rank": (TRAIN_FILES, lambda ranks: epoch(ranks).append([]), "rank 1: (28, 108) batches and"),
    "a wrong len(loader)": (EVALUATION, lambda ranks: announce(ranks, len_loader=26), "are (26, 108), not (27, 108)"),
    "a wrong len(dataset)": (EVALUATION, lambda ranks: announce(ranks, len_dataset=9), "are (27, 9), not (27, 108)"),
    "padding too early": (
        EVALUATION,
        lambda ranks: put(epoch(ranks)[3], 0, valid=False, label=-100),
        "valid is [False",
    ),
    "padding that counts": (EVALUATION, lambda ranks: put(epoch(ranks)[-1], 3, valid=True), "planned [False"),
    "padding with a label": (EVALUATION, lambda ranks: put(epoch(ranks)[-1], 3, label=0), "has a wrong label"),
    "padding in training": (TRAIN_EXAMPLES, lambda ranks: put(epoch(ranks)[3], 0, valid=False), "planned [True"),
    "a wrong label": (TRAIN_FILES, lambda ranks: put(epoch(ranks)[3], 0, label=-7), "has a wrong label"),
    "another example's id": (EVALUATION, lambda ranks: put(epoch(ranks)[3], 0, id="x__0"), "the id of another example"),
    "another record": (
        EVALUATION,
        lambda ranks: put(epoch(ranks)[3], 0, content="x"),
        "holds another record's content",
    ),
    "another picture": ("pictures", lambda ranks: put(epoch(ranks)[3], 0, image_size=(1, 1)), "has another picture"),
    "an unknown index": (EVALUATION, lambda ranks: put(epoch(ranks)[3], 0, index=211), "is no example of the split"),
    "the same order in every epoch": (
        TRAIN_EXAMPLES,
        lambda ranks: [rank.epochs.__setitem__(1, rank.epochs[0]) for rank in ranks],
        "iterations 0 (epoch 0) and 1 (epoch 1) are the same sequence",
    ),
    "the same shares in every epoch": (
        TRAIN_FILES,
        lambda ranks: [
            rank.epochs.__setitem__(1, [rank.epochs[0][at ^ 2 if at < 24 else at] for at in range(27)])
            for rank in ranks
        ],
        "iterations 0 (epoch 0) and 1 (epoch 1) give every pipeline the same examples",
    ),
    "the same epoch is another one": (
        TRAIN_EXAMPLES,
        lambda ranks: swap(epoch(ranks, at=2)[3], 0, 1),
        "iterations 0 (epoch 0) and 2 (epoch 0) differ",
    ),
    "a file of another pipeline": (
        TRAIN_FILES,
        lambda ranks: [swap_rows(ranks, batch) for batch in (2, 4, 6)],
        "no consecutive part of file",
    ),
    "not in the order of the files": (
        "in order",
        lambda ranks: [swap(epoch(ranks, at=at)[3], 0, 1) for at in range(3)],
        "not in the order of the files",
    ),
    "by index not in the order of the files": (
        "by index in order",
        lambda ranks: [swap_rows(ranks, 3, at) for at in range(3)],
        "not in the order of the files",
    ),
    "an evaluation out of order": (
        EVALUATION,
        lambda ranks: [swap(epoch(ranks, at=at)[3], 0, 1) for at in range(3)],
        "not in the order of the files",
    ),
    "files in evaluation": (
        EVALUATION,
        lambda ranks: ranks.__setitem__(0, replace(ranks[0], refusal=None)),
        "'files' in",
    ),
    "an example outside of the subset": (
        "subset",
        lambda ranks: put(epoch(ranks)[3], 0, index=2),
        "was not chosen",
    ),
    "an example of the subset comes twice": (
        "subset",
        lambda ranks: epoch(ranks)[3].__setitem__(0, epoch(ranks, rank=0)[5][2]),
        "1 missing: shapes-train",
    ),
    "a subset in the order of the split": (
        "subset in order",
        lambda ranks: [sort(ranks, at, "index") for at in range(3)],
        "not in the order of the files",
    ),
    "an example comes twice in a pass of its class": (
        "classes",
        lambda ranks: [repeat_in_class(ranks, at) for at in (0, 2)],
        "missing in a pass of class",
    ),
    "a class with more than its share": (
        "classes",
        lambda ranks: [sort(ranks, at, "label") for at in range(3)],
        "examples from its share",
    ),
    "classes that begin anew in every epoch": (
        "classes",
        lambda ranks: [rank.epochs.__setitem__(1, rank.epochs[0]) for rank in ranks],
        "the fill of epoch 0 is not what comes next",
    ),
    "an example without weight": ("weighted", lambda ranks: put(epoch(ranks)[3], 0, index=4), "was not chosen"),
    "a window of other steps": (
        "windows",
        lambda ranks: put(epoch(ranks)[3], 0, content=epoch(ranks)[3][1].content),
        "holds another record's content",
    ),
    "a window that begins at another step": (
        "windows",
        lambda ranks: put(epoch(ranks)[3], 0, label=epoch(ranks)[3][0].label + 1),
        "has a wrong label",
    ),
    "a window comes twice in a pass of its member": (
        "mixture of windows",
        lambda ranks: [repeat_in_member(ranks, at) for at in (0, 2)],
        "twice in a pass of class 1",
    ),
    "a member with more than its share": (
        "mixture of windows",
        lambda ranks: [sort(ranks, at, "index") for at in range(3)],
        "examples from its share",
    ),
    "ranks in one process": (EVALUATION, lambda ranks: announce(ranks, pid=ranks[0].pid), "ranks share a process"),
}


def swap_rows(ranks: Ranks, batch: int, at: int = 1) -> None:
    one, other = epoch(ranks, at, rank=0)[batch], epoch(ranks, at, rank=1)[batch]
    one[0], other[0] = other[0], one[0]


def places(ranks: Ranks, at: int) -> list[tuple[list[Row], int]]:
    """The places of an epoch that hold no padding, in the order of the plan: the batch, and the place in it."""
    batches = [batch for turn in zip(*(rank.epochs[at] for rank in ranks), strict=True) for batch in turn]
    return [(batch, place) for batch in batches for place, row in enumerate(batch) if row.valid]


def sort(ranks: Ranks, at: int, name: str) -> None:
    found = places(ranks, at)
    rows = sorted((batch[place] for batch, place in found), key=lambda row: getattr(row, name))
    for (batch, place), row in zip(found, rows, strict=True):
        batch[place] = row


def repeat_in_class(ranks: Ranks, at: int) -> None:
    one, other = [(batch, place) for batch, place in places(ranks, at) if batch[place].label == 3][:2]
    one[0][one[1]] = other[0][other[1]]


def repeat_in_member(ranks: Ranks, at: int) -> None:
    own = member_ranges()[1]
    one, other = [(batch, place) for batch, place in places(ranks, at) if batch[place].index in own][:2]
    one[0][one[1]] = other[0][other[1]]


def copy_of(ranks: Ranks) -> Ranks:
    return [replace(rank, epochs=[[list(batch) for batch in batches] for batches in rank.epochs]) for rank in ranks]


def test_cells_without_a_fault_break_nothing(ledgers: dict[str, Ranks], truths: dict[str, Truth]) -> None:
    for name, cell in CELLS.items():
        assert promises.judge(cell, truths[cell.data], name not in IN_ORDER, ledgers[name]).broken == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault: str, ledgers: dict[str, Ranks], truths: dict[str, Truth]) -> None:
    name, change, sentence = FAULTS[fault]
    cell, ranks = CELLS[name], copy_of(ledgers[name])
    change(ranks)
    broken = promises.judge(cell, truths[cell.data], name not in IN_ORDER, ranks).broken
    assert any(sentence in found for found in broken), "\n".join(broken)


@pytest.mark.parametrize("task", [EVALUATION, TRAIN_EXAMPLES])
def test_a_rank_that_reads_the_share_of_rank_0_is_found(
    task: str, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth]
) -> None:
    cell = replace(CELLS[task], fault="reads the share of rank 0", epochs=(COUNTED,))
    own = GridCounts()
    broken = "\n".join(run_cells(fleet, [cell], splits, truths, own))
    assert str(cell) in broken
    assert "missing: shapes-train.tfrecord" in broken if task == TRAIN_EXAMPLES else "planned" in broken
    assert sum("reads the share of rank 0" in line for line in broken.splitlines()) > 0
    assert own.lines()[-1].split()[1:3] == ["1", "1"]


def test_another_sequence_under_another_start_method_is_found(
    ledgers: dict[str, Ranks], truths: dict[str, Truth], splits: dict[str, Split]
) -> None:
    own, cell = GridCounts(), CELLS[TRAIN_EXAMPLES]
    other = copy_of(ledgers[TRAIN_EXAMPLES])
    for at in range(3):
        swap(other[1].epochs[at][3], 0, 1)
    assert own.add(cell, truths[DATA], splits[DATA], ledgers[TRAIN_EXAMPLES]).broken == []
    (found, *_) = own.add(replace(cell, persistent=False), truths[DATA], splits[DATA], other).broken
    assert found.startswith("epoch 0 is another sequence than under uneven shards train-examples R2xW2")


def test_by_index_another_sequence_in_another_world_is_found(
    fleet: Fleet, ledgers: dict[str, Ranks], truths: dict[str, Truth], splits: dict[str, Split]
) -> None:
    own, cell = GridCounts(), CELLS[TRAIN_INDEX]
    alone = replace(cell, num_replicas=1, num_workers=1)
    ranks: Ranks = fleet.call(read_cell, alone, splits[DATA])
    assert own.add(cell, truths[DATA], splits[DATA], ledgers[TRAIN_INDEX]).broken == []
    assert own.add(alone, truths[DATA], splits[DATA], ranks).broken == []
    other = copy_of(ranks)
    for at in range(3):
        swap(other[0].epochs[at][3], 0, 1)
    (found, *_) = own.add(alone, truths[DATA], splits[DATA], other).broken
    assert found.startswith("epoch 0 is another sequence than under uneven shards train-index R2xW2")
