"""The rest of an epoch, dealt anew with another global batch: each example exactly once, plus the planned fill."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import order_of_pass, plans

from tfds_torch.errors import ConfigError
from tfds_torch.plan.assignment import deal_examples, deal_files
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.worker_order import WorkerOrder
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


@settings(max_examples=200, deadline=None)
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
        following = [(index, n, True) for n in range(passes.stop, passes.stop + 10) for index in order_of_pass(plan, n)]
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
