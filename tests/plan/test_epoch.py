"""EpochPlan against section 4 of DESIGN.md, written out slowly by plan.oracle."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import collect_round_robin, consume, grid, own_row, plans, slots_of, write_out
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import MOST_BATCH, PAD_LABEL, Delivery, EpochPlan, Remainder
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.passes import BlockShuffle, Passes
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import Segment
from tfds_torch.plan.world import World

EPOCHS = st.integers(0, 5)


def training(n: int, batch_size: Any, world: World | None = None, **more: Any) -> EpochPlan:
    more = {"remainder": Remainder.WRAP, **more}
    return EpochPlan(
        Passes(n, shuffle=more.pop("shuffle", True)), world or World(), batch_size, is_training=True, **more
    )


def evaluation(n: int, batch_size: int, world: World | None = None, **more: Any) -> EpochPlan:
    world = world or World()
    more = {"remainder": EpochPlan.default_remainder(False, world), **more}
    return EpochPlan(Passes(n, shuffle=False), world, batch_size, **more)


def ranks(plan: EpochPlan) -> list[EpochPlan]:
    return [replace(plan, world=World(rank, plan.world.num_replicas)) for rank in range(plan.world.num_replicas)]


def index_of(plan: EpochPlan, epoch: int = 0) -> list[list[int]]:
    return [plan.batch(epoch, number).index.tolist() for number in range(plan.num_batches)]


# Completeness: every batch is the one that DESIGN writes down.


@settings(max_examples=300, deadline=None)
@given(plans(), EPOCHS, st.data())
def test_the_batches_of_all_ranks_are_those_of_the_design(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
    plan = replace(plan, first_example=data.draw(st.just(0) | st.integers(0, plan.num_own_slots)))
    expected = write_out(plan, epoch)
    places = ranks(plan)
    assert plan.num_batches == len(expected)
    for number, batch in expected.items():
        assert [slot for here in places for slot in slots_of(here.batch(epoch, number))] == batch
    slots = [slot for batch in expected.values() for slot in batch]
    some = np.array(data.draw(st.lists(st.integers(0, max(0, len(slots) - 1)), max_size=9 if slots else 0)), np.int64)
    assert slots_of(plan.at_slots(epoch, some)) == [slots[at] for at in some.tolist()]
    # Lengths are exact, equal on all ranks, and need no workers.
    for here in places:
        assert here.num_samples == len(replace(here, delivery=Delivery.SAMPLE)) == len(slots) // len(places)
        assert here.num_batches == len(replace(here, delivery=Delivery.BATCH)) == len(expected)
    num_left = plan.num_own_slots - plan.first_example
    assert plan.num_valid == min(num_left, len(slots))
    # Each of the epoch's own examples comes once; of those that are left out, there are less than a global batch.
    own = own_row(plan, epoch)[plan.first_example :]
    came = [slot for slot in slots if slot[2]]
    assert len(came) == len(set(came))
    assert sorted(came) == sorted(own) or plan.remainder in (Remainder.WRAP, Remainder.DROP)
    assert set(own) <= set(came) or plan.remainder is Remainder.DROP
    assert len(slots) > num_left - plan.global_batch_size


@settings(max_examples=150, deadline=None)
@given(plans(), EPOCHS, st.data())
def test_global_batches_do_not_depend_on_ranks_and_workers(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
    size = plan.global_batch_size
    remainder = Remainder.PAD if plan.remainder is Remainder.KEEP else plan.remainder
    possible = [count for count in range(1, size + 1) if size % count == 0]
    whole, elsewhere = (
        EpochPlan(plan.order, World(0, count, 0, workers), size // count, remainder, plan.is_training, plan.repeats)
        for count, workers in ((1, 1), (data.draw(st.sampled_from(possible)), data.draw(st.integers(1, 5))))
    )
    start = data.draw(st.integers(0, whole.num_batches))
    found = consume(elsewhere, epoch, start, whole.num_batches)
    assert found == {number: batch for number, batch in write_out(whole, epoch).items() if number >= start}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 16), st.data())
def test_the_sequence_of_a_rank_is_the_same_for_any_workers_from_any_batch_on(
    n: int, num_workers: int, data: st.DataObject
) -> None:
    plan = evaluation(n, data.draw(st.integers(1 + n // 5000, 5000)), World(num_workers=num_workers))
    start = data.draw(st.integers(0, plan.num_batches))
    numbers = [list(here.worker_batches(start)) for here in grid(plan)]
    assert collect_round_robin(numbers) == list(range(start, plan.num_batches))


@settings(max_examples=60, deadline=None)
@given(plans(), st.data())
def test_consecutive_epochs_are_one_row(plan: EpochPlan, data: st.DataObject) -> None:
    rows = [own_row(plan, epoch) for epoch in range(3)]
    came = [slot for row in rows for slot in row]
    assert len(set(came)) == len(came)
    plan = replace(plan, world=World(), batch_size=1)
    for epoch, row in enumerate(rows):
        if row:
            at = data.draw(st.integers(0, len(row) - 1))
            assert slots_of(plan.batch(epoch, at)) == [row[at]]


# By hand


def test_the_four_remainders_by_hand() -> None:
    assert index_of(training(7, 3, shuffle=False), 3) == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert training(7, 3).batch(4, 2).pass_number.tolist() == [4, 5, 5]
    assert index_of(evaluation(7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert index_of(evaluation(7, 3, remainder="drop")) == [[0, 1, 2], [3, 4, 5]]
    padded = [here.batch(0, 0) for here in ranks(evaluation(5, 2, World(0, 4)))]
    assert [batch.index.tolist() for batch in padded] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert [batch.valid.tolist() for batch in padded] == [[True] * 2, [True] * 2, [True, False], [False] * 2]
    assert PAD_LABEL == -100


def test_groups_have_equal_shares_of_a_batch_side_by_side() -> None:
    plan = EpochPlan(Passes(24, blocks=BlockShuffle(2, 2, 2)), World(), 8, Remainder.WRAP, True)
    slots = np.arange(16)
    before = Passes(24, blocks=BlockShuffle(2, 2, 2)).at(slots)[1]
    assert plan.at_slots(0, slots).index.tolist() == before[[*range(0, 8, 2), *range(1, 8, 2), *range(8, 16, 2),
                                                             *range(9, 16, 2)]].tolist()  # fmt: skip


@pytest.mark.parametrize(
    ("is_training", "num_replicas", "expected"),
    [(True, 1, Remainder.WRAP), (True, 4, Remainder.WRAP), (False, 1, Remainder.KEEP), (False, 4, Remainder.PAD)],
)
def test_the_default_remainder_is_that_of_the_design(is_training: bool, num_replicas: int, expected: Remainder) -> None:
    assert EpochPlan.default_remainder(is_training, World(0, num_replicas)) is expected


@pytest.mark.parametrize("remainder", [Remainder.KEEP, Remainder.PAD, Remainder.DROP])
@pytest.mark.parametrize("order", [Passes(0), Passes(5, subset=Subset(np.arange(0)))])
def test_nothing_is_evaluated_in_no_batches(order: Passes, remainder: Remainder) -> None:
    plan = EpochPlan(order, World(0, 1, 1, 3), 8, remainder)
    assert (plan.num_batches, plan.num_samples, plan.num_valid, len(plan), list(plan.worker_batches())) == (
        *(0, 0, 0, 0),
        [],
    )


def test_a_batch_of_a_trillion_examples_costs_no_more_than_itself() -> None:
    plan = training(10**12, 4, World(1, 2))
    last = plan.batch(7, plan.num_batches - 1)
    assert (plan.num_batches, last.index.dtype, len(set(last.index.tolist()))) == (10**12 // 8, np.int64, 4)


def test_small_numpy_integers_are_sizes_and_do_not_overflow() -> None:
    plan = training(np.int16(30_000), np.int8(100), World(0, 2), repeats=np.int8(3))  # type: ignore[arg-type]
    assert (plan.num_batches, len(plan)) == (450, 45_000)
    assert training(4, MOST_BATCH).num_batches == 1


def test_the_last_epoch_is_the_last_one_whose_sample_keys_fit() -> None:
    for n, repeats, num_touched in ((2**40, 1, 1), (2**40 - 3, 3, 4), (3**20, 2, 3)):
        plan, num_passes = training(n, 1000, repeats=repeats), (2**63 - 1) // n
        if n == 2**40:
            plan = replace(plan, batch_size=2**20)  # No fill.
        assert plan.last_epoch * repeats + num_touched <= num_passes < (plan.last_epoch + 1) * repeats + num_touched
        assert said_of(ConfigError, plan.batch, plan.last_epoch + 1, 0).startswith(f"epoch={plan.last_epoch + 1} must")
        assert plan.batch(plan.last_epoch, plan.num_batches - 1).index.min() >= 0


# Refusals


KEEP, WRAP = Remainder.KEEP, Remainder.WRAP
BALANCED = Mixed((Member("a", 3), Member("b", 4)), (Segment(0, (1, 1)),), 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((partial(training, 10, size), f"batch_size={size!r} must be an integer >= 1.")
          for size in (0, -4, None, "8", 8.0, False)),
        (partial(training, 10, MOST_BATCH + 1), f"batch_size={MOST_BATCH + 1} must be an integer in 1..{MOST_BATCH}."),
        (partial(training, 10, 2, repeats=-1), "repeats=-1 must be an integer >= 0."),
        (partial(training, 10, 2, repeats=1.0), "repeats=1.0 must be an integer >= 0."),
        *((partial(training, 10, 4, repeats=2, first_example=first), f"first_example={first} must be an integer in "
           "0..20.") for first in (-1, 21, 1.0, None)),
        *((partial(EpochPlan, Passes(10), World(0, 2), 2, Remainder.KEEP, is_training), "remainder='keep' with 2 ranks "
           "would give them different numbers of batches. Use 'pad' (evaluation), 'wrap' or 'drop' (training).")
          for is_training in (True, False)),
        *((partial(training, 0, 8, remainder=remainder), "The split holds no examples: there is nothing to train on.")
          for remainder in Remainder),
        (partial(EpochPlan, Passes(5, subset=Subset(np.arange(0))), World(), 2, WRAP, True), "The subset holds no "
         "examples: there is nothing to train on."),
        (partial(training, 7, 4, World(0, 2), remainder="drop"), "remainder='drop' leaves no batch: the epoch's 7 "
         "examples are fewer than the global batch of 8 (2 ranks x batch_size 4). Use remainder='wrap' or a smaller "
         "batch_size."),
        (partial(evaluation, 10, 2, repeats=2), "repeats=2 in evaluation would count every example 2 times."),
        (partial(evaluation, 10, 2, remainder="wrap"), "remainder='wrap' in evaluation would count examples twice. Use "
         "'pad', 'keep' or 'drop'."),
        (partial(EpochPlan, BALANCED, World(), 2, KEEP), "Evaluation needs each example exactly once, and in this "
         "order every example comes once in each pass of its member. Leave out the weights: every example then comes "
         "exactly once."),
        (partial(EpochPlan, Passes(9, epoch_size=9), World(), 2, KEEP), "Evaluation needs each example exactly once, "
         "and in this order every example comes once in each pass. Leave out epoch_size=9, or choose a subset."),
        (partial(training, 7, 3, remainder="roundup"), "remainder='roundup' must be one of 'wrap', 'drop', 'pad', "
         "'keep'."),
        (partial(training, 7, 3, remainder=None), "remainder=None must be one of 'wrap', 'drop', 'pad', 'keep'."),
        (partial(training, 7, 3, delivery="batches"), "delivery='batches' must be 'sample' or 'batch'. Did you mean "
         "'batch'?"),
        *((partial(training(10, 4).worker_batches, start), f"start_batch={start} must be in 0..3, the batches of an "
           "epoch.") for start in (-1, 4)),
        *((partial(training(10, 4).batch, 0, number), f"batch {number} must be in 0..2.") for number in (-1, 3)),
    ],
)  # fmt: skip
def test_what_keeps_no_guarantee_is_refused_in_words(make: Callable[[], object], message: str) -> None:
    assert said_of(ConfigError, make) == message


def test_what_is_just_possible_is_not_refused() -> None:
    assert training(7, 4, World(0, 2), remainder="drop", repeats=2).num_batches == 1
    assert training(8, 4, World(0, 2), remainder="drop").num_batches == 1
    assert training(10, 4, remainder="drop", first_example=8).num_batches == 0
    assert list(training(10, 4).worker_batches(3)) == []
    assert len(training(10, 4, delivery="batch")) == 3
    assert training(10, 4, repeats=0).num_own_slots == 10
