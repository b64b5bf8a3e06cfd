"""CropParameters: windows that hold what the result needs, and no more shrinking than leaves a good resize."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.images.crops import (
    crop_and_resize,
    cut_windows,
    resize_and_center,
    resize_keeping_ratio,
    resize_shorter_side,
    scaled_size,
)

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
    placed = crop_and_resize(rows(box), size, np.array([can_shrink]), NO, NO)
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
    flips, bicubic = np.array([True, False]), np.array([False, True])
    placed = crop_and_resize(rows((0, 0, 8, 8), (1, 2, 3, 4)), (4, 4), np.array([True, True]), flips, bicubic)
    assert len(placed) == 2
    assert placed.rows() == [([4, 4], [2.0, 2.0], [0, 0], True, False), ([4, 4], [0.75, 1.0], [0, 0], False, True)]


# Windows


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    start=st.tuples(st.integers(-8, 60), st.integers(-8, 60)),
)
def test_a_window_is_what_of_it_lies_in_the_image(size: tuple[int, int], start: tuple[int, int]) -> None:
    target = (32, 24)
    start = tuple(min(first, side - 1) for first, side in zip(start, size, strict=True))
    placed = cut_windows(rows(size), rows(start), target, NO)
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
    placed = resize_and_center(rows(size), rows(resized), target, np.array([can_shrink]), YES)
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
