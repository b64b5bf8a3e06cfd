"""The order that came, and the shuffle buffer beside it."""

from collections.abc import Iterator

import numpy as np
import pytest

from tfds_torch.check import order_sample
from tfds_torch.check.order_sample import OrderSample, shuffle_by_buffer
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.world import World
from tfds_torch.runtime import subprocess_call


def make_plan(num_examples: int, batch_size: int, world: World = World()) -> EpochPlan:
    return EpochPlan(num_examples, world, batch_size, Remainder.WRAP, is_training=True, shuffle=True, seed=7)


@pytest.fixture(params=[1 << 20, 7])
def _chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_sample, "_CHUNK", request.param)


def hand_over_one_by_one(num_examples: int, size: int, seed: int, chunk: int) -> Iterator[int]:
    """The same buffer, an example at a time."""
    random = np.random.default_rng(seed)
    buffer = list(range(size))
    for first in range(size, num_examples, chunk):
        arrived = range(first, min(first + chunk, num_examples))
        for slot, index in zip(random.integers(size, size=len(arrived)), arrived, strict=True):
            yield buffer[slot]
            buffer[slot] = index
    yield from random.permutation(buffer).tolist()


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize(("num_examples", "size"), [(1, 1), (5, 8), (8, 8), (50, 8), (1000, 64), (100, 1)])
def test_a_buffer_hands_over_every_example_once_as_one_by_one(num_examples: int, size: int) -> None:
    came = shuffle_by_buffer(num_examples, np.arange(num_examples), 3, size)
    assert sorted(came.tolist()) == list(range(num_examples))
    expected = hand_over_one_by_one(num_examples, min(size, num_examples), 3, order_sample._CHUNK)
    assert came.tolist() == list(expected)
    some = np.arange(0, num_examples, 3)
    assert shuffle_by_buffer(num_examples, some, 3, size).tolist() == came[some].tolist()


def test_no_example_comes_before_it_can_have_entered_the_buffer() -> None:
    came = shuffle_by_buffer(5000, np.arange(5000), 1, 100)
    assert np.all(came <= np.arange(5000) + 99)


def shuffle_with_tf_data(num_examples: int, size: int) -> list[int]:
    import tensorflow as tf

    return list(map(int, tf.data.Dataset.range(num_examples).shuffle(size, seed=1).as_numpy_iterator()))


@pytest.mark.slow
def test_the_buffer_shuffles_as_that_of_tf_data() -> None:
    """By how far examples are moved: both have the same distribution."""
    theirs = np.array(subprocess_call.call(shuffle_with_tf_data, 20_000, 500))
    ours = shuffle_by_buffer(20_000, np.arange(20_000), 1, 500)
    deciles = np.linspace(0.1, 0.9, 9)
    moved = [np.quantile(order - np.arange(20_000), deciles) for order in (ours, theirs)]
    assert np.abs(moved[0] - moved[1]).max() < 30  # Of 500; the draws differ.


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
