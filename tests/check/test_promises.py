"""The judge of `python -m tfds_torch.check`: good ledgers are kept, every fault breaks the right promise."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from check.played_ledger import Entry, ListedIds, RankEpoch, play, share_of
from check.played_ledger import judge_received as judge
from tfds_torch.check.expectation import Expectation, Share, count_pipelines, expect
from tfds_torch.check.verdict import Promise
from tfds_torch.plan.deal import Assignment, ShardRange, deal_examples, deal_files
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.storage.source import FileInstruction

EQUAL, FULL, IDS, ONCE, PADDING, SHARE, ORDER = range(7)
"""Positions of the promises in what `judge` returns."""
NUM_CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A split, a world and a number of epochs, from which a good ledger is made as a DataLoader would receive it."""

    lengths: tuple[int, ...]
    num_replicas: int = 1
    num_workers: int = 1
    batch_size: int = 4
    num_epochs: int = 2
    mode: str = "examples"
    is_training: bool = True
    remainder: Remainder | None = None
    repeats: int = 1
    shuffle: bool | None = None  # None: as in training or evaluation.

    def plan(self, rank: int = 0, worker: int = 0) -> EpochPlan:
        world = World(rank, self.num_replicas, worker, self.num_workers)
        return EpochPlan(
            Passes(sum(self.lengths), shuffle=self.is_training if self.shuffle is None else self.shuffle),
            world=world,
            batch_size=self.batch_size,
            remainder=self.remainder or EpochPlan.default_remainder(self.is_training, world),
            is_training=self.is_training,
            repeats=self.repeats,
        )

    @property
    def ids(self) -> list[str]:
        return [f"ds-train.tfrecord-{file:05d}__{i}" for file, length in enumerate(self.lengths) for i in range(length)]

    def stretches(self, rank: int, worker: int, epoch: int) -> tuple[list[int], list[int], int]:
        """Returns the indices of a pipeline's valid and fill examples, and what its files hold."""
        deal = deal_files if self.mode == "files" else deal_examples
        share = deal(self.plan(rank, worker), self.lengths, epoch)
        return self._indices(share.valid), self._indices(share.fill), share.num_available

    def _indices(self, stretches: Sequence[ShardRange]) -> list[int]:
        starts = [sum(self.lengths[:file]) for file in range(len(self.lengths))]
        return [starts[s.file] + i for s in stretches for i in range(s.start, s.stop)]

    def expectation(self) -> Expectation:
        return expect(PlannedParser(self), self.num_replicas, self.num_workers, self.num_epochs)  # type: ignore[arg-type]

    def received(self) -> list[RankEpoch]:
        return [self._receive(rank, epoch) for rank in range(self.num_replicas) for epoch in range(self.num_epochs)]

    def _receive(self, rank: int, epoch: int) -> RankEpoch:
        workers = [self._receive_from(rank, worker, epoch) for worker in range(self.num_workers)]
        num_batches = max(map(len, workers))
        batches = [batches[i] for i in range(num_batches) for batches in workers if i < len(batches)]
        return RankEpoch(rank, epoch, batches, -(-len(self.plan(rank)) // self.batch_size))

    def _receive_from(self, rank: int, worker: int, epoch: int) -> list[list[Entry]]:
        valid, fill, _ = self.stretches(rank, worker, epoch)
        if self.is_training:
            random.Random(repr((rank, worker, epoch))).shuffle(valid)
        is_padding = self.plan().remainder is Remainder.PAD
        entries = [self.entry(index) for index in valid]
        entries += [self.entry(index, valid=not is_padding) for index in fill]
        return [entries[i : i + self.batch_size] for i in range(0, len(entries), self.batch_size)]

    def entry(self, index: int, valid: bool = True) -> Entry:
        return Entry(self.ids[index], index, valid, index % NUM_CLASSES if valid else PAD_LABEL)


class PlannedParser:
    """What `expect` asks of a parser, of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        starts = accumulate(case.lengths, initial=0)
        self.files = [
            FileInstruction(f"{file}", 0, length, first, length)
            for file, (first, length) in enumerate(zip(starts, case.lengths, strict=False))
        ]

    has_optional_label = False

    @property
    def dataset(self) -> "PlannedParser":
        return self

    def plan(self, world: World) -> EpochPlan:
        return replace(self.case.plan(), world=world)

    def read_mode(self, world: World) -> str:
        return self.case.mode

    def assignment(self, world: World, epoch: int = 0) -> Assignment:
        deal = deal_files if self.case.mode == "files" else deal_examples
        return deal(self.plan(world), self.case.lengths, epoch)


@pytest.fixture(scope="module", autouse=True)
def listed_ids() -> Iterator[None]:
    """The ids are those of a case, and not those of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tfds_torch.check.expectation.ids_of",
            lambda parser: ListedIds(parser.case.ids),
        )
        yield


GOOD = {
    "evaluation, keep": Case((10, 7), is_training=False),
    "evaluation, keep, workers": Case((10, 7), num_workers=3, is_training=False),
    "evaluation, keep, nothing left over": Case((8,), is_training=False),
    "evaluation, pad": Case((10, 7), num_replicas=3, num_workers=2, is_training=False),
    "evaluation, pad, more pipelines than examples": Case((2, 1), num_replicas=4, num_workers=3, is_training=False),
    "evaluation, pad on one rank": Case((17,), is_training=False, remainder=Remainder.PAD),
    "evaluation, pad, nothing left over": Case((24,), num_replicas=3, is_training=False),
    "evaluation, drop": Case((10, 7), num_replicas=2, is_training=False, remainder=Remainder.DROP),
    "evaluation, one epoch": Case((10, 7), num_epochs=1, is_training=False),
    "evaluation, empty": Case((), num_replicas=2, is_training=False),
    "training, wrap": Case((20, 21), num_replicas=2, num_workers=2),
    "training, wrap, nothing left over": Case((20, 20), num_workers=2),
    "training, wrap, three epochs": Case((20, 21, 5), num_replicas=3, num_epochs=3),
    "training, wrap, a global batch larger than the split": Case((9,), num_replicas=4, num_workers=2, batch_size=8),
    "training, wrap, twice": Case((20, 21), num_replicas=2, num_workers=2, repeats=2),
    "training, drop": Case((20, 21), num_replicas=2, num_workers=2, remainder=Remainder.DROP),
    "training, drop, thrice": Case((20, 21), num_replicas=2, remainder=Remainder.DROP, repeats=3),
    "training, files": Case((9, 12, 10, 10, 11), num_replicas=2, num_workers=2, mode="files", num_epochs=3),
    "training, files, drop": Case((9, 12, 10, 10), num_replicas=2, mode="files", remainder=Remainder.DROP),
    "training, files, twice": Case((9, 12, 10, 10, 2), num_replicas=2, mode="files", repeats=2),
    "training, files, equal": Case((8, 8, 8, 8), num_replicas=2, num_workers=2, mode="files"),
}


def broken(promises: Sequence[Promise]) -> set[int]:
    return {position for position, promise in enumerate(promises) if not promise.kept}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_a_good_ledger_keeps_every_promise(case: Case) -> None:
    promises = judge(case.expectation(), case.received())
    assert [promise for promise in promises if not promise.kept] == []
    assert len(promises) == (7 if case.num_epochs > 1 else 6)
    assert all(promise.name and promise.detail for promise in promises)


# 20 examples per pipeline or more, so that no two orders are equal by chance.
cases = st.builds(
    Case,
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=6).map(tuple).filter(lambda lengths: sum(lengths) > 160),
    num_replicas=st.integers(1, 4),
    num_workers=st.integers(1, 2),
    batch_size=st.integers(1, 9),
    num_epochs=st.integers(1, 3),
    is_training=st.booleans(),
)


