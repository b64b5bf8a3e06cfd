"""The rest of an epoch, dealt anew with another global batch: each example exactly once, plus the planned fill."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import order_of_pass, plans
from plan.saved_states import message_of, state_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.deal import deal_examples, deal_files
from tfds_torch.plan.epoch import EpochPlan, Remainder, WorkerOrder
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World

PLANS = plans(max_examples=60, max_replicas=3, max_workers=3, max_batch_size=7, max_repeats=3)
Slots = list[tuple[int, int, bool]]  # Example, pass, valid.


def at_workers(plan: EpochPlan, epoch: int, number: int, start_batch: int = 0) -> Slots:
    """The global batch of a number, as the workers of all ranks deliver it."""
    slots: Slots = []
    for rank in range(plan.world.num_replicas):
        worker = (number - start_batch) % plan.world.num_workers
        order = WorkerOrder(
            replace(plan, world=World(rank, plan.world.num_replicas, worker, plan.world.num_workers)),
            epoch,
            start_batch,
        )
        start = order.numbers.index(number) * plan.batch_size
        part = order.planned(start, min(start + plan.batch_size, len(order)))
        slots += zip(part.index.tolist(), part.pass_number.tolist(), part.valid.tolist(), strict=True)
    return slots


def elsewhere(plan: EpochPlan, data: st.DataObject, first_example: int) -> EpochPlan:
    """The rest of an epoch under another number of ranks, workers and another batch size."""
    can_be_alone = plan.remainder is Remainder.KEEP
    world = World(0, 1 if can_be_alone else data.draw(st.integers(1, 3)), 0, data.draw(st.integers(1, 4)))
    most = 9
    if plan.remainder is Remainder.DROP and plan.is_training:
        most = max(1, min(most, plan.num_own_slots // world.num_replicas))
        world = replace(world, num_replicas=min(world.num_replicas, plan.num_own_slots))
    return replace(plan, world=world, batch_size=data.draw(st.integers(1, most)), first_example=first_example)


@settings(max_examples=120, deadline=None)
@given(PLANS, st.integers(0, 4), st.data())
def test_a_row_of_batch_changes_covers_each_example_exactly_once(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    came: Slots = []
    plan = replace(plan, world=replace(plan.world, rank=0, worker=0))
    while True:
        taken = data.draw(st.integers(0, plan.num_batches))
        for number in range(taken):
            came += at_workers(plan, epoch, number)
        if taken == plan.num_batches:
            break
        plan = elsewhere(plan, data, plan.first_example + taken * plan.global_batch_size)

    passes = range(epoch * plan.num_passes, (epoch + 1) * plan.num_passes)
    own = [(index, number, True) for number in passes for index in order_of_pass(plan, number).tolist()]
    if plan.remainder is Remainder.DROP:
        assert came == own[: len(came)]
        assert len(own) - len(came) < plan.global_batch_size
        return
    assert came[: len(own)] == own
    assert max(Counter(came[: len(own)]).values(), default=1) == 1
    fill = came[len(own) :]
    assert len(fill) < plan.global_batch_size
    if plan.remainder is Remainder.PAD and fill:
        again = np.resize(order_of_pass(plan, passes[-1]), len(fill)).tolist()
        assert fill == [(index, passes[-1], False) for index in again]
    elif plan.remainder is Remainder.WRAP:
        following = [(index, n, True) for n in range(passes.stop, passes.stop + 40) for index in order_of_pass(plan, n)]
        assert fill == following[: len(fill)]
    else:
        assert not fill


@settings(max_examples=100, deadline=None)
@given(PLANS, st.data())
def test_the_rest_of_an_epoch_counts_what_it_yields(plan: EpochPlan, data: st.DataObject) -> None:
    rest = replace(plan, first_example=data.draw(st.integers(0, plan.num_own_slots)))
    batches = [rest.batch(1, number) for number in range(rest.num_batches)]
    assert rest.num_samples == sum(len(batch.index) for batch in batches)
    ranks = [replace(rest, world=World(rank, plan.world.num_replicas)) for rank in range(plan.world.num_replicas)]
    end = (1 + 1) * plan.num_passes
    own = [
        number < end and valid
        for rank in ranks
        for batch in (rank.batch(1, number) for number in range(rest.num_batches))
        for number, valid in zip(batch.pass_number.tolist(), batch.valid.tolist(), strict=True)
    ]
    assert rest.num_valid == sum(own)
    assert rest.num_valid <= plan.num_own_slots - rest.first_example


def test_the_worked_example() -> None:
    whole = EpochPlan(10, World(num_replicas=2), 2, Remainder.WRAP, is_training=True)
    assert [whole.batch(0, number).index.tolist() for number in range(3)] == [[0, 1], [4, 5], [8, 9]]
    rest = replace(whole, world=World(num_replicas=1), batch_size=3, first_example=4)  # After one global batch.
    assert [rest.batch(0, number).index.tolist() for number in range(2)] == [[4, 5, 6], [7, 8, 9]]
    assert (rest.num_batches, rest.num_samples, rest.num_valid) == (2, 6, 6)


def test_nothing_is_left_at_the_end() -> None:
    for remainder in (Remainder.WRAP, Remainder.DROP):
        plan = EpochPlan(10, World(), 4, remainder, is_training=True, first_example=10)
        assert (plan.num_batches, plan.num_samples, plan.num_valid) == (0, 0, 0)


def test_the_rest_may_be_shorter_than_a_batch_that_is_dropped_and_an_epoch_may_not() -> None:
    plan = EpochPlan(10, World(), 4, Remainder.DROP, is_training=True, first_example=8)
    assert plan.num_batches == 0
    with pytest.raises(ConfigError, match="leaves no batch: the epoch's 10 examples are fewer than the global batch"):
        replace(plan, batch_size=11, first_example=8)


@pytest.mark.parametrize("first_example", [-1, 21, 1.0, None])
def test_a_first_example_outside_the_epoch_is_a_config_error(first_example: object) -> None:
    with pytest.raises(ConfigError, match=rf"^first_example={first_example} must be an integer in 0\.\.20\.$"):
        EpochPlan(10, World(), 4, Remainder.WRAP, True, 2, first_example=first_example)  # type: ignore[arg-type]


@pytest.mark.parametrize("deal", [deal_files, deal_examples])
def test_a_stream_is_dealt_in_whole_epochs_only(deal: object) -> None:
    plan = EpochPlan(10, World(), 4, Remainder.WRAP, is_training=True, first_example=4)
    with pytest.raises(ConfigError, match=r"^first_example=4: read modes 'files' and 'examples' deal whole"):
        deal(plan, [10], 0)  # type: ignore[operator]


# States


def moved(state: LoaderState, here: EpochPlan) -> LoaderState:
    """The state as it comes out of a file, in a dataset of another global batch size."""
    saved = LoaderState.from_json(state.to_json()).to_dict()
    return LoaderState.load(saved, state_of(here, 0, 0), allow_batch_change=True)


@settings(max_examples=90, deadline=None)
@given(PLANS, st.integers(0, 4), st.data())
def test_an_epoch_under_one_global_batch_after_the_other_is_whole(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    came: Slots = []
    plan = replace(plan, world=replace(plan.world, rank=0, worker=0))
    state = state_of(plan, 0, epoch)
    while state.batches_delivered < state.num_batches:
        here = replace(plan, first_example=state.first_example)
        stop = data.draw(st.integers(state.batches_delivered, state.num_batches))
        for number in range(state.batches_delivered, stop):
            came += at_workers(here, epoch, number, state.batches_delivered)
        state = state.at(stop)
        num_own = sum(number < (epoch + 1) * plan.num_passes and valid for _, number, valid in came)
        is_over = state.batches_delivered == state.num_batches
        assert state.examples_delivered == (plan.num_own_slots if is_over else num_own)
        plan = elsewhere(plan, data, 0)
        state = moved(state, plan)
        assert (state.epoch, state.global_batch_size) == (epoch, plan.global_batch_size)
    passes = range(epoch * plan.num_passes, (epoch + 1) * plan.num_passes)
    own = [(index, number, True) for number in passes for index in order_of_pass(plan, number).tolist()]
    assert came[: len(own)] == own[: len(came)]
    if plan.remainder is not Remainder.DROP:
        assert len(came) >= len(own)


def test_a_state_of_the_same_global_batch_is_loaded_as_it_is() -> None:
    plan = EpochPlan(100, World(num_replicas=2), 4, Remainder.WRAP, is_training=True, first_example=30)
    state = state_of(plan, 3)
    here = state_of(EpochPlan(100, World(num_replicas=1), 8, Remainder.WRAP, is_training=True))
    for allow in (False, True):
        assert LoaderState.load(state.to_dict(), here, allow_batch_change=allow) == state


def test_a_state_is_dealt_anew_at_the_example_where_it_stood() -> None:
    plan = EpochPlan(100, World(num_replicas=2), 4, Remainder.WRAP, is_training=True)
    there = EpochPlan(100, World(num_replicas=3), 5, Remainder.WRAP, is_training=True)
    first = moved(state_of(plan, 3), there)
    assert (first.first_example, first.batches_delivered, first.num_batches) == (24, 0, 6)
    assert (first.num_replicas, first.batch_size, first.global_batch_size) == (3, 5, 15)
    second = moved(first.at(2), plan)
    assert (second.first_example, second.batches_delivered, second.num_batches) == (54, 0, 6)
    at_end = moved(second.at(6), there)
    assert (at_end.first_example, at_end.batches_delivered, at_end.num_batches) == (100, 0, 0)
    assert moved(state_of(there, 0), plan) == state_of(plan, 0).with_workers(1)


def test_an_epoch_that_has_ended_stays_so_also_where_its_last_examples_were_dropped() -> None:
    plan = EpochPlan(10, World(), 4, Remainder.DROP, is_training=True)
    state = moved(state_of(plan, 2), replace(plan, batch_size=1))
    assert (state.first_example, state.num_batches) == (10, 0)


@pytest.mark.parametrize("read_mode", ["files", "examples"])
def test_a_stream_keeps_its_global_batch(read_mode: str) -> None:
    def state(batch_size: int) -> LoaderState:
        plan = EpochPlan(100, World(), batch_size, Remainder.WRAP, is_training=True)
        names = {"dataset": "digits:1.0.0", "split": "train", "fingerprint": "f", "num_workers": None}
        return LoaderState.of(plan, read_mode=read_mode, epoch=0, batches_delivered=1, **names)  # type: ignore[arg-type]

    found = message_of(LoaderState.load, state(4).to_dict(), state(8), allow_batch_change=True)
    assert found == (
        f"The state does not fit this dataset. batch_size: 4 in the state, 8 here. Read mode '{read_mode}' goes on in "
        f"the same world only; 'index' in others too."
    )
    tampered = {**state(4).to_dict(), "first_example": 8}
    assert f"first_example=8 must be 0 in read mode '{read_mode}'" in message_of(LoaderState.from_dict, tampered)
