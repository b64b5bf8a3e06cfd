"""Weights as periods of slots: exact where they fit, rounded and reported where they do not, else refused."""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.weights import Segment, make_segments

SIZES = {"a": 100, "b": 300, "c": 50}


def counts_of(weights: Any, sizes: dict[str, int] = SIZES, temperature: Any = 1.0) -> tuple[int, ...]:
    ((segment,), rounded) = make_segments(sizes, weights, temperature)
    assert segment.start == 0
    assert not rounded
    return segment.counts


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ({"a": 0.7, "b": 0.2, "c": 0.1}, (7, 2, 1)),
        ({"c": 0.1, "a": 0.7, "b": 0.2}, (7, 2, 1)),
        ({"a": 3, "b": 3, "c": 6}, (1, 1, 2)),
        ({"a": 1, "b": 0, "c": 2}, (1, 0, 2)),
        ({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}, (1, 1, 1)),
        ({"a": Decimal("0.25"), "b": np.float32(0.5), "c": np.int64(1)}, (1, 2, 4)),
        ({"a": 0.06 * 30, "b": 0.1 * 3, "c": 1.1 * 3}, (6, 1, 11)),  # Products that end in the rounding of a float.
        ("sizes", (2, 6, 1)),
    ],
)
def test_weights_that_fit_into_a_period_are_kept_exactly(weights: Any, counts: tuple[int, ...]) -> None:
    assert counts_of(weights) == counts


def test_temperature_flattens_and_sharpens() -> None:
    assert counts_of({"a": 4, "b": 16, "c": 64}, temperature=2) == (1, 2, 4)
    assert counts_of("sizes", {"a": 100, "b": 400}, 2.0) == (1, 2)
    assert counts_of({"a": 1, "b": 2, "c": 3}, temperature=0.5) == (1, 4, 9)
    assert counts_of({"a": 1e300, "b": 1e300, "c": 0}, temperature=0.5) == (1, 1, 0)
    nearly_equal = counts_of({"a": 1, "b": 1000, "c": 5}, temperature=10**6)
    assert max(nearly_equal) - min(nearly_equal) <= 1


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40))
def test_rounded_shares_are_within_one_slot_of_what_was_asked(weights: list[float]) -> None:
    sizes = {f"m{number}": 1 for number in range(len(weights))}
    (segment,), rounded = make_segments(sizes, dict(zip(sizes, weights, strict=True)))
    assert segment.period <= 65_536
    assert math.gcd(*segment.counts) == 1
    total, moved = sum(map(Fraction, map(str, weights))), []
    for name, weight, count in zip(sizes, weights, segment.counts, strict=True):
        asked, found = Fraction(str(weight)) / total, Fraction(count, segment.period)
        assert count > 0
        assert abs(asked - found) <= Fraction(1, 65_536)
        moved += [name] if abs(asked - found) > asked / 100 else []
    assert [one.name for one in rounded] == moved


def test_what_is_left_over_goes_to_the_largest_remainders_and_no_weight_is_lost() -> None:
    sizes = dict.fromkeys("abc", 1)
    weights = {"a": Fraction(3 * 65_536 + 9, 10), "b": Fraction(3 * 65_536 + 2, 10), "c": Fraction(4 * 65_536 - 11, 10)}
    ((segment,), _) = make_segments(sizes, weights)
    rest = [65_536 * weight / sum(weights.values()) for weight in weights.values()]
    by_remainder = sorted(range(3), key=lambda one: rest[one] - int(rest[one]), reverse=True)
    num_over = 65_536 - sum(map(int, rest))
    assert list(segment.counts) == [int(one) + (number in by_remainder[:num_over]) for number, one in enumerate(rest)]
    small = {f"m{number}": 0.6 for number in range(100)}
    sizes = dict.fromkeys([*small, "large"], 1)
    ((segment,), rounded) = make_segments(sizes, {**small, "large": 65_536 - 60})
    assert segment.counts == (*(1,) * 100, 65_436)
    assert [one.name for one in rounded] == list(small)


