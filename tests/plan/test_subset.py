"""What make_subset takes and refuses; a subset is a value."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.orders import subsets

from tfds_torch.errors import ConfigError
from tfds_torch.plan.subset import Subset, make_subset

LISTS = st.lists(st.integers(0, 20), unique=True)


@given(st.integers(1, 30).flatmap(subsets), st.lists(st.integers(-3, 40)))
def test_places_are_those_in_the_list(one: Subset, asked: list[int]) -> None:
    there = one.numbers.tolist()
    assert one.places_of(np.array(asked, np.int64)).tolist() == [there.index(n) if n in there else -1 for n in asked]
    assert pickle.loads(pickle.dumps(one)) == one


@given(LISTS, LISTS)
def test_equal_subsets_have_equal_numbers_in_the_same_order(one: list[int], other: list[int]) -> None:
    left, right = make_subset(one, 21), make_subset(other, 21)
    assert (left == right) == (left.digest == right.digest) == (one == other)
    assert left == make_subset(np.array(one, np.int32), 21)
    assert hash(left) == hash(make_subset(tuple(one), np.arange(21)))


def test_a_subset_is_a_value() -> None:
    one, same, other = Subset(np.array([3, 1])), Subset(np.array([3, 1])), Subset(np.array([1, 3]))
    assert (one == same, hash(one) == hash(same), one == other, one.digest == other.digest) == (
        True,
        True,
        False,
        False,
    )
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.places_of(np.array([1, 2, 3])).tolist() == [1, -1, 0]
    assert Subset(np.array([], np.int64)).places_of(np.array([1])).tolist() == [-1]


def test_a_mask_and_numbers_name_the_same() -> None:
    mask = np.array([True, False, True, False])
    assert make_subset(mask, 4) == make_subset([0, 2], 4) == make_subset(iter([0, 2]), 4)
    assert make_subset([True, False], np.array([7, 9])).numbers.tolist() == [7]
    assert make_subset([9], np.array([7, 9])).numbers.tolist() == [9]
    with pytest.raises(ValueError, match="read-only"):
        make_subset([1], 4).numbers[0] = 2


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([4], "there is no example 4: the numbers are 0 to 3"),
        ([-1], "there is no example -1"),
        ([1, 2, 1], "example 1 stands there 2 times"),
        ([True], "the mask has 1 values, and there are 4 examples"),
        ([1.0], "must be a list of the numbers of examples, or a mask"),
        ([[1]], "must be a list of the numbers"),
        ("12", "must be a list of the numbers"),
        ([[1], [1, 2]], r"must be a list of the numbers .* the shape \(\) and the type object"),
        ([True, 2], r"must be a list of the numbers .* It has booleans among numbers"),
        ({1: 2}, r"indices=\{1: 2\} must be a list of the numbers"),
        (np.array([2**63], np.uint64), "there is no example 9223372036854775808: the numbers are 0 to 3"),
        ([float("nan")], "must be a list of the numbers"),
        (3, "must be a list of the numbers"),
        (None, "must be a list of the numbers"),
        (["cat"], r"the type <U3\. A subset by class is parser\.subset\(parser\.targets\(\) == number\)\."),
    ],
)
def test_what_names_no_subset_is_refused(indices: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_subset(indices, 4)


def test_a_number_of_another_subset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no example 20: .*, 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\."):
        make_subset([20], np.arange(10))
    with pytest.raises(ConfigError, match="no example 2: the numbers are the 2 of the subset that is cut again, 1, 3"):
        make_subset([2], np.array([1, 3]))
