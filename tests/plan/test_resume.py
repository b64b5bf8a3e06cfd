"""What is left of an epoch after a state, in any world that continues it: nothing twice, nothing missing."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import collect_round_robin, plans, write_out
from plan.saved_states import state_of

from tfds_torch.plan.epoch import EpochPlan, Remainder, WorkerOrder
from tfds_torch.plan.state import LoaderState, WorkerPosition
from tfds_torch.plan.world import World

Batches = dict[
    int, list[tuple[int, int]]
]  # Number of the global batch -> (example, pass) of its valid slots, in order.

PLANS = plans(max_examples=80, max_replicas=4, max_workers=4, max_batch_size=6, max_repeats=3)


def consume(plan: EpochPlan, epoch: int, start_batch: int, num_batches: int) -> Batches:
    """What all ranks take from their loaders in an iteration of so many batches, put together."""
    delivered: Batches = {start_batch + n: [] for n in range(num_batches)}
    for rank in range(plan.world.num_replicas):
        per_worker = []
        for worker in range(plan.world.num_workers):
            here = World(rank, plan.world.num_replicas, worker, plan.world.num_workers)
            order = WorkerOrder(replace(plan, world=here), epoch, start_batch)
            whole = order.planned(0, len(order))
            pairs = list(zip(whole.index.tolist(), whole.pass_number.tolist(), strict=True))[: order.num_valid]
            size = plan.batch_size
            per_worker.append([pairs[n * size : (n + 1) * size] for n in range(len(order.numbers))])
        for number, batch in enumerate(collect_round_robin(per_worker)[:num_batches], start_batch):
            delivered[number] += batch
    return delivered


def uninterrupted(plan: EpochPlan, epoch: int) -> Batches:
    """The same, as DESIGN writes an epoch down."""
    expected = write_out(plan, epoch)
    columns = (expected.index, expected.pass_number, expected.valid)
    batches: Batches = {}
    for number in range(expected.num_batches):
        part = slice(number * expected.global_batch_size, (number + 1) * expected.global_batch_size)
        slots = zip(*(column[part].tolist() for column in columns), strict=True)
        batches[number] = [(index, pass_number) for index, pass_number, valid in slots if valid]
    return batches


def elsewhere(plan: EpochPlan, data: st.DataObject) -> EpochPlan:
    """The same order in another world: ranks that divide the global batch, any workers, a remainder that goes there."""
    size = plan.global_batch_size
    num_replicas = data.draw(st.sampled_from([count for count in range(1, size + 1) if size % count == 0]))
    world = World(0, num_replicas, 0, data.draw(st.integers(1, 5)))
    remainder = plan.remainder
    if remainder in (Remainder.KEEP, Remainder.PAD):
        remainder = data.draw(st.sampled_from([Remainder.KEEP, Remainder.PAD])) if num_replicas == 1 else Remainder.PAD
    return replace(plan, world=world, batch_size=size // num_replicas, remainder=remainder)


def hand_over(state: LoaderState, here: EpochPlan, epoch: int) -> LoaderState:
    """The state as it comes out of a file, in the dataset that continues it."""
    return LoaderState.load(LoaderState.from_json(state.to_json()).to_dict(), state_of(here, 0, epoch))


@pytest.mark.parametrize("num_points", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_resumes_in_other_worlds_give_the_uninterrupted_epoch(num_points: int) -> None:
    points = []

    @settings(max_examples=num_points + 100, deadline=None)
    @given(PLANS, st.integers(0, 5), st.data())
    def resume(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
        there = elsewhere(plan, data)
        delivered = data.draw(st.integers(0, plan.num_batches))
        before = consume(plan, epoch, 0, delivered)
        state = hand_over(state_of(plan, delivered, epoch), there, epoch)
        after = consume(there, state.epoch, state.batches_delivered, there.num_batches - state.batches_delivered)
        assert not before.keys() & after.keys()
        assert before | after == uninterrupted(plan, epoch)
        points.append((plan, epoch, delivered, there))

    resume()
    assert len(points) >= num_points
    moved = [point for point in points if point[0].world.num_pipelines != point[3].world.num_pipelines]
    assert len(moved) > len(points) // 3


@settings(max_examples=60, deadline=None)
@given(PLANS, st.integers(0, 5), st.data())
def test_an_epoch_in_several_worlds_one_after_the_other_is_whole(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    place, seen, state = plan, {}, state_of(plan, 0, epoch)
    while state.batches_delivered < plan.num_batches:
        taken = data.draw(st.integers(1, plan.num_batches - state.batches_delivered))
        seen |= consume(place, epoch, state.batches_delivered, taken)
        state = state.at(state.batches_delivered + taken)
        place = elsewhere(plan, data)
        state = hand_over(state_of(place, state.batches_delivered, epoch), place, epoch)
    assert seen == uninterrupted(plan, epoch)
    examples = Counter(pair for batch in seen.values() for pair in batch)
    assert set(examples.values()) <= {1}


@settings(max_examples=90, deadline=None)
@given(PLANS, st.integers(0, 5), st.data())
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
        batches = len(range(worker, delivered, num_workers))
        position = WorkerPosition(worker, num_workers, batches, 0, began_at)
        position = WorkerPosition.load(position.to_dict(), began_at, worker=worker, num_workers=num_workers)
        here = replace(plan, world=plan.world.at_worker(worker, num_workers))
        assert position.start_batch <= plan.num_batches
        rests.append(list(WorkerOrder(here, epoch, position.start_batch).numbers))
    turn = delivered % num_workers
    assert collect_round_robin(rests[turn:] + rests[:turn]) == list(range(start + delivered, plan.num_batches))


@pytest.mark.parametrize("num_batches", [0, 1, 4])
def test_a_state_at_the_end_of_an_epoch_leaves_nothing(num_batches: int) -> None:
    plan = EpochPlan(8 * num_batches, World(num_workers=3), 8, Remainder.KEEP)
    state = hand_over(state_of(plan, num_batches, 2), plan, 2)
    assert consume(plan, 2, state.batches_delivered, 0) == {}
    assert len(WorkerOrder(plan, 2, state.batches_delivered)) == 0
