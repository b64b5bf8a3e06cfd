"""What the examples hold: labels and image sizes, each example counted once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.check.content import ImageSizes, LabelCount, count_labels, first_epoch, measure_images
from tfds_torch.check.ledger import Entry, RankEpoch
from tfds_torch.plan.epoch import PAD_LABEL


def entry(number: int, label: object = None, valid: bool = True, size: tuple[int, int] | None = None) -> Entry:
    return Entry(f"x__{number}", number, valid, label, size)


def test_the_first_epoch_holds_each_valid_example_of_every_rank_once() -> None:
    first = [[entry(0, 5), entry(1, 6)], [entry(0, 5), entry(9, PAD_LABEL, valid=False)]]
    received = [
        RankEpoch(0, 0, first, 2),
        RankEpoch(0, 1, [[entry(7)]], 1),
        RankEpoch(1, 0, [[entry(1, 6)], [entry(2, 5)]], 2),
    ]
    assert first_epoch(received) == [entry(0, 5), entry(1, 6), entry(2, 5)]
    assert first_epoch([]) == []


def test_a_padded_copy_does_not_stand_for_its_example() -> None:
    received = [RankEpoch(0, 0, [[entry(0, PAD_LABEL, valid=False), entry(0, 3)]], 1)]
    assert first_epoch(received) == [entry(0, 3)]


def test_classes_that_do_not_occur_are_counted_with_0() -> None:
    counts = count_labels([entry(0, 2), entry(1, 0), entry(2, 2)], ["cat", "dog", "emu"])
    assert counts == [LabelCount(0, "cat", 1), LabelCount(1, "dog", 0), LabelCount(2, "emu", 2)]


def test_labels_beyond_the_names_are_counted_under_their_numbers() -> None:
    counts = count_labels([entry(0, -1), entry(1, 2), entry(2, 0), entry(3, -1)], ["cat", "dog"])
    assert [(count.label, count.name, count.num_examples) for count in counts] == [
        (0, "cat", 1),
        (1, "dog", 0),
        (-1, "-1", 2),
        (2, "2", 1),
    ]


def test_classes_of_the_same_name_stay_apart() -> None:
    counts = count_labels([entry(0, 0), entry(1, 1), entry(2, 1)], ["crane", "crane"])
    assert [count.num_examples for count in counts] == [1, 2]


@pytest.mark.parametrize("labels", [[], [None, None], [0.5, 1.5], ["cat"], [[1, 2]]])
@pytest.mark.parametrize("names", [None, ["cat"]])
def test_without_integer_labels_there_is_nothing_to_count(labels: list[object], names: list[str] | None) -> None:
    assert count_labels([entry(number, label) for number, label in enumerate(labels)], names) == []


def test_a_target_that_is_a_quantity_is_not_counted() -> None:
    thousand = [entry(number, number * 3) for number in range(1000)]
    assert len(count_labels(thousand, None)) == 1000
    assert count_labels([*thousand, entry(1000, 1)], None) == []
    assert len(count_labels([*thousand, entry(1000, 0)], None)) == 1000
    names = [str(number) for number in range(5000)]
    assert len(count_labels([*thousand, entry(1000, 1)], names)) == 5000


@given(st.lists(st.integers(-3, 12)), st.none() | st.integers(1, 9))
def test_every_example_is_counted_under_its_label(labels: list[int], num_names: int | None) -> None:
    names = None if num_names is None else [f"class {label}" for label in range(num_names)]
    counts = count_labels([entry(number, label) for number, label in enumerate(labels)], names)
    assert {count.label: count.num_examples for count in counts if count.num_examples} == Counter(labels)
    assert len({count.label for count in counts}) == len(counts)
    assert all(count.name == f"class {count.label}" for count in counts if names and 0 <= count.label < len(names))


def test_without_images_there_are_no_sizes() -> None:
    assert measure_images([]) is None
    assert measure_images([entry(0)]) is None


def test_sizes_are_ordered_by_their_pixels() -> None:
    sizes = [(9, 9), (1, 50), (200, 1), (3, 3), (10, 10)]
    measured = measure_images([entry(number, size=size) for number, size in enumerate(sizes)] + [entry(9)])
    assert measured == ImageSizes(smallest=(3, 3), median=(9, 9), largest=(200, 1), mean_pixels=88.0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_sizes_are_those_of_images_that_came(sizes: list[tuple[int, int]]) -> None:
    measured = measure_images([entry(number, size=size) for number, size in enumerate(sizes)])
    assert measured is not None
    pixels = sorted(width * height for width, height in sizes)
    found = (measured.smallest, measured.median, measured.largest)
    assert [width * height for width, height in found] == [pixels[0], pixels[len(pixels) // 2], pixels[-1]]
    assert set(found) <= set(sizes)
    assert measured.mean_pixels == pytest.approx(sum(pixels) / len(pixels))


@given(st.permutations([(4, 2), (2, 4), (4, 2)]))
def test_smallest_and_largest_are_equal_only_where_all_are(sizes: list[tuple[int, int]]) -> None:
    """Upright and wide photographs of as many pixels: the report says 'all' where the two are equal."""
    measured = measure_images([entry(number, size=size) for number, size in enumerate(sizes)])
    assert measured is not None
    assert measured.smallest != measured.largest
