"""What is left of an epoch after a state, in any world that goes on with it: nothing twice, nothing missing."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import Slot, collect_round_robin, consume, own_row, plans, state_of, write_out
from resume_counts import Count, Outcome, add_count, count_outcomes

from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.state import LoaderState, WorkerPosition
from tfds_torch.plan.weights import make_segments
from tfds_torch.plan.world import World

PLANS = plans(max_examples=50)
EPOCHS = st.integers(0, 5)


def elsewhere(plan: EpochPlan, data: st.DataObject) -> EpochPlan:
    """The same order in another world: ranks that divide the global batch, any workers, a remainder that goes there."""
    size, remainder = plan.global_batch_size, plan.remainder
    num_replicas = data.draw(st.sampled_from([count for count in range(1, size + 1) if size % count == 0]))
    if remainder in (Remainder.KEEP, Remainder.PAD):
        remainder = data.draw(st.sampled_from([Remainder.KEEP, Remainder.PAD])) if num_replicas == 1 else Remainder.PAD
    world = World(0, num_replicas, 0, data.draw(st.integers(1, 5)))
    return replace(plan, world=world, batch_size=size // num_replicas, remainder=remainder)


def with_another_batch(plan: EpochPlan, data: st.DataObject) -> EpochPlan:
    """The same order with any ranks, workers and batch size, as far as its remainder lets it train."""
    alone = plan.remainder is Remainder.KEEP
    num_replicas, batch_size = 1 if alone else data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    if plan.remainder is Remainder.DROP and plan.is_training:
        num_replicas = min(num_replicas, plan.num_own_slots)
        batch_size = min(batch_size, plan.num_own_slots // num_replicas)
    return replace(plan, world=World(0, num_replicas, 0, data.draw(st.integers(1, 4))), batch_size=batch_size)


def hand_over(state: LoaderState, here: EpochPlan, *, allow_batch_change: bool = False) -> LoaderState:
    """The state as it comes out of a file, in the dataset that goes on with it."""
    saved = json.loads(json.dumps(state.to_dict()))
    return LoaderState.load(saved, state_of(here, 0, 0), allow_batch_change=allow_batch_change)


def valid_of(batches: dict[int, list[Slot]]) -> dict[int, list[Slot]]:
    return {number: [slot for slot in batch if slot[2]] for number, batch in batches.items()}


@pytest.mark.parametrize("num_points", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_resumes_in_other_worlds_give_the_uninterrupted_epoch(num_points: int) -> None:
    points: list[tuple[EpochPlan, EpochPlan]] = []

    @settings(max_examples=num_points + 50, deadline=None)
    @given(PLANS, EPOCHS, st.data())
    def resume(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
        place, seen, state = plan, {}, state_of(plan, 0, epoch)
        while state.batches < plan.num_batches:
            stop = data.draw(st.integers(state.batches + 1, plan.num_batches))
            part = consume(place, state.epoch, state.batches, stop)
            assert not seen.keys() & part.keys()
            seen |= part
            there = elsewhere(plan, data)
            points.append((place, there))
            place, state = there, hand_over(state_of(place, stop, epoch), there)
        assert valid_of(seen) == valid_of(write_out(plan, epoch))
        assert hand_over(state, place) == state

    resume()
    assert len(points) >= num_points
    assert sum(one.world.num_pipelines != other.world.num_pipelines for one, other in points) > len(points) // 3


@settings(max_examples=200, deadline=None)
@given(PLANS, EPOCHS, st.data())
def test_an_epoch_under_one_global_batch_after_the_other_has_each_example_exactly_once(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    own, came, state = own_row(plan, epoch), [], state_of(plan, 0, epoch)
    last_size = plan.global_batch_size
    while state.batches < state.num_batches:
        here = replace(plan, first_example=state.first_example)
        stop = data.draw(st.integers(state.batches, state.num_batches))
        part = consume(here, epoch, state.batches, stop)
        assert part == {number: batch for number, batch in write_out(here, epoch).items() if number in part}
        came += [slot for batch in part.values() for slot in batch]
        is_over = stop == state.num_batches
        plan = with_another_batch(plan, data)
        state = hand_over(state_of(here, stop, epoch), plan, allow_batch_change=True)
        if is_over:
            assert state.num_batches == state.batches
            break
        last_size = state.global_batch
        assert (state.epoch, state.global_batch, state.examples) == (epoch, plan.global_batch_size, len(came))
    if plan.remainder is Remainder.DROP:
        assert sorted(came) == sorted(own[: len(came)])
        assert not own or len(came) > len(own) - last_size
        return
    valid = [slot for slot in came if slot[2]]
    assert len(set(valid)) == len(valid)
    assert set(own) <= set(valid)
    assert len(valid) == len(own) or (plan.remainder is Remainder.WRAP and len(came) < len(own) + last_size)


@settings(max_examples=90, deadline=None)
@given(PLANS, EPOCHS, st.data())
def test_workers_that_go_on_from_their_own_positions_give_the_rest(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    """As torchdata's StatefulDataLoader resumes: the same workers, each where it was, the next one first."""
    num_workers = plan.world.num_workers
    start = data.draw(st.integers(0, plan.num_batches))
    delivered = data.draw(st.integers(0, plan.num_batches - start))
    began_at = state_of(plan, start, epoch)
    rests = []
    for worker in range(num_workers):
        position = WorkerPosition(worker, num_workers, len(range(worker, delivered, num_workers)), 0, began_at)
        position = WorkerPosition.load(position.to_dict(), began_at, worker=worker, num_workers=num_workers)
        here = replace(plan, world=plan.world.at_worker(worker, num_workers))
        rests.append(list(WorkerOrder(here, epoch, position.start_batch).numbers))
    turn = delivered % num_workers
    assert collect_round_robin(rests[turn:] + rests[:turn]) == list(range(start + delivered, plan.num_batches))