@settings(deadline=None, max_examples=50)
@given(cases)
def test_any_good_ledger_keeps_every_promise(case: Case) -> None:
    assert broken(judge(case.expectation(), case.received())) == set()


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("evaluation, keep", ((5,), 0, 0, 0, 17, 0)),
        ("evaluation, pad", ((2, 2, 2), 0, 0, 0, 17, 7)),
        ("evaluation, drop", ((2, 2), 1, 0, 0, 16, 0)),
        ("training, wrap", ((6, 6), 0, 7, 0, 48, 0)),
        ("training, wrap, twice", ((11, 11), 0, 6, 0, 88, 0)),
        ("training, drop", ((5, 5), 1, 0, 0, 40, 0)),
    ],
)
def test_the_figures_of_an_epoch(name: str, figures: tuple[object, ...]) -> None:
    case = GOOD[name]
    counts = play(case.expectation(), case.received()).counts[0]
    assert figures == (
        counts.batches,
        counts.missing.number,
        counts.twice.number,
        counts.unknown.number,
        counts.num_valid,
        counts.num_padded,
    )


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_uneven_files_leave_out_and_repeat_what_their_pipelines_have_too_much_and_too_little(num_epochs: int) -> None:
    """7 batches a rank: 4 of worker 0, 3 of worker 1. Pipeline 0 is dealt the first and the fifth file."""
    case = Case((9, 12, 10, 10, 11), 2, 2, 4, num_epochs, mode="files", shuffle=False)
    expected = case.expectation()
    has, reads = (9 + 11, 12, 10, 10), (16, 12, 16, 12)
    assert (expected.num_unread, expected.num_repeated) == (20 - 16, (16 - 10) + (12 - 10))
    counts = count_pipelines(PlannedParser(case), expected)  # type: ignore[arg-type]
    assert [(one.rank, one.worker) for one in counts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(one.num_available, one.num_examples, one.num_fill) for one in counts] == [
        (available, read, 0) for available, read in zip(has, reads, strict=True)
    ]
    assert [one.num_batches for one in counts] == [4, 3, 4, 3]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 30), min_size=6, max_size=12).map(tuple),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_uneven_files_are_allowed_what_they_need_in_every_epoch(
    lengths: tuple[int, ...], num_replicas: int, num_workers: int, num_epochs: int
) -> None:
    case = Case(lengths, num_replicas, num_workers, num_epochs=num_epochs, mode="files")
    expected = case.expectation()
    assert {ONCE, SHARE} & broken(judge(expected, case.received())) == set()
    unread, repeated = [], []
    for epoch in range(num_epochs):
        pipelines = [case.stretches(*place, epoch) for place in np.ndindex(num_replicas, num_workers)]  # type: ignore[call-arg]
        unread.append(sum(max(0, available - len(valid)) for valid, _, available in pipelines))
        repeated.append(sum(max(0, len(valid) - available) for valid, _, available in pipelines))
    assert (expected.num_unread, expected.num_repeated) == (max(unread), max(repeated))


