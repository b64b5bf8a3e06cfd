"""WorkerOrder: the plan's batches of one worker, one example after the other."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import plans

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan, Remainder, WorkerOrder
from tfds_torch.plan.passes import BlockShuffle
from tfds_torch.plan.world import World

SMALL_PLANS = plans(max_examples=60, max_replicas=4, max_workers=4, max_batch_size=6)
EPOCHS = st.integers(0, 5)


@settings(max_examples=120, deadline=None)
@given(SMALL_PLANS, EPOCHS, st.data())
def test_the_examples_are_those_of_the_workers_batches_in_order(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    start_batch = data.draw(st.integers(0, plan.num_batches))
    order = WorkerOrder(plan, epoch, start_batch)
    assert list(order.numbers) == list(plan.worker_batches(start_batch))
    batches = [plan.batch(epoch, number) for number in order.numbers]
    index, passes, valid = (
        [value for batch in batches for value in getattr(batch, name).tolist()]
        for name in ("index", "pass_number", "valid")
    )
    assert len(order) == len(index)
    assert order.num_valid == sum(valid)
    assert valid == sorted(valid, reverse=True)  # Padding comes last.
    whole = order.planned(0, len(order))
    assert (whole.index.tolist(), whole.pass_number.tolist(), whole.valid.tolist()) == (index, passes, valid)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(order))] * 2)))
    assert order.planned(start, stop).index.dtype == np.int64
    assert order.planned(start, stop).index.tolist() == index[start:stop]


def huge_order(num_examples: int, blocks: BlockShuffle | None) -> WorkerOrder:
    world = World(rank=3, num_replicas=8, worker=1, num_workers=4)
    plan = EpochPlan(num_examples, world, 256, Remainder.WRAP, is_training=True, shuffle=True, blocks=blocks)
    return WorkerOrder(plan, epoch=2, start_batch=5)


def peak_bytes(order: WorkerOrder, size: int) -> int:
    start = len(order) // 2
    tracemalloc.start()
    try:
        assert len(order.planned(start, start + size).index) == size
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("blocks", [None, BlockShuffle(256, 32)])
@pytest.mark.parametrize("num_examples", [10**7, 10**10])
def test_nothing_is_listed_before_it_is_asked_for(num_examples: int, blocks: BlockShuffle | None) -> None:
    order = huge_order(num_examples, blocks)
    peak_bytes(order, 10)  # Whatever is allocated once.
    assert peak_bytes(order, 10) < 100_000
    assert peak_bytes(order, 4096) < 100_000 + 250 * 4096
    assert len(pickle.dumps(order)) < 2000


def test_it_can_be_sent_to_another_process() -> None:
    order = huge_order(10**7, BlockShuffle(256, 32))
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert np.array_equal(again.planned(1000, 1300).index, order.planned(1000, 1300).index)


def test_a_worker_without_batches_has_nothing_to_deliver() -> None:
    plan = EpochPlan(10, World(worker=2, num_workers=3), 5, Remainder.KEEP)
    order = WorkerOrder(plan, 0)
    assert (len(order), order.num_valid, list(order.numbers), order.planned(0, 0).index.tolist()) == (0, 0, [], [])
    empty = WorkerOrder(EpochPlan(0, World(), 5, Remainder.KEEP), 0)
    assert (len(empty), empty.num_valid, empty.planned(0, 0).index.tolist()) == (0, 0, [])


PLAN = EpochPlan(100, World(1, 2, 1, 2), 8, Remainder.PAD)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 25), (5, 4)])
def test_positions_outside_are_a_config_error(start: int, stop: int) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerOrder(PLAN, 0, 1).planned(start, stop)
    assert str(caught.value) == (
        f"WorkerOrder: positions {start}:{stop} must lie within 0..24, the examples that worker 1 of rank 1 delivers "
        f"from batch 1 on."
    )


@pytest.mark.parametrize(
    ("epoch", "start_batch", "message"),
    [
        (-1, 0, "epoch=-1 must be an integer >= 0."),
        (1.5, 0, "epoch=1.5 must be an integer >= 0."),
        (0, 8, "start_batch=8 must be in 0..7, the batches of an epoch."),
        (0, -1, "start_batch=-1 must be in 0..7, the batches of an epoch."),
    ],
)
def test_an_epoch_or_batch_that_is_not_there_is_a_config_error(epoch: int, start_batch: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerOrder(PLAN, epoch, start_batch)
    assert str(caught.value) == message
