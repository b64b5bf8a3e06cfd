"""SampleOrder: numbers by place, and how little of it travels to workers."""

import pickle

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.export.sample_order import SampleOrder

ORDERS = {
    "whole": (SampleOrder(7), list(range(7))),
    "chosen": (SampleOrder(7, [6, 0, 6]), [6, 0, 6]),
    "a mask's": (SampleOrder(7, np.flatnonzero(np.arange(7) % 2)), [1, 3, 5]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_numbers_are_found_by_place_and_places_by_number(name: str) -> None:
    order, numbers = ORDERS[name]
    assert len(order) == len(numbers)
    assert order.at(range(1, len(order))).tolist() == numbers[1:]
    assert order.at(range(len(order))).dtype == np.int64
    assert [order.number_at(place) for place in range(len(order))] == numbers
    assert [order.places_of(number) for number in range(7)] == [
        [place for place, one in enumerate(numbers) if one == number] for number in range(7)
    ]
    assert order.has_repeats == (len(set(numbers)) < len(numbers))


def test_a_shuffle_is_of_the_chosen_samples_and_of_its_seed() -> None:
    chosen = SampleOrder(100, range(50, 100), shuffle_seed=3)
    numbers = chosen.at(range(50)).tolist()
    assert sorted(numbers) == list(range(50, 100)) != numbers
    assert chosen.digest() == SampleOrder(100, numbers).digest() != SampleOrder(100, range(50, 100)).digest()
    assert SampleOrder(100, range(50, 100), shuffle_seed=4).digest() != chosen.digest()
    assert not chosen.has_repeats


def test_all_samples_in_order_take_no_memory() -> None:
    order = SampleOrder(10**12)
    assert order.at(range(10**12 - 2, 10**12)).tolist() == [10**12 - 2, 10**12 - 1]
    assert (order.number_at(10**11), order.places_of(10**11), order.has_repeats) == (10**11, [10**11], False)
    assert len(pickle.dumps(order)) < 300


@pytest.mark.parametrize("indices", [[7], [-1], "12", [1.5], [True], [2**63], np.array([2**63], np.uint64)])
def test_what_is_no_index_of_a_sample_is_refused(indices: object) -> None:
    with pytest.raises(ConfigError, match="indices"):
        SampleOrder(7, indices)  # type: ignore[arg-type]