def test_a_weight_that_rounding_moves_by_more_than_a_percent_is_reported() -> None:
    _, rounded = make_segments(SIZES, [(0, "sizes"), (10, {"a": 1, "b": 1e-5, "c": 0.000_123})])
    assert [(one.name, one.start) for one in rounded] == [("b", 10)]
    (one,) = rounded
    assert one.asked == pytest.approx(1e-5, rel=1e-3)
    assert one.found == 1 / 65_536


def test_half_of_the_finest_share_is_rounded_and_less_is_refused() -> None:
    (segment,), rounded = make_segments({"a": 1, "b": 1}, {"a": 1, "b": 2 * 65_536 - 1})
    assert sum(segment.counts) == 65_536
    assert [one.name for one in rounded] == ["a"]
    with pytest.raises(ConfigError, match=r"the share of 'a' is .*, less than half of 1/65,536"):
        make_segments({"a": 1, "b": 1}, {"a": 1, "b": 2 * 65_536})


def test_a_weight_that_temperature_makes_vanish_is_too_fine() -> None:
    with pytest.raises(ConfigError, match=r"the share of 'a' is .*e-[0-9]+, less than half of 1/65,536"):
        make_segments(SIZES, {"a": 1, "b": 10, "c": 10}, 0.001)


def test_a_schedule_is_a_segment_for_each_entry() -> None:
    segments, _ = make_segments(SIZES, [(0, {"a": 1, "b": 1, "c": 0}), [np.int64(7), "sizes"]])
    assert segments == (Segment(0, (1, 1, 0)), Segment(7, (2, 6, 1)))
    assert [segment.period for segment in segments] == [2, 9]


def entry(**more: Any) -> dict[str, Any]:
    return {"a": 1, "b": 1, "c": 1, **more}


REFUSED: list[tuple[Any, str]] = [
    (entry(b=-0.1), r"weights: -0\.1 of 'b' must be a finite number >= 0"),
    (entry(b=float("nan")), "weights: nan of 'b' must be a finite number >= 0"),
    (entry(b=float("inf")), "weights: inf of 'b' must be a finite number >= 0"),
    (entry(b=Decimal("nan")), "of 'b' must be a finite number >= 0"),
    (entry(b=True), "weights: True of 'b' must be a finite number >= 0"),
    (entry(b="1"), "weights: '1' of 'b' must be a finite number >= 0"),
    ({"a": 0, "b": 0.0, "c": 0}, "all of them are 0"),
    ({"a": 1, "b": 1}, "weights: there is none for 'c'. Every member needs a weight; 0 leaves it out"),
    (entry(cc=1), "weights: 'cc' is not a member: the members are 'a', 'b', 'c'. Did you mean 'c'"),
    (entry(b=1e-9), r"the share of 'b' is 5e-10, less than half of 1/65,536"),
    ("size", "weights='size' must be a mapping from member to number, or 'sizes'. Did you mean 'sizes'"),
    (3, "weights=3 must be a mapping from member to number, 'sizes', or a list"),
    ([], r"weights=\[\] has no segment"),
    ([(0, 3)], "weights=3 must be a mapping"),
    ([(0, entry()), (10, entry(a=-1))], "weights from example 10 on: -1 of 'a' must be a finite number"),
    ([entry()], "entry 0 of the schedule is .* must be a pair"),
    ([(0, entry()), 5], "entry 1 of the schedule is 5, and must be a pair"),
    ([(5, entry())], "the schedule begins at example 5: give weights for example 0 first"),
    (
        [(0, entry()), (9, entry()), (4, entry())],
        "out of order: entry 2 begins at example 4, and the one before it at",
    ),
    ([(0, entry()), (0, entry())], "out of order: entry 1 begins at example 0"),
    ([(0.5, entry())], r"the first example of entry 0=0\.5 must be an integer"),
    ([(-1, entry())], "the first example of entry 0=-1 must be an integer"),
]


def test_weights_that_cannot_be_kept_are_refused() -> None:
    found = [(message, said_of(ConfigError, make_segments, SIZES, weights)) for weights, message in REFUSED]
    wrong = [(message, said) for message, said in found if not re.search(message, said)]
    assert not wrong, str(wrong)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "2", None, True])
def test_a_temperature_must_be_a_number_above_zero(temperature: Any) -> None:
    with pytest.raises(ConfigError, match=r"temperature=.* must be a number > 0"):
        make_segments(SIZES, "sizes", temperature)