def test_the_worked_example_of_another_global_batch() -> None:
    whole = EpochPlan(Passes(10, shuffle=False), World(num_replicas=2), 2, Remainder.WRAP, is_training=True)
    assert [whole.batch(0, number).index.tolist() for number in range(3)] == [[0, 1], [4, 5], [8, 9]]
    there = replace(whole, world=World(), batch_size=3)
    state = hand_over(state_of(whole, 1), there, allow_batch_change=True)
    assert (state.examples, state.batches, state.first_example, state.num_batches) == (4, 0, 4, 2)
    rest = replace(there, first_example=4)
    assert [rest.batch(0, number).index.tolist() for number in range(2)] == [[4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("remainder", list(Remainder))
@pytest.mark.parametrize("n", [8, 10])
def test_an_epoch_that_has_ended_stays_so_under_another_global_batch_too(remainder: Remainder, n: int) -> None:
    is_training = remainder in (Remainder.WRAP, Remainder.DROP)
    plan = EpochPlan(Passes(n, shuffle=False), World(), 4, remainder, is_training)
    ended = state_of(plan, plan.num_batches)
    assert hand_over(ended, plan) == ended
    for batch_size in (1, 3, 8):
        state = hand_over(ended, replace(plan, batch_size=batch_size), allow_batch_change=True)
        assert (state.epoch, state.batches, state.first_example, state.num_batches) == (1, 0, n, 0)
        again = hand_over(state, plan, allow_batch_change=True)
        assert (again.first_example, again.num_batches) == (n, 0)


# Random stops of mixtures, counted


def follow(chance: random.Random) -> Outcome:
    """Returns what came until a random stop, after which the state went through JSON into another world."""
    sizes = {f"m{number}": chance.randint(1, 80) for number in range(chance.randint(1, 6))}
    starts = [0, *sorted(chance.sample(range(1, 600), chance.randint(0, 3)))]
    schedule = [(start, {name: chance.randint(1, 20) / 10 for name in sizes}) for start in starts]
    members = tuple(Member(*one) for one in sizes.items())
    order = Mixed(members, make_segments(sizes, schedule)[0], 1, chance.randrange(2**40))
    until = chance.choice(["first_exhausted", "all_exhausted", None])
    order = replace(order, epoch_size=order.slots_until(until) if until else chance.randint(1, 400))
    size, epoch = chance.choice([4, 6, 12]), chance.randint(0, 5)
    plan, there = (
        EpochPlan(order, World(0, count, 0, chance.randint(1, 4)), size // count, Remainder.WRAP, True)
        for count in (chance.choice([r for r in range(1, 5) if size % r == 0]) for _ in range(2))
    )
    stop = chance.randint(0, plan.num_batches)
    state = hand_over(state_of(plan, stop, epoch), there)
    before, after = consume(plan, epoch, 0, stop), consume(there, state.epoch, state.batches, there.num_batches)
    first = epoch * order.epoch_size
    planned = order.at(np.arange(first, first + plan.num_batches * size))
    n = order.num_examples
    came = [[one[0] * n + one[1] for batch in part.values() for one in batch] for part in (before, after)]
    return Outcome(came[0], came[1], (planned[0] * n + planned[1]).tolist())


@pytest.mark.parametrize("num_stops", [100])
def test_random_stops_are_resumed_in_other_worlds_without_loss(num_stops: int) -> None:
    assert count_many(num_stops, seed=32) == Count(num_stops, num_other=0, num_missing=0, num_twice=0)


@pytest.mark.slow
def test_1000_random_stops_are_resumed_in_other_worlds_without_loss(pytestconfig: pytest.Config) -> None:
    count = count_many(1000, seed=31)
    add_count(pytestconfig, "mixtures", count)
    assert count == Count(1000, num_other=0, num_missing=0, num_twice=0)


def count_many(num_stops: int, seed: int) -> Count:
    """Returns what many stops gave, most of which are inside an epoch."""
    chance = random.Random(seed)
    outcomes = [follow(chance) for _ in range(num_stops)]
    assert sum(bool(one.before) and bool(one.after) for one in outcomes) > num_stops // 2
    return count_outcomes(outcomes)
