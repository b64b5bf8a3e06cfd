"""Epochs of a mixture in any world, stopped anywhere and gone on with in other worlds: the same global batches."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.mixtures import mixtures
from plan.saved_states import state_of
from resume_counts import Count, Outcome, add_count, count_outcomes

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import EpochPlan, Remainder, WorkerOrder
from tfds_torch.plan.mixed import MixtureMember, MixtureOrder
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.weights import make_segments
from tfds_torch.plan.world import World


def plan_of(
    order: MixtureOrder, world: World, global_batch: int, remainder: Remainder = Remainder.WRAP, repeats: int = 1
) -> EpochPlan:
    assert global_batch % world.num_replicas == 0
    batch_size = global_batch // world.num_replicas
    return EpochPlan(
        *(order.num_examples, world, batch_size, remainder, True, repeats, order.shuffle, order.seed), mixture=order
    )


def batches_of(plan: EpochPlan, epoch: int, start: int, stop: int) -> Iterator[list[int]]:
    """Yields global batches as all workers of all ranks deliver them, in turn: sample keys, rank after rank."""
    num_replicas, num_workers = plan.world.num_replicas, plan.world.num_workers
    own: list[list[list[int]]] = []  # Of each worker: its batches. Those of a rank stand side by side.
    for place in World.grid(num_replicas, num_workers):
        order = WorkerOrder(replace(plan, world=place), epoch, start)
        num_batches = len(range(start + place.worker, stop, num_workers))
        end = min(num_batches * plan.batch_size, len(order))
        parts = [order.sample_keys(*part).tolist() for part in ((0, end // 3), (end // 3, end))]  # Cut anywhere.
        keys = parts[0] + parts[1]
        own.append([keys[first : first + plan.batch_size] for first in range(0, end, plan.batch_size)])
    for number in range(start, stop):
        at, worker = divmod(number - start, num_workers)
        yield [key for rank in range(num_replicas) for key in own[rank * num_workers + worker][at]]


def row_of(order: MixtureOrder, start: int, stop: int) -> list[int]:
    """Returns the sample keys of slots of the endless row."""
    found = order.at(np.arange(start, stop, dtype=np.int64))
    return (found.pass_number * order.num_examples + found.index).tolist()


# Worlds


@settings(max_examples=60)
@given(mixtures(), st.integers(0, 4), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4, 6, 12]), st.data())
def test_global_batches_do_not_depend_on_ranks_and_workers(
    order: MixtureOrder, epoch: int, repeats: int, num_replicas: int, data: st.DataObject
) -> None:
    world = World(0, num_replicas, 0, data.draw(st.integers(1, 4)))
    remainder = data.draw(st.sampled_from([Remainder.WRAP, Remainder.PAD]))
    plan = plan_of(order, world, 12, remainder, repeats)
    alone = plan_of(order, World(), 12, remainder, repeats)
    came = [key for batch in batches_of(plan, epoch, 0, plan.num_batches) for key in batch]
    assert came == [key for batch in batches_of(alone, epoch, 0, alone.num_batches) for key in batch]
    num_own = repeats * order.epoch_size
    assert came[:num_own] == row_of(order, epoch * num_own, (epoch + 1) * num_own)
    assert len(came) - num_own < 12
    if remainder is Remainder.WRAP:
        assert came == row_of(order, epoch * num_own, epoch * num_own + len(came))
    else:
        last_pass = row_of(order, (epoch + 1) * num_own - order.epoch_size, (epoch + 1) * num_own)
        assert came[num_own:] == np.resize(last_pass, len(came) - num_own).tolist()
        valid = plan.at_slots(epoch, np.arange(len(came))).valid
        assert valid.tolist() == [True] * num_own + [False] * (len(came) - num_own)


@settings(max_examples=60)
@given(mixtures(), st.integers(0, 3))
def test_dropping_and_keeping_end_where_they_do_for_one_dataset(order: MixtureOrder, epoch: int) -> None:
    size = min(5, order.epoch_size)
    own = row_of(order, epoch * order.epoch_size, (epoch + 1) * order.epoch_size)
    dropped = plan_of(order, World(), size, Remainder.DROP)
    kept = plan_of(order, World(), size, Remainder.KEEP)
    came = {
        plan: [key for batch in batches_of(plan, epoch, 0, plan.num_batches) for key in batch]
        for plan in (dropped, kept)
    }
    assert came[kept] == own
    assert came[dropped] == own[: len(own) // size * size]
    assert (len(kept), len(dropped)) == (len(own), len(own) // size * size)


@settings(max_examples=60)
@given(mixtures(), st.data())
def test_consecutive_epochs_are_one_row(order: MixtureOrder, data: st.DataObject) -> None:
    order = replace(order, epoch_size=6 * data.draw(st.integers(1, 6)))
    plan = plan_of(order, World(0, data.draw(st.sampled_from([1, 2, 3])), 0, 2), 6)
    came = [key for epoch in range(4) for batch in batches_of(plan, epoch, 0, plan.num_batches) for key in batch]
    assert came == row_of(order, 0, 4 * order.epoch_size)
    assert len(set(came)) == len(came)


# Resumes


@dataclass(frozen=True)
class Journey:
    """A mixture, and an epoch of it that is stopped several times.

    Attributes:
        order: of the mixture.
        global_batch: G.
        epoch: which epoch.
    """

    order: MixtureOrder
    global_batch: int
    epoch: int

    @classmethod
    def draw(cls, chance: random.Random) -> "Journey":
        names = [f"m{number}" for number in range(chance.randint(1, 6))]
        sizes = {name: chance.randint(1, 80) for name in names}
        starts = [0, *sorted(chance.sample(range(1, 600), chance.randint(0, 3)))]
        schedule = [(start, {name: chance.randint(1, 20) / 10 for name in names}) for start in starts]
        members = tuple(MixtureMember(*one) for one in sizes.items())
        order = MixtureOrder(members, make_segments(sizes, schedule)[0], 1, chance.randrange(2**40))
        stop = chance.choice(["first_exhausted", "all_exhausted", None])
        epoch_size = order.slots_until(stop) if stop else chance.randint(1, 400)
        return cls(replace(order, epoch_size=epoch_size), chance.choice([4, 6, 12]), chance.randint(0, 5))

    def plan(self, chance: random.Random) -> EpochPlan:
        """Returns the plan in a world that is drawn."""
        possible = [count for count in range(1, 5) if self.global_batch % count == 0]
        world = World(0, chance.choice(possible), 0, chance.randint(1, 4))
        return plan_of(self.order, world, self.global_batch)


def follow(journey: Journey, chance: random.Random) -> Outcome:
    """Returns what came until a random stop, after which the state went through JSON into another world."""
    plan, there = journey.plan(chance), journey.plan(chance)
    stop = chance.randint(0, plan.num_batches)
    before = [key for batch in batches_of(plan, journey.epoch, 0, stop) for key in batch]
    saved = json.loads(state_of(plan, stop, journey.epoch).to_json())
    state = LoaderState.load(saved, state_of(there))
    after = batches_of(there, state.epoch, state.batches_delivered, there.num_batches)
    first = journey.epoch * journey.order.epoch_size
    planned = row_of(journey.order, first, first + plan.num_batches * journey.global_batch)
    return Outcome(before, [key for batch in after for key in batch], planned)


def follow_many(num_stops: int, seed: int) -> Count:
    """Returns what many stops gave, most of which are inside an epoch."""
    chance = random.Random(seed)
    outcomes = [follow(Journey.draw(chance), chance) for _ in range(num_stops)]
    assert sum(bool(one.before) and bool(one.after) for one in outcomes) > num_stops // 2
    return count_outcomes(outcomes)


def test_random_stops_are_resumed_in_other_worlds_without_loss() -> None:
    assert follow_many(150, seed=32) == Count(150, num_other=0, num_missing=0, num_twice=0)


@pytest.mark.slow
def test_1000_random_stops_are_resumed_in_other_worlds_without_loss(pytestconfig: pytest.Config) -> None:
    count = follow_many(1000, seed=31)
    add_count(pytestconfig, "mixtures", count)
    assert count == Count(1000, num_other=0, num_missing=0, num_twice=0)


@settings(max_examples=60)
@given(mixtures(), st.integers(0, 3), st.data())
def test_the_rest_of_an_epoch_is_dealt_anew_with_another_global_batch(
    order: MixtureOrder, epoch: int, data: st.DataObject
) -> None:
    plan = plan_of(order, World(), 4)
    stop = data.draw(st.integers(0, max(0, order.epoch_size // 4 - 1)))
    other = plan_of(order, World(0, 3), 9)
    saved = state_of(plan, stop, epoch).to_dict()
    with pytest.raises(StateMismatchError, match="global_batch_size: 4 in the state"):
        LoaderState.load(saved, state_of(other))
    state = LoaderState.load(saved, state_of(other), allow_batch_change=True)
    rest = replace(other, first_example=state.first_example)
    first = epoch * order.epoch_size
    came = [key for batch in batches_of(plan, epoch, 0, stop) for key in batch]
    came += [key for batch in batches_of(rest, epoch, state.batches_delivered, rest.num_batches) for key in batch]
    assert came == row_of(order, first, first + len(came))
    assert order.epoch_size <= len(came) < order.epoch_size + 9


def test_a_state_of_another_epoch_size_is_refused() -> None:
    sizes = {"a": 10, "b": 20}
    members = tuple(MixtureMember(*one) for one in sizes.items())
    order = MixtureOrder(members, make_segments(sizes, {"a": 1, "b": 1})[0], 100)
    plans = [plan_of(replace(order, epoch_size=size), World(), 4) for size in (100, 60)]
    with pytest.raises(
        StateMismatchError, match=r"num_examples: 100 in the state, 60 here.* the epoch_size, that it had"
    ):
        LoaderState.load(state_of(plans[0], 5).to_dict(), state_of(plans[1]))