@pytest.mark.parametrize("name", ["evaluation, pad", "training, wrap", "training, files"])
def test_the_shares_of_pipelines_are_together_those_of_their_ranks(name: str) -> None:
    case = GOOD[name]
    expected, parser = case.expectation(), PlannedParser(case)
    pipelines = count_pipelines(parser, expected)  # type: ignore[arg-type]
    for rank in range(case.num_replicas):
        whole = expected.share(rank, 0)
        assert len(whole.index) == sum(one.num_examples + one.num_fill for one in pipelines if one.rank == rank)
        came = case.received()[rank * case.num_epochs].entries
        assert Counter(rows_of(whole)) == Counter((entry.index, entry.valid) for entry in came)


def rows_of(share: Share) -> list[tuple[int, bool]]:
    return list(zip(share.index.tolist(), share.valid.tolist(), strict=True))


def test_the_detail_gives_the_figures_of_uneven_files() -> None:
    case = GOOD["training, files"]
    expected = case.expectation()
    assert expected.num_unread > 0
    detail = judge(expected, case.received())[ONCE].detail
    assert f"(allowed {expected.num_unread})" in detail
    assert f"(allowed {expected.num_repeated})" in detail


# Faults. A ledger is edited as `Batches`: (rank, epoch) -> batches, each a list of entries.

Batches = dict[tuple[int, int], list[list[Entry]]]


def edited(case: Case, edit: Callable[[Batches], object], announced: int | None = None) -> list[RankEpoch]:
    received = case.received()
    batches: Batches = {(r.rank, r.epoch): [list(batch) for batch in r.batches] for r in received}
    edit(batches)
    return [
        replace(r, batches=batches[r.rank, r.epoch], num_announced=r.num_announced if announced is None else announced)
        for r in received
        if (r.rank, r.epoch) in batches
    ]


def assert_breaks(
    case: Case, edit: Callable[[Batches], object], expected: dict[int, str], announced: int | None = None
) -> None:
    """Asserts that exactly these promises break, and that the detail of each holds the given text."""
    promises = judge(case.expectation(), edited(case, edit, announced))
    assert broken(promises) == set(expected), promises
    for position, text in expected.items():
        assert text in promises[position].detail, promises[position]


