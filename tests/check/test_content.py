"""What the examples hold: labels and image sizes, each example counted once."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.check.content import ImageSizes, LabelCount, Labels, measure_images


def count(labels: list[int], names: list[str] | None) -> list[LabelCount]:
    """Returns the counts of examples 0, 1, 2, ... with these labels."""
    counter = Labels(len(labels), names)
    counter.add(np.arange(len(labels)), np.array(labels, np.int64))
    return counter.counts()


def test_each_example_is_counted_once_whenever_it_comes() -> None:
    counter = Labels(3, None)
    for index, labels in (([2, 0, 2], [5, 6, 5]), ([0, 1], [6, 5]), ([], [])):
        counter.add(np.array(index, np.int64), np.array(labels, np.int64))
    assert [(count.label, count.num_examples) for count in counter.counts()] == [(5, 2), (6, 1)]


def test_classes_that_do_not_occur_are_counted_with_0() -> None:
    counts = count([2, 0, 2], ["cat", "dog", "emu"])
    assert counts == [LabelCount(0, "cat", 1), LabelCount(1, "dog", 0), LabelCount(2, "emu", 2)]


def test_labels_beyond_the_names_are_counted_under_their_numbers() -> None:
    counts = count([-1, 2, 0, -1], ["cat", "dog"])
    assert [(count.label, count.name, count.num_examples) for count in counts] == [
        (0, "cat", 1),
        (1, "dog", 0),
        (-1, "-1", 2),
        (2, "2", 1),
    ]


def test_classes_of_the_same_name_stay_apart() -> None:
    assert [one.num_examples for one in count([0, 1, 1], ["crane", "crane"])] == [1, 2]


@pytest.mark.parametrize("names", [None, ["cat"]])
def test_without_integer_labels_there_is_nothing_to_count(names: list[str] | None) -> None:
    counter = Labels(2, names)
    counter.add(np.arange(2), None)
    assert counter.counts() == []


def test_a_target_that_is_a_quantity_is_not_counted_and_takes_no_memory() -> None:
    thousand = [number * 3 for number in range(1000)]
    assert len(count(thousand, None)) == 1000
    assert len(count([*thousand, 0], None)) == 1000
    assert count([*thousand, 1], None) == []
    assert len(count([*thousand, 1], [str(number) for number in range(5000)])) == 5000
    counter = Labels(100_000, None)
    tracemalloc.start()
    for first in range(0, 100_000, 1000):
        counter.add(np.arange(first, first + 1000), np.arange(first, first + 1000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000


@given(st.lists(st.integers(-3, 12)), st.none() | st.integers(1, 9))
def test_every_example_is_counted_under_its_label(labels: list[int], num_names: int | None) -> None:
    names = None if num_names is None else [f"class {label}" for label in range(num_names)]
    counts = count(labels, names)
    assert {count.label: count.num_examples for count in counts if count.num_examples} == Counter(labels)
    assert len({count.label for count in counts}) == len(counts)
    assert all(count.name == f"class {count.label}" for count in counts if names and 0 <= count.label < len(names))


def test_without_images_there_are_no_sizes() -> None:
    assert measure_images([]) is None


def test_sizes_are_ordered_by_their_pixels() -> None:
    sizes = [(9, 9), (1, 50), (200, 1), (3, 3), (10, 10)]
    measured = measure_images(sizes)
    assert measured == ImageSizes(num_images=5, smallest=(3, 3), median=(9, 9), largest=(200, 1), mean_pixels=88.0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_sizes_are_those_of_images_that_came(sizes: list[tuple[int, int]]) -> None:
    measured = measure_images(sizes)
    assert measured is not None
    pixels = sorted(width * height for width, height in sizes)
    found = (measured.smallest, measured.median, measured.largest)
    assert [width * height for width, height in found] == [pixels[0], pixels[len(pixels) // 2], pixels[-1]]
    assert set(found) <= set(sizes)
    assert measured.mean_pixels == pytest.approx(sum(pixels) / len(pixels))


@given(st.permutations([(4, 2), (2, 4), (4, 2)]))
def test_smallest_and_largest_are_equal_only_where_all_are(sizes: list[tuple[int, int]]) -> None:
    """Upright and wide photographs of as many pixels: the report says 'all' where the two are equal."""
    measured = measure_images(sizes)
    assert measured is not None
    assert measured.smallest != measured.largest
