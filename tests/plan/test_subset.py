"""Subsets, and epochs that are a part of an endless row: every example once in each pass, whatever the world."""

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import LARGEST_KEY
from tfds_torch.plan.passes import BlockShuffle
from tfds_torch.plan.subset import Subset, make_subset
from tfds_torch.plan.world import World


@st.composite
def plans(draw: st.DrawFn) -> EpochPlan:
    """A training plan of a subset, of an epoch size, or of both."""
    num_examples = draw(st.integers(1, 40))
    numbers = draw(st.permutations(range(num_examples)))[: draw(st.integers(1, num_examples))]
    subset = draw(st.sampled_from([None, Subset(np.array(numbers, np.int64))]))
    return EpochPlan(
        num_examples=num_examples,
        world=World(0, draw(st.integers(1, 3))),
        batch_size=draw(st.integers(1, 5)),
        remainder=Remainder.WRAP,
        is_training=True,
        repeats=draw(st.integers(0, 3)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        blocks=draw(st.sampled_from([None, BlockShuffle(3, 2)])),
        subset=subset,
        epoch_size=draw(st.sampled_from([None, 1, 7, 50])),
    )


def row_of(plan: EpochPlan, num_epochs: int) -> tuple[list[int], list[int]]:
    """Returns the examples of epochs, and their passes, without what fills the last batches."""
    slots = np.arange(plan.num_own_slots)
    batches = [plan.at_slots(epoch, slots) for epoch in range(num_epochs)]
    return [i for one in batches for i in one.index.tolist()], [i for one in batches for i in one.pass_number.tolist()]


@given(plans())
def test_every_example_of_the_subset_comes_once_in_each_pass(plan: EpochPlan) -> None:
    there = range(plan.num_examples) if plan.subset is None else plan.subset.numbers.tolist()
    index, passes = row_of(plan, 4)
    assert passes == [slot // len(there) for slot in range(len(index))]
    keys = Counter(zip(passes, index, strict=True))
    assert max(keys.values()) == 1
    whole = len(index) // len(there)
    assert Counter(index[: whole * len(there)]) == dict.fromkeys(there, whole) if whole else set(index) <= set(there)
    if not plan.shuffle:
        assert index == [there[slot % len(there)] for slot in range(len(index))]


@given(plans(), st.integers(1, 4))
def test_global_batches_do_not_depend_on_the_number_of_ranks(plan: EpochPlan, epoch: int) -> None:
    size = plan.global_batch_size
    one = replace(plan, world=World(), batch_size=size)
    ranks = [replace(plan, world=World(rank, plan.world.num_replicas)) for rank in range(plan.world.num_replicas)]
    for number in range(one.num_batches):
        parts = [rank.batch(epoch, number).index for rank in ranks]
        np.testing.assert_array_equal(np.concatenate(parts), one.batch(epoch, number).index)
    assert one.num_batches == -(-one.num_own_slots // size)


@given(plans())
def test_the_fill_of_an_epoch_size_is_the_beginning_of_the_next_epoch(plan: EpochPlan) -> None:
    if plan.epoch_size is None:
        return
    fill = np.arange(plan.num_own_slots, plan.num_batches * plan.global_batch_size)
    first = plan.at_slots(0, fill)
    following = plan.at_slots(1, np.arange(len(fill)))
    np.testing.assert_array_equal(first.index, following.index)
    np.testing.assert_array_equal(first.pass_number, following.pass_number)


def test_evaluation_of_a_subset_pads_and_has_each_once() -> None:
    subset = make_subset([9, 3, 7, 1, 0], 10)
    plan = EpochPlan(10, World(0, 2), 2, Remainder.PAD, subset=subset)
    batches = [plan.at_slots(0, np.arange(plan.num_batches * plan.global_batch_size))]
    assert batches[0].index[batches[0].valid].tolist() == [9, 3, 7, 1, 0]
    assert int((~batches[0].valid).sum()) == 3


@pytest.mark.parametrize("subset", [None, Subset(np.array([5, 2, 9], np.int64))])
def test_keys_fit_into_int64_up_to_the_last_epoch(subset: Subset | None) -> None:
    for epoch_size in (None, 2**40):
        plan = EpochPlan(
            10, World(), 4, Remainder.WRAP, is_training=True, shuffle=True, subset=subset, epoch_size=epoch_size
        )
        found = plan.at_slots(plan.last_epoch, np.array([0, plan.num_batches * plan.global_batch_size - 1]))
        keys = [int(number) * 10 + int(at) for number, at in zip(found.pass_number, found.index, strict=True)]
        assert max(keys) <= LARGEST_KEY
        assert all(int(at) in (range(10) if subset is None else [5, 2, 9]) for at in found.index)


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


def test_evaluation_and_weights_have_no_epoch_size() -> None:
    with pytest.raises(ConfigError, match="epoch_size=3 in evaluation would leave examples out"):
        EpochPlan(10, World(), 2, Remainder.KEEP, epoch_size=3)
    with pytest.raises(ConfigError, match="epoch_size=0 must be an integer"):
        EpochPlan(10, World(), 2, Remainder.WRAP, is_training=True, epoch_size=0)
    with pytest.raises(ConfigError, match="The subset holds no examples: there is nothing to train on"):
        EpochPlan(10, World(), 2, Remainder.WRAP, is_training=True, subset=make_subset([], 10))