EVALUATION = Case((10, 7), num_replicas=3, num_workers=2, is_training=False)
TRAINING = Case((20, 21), num_replicas=2, num_workers=2)
ONE_RANK = Case((10, 7), is_training=False)
ONE_EPOCH = replace(ONE_RANK, num_epochs=1)


def find_padding(batches: Batches, epoch: int = 0) -> tuple[list[Entry], int]:
    return next(
        (batch, position)
        for (_, its_epoch), its_batches in batches.items()
        for batch in its_batches
        for position, entry in enumerate(batch)
        if its_epoch == epoch and not entry.valid
    )


def change(batch: list[Entry], position: int, **changes: Any) -> None:
    batch[position] = replace(batch[position], **changes)


FAULTS: dict[str, tuple[Case, Callable[[Batches], object], dict[int, str]]] = {
    "a duplicate": (
        ONE_EPOCH,
        lambda batches: batches[0, 0][2].append(ONE_EPOCH.entry(3)),
        {
            FULL: "rank 0, epoch 0, batch 2: 5 examples",
            ONCE: f"1 twice (allowed 0); twice: {ONE_EPOCH.ids[3]}",
            SHARE: ONE_EPOCH.ids[3],
        },
    ),
    "a loss": (
        ONE_EPOCH,
        lambda batches: batches[0, 0][1].remove(ONE_EPOCH.entry(6)),
        {
            FULL: "rank 0, epoch 0, batch 1: 3 examples",
            ONCE: f"missing: {ONE_EPOCH.ids[6]}",
            SHARE: ONE_EPOCH.ids[6],
        },
    ),
    "a loss in training that the wrapped few could hide": (
        TRAINING,  # Few missing, more twice: the number of batches and their size are right.
        lambda batches: batches[0, 0][0].__setitem__(0, batches[0, 0][0][1]),
        {ONCE: "missing: ", SHARE: "rank 0, epoch 0"},
    ),
    "a short batch": (
        EVALUATION,
        lambda batches: batches[0, 0][0].pop(),
        {FULL: "rank 0, epoch 0, batch 0: 3 examples", ONCE: "1 missing", SHARE: "rank 0, epoch 0", ORDER: ""},
    ),
    "an example in the next batch": (
        ONE_EPOCH,  # Every example is there, only the cuts are wrong.
        lambda batches: batches[0, 0][1].insert(0, batches[0, 0][0].pop()),
        {FULL: "rank 0, epoch 0, batch 0: 3 examples, rank 0, epoch 0, batch 1: 5 examples"},
    ),
    "an unknown id": (
        ONE_EPOCH,
        lambda batches: change(batches[0, 0][0], 0, id="other-train.tfrecord-00000__0"),
        {IDS: "other-train.tfrecord-00000__0", ONCE: "1 missing"},
    ),
    "padding that is marked valid": (
        EVALUATION,
        lambda batches: change(*find_padding(batches), valid=True),
        {ONCE: "1 twice", PADDING: "epoch 0: 6 padded"},
    ),
    "an example that is marked as padding": (
        EVALUATION,
        lambda batches: change(batches[0, 1][0], 0, valid=False, label=PAD_LABEL),
        {ONCE: "1 missing", PADDING: "epoch 1: 8 padded"},
    ),
    "padding with a real label": (
        EVALUATION,
        lambda batches: change(*find_padding(batches), label=7),
        {PADDING: "label 7"},
    ),
    "a real example with the label of padding": (
        EVALUATION,  # A loss with `ignore_index` would not see it: an example lost.
        lambda batches: change(batches[0, 0][0], 0, label=PAD_LABEL),
        {PADDING: EVALUATION.ids[0]},
    ),
    "another order in evaluation": (EVALUATION, lambda batches: batches[0, 1][0].reverse(), {ORDER: ""}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_exactly_its_own_promises(fault: str) -> None:
    assert_breaks(*FAULTS[fault])


def test_an_example_instead_of_another_is_a_loss_and_a_duplicate() -> None:
    def edit(batches: Batches) -> None:
        batches[1, 1][0][1] = batches[1, 1][0][0]

    lost, doubled = EVALUATION.received()[3].batches[0][1], EVALUATION.received()[3].batches[0][0]
    assert_breaks(EVALUATION, edit, {ONCE: lost.id, SHARE: "rank 1, epoch 1", ORDER: ""})
    detail = judge(EVALUATION.expectation(), edited(EVALUATION, edit))[ONCE].detail
    assert f"1 missing (allowed 0), 1 twice (allowed 0); missing: {lost.id}; twice: {doubled.id}" in detail


def test_swapped_ranks() -> None:
    def edit(batches: Batches) -> None:
        for epoch in range(2):
            batches[0, epoch], batches[1, epoch] = batches[1, epoch], batches[0, epoch]

    for case in (EVALUATION, TRAINING, GOOD["training, files"]):
        promises = judge(case.expectation(), edited(case, edit))
        assert SHARE in broken(promises)
        assert ONCE not in broken(promises)
        for rank in (0, 1):
            assert f"rank {rank}, epoch 0" in promises[SHARE].detail


def test_a_loader_with_another_batch_size_than_the_parser() -> None:
    """Broken also where it does no harm, as with one batch for all."""
    for case, size in ((replace(ONE_RANK, num_epochs=1), 8), (Case((8,), batch_size=8, is_training=False), 16)):
        received = [replace(rank, loader_batch_size=size) for rank in case.received()]
        promises = judge(case.expectation(), received)
        assert broken(promises) == {FULL}
        assert promises[FULL].detail == f"rank 0: its loader's batch_size is {size}, the parser's {case.batch_size}"
    received = [replace(rank, loader_batch_size=4) for rank in ONE_RANK.received()]
    assert broken(judge(ONE_RANK.expectation(), received)) == set()


def test_a_loader_that_drops_the_batch_that_the_parser_keeps() -> None:
    def drop_last(case: Case) -> list[Promise]:
        received = edited(case, lambda batches: [its.pop() for its in batches.values() if len(its[-1]) < 4], 4)
        return judge(case.expectation(), [replace(rank, drop_last=True) for rank in received])

    case = ONE_EPOCH
    promises = drop_last(case)
    assert {EQUAL, ONCE, SHARE} == broken(promises)
    assert promises[EQUAL].detail == (
        "rank 0: its loader drops a short last batch (drop_last), and the parser plans one, rank 0, epoch 0: 4 came, "
        "4 announced, 5 planned"
    )
    assert broken(drop_last(Case((16,), is_training=False))) == set()


def test_a_rank_with_a_batch_more() -> None:
    promises = judge(
        TRAINING.expectation(),
        edited(TRAINING, lambda batches: batches[1, 0].append([TRAINING.entry(i) for i in range(4)])),
    )
    assert {EQUAL, SHARE} <= broken(promises)
    assert promises[EQUAL].detail == "rank 1, epoch 0: 7 came, 6 announced, 6 planned"


def test_a_rank_with_a_batch_less() -> None:
    promises = judge(TRAINING.expectation(), edited(TRAINING, lambda batches: batches[1, 0].pop()))
    assert {EQUAL, SHARE} <= broken(promises)
    assert promises[EQUAL].detail == "rank 1, epoch 0: 5 came, 6 announced, 6 planned"


def test_a_length_that_is_not_what_comes() -> None:
    promises = judge(TRAINING.expectation(), edited(TRAINING, lambda batches: None, announced=7))
    assert broken(promises) == {EQUAL}
    assert "rank 0, epoch 0: 6 came, 7 announced, 6 planned" in promises[EQUAL].detail


def test_a_rank_that_did_not_come() -> None:
    """Not even through a hole in the shares: training in mode `files` may miss a few."""
    for case in (EVALUATION, TRAINING, GOOD["training, files"]):
        assert broken(judge(case.expectation(), edited(case, lambda batches: batches.pop((1, 0)))))


def test_a_rank_without_examples_that_did_not_come() -> None:
    case = Case((), num_replicas=2, num_epochs=1, is_training=False)
    assert broken(judge(case.expectation(), edited(case, lambda batches: batches.pop((1, 0)))))


def test_an_epoch_that_did_not_come() -> None:
    for case in (EVALUATION, TRAINING):
        received = [rank for rank in case.received() if rank.epoch == 0]
        assert broken(judge(case.expectation(), received))


def test_nothing_came() -> None:
    assert broken(judge(EVALUATION.expectation(), []))


def test_a_rank_that_came_twice() -> None:
    received = TRAINING.received()
    assert broken(judge(TRAINING.expectation(), [*received, received[0]]))


@pytest.mark.parametrize("index", [3, 17, 10**9, -1, -18, -(10**9)])
def test_an_id_under_another_index(index: int) -> None:
    case = ONE_EPOCH

    def edit(batches: Batches) -> None:
        batches[0, 0][0][0] = replace(batches[0, 0][0][0], index=index)

    assert_breaks(case, edit, {IDS: case.ids[0], SHARE: "rank 0, epoch 0"})


def test_ids_that_are_exchanged() -> None:
    def edit(batches: Batches) -> None:
        first, second = batches[0, 0][0][:2]
        batches[0, 0][0][:2] = [replace(first, id=second.id), replace(second, id=first.id)]

    assert_breaks(EVALUATION, edit, {IDS: EVALUATION.ids[0]})


def test_padding_where_the_plan_does_not_pad() -> None:
    """The padded copy of example 0 is made the valid one, and example 0 padding: the counts stay right."""
    case = replace(EVALUATION, num_epochs=1)

    def edit(batches: Batches) -> None:
        batch, position = find_padding(batches)
        index = batch[position].index
        batch[position] = case.entry(index)
        where, at = next(
            (b, i)
            for b in batches[0, 0]
            for i, entry in enumerate(b)
            if entry.index == index and not (b is batch and i == position)
        )
        where[at] = case.entry(index, valid=False)

    assert_breaks(case, edit, {PADDING: "rank 0"})


@pytest.mark.parametrize(
    "label", ["cat", np.array([1.0, 0.0]), [3, 4], {"a": 1}], ids=["text", "array", "list", "dict"]
)
def test_targets_that_are_no_integers_can_be_padded(label: object) -> None:
    """Only scalar integers have a label for padding; any other target of a padded example is a copy."""
    case = replace(EVALUATION, num_epochs=1)

    def edit(batches: Batches) -> None:
        for its_batches in batches.values():
            for batch in its_batches:
                batch[:] = [replace(entry, label=label) for entry in batch]

    assert_breaks(case, edit, {})


def test_the_same_order_in_two_epochs() -> None:
    case = Case((41,), num_replicas=2, num_workers=2, num_epochs=3)

    def edit(batches: Batches) -> None:
        for rank in range(2):
            batches[rank, 2] = batches[rank, 1]

    received = edited(case, edit)
    promises = judge(with_received_shares(case, received), received)
    assert broken(promises) == {ORDER}
    assert "2 of 3" in promises[ORDER].detail


def test_one_rank_whose_order_does_not_change() -> None:
    """The same share as in the other epoch, so the order alone tells."""
    case = Case((160,), num_replicas=2, num_workers=2, num_epochs=2)

    def edit(batches: Batches) -> None:
        batches[1, 1] = batches[1, 0]

    received = edited(case, edit)
    promises = judge(with_received_shares(case, received), received)
    assert {ORDER} <= broken(promises) <= {ORDER, ONCE}
    assert "rank 1" in promises[ORDER].detail


def test_one_worker_whose_order_does_not_change() -> None:
    case = Case((160,), num_replicas=2, num_workers=2, num_epochs=2)

    def edit(batches: Batches) -> None:
        batches[1, 1][1::2] = batches[1, 0][1::2]

    assert ORDER in broken(judge(case.expectation(), edited(case, edit)))


@pytest.mark.parametrize("num_examples", [1, 2, 3])
def test_few_examples_cannot_have_many_orders(num_examples: int) -> None:
    """Three epochs of two examples have an order twice, whatever shuffles them."""
    case = Case((num_examples,), batch_size=1, num_epochs=8)
    assert ORDER not in broken(judge(case.expectation(), case.received()))


def test_a_split_that_names_examples_twice_expects_them_twice() -> None:
    """`train+train`, `train[:60%]+train[40%:]`: TFDS yields the common ones twice."""
    once = Case((8, 8), is_training=False)
    expected = once.expectation()
    ids = once.ids[:8] * 2
    expected = replace(expected, ids=ListedIds(ids))
    received = edited(
        once,
        lambda batches: [
            batch.__setitem__(slice(None), [replace(entry, id=ids[entry.index]) for entry in batch])
            for its_batches in batches.values()
            for batch in its_batches
        ],
    )
    assert broken(judge(expected, received)) == set()


def test_many_faults_are_named_in_a_few_words() -> None:
    promises = judge(TRAINING.expectation(), edited(TRAINING, lambda batches: [b.clear() for b in batches[0, 0]]))
    assert {FULL, SHARE} <= broken(promises)
    assert max(len(promise.detail) for promise in promises) < 500
    assert "and 1 more" in promises[FULL].detail


# Plans that are wrong themselves: what came is what was planned, and the ids from dataset_info.json must tell.


def with_received_shares(case: Case, received: Sequence[RankEpoch]) -> Expectation:
    shares = {(r.rank, r.epoch): [(entry.index, entry.valid) for entry in r.entries] for r in received}
    return replace(case.expectation(), share=share_of(shares))


def test_a_plan_that_gives_an_example_to_two_ranks() -> None:
    def edit(batches: Batches) -> None:
        for epoch in range(2):
            batches[1, epoch] = batches[0, epoch]

    for case in (TRAINING, replace(EVALUATION, batch_size=2)):
        received = edited(case, edit)
        promises = judge(with_received_shares(case, received), received)
        assert ONCE in broken(promises)


def test_a_plan_that_wraps_around_to_one_example_only() -> None:
    """The right number of examples come twice or more, but one of them takes all the places of the wrapped few."""
    case = Case((41,), num_replicas=2, num_epochs=1)

    def edit(batches: Batches) -> None:
        for rank in range(2):
            last = batches[rank, 0][-1]
            for position, entry in enumerate(last):
                if came[entry.id] > 1:
                    came[entry.id] -= 1
                    last[position] = case.entry(0)

    came = Counter(entry.id for rank in case.received() for entry in rank.entries)
    received = edited(case, edit)
    assert not play(case.expectation(), received).counts[0].missing
    assert ONCE in broken(judge(with_received_shares(case, received), received))


def test_a_plan_in_which_a_wrapped_example_takes_the_place_of_another_one() -> None:
    """Each of the seven that fill the last batch may come once more. Here one of them comes twice more, one not."""
    case = Case((41,), num_replicas=2, num_epochs=1)
    times = Counter(entry.id for rank in case.received() for entry in rank.entries)
    wrapped = sorted(id for id, number in times.items() if number == 2)
    assert len(wrapped) == 7

    def edit(batches: Batches) -> None:
        everywhere = [(batch, at) for rank in range(2) for batch in batches[rank, 0] for at in range(len(batch))]
        batch, at = next((batch, at) for batch, at in everywhere if batch[at].id == wrapped[0])
        batch[at] = case.entry(case.ids.index(wrapped[1]))

    received = edited(case, edit)
    counts = play(case.expectation(), received).counts[0]
    assert (counts.missing.number, counts.twice.number, counts.most_often) == (0, 7, (2, wrapped[1]))
    assert f"twice: {wrapped[1]}" in judge(with_received_shares(case, received), received)[ONCE].detail


def test_more_than_the_wrapped_few_come_twice() -> None:
    detail = judge(TRAINING.expectation(), edited(TRAINING, lambda batches: batches[0, 0].append(batches[0, 0][0])))
    assert not detail[ONCE].kept
    assert "0 missing (allowed 0), 11 twice (allowed 7); twice: " in detail[ONCE].detail


def test_where_nothing_is_left_over_no_example_is_allowed_to_come_twice() -> None:
    case = GOOD["training, wrap, nothing left over"]
    promise = judge(case.expectation(), case.received())[ONCE]
    assert (promise.name, promise.detail) == (
        "every example exactly once",
        "0 missing (allowed 0), 0 twice (allowed 0)",
    )


# Any change at all.


@dataclass
class Fault:
    """A good ledger with one change that no DataLoader may make."""

    case: Case
    what: str
    received: list[RankEpoch]

    def __repr__(self) -> str:
        lines = [
            f"rank {r.rank}, epoch {r.epoch}, {r.num_announced} announced: {[[e.index for e in b] for b in r.batches]}"
            for r in self.received
        ]
        return "\n".join([f"{self.case}: {self.what}", *lines])


OF_A_RANK = ("announced one more", "announced one less", "rank lost", "rank twice", "ranks exchanged")
OF_A_BATCH = ("batch lost", "batch doubled", "batch empty")
OF_AN_EXAMPLE = ("lost", "doubled", "moved", "replaced", "renamed", "renumbered", "valid or not", "relabelled")


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    case = draw(
        st.builds(
            Case,
            lengths=st.lists(st.integers(1, 30), min_size=2, max_size=5).map(tuple),
            num_replicas=st.integers(1, 3),
            num_workers=st.integers(1, 2),
            batch_size=st.integers(1, 6),
            num_epochs=st.integers(1, 2),
            is_training=st.booleans(),
        )
    )
    if case.is_training and len(case.lengths) >= case.num_replicas * case.num_workers:
        case = replace(case, mode=draw(st.sampled_from(["files", "examples"])))
    received = case.received()
    number = draw(st.integers(0, len(received) - 1))
    what = draw(st.sampled_from([*OF_A_RANK, *OF_A_BATCH, *OF_AN_EXAMPLE]))
    if what in OF_A_RANK:
        return Fault(case, f"{what}: {number}", list(change_rank(draw, received, number, what)))
    batches = [list(batch) for batch in received[number].batches]
    where = draw(st.integers(0, len(batches) - 1))
    if what in OF_A_BATCH:
        now = {"batch lost": [], "batch doubled": [batches[where]] * 2, "batch empty": [batches[where], []]}
        batches[where : where + 1] = now[what]
    elif what == "moved":
        other = draw(st.integers(0, len(batches) - 1))
        assume(other != where)
        batches[other].append(batches[where].pop())
    else:
        position = draw(st.integers(0, len(batches[where]) - 1))
        batches[where][position : position + 1] = change_example(draw, case, batches[where][position], what)
    received[number] = replace(received[number], batches=batches)
    return Fault(case, f"{what}: {number}, batch {where}", received)


def change_rank(draw: st.DrawFn, received: list[RankEpoch], number: int, what: str) -> Sequence[RankEpoch]:
    chosen = received[number]
    before, after = received[:number], received[number + 1 :]
    if what == "rank lost":
        return [*before, *after]
    if what == "rank twice":
        return [*received, chosen]
    if what == "ranks exchanged":
        other = draw(st.sampled_from([r for r in received if r.epoch == chosen.epoch]))
        assume(Counter(e.index for e in other.entries) != Counter(e.index for e in chosen.entries))
        exchanged = {id(chosen): other.batches, id(other): chosen.batches}
        return [replace(r, batches=exchanged.get(id(r), r.batches)) for r in received]
    step = 1 if what == "announced one more" else -1
    return [*before, replace(chosen, num_announced=chosen.num_announced + step), *after]


def change_example(draw: st.DrawFn, case: Case, entry: Entry, what: str) -> list[Entry]:
    """Returns what takes the place of an entry."""
    num = len(case.ids)
    if what == "lost":
        return []
    if what == "doubled":
        return [entry, entry]
    if what == "replaced":
        return [case.entry(draw(st.integers(0, num - 1).filter(lambda i: i != entry.index)), valid=entry.valid)]
    if what == "renamed":
        return [replace(entry, id=draw(st.sampled_from([*case.ids, "?", f"{entry.id}0"]).filter(entry.id.__ne__)))]
    if what == "renumbered":
        return [replace(entry, index=draw(st.integers(-2 * num, 2 * num).filter(entry.index.__ne__)))]
    if what == "valid or not":
        return [replace(entry, valid=not entry.valid)]
    return [replace(entry, label=PAD_LABEL if entry.valid else draw(st.integers(0, 9)))]


@settings(deadline=None)
@given(faults())
def test_any_fault_breaks_a_promise_and_says_why(fault: Fault) -> None:
    expected = fault.case.expectation()
    kept = {promise.name: promise.detail for promise in judge(expected, fault.case.received())}
    promises = judge(expected, fault.received)
    # By chance, a few examples have the same order in two epochs: that must not hide that nothing else broke.
    assert broken(promises) - ({ORDER} if fault.case.is_training else set()), promises
    assert [p for p in promises if not p.kept and p.detail in ("", kept.get(p.name))] == []
