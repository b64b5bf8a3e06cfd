"""The work that all competitors share."""

import math
import pickle
import random

import numpy as np
import pytest
from PIL import Image

from benchmarks.task import Task
from benchmarks.transform import RandomResizedCropFlip, ResizeCenterCrop, channels_first, transform_of

WIDTH, HEIGHT = 500, 375


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(7)


def test_the_result_is_uint8_channels_first_contiguous_and_writable() -> None:
    image = Image.fromarray(np.full((HEIGHT, WIDTH, 3), (10, 20, 30), np.uint8))
    for transform in (RandomResizedCropFlip(), pickle.loads(pickle.dumps(RandomResizedCropFlip()))):
        pixels = transform(image)
        assert (pixels.shape, pixels.dtype) == ((3, 224, 224), np.uint8)
        assert pixels.flags.c_contiguous
        assert pixels.flags.writeable
        assert [set(np.unique(channel).tolist()) for channel in pixels] == [{10}, {20}, {30}]


def test_boxes_lie_inside_and_have_the_drawn_distribution() -> None:
    transform = RandomResizedCropFlip()
    boxes = np.array([transform.draw_box(WIDTH, HEIGHT) for _ in range(4000)])
    left, top, right, bottom = boxes.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= WIDTH
    assert bottom.max() <= HEIGHT
    share = (right - left) * (bottom - top) / (WIDTH * HEIGHT)
    assert 0.078 < share.min() < 0.1
    assert 0.9 < share.max() <= 1
    log_ratio = np.log((right - left) / (bottom - top))
    assert abs(log_ratio).max() <= math.log(4 / 3) + 0.02
    small = (
        share < 0.4
    )  # Every ratio fits then, so the logarithm is uniform: mean 0, standard deviation width/sqrt(12).
    assert abs(log_ratio[small].mean()) < 0.02
    assert log_ratio[small].std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)


@pytest.mark.parametrize(
    ("size", "box"), [((1000, 10), (494, 0, 507, 10)), ((10, 1000), (0, 494, 10, 507)), ((1, 1), (0, 0, 1, 1))]
)
def test_where_no_drawn_piece_fits_it_is_the_middle(size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    assert RandomResizedCropFlip(scale=(4.0, 4.0)).draw_box(*size) == pytest.approx(box, abs=1)


def test_half_of_the_images_are_flipped() -> None:
    ramp = np.broadcast_to(np.arange(224, dtype=np.uint8)[None, :, None], (224, 224, 3))
    transform = RandomResizedCropFlip(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    flipped = [transform(Image.fromarray(ramp))[0, 0, 0] == 223 for _ in range(400)]
    assert 150 < sum(flipped) < 250


def test_resizing_is_antialiased() -> None:
    stripes = np.zeros((448, 448, 3), np.uint8)
    stripes[:, ::2] = 255
    transform = RandomResizedCropFlip(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    middle = transform(Image.fromarray(stripes))[:, 8:-8, 8:-8]
    assert middle.min() > 100
    assert middle.max() < 155


# Evaluation


def test_an_evaluation_sees_the_middle_of_the_resized_image() -> None:
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:, :62] = image[:, -62:] = 255  # Left and right of the middle square: (500 - 375) / 2.
    pixels = pickle.loads(pickle.dumps(ResizeCenterCrop()))(Image.fromarray(image))
    assert (pixels.shape, pixels.dtype) == ((3, 224, 224), np.uint8)
    assert pixels.max() == 0  # 0.875 of the square: its border is cut off, too.
    assert pixels.flags.writeable
    image[:, :100] = 255
    assert ResizeCenterCrop()(Image.fromarray(image))[:, :, 0].min() == 255


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (256, 256), (20, 31), (224, 900)])
def test_the_short_side_is_resized_to_256(size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8))
    width, height = (int(256 * side / min(size)) for side in size)
    whole = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = round((height - 224) / 2), round((width - 224) / 2)
    expected = whole[top : top + 224, left : left + 224].transpose(2, 0, 1)
    assert np.array_equal(ResizeCenterCrop()(image), expected)


def test_every_work_has_its_transform() -> None:
    def of(work: str, size: int = 32) -> object:
        return transform_of(Task("", None, 1, 1, 0, image_shape=(3, size, size), work=work))

    train, evaluation = of("train", 64), of("eval", 64)
    assert isinstance(train, RandomResizedCropFlip)
    assert isinstance(evaluation, ResizeCenterCrop)
    assert (train.size, evaluation.size, evaluation.short_side) == (64, 64, 73)
    assert of("plain") is channels_first


def test_plain_pixels_are_channels_first_and_writable() -> None:
    image = np.random.default_rng(0).integers(0, 255, (32, 30, 3), np.uint8)
    pixels = channels_first(Image.fromarray(image))
    assert np.array_equal(pixels, image.transpose(2, 0, 1))
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
