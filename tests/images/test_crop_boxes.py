"""Random crops have the distribution of torchvision's RandomResizedCrop, held against torchvision itself."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from distributions import FAR, distance
from tfds_fixtures import call_reader

from tfds_torch.images.crops import NUM_DRAWS, random_resized_crops
from tfds_torch.plan.order import draw_uniforms

NUM_BOXES, NUM_THEIRS, MANY = 40_000, 4000, 100_000
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
# (height, width), scale, ratio.
CASES: dict[str, tuple[tuple[int, int], tuple[float, float], tuple[float, float]]] = {
    "a photograph": ((375, 500), SCALE, RATIO),
    "upright": ((640, 427), SCALE, RATIO),
    "tiny": ((5, 7), SCALE, RATIO),
    "huge": ((30_000, 45_000), SCALE, RATIO),
    "wide: few attempts fit": ((100, 380), (0.5, 1.0), RATIO),
    "narrow": ((400, 60), SCALE, RATIO),
    "large areas of any shape": ((224, 224), (0.6, 0.9), (0.2, 5.0)),
}


def our_boxes(size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], count: int) -> np.ndarray:
    sizes = np.tile(np.array(size, np.int64), (count, 1))
    return random_resized_crops(sizes, draw_uniforms(np.arange(count), 7, NUM_DRAWS), scale, ratio)


def boxes_of(cases: list[tuple[Any, Any, Any]], count: int, package: str = "torchvision") -> list[np.ndarray]:
    """Returns boxes drawn by torchvision or timm. Loads torch."""
    import random

    import torch

    from benchmarks.peers.timm_reader import declare_torchvision_operators

    held = declare_torchvision_operators()
    if package == "timm":
        from timm.data.transforms import RandomResizedCropAndInterpolation as Theirs
    else:
        from torchvision.transforms import RandomResizedCrop as Theirs

    torch.manual_seed(1)
    random.seed(1)
    results = []
    for size, scale, ratio in cases:
        image = torch.empty(1).expand(3, *size)  # Of any size, without memory.
        results.append(np.array([Theirs.get_params(image, scale, ratio) for _ in range(count)]))
    del held
    return results


@cache
def theirs() -> dict[str, np.ndarray]:
    return dict(zip(CASES, call_reader(boxes_of, list(CASES.values()), NUM_THEIRS), strict=True))


def share_before(box: np.ndarray, size: tuple[int, int], axis: int) -> np.ndarray:
    """Returns where boxes lie in the room that they have, 0 to 1; 0.5 where they have none."""
    room = size[axis] - box[:, 2 + axis]
    return np.where(room > 0, box[:, axis] / np.maximum(room, 1), 0.5)


MEASURES: dict[str, Callable[[np.ndarray, tuple[int, int]], np.ndarray]] = {
    "area": lambda box, size: box[:, 2] * box[:, 3],
    "ratio": lambda box, size: box[:, 3] / box[:, 2],
    "height": lambda box, size: box[:, 2],
    "width": lambda box, size: box[:, 3],
    "top": lambda box, size: box[:, 0],
    "left": lambda box, size: box[:, 1],
    "place downwards": lambda box, size: share_before(box, size, 0),
    "place to the right": lambda box, size: share_before(box, size, 1),
    "area by place": lambda box, size: box[:, 2] * box[:, 3] * share_before(box, size, 0),
    "area by ratio": lambda box, size: box[:, 2] ** 2 / box[:, 3],
}


@pytest.mark.parametrize("case", CASES)
def test_boxes_have_the_distribution_of_torchvision(case: str) -> None:
    size, scale, ratio = CASES[case]
    ours = our_boxes(size, scale, ratio, NUM_BOXES)
    for name, measure in MEASURES.items():
        assert distance(measure(ours, size), measure(theirs()[case], size)) < FAR, name


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_many_boxes_have_the_distribution_of_each_package(package: str) -> None:
    every = call_reader(boxes_of, list(CASES.values()), MANY, package)
    for (name, (size, scale, ratio)), theirs in zip(CASES.items(), every, strict=True):
        ours = our_boxes(size, scale, ratio, MANY)
        apart = {what: distance(measure(ours, size), measure(theirs, size)) for what, measure in MEASURES.items()}
        assert max(apart.values()) < FAR, (name, apart)


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.11, 1.0), RATIO), (SCALE, (3 / 4, 1.4)), ((0.08, 0.8), RATIO), (SCALE, (0.7, 4 / 3))]
)
def test_the_distance_tells_slightly_other_boxes(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    size = CASES["a photograph"][0]
    ours = our_boxes(size, scale, ratio, NUM_BOXES)
    apart = [distance(measure(ours, size), measure(theirs()["a photograph"], size)) for measure in MEASURES.values()]
    assert max(apart) > FAR


# Where no attempt fits

EXTREME = [(10, 1000), (1000, 10), (3, 500), (301, 100), (100, 301), (7, 50), (2, 9), (333, 77)]


def test_where_no_attempt_fits_the_box_is_torchvisions_very_one() -> None:
    never = ((0.999, 1.0), (0.9, 1.1))
    wanted = call_reader(boxes_of, [(size, *never) for size in EXTREME], 1)
    for size, (box,) in zip(EXTREME, wanted, strict=True):
        np.testing.assert_array_equal(our_boxes(size, *never, 1)[0], box, str(size))


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (1, 400), (400, 1), (2, 3)])
@pytest.mark.parametrize("ratio", [RATIO, (0.05, 0.2), (5.0, 20.0)])
def test_images_of_a_pixel_or_two_have_boxes_that_lie_within(size: tuple[int, int], ratio: tuple[float, float]) -> None:
    top, left, height, width = our_boxes(size, SCALE, ratio, 500).T
    assert top.min() >= 0
    assert left.min() >= 0
    assert height.min() >= 1
    assert width.min() >= 1
    assert (top + height).max() <= size[0]
    assert (left + width).max() <= size[1]


def test_every_box_is_that_of_its_own_image() -> None:
    sizes = np.array([(375, 500), (30, 20), (1000, 10)], np.int64)
    uniforms = draw_uniforms(np.arange(3), 3, NUM_DRAWS)
    together = random_resized_crops(sizes, uniforms, SCALE, RATIO)
    assert (together.shape, together.dtype) == ((3, 4), np.int64)
    for number in range(3):
        alone = random_resized_crops(sizes[number : number + 1], uniforms[number : number + 1], SCALE, RATIO)
        np.testing.assert_array_equal(together[number], alone[0])


def test_one_scale_and_one_ratio_leave_only_the_place_to_chance() -> None:
    boxes = our_boxes((200, 300), (0.25, 0.25), (1.0, 1.0), 200)
    assert set(boxes[:, 2]) == set(boxes[:, 3]) == {round((200 * 300 * 0.25) ** 0.5)}
    assert len(set(boxes[:, 0])) > 50
