"""Crops: windows that hold what the result needs, and no more shrinking than leaves a good resize; what cannot be."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.images.crops import (
    CropParameters,
    Crops,
    ExampleRandom,
    PreprocessError,
    resize_keeping_ratio,
    resize_shorter_side,
    scaled_size,
)
from tfds_torch.plan.order import draw_uniforms

SIDES = st.integers(1, 5000)
YES, NO = np.array([True]), np.array([False])


def rows(*values: tuple[int, ...]) -> np.ndarray:
    return np.array(values, np.int64)


# Crops


@given(
    box=st.tuples(st.integers(0, 900), st.integers(0, 900), SIDES, SIDES),
    size=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    can_shrink=st.booleans(),
)
def test_a_crop_is_shrunk_only_as_far_as_the_resize_has_two_and_a_half_left(
    box: tuple[int, int, int, int], size: tuple[int, int], can_shrink: bool
) -> None:
    sizes = rows((box[0] + box[2], box[1] + box[3]))
    placed = Crops(rows(box)).parameters(sizes, size, np.array([can_shrink]))
    (shrink,), (window,) = placed.shrinks.tolist(), placed.windows
    factor = min(box[2] / size[0], box[3] / size[1])
    allowed = [s for s in (2, 4, 8) if factor >= 2.5 * s]
    assert shrink == (max(allowed, default=1) if can_shrink else 1)
    # Whole pixels of the shrunk image, at most that many pixels beside the box.
    assert not (window % shrink).any()
    assert (rows(box)[0] - window < shrink).all()
    assert (rows(box)[0] >= window).all()
    assert placed.resized.tolist() == [list(size)]
    np.testing.assert_allclose(placed.steps[0] * size, window[2:] / shrink)
    assert placed.offsets.tolist() == [[0, 0]]


def test_flips_and_filters_are_those_given() -> None:
    crops = Crops(rows((0, 0, 8, 8), (1, 2, 3, 4)), flips=np.array([True, False]), bicubic=np.array([False, True]))
    placed = crops.parameters(rows((8, 8), (8, 8)), (4, 4), np.array([True, True]))
    assert len(placed) == 2
    assert [row[:5] for row in placed.rows()] == [
        ([4, 4], [2.0, 2.0], [0, 0], True, False),
        ([4, 4], [0.75, 1.0], [0, 0], False, True),
    ]


# Windows


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    start=st.tuples(st.integers(-8, 60), st.integers(-8, 60)),
)
def test_a_window_is_what_of_it_lies_in_the_image(size: tuple[int, int], start: tuple[int, int]) -> None:
    target = (32, 24)
    start = tuple(min(first, side - 1) for first, side in zip(start, size, strict=True))  # type: ignore[assignment]
    placed = Crops(rows((*start, *target))).parameters(rows(size), target, NO)
    (window,), (offset,) = placed.windows.tolist(), placed.offsets.tolist()
    for axis in (0, 1):
        inside = [at for at in range(start[axis], start[axis] + target[axis]) if 0 <= at < size[axis]]
        assert inside == list(range(window[axis], window[axis] + window[2 + axis]))
        assert offset[axis] == min(start[axis], 0)
    assert placed.steps.tolist() == [[1.0, 1.0]]
    assert placed.resized.tolist() == [window[2:]]
    assert placed.shrinks.tolist() == [1]


# Centers


@given(size=st.tuples(SIDES, SIDES), resized=st.tuples(SIDES, SIDES), can_shrink=st.booleans())
def test_a_center_lies_where_torchvision_cuts_it_and_its_window_holds_what_the_filter_reaches(
    size: tuple[int, int], resized: tuple[int, int], can_shrink: bool
) -> None:
    target = (96, 64)
    placed = Crops(resized=rows(resized)).parameters(rows(size), target, np.array([can_shrink]))
    ((_, _, *window),), (offset,), (stop,) = placed.windows.tolist(), placed.offsets.tolist(), placed.resized.tolist()
    (shrink,) = placed.shrinks.tolist()
    for axis in (0, 1):
        if resized[axis] >= target[axis]:
            assert offset[axis] == round((resized[axis] - target[axis]) / 2)
        else:
            assert offset[axis] == -((target[axis] - resized[axis]) // 2)
        assert stop[axis] == min(resized[axis], offset[axis] + target[axis])
        step = size[axis] / resized[axis]
        # Pillow's support of the bicubic filter, in pixels of what it resizes; of a shrunk image those are larger.
        support = 2 * max(step / shrink, 1) * shrink
        assert window[axis] >= min(size[axis], int((stop[axis] - 0.5) * step + support))
        assert placed.steps[0, axis] == pytest.approx(step / shrink)
        assert window[axis] <= size[axis]
    assert placed.windows[0, :2].tolist() == [0, 0]
    assert not placed.flips.any()


@pytest.mark.parametrize("start", [(-4, 0), (0, -6), (20, 0), (0, 30)])
def test_a_place_outside_of_the_resized_image_is_refused(start: tuple[int, int]) -> None:
    crops = Crops(resized=rows((20, 30), (20, 30)), starts=rows((0, 0), start))
    with pytest.raises(PreprocessError, match=r"at \(top, left\) = .* has no pixel of an image") as refused:
        crops.parameters(rows((90, 90), (90, 90)), (4, 6), np.zeros(2, np.bool_))
    assert refused.value.position == 1


# Sizes


@pytest.mark.parametrize(
    ("size", "length", "resized"),
    [((375, 500), 256, (256, 341)), ((500, 375), 256, (341, 256)), ((1, 1), 7, (7, 7)), ((300, 100), 10, (30, 10))],
)
def test_the_shorter_side_gets_the_length_and_the_other_is_rounded_down(
    size: tuple[int, int], length: int, resized: tuple[int, int]
) -> None:
    assert resize_shorter_side(rows(size), length).tolist() == [list(resized)]


def test_keeping_the_ratio_covers_a_size_or_lies_inside_of_it() -> None:
    sizes = rows((375, 500), (500, 375), (4000, 3), (3, 4000))
    cover = resize_keeping_ratio(sizes, (182, 256), inside=False)
    inside = resize_keeping_ratio(sizes, (182, 256), inside=True)
    assert cover.tolist() == [[192, 256], [341, 256], [341333, 256], [182, 242667]]
    assert inside.tolist() == [[182, 243], [182, 136], [182, 1], [1, 256]]


def test_a_centre_is_its_share_of_what_is_resized_rounded_down() -> None:
    assert scaled_size((224, 160), 0.875) == (256, 182)
    assert scaled_size((224, 224), 1.0) == (224, 224)
    assert scaled_size((224, 224), 0.95) == (235, 235)


# What cannot be


BOX = rows((0, 0, 4, 4))
EITHER = "Crops takes either boxes, or resized for the centres of whole images"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, EITHER),
        ({"boxes": BOX, "resized": rows((4, 4))}, EITHER),
        ({"boxes": [(0, 0, 4, 4)]}, "Crops: boxes must be a numpy array int64 [1, 4], not [(0, 0, 4, 4)]"),
        ({"boxes": BOX[0]}, "Crops: boxes must be a numpy array int64 [4, 4], not int64 [4]"),
        ({"boxes": BOX[:, :2]}, "Crops: boxes must be a numpy array int64 [1, 4], not int64 [1, 2]"),
        ({"boxes": BOX / 2}, "Crops: boxes must be a numpy array int64 [1, 4], not float64 [1, 4]"),
        ({"boxes": 7}, "Crops: boxes must be a numpy array int64 [0, 4], not 7"),
        ({"resized": BOX}, "Crops: resized must be a numpy array int64 [1, 2], not int64 [1, 4]"),
        ({"resized": rows((3, 0))}, "Crops: resized must be at least 1, and one is 0"),
        ({"boxes": BOX, "flips": np.array([1])}, "Crops: flips must be a numpy array bool [1], not int64 [1]"),
        ({"boxes": BOX, "flips": np.array([True, False])}, "Crops: flips must be a numpy array bool [1], not bool [2]"),
        ({"boxes": BOX, "bicubic": True}, "Crops: bicubic must be a numpy array bool [1], not True"),
        ({"boxes": BOX, "starts": rows((0, 0))}, "Crops: starts are places in resized images, and there is no resized"),
    ],
)
def test_arrays_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        Crops(**arguments)


def test_boxes_of_small_integers_are_taken() -> None:
    crops = Crops(np.array([(0, 0, 200, 200)], np.uint8))
    assert isinstance(crops.parameters(rows((256, 256)), (200, 200), NO), CropParameters)
    assert crops.boxes is not None
    assert crops.boxes.dtype == np.int64


@pytest.mark.parametrize(
    ("box", "is_possible"),
    [
        ((0, 0, 20, 30), True),
        ((19, 29, 1, 1), True),
        ((0, 0, 0, 5), False),
        ((0, 0, 5, -1), False),
        ((0, 0, 21, 30), False),
        ((-1, 0, 5, 5), False),
        ((0, 26, 5, 5), False),
        # Of the result's size: it is not resized.
        ((-1, -1, 8, 9), True),
        ((13, 22, 8, 9), True),
        ((-7, -8, 8, 9), True),
        ((-8, 0, 8, 9), False),
        ((20, 0, 8, 9), False),
        ((0, 30, 8, 9), False),
    ],
)
def test_a_box_has_pixels_of_its_image_and_is_inside_where_it_is_resized(
    box: tuple[int, ...], is_possible: bool
) -> None:
    crops, sizes = Crops(rows((0, 0, 1, 1), box)), rows((20, 30), (20, 30))
    if is_possible:
        assert len(crops.parameters(sizes, (8, 9), np.array([True, True]))) == 2
        return
    with pytest.raises(PreprocessError) as refused:
        crops.parameters(sizes, (8, 9), np.array([True, True]))
    assert refused.value.position == 1
    assert refused.value.reason == (
        f"The box (top, left, height, width) = {box} cannot be cut out of 20 x 30 pixels: it must have pixels of the "
        f"image, and only a box of the result's size, 8 x 9, may reach outside of it."
    )


def test_boxes_of_the_size_of_the_results_are_only_cut() -> None:
    sizes, no = rows((20, 30), (20, 30)), np.zeros(2, np.bool_)
    assert Crops(rows((0, 0, 8, 9), (3, 4, 8, 9))).parameters(sizes, (8, 9), no).only_cut(sizes)
    assert not Crops(rows((0, 0, 9, 9), (3, 4, 8, 9))).parameters(sizes, (8, 9), no).only_cut(sizes)


def test_boxes_that_are_cut_and_boxes_that_are_resized_may_be_mixed() -> None:
    boxes = rows((-1, -2, 8, 9), (2, 3, 80, 90), (0, 0, 8, 9))
    yes, sizes = np.ones(3, np.bool_), np.full((3, 2), 100)
    alone = [Crops(boxes[[i]]).parameters(sizes[[i]], (8, 9), yes[[i]]) for i in range(3)]
    together = Crops(boxes).parameters(sizes, (8, 9), yes)
    assert together.rows() == [crop.rows()[0] for crop in alone]
    assert together.windows.tolist() == [crop.windows[0].tolist() for crop in alone]
    assert together.shrinks.tolist() == [1, 4, 1]


# Random numbers


def test_random_numbers_follow_each_other_and_belong_to_the_example() -> None:
    keys = np.array([5, 0, 7])
    random = ExampleRandom(keys, 42)
    drawn = [random.uniforms(2), random.uniforms((0, 3)), random.uniforms(0), random.uniforms(1)]
    np.testing.assert_array_equal(np.concatenate(drawn, axis=1), draw_uniforms(keys, 42, (0, 1, 2, 5, 6)))
    np.testing.assert_array_equal(ExampleRandom(keys[1:], 42).uniforms(2), drawn[0][1:])
    np.testing.assert_array_equal(ExampleRandom(keys, 42, first=5).uniforms(2), draw_uniforms(keys, 42, (5, 6)))
