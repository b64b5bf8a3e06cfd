"""The promises of read mode `index`: kept by a good reading, and each fault breaks the right one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.machine import PLANTED_CHECK, Checked, Checker, Machine
from check.played_ledger import Entry, ListedIds, RankEpoch, play, receive, share_of
from check.report_file import load
from tfds_torch.check import index_promises
from tfds_torch.check.expectation import Expectation
from tfds_torch.check.ledger import Ledger
from tfds_torch.check.promises import judge
from tfds_torch.check.reading import NUM_AT_BEGIN, OtherReading, kept_batches
from tfds_torch.check.reference import ComparedExample, judge_sample
from tfds_torch.check.resume import Point, Resumed, batches_after, choose_points
from tfds_torch.check.tfds_reader import ReferenceExample
from tfds_torch.check.throughput import RankReading
from tfds_torch.check.verdict import Promise
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World

ORDER, RESUME, TFDS = range(3)
"""Positions of the promises in what `judge_index` returns."""


@dataclass(frozen=True)
class Case:
    """A split and a world, from which a good reading is made as the plan's own batches."""

    num_examples: int
    num_replicas: int = 1
    num_workers: int = 2
    batch_size: int = 4
    num_epochs: int = 2
    is_training: bool = True

    def plan(self, rank: int = 0, num_replicas: int | None = None) -> EpochPlan:
        world = World(rank, num_replicas or self.num_replicas)
        return EpochPlan(
            Passes(self.num_examples, shuffle=self.is_training),
            world=world,
            batch_size=self.batch_size * self.num_replicas // world.num_replicas,
            remainder=EpochPlan.default_remainder(self.is_training, world),
            is_training=self.is_training,
        )

    @property
    def ids(self) -> list[str]:
        return [f"x__{index}" for index in range(self.num_examples)]

    def epochs(self, rank: int = 0, num_replicas: int | None = None) -> list[list[list[Entry]]]:
        """Returns a rank's batches, by epoch."""
        plan = self.plan(rank, num_replicas)
        return [
            [
                [
                    Entry(f"x__{index}", index, valid, 1 if valid else PAD_LABEL)
                    for index, valid in zip(batch.index.tolist(), batch.valid.tolist(), strict=True)
                ]
                for batch in (plan.batch(epoch, number) for number in range(plan.num_batches))
            ]
            for epoch in range(self.num_epochs)
        ]

    def expectation(self) -> Expectation:
        shares = {
            (rank, epoch): [(entry.index, entry.valid) for batch in batches for entry in batch]
            for rank in range(self.num_replicas)
            for epoch, batches in enumerate(self.epochs(rank))
        }
        plan = replace(self.plan(), world=World(0, self.num_replicas, 0, self.num_workers))
        return Expectation(plan, "index", ListedIds(self.ids), self.num_epochs, share_of(shares))

    def received(self) -> list[RankEpoch]:
        return [
            RankEpoch(rank, epoch, batches, self.plan().num_batches)
            for rank in range(self.num_replicas)
            for epoch, batches in enumerate(self.epochs(rank))
        ]

    def ledger(self, received: list[RankEpoch] | None = None) -> Ledger:
        points = choose_points(self.plan(), self.num_epochs)
        kept = kept_batches(points, self.plan().num_batches, self.num_epochs)
        return play(self.expectation(), self.received() if received is None else received, kept)

    def readings(self) -> list[RankReading]:
        return [RankReading(rank, (), (), resumed=self.resumed(self.epochs(rank))) for rank in range(self.num_replicas)]

    def other(self) -> OtherReading:
        epochs = self.epochs(0, 1)
        begun = {epoch: list(map(receive, epochs[epoch][:NUM_AT_BEGIN])) for epoch in (0, self.num_epochs - 1)}
        return OtherReading(1, begun, self.resumed(epochs))

    def resumed(self, epochs: list[list[list[Entry]]]) -> tuple[Resumed, ...]:
        num_batches = self.plan().num_batches
        return tuple(
            Resumed(
                point,
                f"state at {point}",
                [
                    [receive(epochs[at.epoch][at.number]) for at in batches]
                    for batches in batches_after(point, num_batches, self.num_epochs)
                ],
            )
            for point in choose_points(self.plan(), self.num_epochs)
        )

    @property
    def sample(self) -> list[ComparedExample]:
        return [
            ComparedExample(index, "d", ReferenceExample(f"x__{index}", "d"))
            for index in range(min(3, self.num_examples))
        ]

    def judge(
        self,
        readings: list[RankReading] | None = None,
        other: OtherReading | None = None,
        sample: list[ComparedExample] | None = None,
        received: list[RankEpoch] | None = None,
    ) -> list[Promise]:
        ledger = self.ledger(received)
        promises = index_promises.judge_index(ledger, readings or self.readings(), other or self.other())
        return [*promises, judge_sample(ledger.expected.ids, sample or self.sample)]


