"""Draws by weights: the right shares, the same in any world, and nothing that has no weight."""

import pickle
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.plan.drawn import DrawWeights, WeightedOrder, make_draw_weights
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import LARGEST_KEY
from tfds_torch.plan.subset import make_subset
from tfds_torch.plan.world import World

WEIGHTS = [0.0, 1.0, 0.0, 3.0, 6.0, 0.0]


def order(weights: Any = WEIGHTS, seed: int = 7, **more: Any) -> WeightedOrder:
    return WeightedOrder(
        len(weights), make_draw_weights(weights, len(weights)), more.pop("epoch_size", 10), seed, **more
    )


def test_examples_come_as_often_as_their_weights_say() -> None:
    drawn = order().at(np.arange(100_000)).index
    counts = np.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts[[1, 3, 4]] / 100_000, [0.1, 0.3, 0.6], atol=0.01)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02


def test_a_draw_depends_on_the_seed_and_its_slot_alone() -> None:
    slots = np.arange(1000)
    whole = order().at(slots).index
    np.testing.assert_array_equal(order().at(slots[500:600]).index, whole[500:600])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(order())).at(slots).index, whole)
    assert (order(seed=8).at(slots).index != whole).any()
    assert (order([10 * one for one in WEIGHTS]).at(slots).index == whole).all()


def test_every_draw_has_random_numbers_of_its_own() -> None:
    found = order().at(np.arange(100))
    keys = found.pass_number * 6 + found.index
    assert len(set(keys.tolist())) == 100


def test_weights_may_be_those_of_a_subset() -> None:
    some = order(np.ones(3), subset=make_subset([5, 2, 4], 6))
    assert set(some.at(np.arange(100)).index.tolist()) == {5, 2, 4}


def test_the_last_positive_weight_takes_what_rounding_leaves() -> None:
    weights = DrawWeights(np.array([0.1] * 10 + [0.0]))
    assert weights.at(np.array([0.0, 1.0 - 2.0**-53])).tolist() == [0, 9]
    tiny = make_draw_weights([1e-300, 1e300, 5e-324, 0], 4)
    assert tiny.at(np.array([0.5, 1.0 - 2.0**-53])).tolist() == [1, 1] or tiny.at(np.array([0.5])).tolist() == [1]


def test_epochs_are_parts_of_one_row_and_keys_fit() -> None:
    one = order()
    plan = EpochPlan(6, World(), 5, Remainder.WRAP, is_training=True, shuffle=True, seed=7, draws=one)
    rows = np.concatenate([plan.at_slots(epoch, np.arange(10)).index for epoch in range(3)])
    np.testing.assert_array_equal(rows, one.at(np.arange(30)).index)
    assert plan.is_endless
    last = plan.at_slots(plan.last_epoch, np.array([9]))
    assert int(last.pass_number[0]) * 6 + int(last.index[0]) <= LARGEST_KEY


def test_evaluation_without_shuffle_or_with_another_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="Evaluation by weights would leave examples out"):
        EpochPlan(6, World(), 5, Remainder.KEEP, seed=7, draws=order())
    for shuffle, seed, message in (
        (False, 7, "shuffle=False beside weights of examples, which are drawn at random"),
        (True, 8, "they must be the same"),
    ):
        with pytest.raises(ConfigError, match=message):
            EpochPlan(6, World(), 5, Remainder.WRAP, is_training=True, draws=order(), shuffle=shuffle, seed=seed)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            [1, 2],
            r"2 were given, and there are 3 examples.* become those of examples by weights\[parser\.targets\(\)\]",
        ),
        ([1, -1, 1], "-1.0 at place 1 must be a finite number >= 0"),
        ([1, float("nan"), 1], "nan at place 1"),
        ([1, float("inf"), 1], "inf at place 1"),
        ([0, 0, 0], "all of them are 0"),
        ("abc", "must be a list of numbers"),
        (None, "must be a list of numbers"),
        ([True, False, True], "must be a list of numbers"),
        ([[1], [2], [3]], "must be a list of numbers"),
        ([[1], [2, 3], [3]], "must be a list of numbers"),
    ],
)
def test_weights_that_cannot_work_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_draw_weights(weights, 3)
