"""Drawn: the right shares, a draw for each slot alone, and nothing that has no weight."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from plan.orders import drawn, numbers, row_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.drawn import Drawn, DrawWeights, make_draw_weights
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import draw_uniforms
from tfds_torch.plan.world import World

WEIGHTS = [0.0, 1.0, 0.0, 3.0, 6.0, 0.0]


def order(weights: Any = WEIGHTS, seed: int = 7, **more: Any) -> Drawn:
    return Drawn(len(weights), make_draw_weights(weights, len(weights)), more.pop("epoch_size", 10), seed, **more)


def test_examples_come_as_often_as_their_weights_say() -> None:
    _, found = order().at(numbers(100_000))
    counts = np.bincount(found, minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts[[1, 3, 4]] / 100_000, [0.1, 0.3, 0.6], atol=0.01)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_a_slot_draws_where_its_own_uniform_number_falls(one: Drawn) -> None:
    there = list(range(one.n)) if one.subset is None else one.subset.numbers.tolist()
    weights, uniforms = one.weights.values, draw_uniforms(numbers(50), one._seed, 1)[:, 0]
    for slot, (number, example) in enumerate(row_of(one, 50)):
        assert number == slot
        place, share = there.index(example), uniforms[slot] * weights.sum()
        assert weights[:place].sum() - 1e-9 <= share <= weights[: place + 1].sum() + 1e-9
        assert weights[place] > 0


def test_draws_never_change_and_depend_on_the_seed_and_the_ratio_of_weights_alone() -> None:
    whole = row_of(order(), 1000)
    assert row_of(order([10 * one for one in WEIGHTS]), 1000) == whole
    assert row_of(order(seed=8), 1000) != whole
    # And not on the random numbers that the slots' examples have.
    ours = order().weights.at(draw_uniforms(numbers(1000), 7, 1)[:, 0])
    assert [example for _, example in whole] != ours.tolist()


def test_the_last_positive_weight_takes_what_rounding_leaves() -> None:
    weights = DrawWeights(np.array([0.1] * 10 + [0.0]))
    assert weights.at(np.array([0.0, 1.0 - 2.0**-53])).tolist() == [0, 9]
    assert DrawWeights(np.array([0.0, 1.0, 1.0])).at(np.array([0.0, 0.5])).tolist() == [1, 2]
    tiny = make_draw_weights([1e-300, 1e300, 5e-324, 0], 4)
    assert tiny.at(np.array([0.5])).tolist() == [1]
    assert tiny.at(np.array([1.0 - 2.0**-53]))[0] in (1, 2)


def test_weights_cannot_be_changed_afterwards() -> None:
    asked = np.array([1.0, 2.0])
    found = make_draw_weights(asked, 2)
    asked[0] = 5
    assert found.values.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        found.values[0] = 2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"2 were given, and there are 3 examples.* of examples by weights\[parser\.targets\(\)\]"),
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


def test_draws_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="epoch_size=0 must be an integer"):
        order(epoch_size=0)
    with pytest.raises(ConfigError, match="seed=-1 must be an integer"):
        order(seed=-1)
    with pytest.raises(ConfigError, match="Evaluation needs each example exactly once"):
        EpochPlan(order(), World(), 5, Remainder.KEEP)