def broken(promises: list[Promise]) -> dict[int, str]:
    return {position: promise.detail for position, promise in enumerate(promises) if not promise.kept}


GOOD = {
    "training": Case(41),
    "training, ranks": Case(41, num_replicas=3),
    "training, one epoch": Case(41, num_epochs=1),
    "training, a global batch larger than the split": Case(5, num_replicas=3),
    "training, long": Case(1000, num_epochs=3),
    "evaluation": Case(41, is_training=False),
    "evaluation, ranks": Case(41, num_replicas=3, is_training=False),
    "evaluation, more ranks than examples": Case(2, num_replicas=4, is_training=False),
    "evaluation, empty": Case(0, num_replicas=2, is_training=False),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_a_good_reading_keeps_every_promise(case: Case) -> None:
    promises = case.judge()
    assert broken(promises) == {}
    assert len(promises) == 3
    ranks = case.num_replicas > 1
    assert promises[ORDER].name == "the order does not depend on workers" + " or ranks" * ranks
    assert promises[ORDER].detail == "as planned; the same with " + "1 rank of " * ranks + "1 worker"
    assert [promise for promise in judge(case.ledger()) if not promise.kept] == []


@given(
    st.builds(
        Case,
        num_examples=st.integers(1, 300),
        num_replicas=st.integers(1, 4),
        batch_size=st.integers(1, 9),
        num_epochs=st.integers(1, 3),
        is_training=st.booleans(),
    )
)
def test_any_good_reading_keeps_every_promise(case: Case) -> None:
    assert broken(case.judge()) == {}


# Faults.

TRAINING = Case(41, num_replicas=2)


def edited(rank: int, epoch: int, edit: Callable[[list[list[Entry]]], object]) -> list[RankEpoch]:
    """Returns what came, with another epoch of one rank; the resumed readings are as before."""
    received = TRAINING.received()
    (number,) = [i for i, one in enumerate(received) if (one.rank, one.epoch) == (rank, epoch)]
    batches = [list(batch) for batch in received[number].batches]
    edit(batches)
    received[number] = replace(received[number], batches=batches)
    return received


def resumed_otherwise(resumed: Sequence[Resumed], point: Point, **changes: object) -> tuple[Resumed, ...]:
    assert point in [one.point for one in resumed]
    return tuple(replace(one, **changes) if one.point == point else one for one in resumed)  # type: ignore[arg-type]


def test_two_batches_that_change_places_are_another_order() -> None:
    """Only their order is wrong, and no state was taken near them."""

    def swap(batches: list[list[Entry]]) -> None:
        batches[1], batches[2] = batches[2], batches[1]

    received = edited(1, 1, swap)
    readings = TRAINING.readings()
    of_rank = [[list(batch) for batch in one.batches] for one in received if one.rank == 1]
    readings[1] = replace(readings[1], resumed=TRAINING.resumed(of_rank))
    promises = TRAINING.judge(readings, received=received)
    assert broken(promises) == {ORDER: "rank 1, epoch 1, batch 1: not in the planned order"}


def test_two_examples_of_a_batch_that_change_places_are_another_order() -> None:
    promises = TRAINING.judge(received=edited(0, 0, lambda batches: batches[3].reverse()))
    assert "rank 0, epoch 0, batch 3: not in the planned order" in promises[ORDER].detail


def test_an_order_of_another_world_is_told_once_and_not_as_a_bad_resume() -> None:
    """What goes on in another order cannot be the interrupted tail."""
    good = TRAINING.other()
    moved = [receive(batch[::-1]) for batch in TRAINING.epochs(0, 1)[1][:NUM_AT_BEGIN]]
    foreign = tuple(replace(one, iterations=[]) for one in good.resumed)
    promises = TRAINING.judge(other=replace(good, begun={**good.begun, 1: moved}, resumed=foreign))
    assert broken(promises) == {ORDER: "epoch 1, batch 0: another with 1 rank of 1 worker"}
    assert "with the same workers only: in another world the order differs" in promises[RESUME].detail


def test_a_batch_that_another_world_lacks_or_has_too_many_is_another_order() -> None:
    good = TRAINING.other()
    begun = list(good.begun[0])
    for wrong, number in ((begun[:-1], len(begun) - 1), ([*begun, begun[0]], len(begun))):
        promises = TRAINING.judge(other=replace(good, begun={**good.begun, 0: wrong}))
        assert promises[ORDER].detail == f"epoch 0, batch {number}: another with 1 rank of 1 worker"


def test_an_id_of_another_world_that_is_not_the_indexs_own_is_told() -> None:
    good = TRAINING.other()
    first = list(TRAINING.epochs(0, 1)[0][0])
    first[2] = replace(first[2], id="x__41")
    promises = TRAINING.judge(other=replace(good, begun={**good.begun, 0: [receive(first), *good.begun[0][1:]]}))
    assert list(broken(promises)) == [ORDER]


def test_a_tail_that_is_another_one_is_a_bad_resume() -> None:
    good = TRAINING.readings()
    last = TRAINING.plan().num_batches
    for point in (Point(0, 0), Point(0, last - 1), Point(0, last)):
        (its,) = [one.iterations for one in good[1].resumed if one.point == point]
        faults = [its[:-1], [*its[:-1], its[-1][1:]], [*its[:-1], its[-1][::-1]], [[], *its], []]
        for fault in faults:
            readings = [good[0], replace(good[1], resumed=resumed_otherwise(good[1].resumed, point, iterations=fault))]
            promises = TRAINING.judge(readings)
            assert broken(promises) == {RESUME: f"rank 1, {point}: another tail than the uninterrupted one"}
    other = TRAINING.other()
    faulty = replace(other, resumed=resumed_otherwise(other.resumed, Point(0, last), iterations=[[]]))
    assert broken(TRAINING.judge(other=faulty)) == {
        RESUME: f"epoch 0, batch {last}, with 1 rank of 1 worker: another tail than the uninterrupted one"
    }


def test_a_state_that_cannot_be_taken_or_loaded_is_a_bad_resume() -> None:
    good = TRAINING.readings()
    refused = resumed_otherwise(good[0].resumed, Point(0, 0), iterations=[], error="seed: 3 in the state")
    promises = TRAINING.judge([replace(good[0], resumed=refused), good[1]])
    assert broken(promises) == {RESUME: "rank 0, epoch 0, batch 0: seed: 3 in the state"}


def test_a_point_that_a_reading_did_not_reach_is_a_bad_resume() -> None:
    good = TRAINING.readings()
    promises = TRAINING.judge([good[0], replace(good[1], resumed=good[1].resumed[1:])])
    assert broken(promises) == {RESUME: "rank 1, epoch 0, batch 0: the reading did not get there"}


def test_ranks_that_say_different_things_are_a_bad_resume() -> None:
    good = TRAINING.readings()
    other = resumed_otherwise(good[1].resumed, Point(0, 0), state="another")
    promises = TRAINING.judge([good[0], replace(good[1], resumed=other)])
    assert broken(promises) == {RESUME: "epoch 0, batch 0: the ranks have different states"}


@pytest.mark.parametrize(
    ("reference", "detail"),
    [
        (ReferenceExample("x__2", "d"), "index 1: x__1 is expected, and TFDS has x__2"),
        (ReferenceExample("x__1", "e"), "index 1: x__1 has other bytes than TFDS reads"),
        (ReferenceExample(None, "e"), "index 1: x__1 has other bytes than TFDS reads"),
    ],
)
def test_another_id_or_other_bytes_than_tfds_has_are_told(reference: ReferenceExample, detail: str) -> None:
    sample = TRAINING.sample
    sample[1] = replace(sample[1], theirs=reference)
    assert broken(TRAINING.judge(sample=sample)) == {TFDS: detail}


def test_where_tfds_gives_no_ids_only_bytes_are_spoken_of() -> None:
    assert TRAINING.judge()[TFDS].detail == "3 examples: the same ids and bytes"
    sample = [replace(example, theirs=ReferenceExample(None, "d")) for example in TRAINING.sample]
    assert TRAINING.judge(sample=sample)[TFDS].detail == "3 examples: the same bytes"


# The command, with faults planted where records, orders and states come from.

LINE = "--workers 0 --split train[:100] --batch-size 8"
NAMES = {
    "another record": ["the index is TFDS's own reader", "pixels are Pillow's"],
    "order by workers": ["the order does not depend on workers"],
    "skip on resume": ["resume is exact"],
    "repeat on resume": ["resume is exact"],
    "forgotten state": ["resume is exact"],
    "refused state": ["resume is exact"],
}


@pytest.mark.parametrize("fault", NAMES)
def test_a_planted_fault_breaks_exactly_its_own_promises(checker: Checker, fault: str) -> None:
    checked = checker.check_planted(fault, LINE.split())
    assert (checked.code, list(checked.broken)) == (1, NAMES[fault]), checked.errors
    assert f"{len(NAMES[fault])} of 11 promises broken." in checked.output


def test_where_tfds_cannot_read_what_was_found_out_before_is_in_the_report(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    checked = checker.check_planted("failing reference", [*LINE.split(), "--epochs", "1", "--json", str(path)])
    assert (checked.code, checked.errors.strip()) == (1, "BROKEN: played")
    report = load(path)
    assert report["error"] == {"type": "ShardError", "message": "played"}
    assert len(report["promises"]) == 6
    assert len(report["throughput"]) == 1


def test_every_example_once_is_also_judged_by_index(checker: Checker) -> None:
    checked = checker.check_line(f"{LINE} --eval --replicas 2 --epochs 1 --read-mode index")
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 10)
    assert checked.promises["every example exactly once"][1] == "0 missing (allowed 0), 0 twice (allowed 0)"
    planted = checker.check_planted("replacement", [*LINE.split(), "--eval", "--epochs", "1"])
    assert planted.code == 1
    assert "1 missing (allowed 0), 1 twice (allowed 0)" in planted.detail("exactly once")
    assert "rank 0, epoch 0, batch 0: not in the planned order" in planted.detail("depend on workers")


@pytest.mark.parametrize("more", ["", "\nblock_groups = 4"], ids=["blocks", "groups"])
def test_by_block_every_promise_is_kept_too(checker: Checker, tmp_path: Path, more: str) -> None:
    path = tmp_path / "blocks.toml"
    path.write_text(f"name = 'digits'\nis_training = true\nbatch_size = 8\n[read]\nblock_records = 16{more}")
    checked = checker.check_line(f"--config {path} --workers 0 --split train[:100] --epochs 1")
    assert (checked.code, checked.broken, len(checked.promises)) == (0, {}, 10), checked.errors


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["order by workers", "skip on resume"])
def test_a_fault_planted_into_real_workers_breaks_exactly_its_own_promises(
    machine: Machine, photos: Path, fault: str
) -> None:
    """Another seed also gives other crops."""
    broken = NAMES[fault] + ["pixels are Pillow's"] * (fault == "order by workers")
    line = ["--name", "photos", "--root", str(photos), "--split", "train[:96]", "--batch-size", "8", "--epochs", "1"]
    with machine.start(PLANTED_CHECK) as process:
        checked: Checked = Checker(process).check_planted(fault, line)
        process.communicate()
    assert (checked.code, list(checked.broken)) == (1, broken), checked.errors
