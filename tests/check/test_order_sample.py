"""The order that came."""

import numpy as np
import pytest

from tfds_torch.check.order_sample import OrderSample
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World


def make_plan(num_examples: int, batch_size: int, world: World = World()) -> EpochPlan:
    return EpochPlan(Passes(num_examples, 7), world, batch_size, Remainder.WRAP, is_training=True)


@pytest.mark.parametrize(("num_examples", "batch_size", "num_replicas"), [(100, 10, 1), (103, 4, 3), (5, 8, 2)])
def test_what_came_stands_at_its_position_over_all_ranks(num_examples: int, batch_size: int, num_replicas: int) -> None:
    plan = make_plan(num_examples, batch_size, World(0, num_replicas))
    sample = OrderSample(plan)
    for rank in range(num_replicas):
        own = make_plan(num_examples, batch_size, World(rank, num_replicas))
        for number in range(plan.num_batches):
            sample.add(rank, own.batch(0, number).index)
    positions, indices = sample.came
    assert positions.tolist() == list(range(num_examples))
    assert indices.tolist() == plan.at_slots(0, np.arange(num_examples)).index.tolist()


def test_of_a_large_pass_each_stretch_has_a_point() -> None:
    sample = OrderSample(make_plan(10_000, 100), num_points=50)
    for number in range(100):
        sample.add(0, np.arange(100) + 100 * number)
    positions, indices = sample.came
    assert (positions // 200).tolist() == list(range(50))
    assert indices.tolist() == positions.tolist()


def test_what_has_not_come_is_not_among_them() -> None:
    sample = OrderSample(make_plan(100, 10))
    sample.add(0, np.arange(10))
    assert sample.came[0].tolist() == list(range(10))
    sample.add(0, np.arange(3))  # A batch that is too short, and one that is too long.
    sample.add(0, np.arange(15))
    assert sample.came[0].tolist() == [*range(13), *range(20, 30)]
