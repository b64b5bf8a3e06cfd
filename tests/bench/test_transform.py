"""The work that peers without a transform of their own share."""

import pickle
import random

import numpy as np
import pytest
from PIL import Image

from benchmarks.protocol import EVAL, PLAIN, TRAIN, Task
from benchmarks.transform import RandomResizedCropFlip, ResizeCenterCrop, channels_first, transform_of

WIDTH, HEIGHT = 500, 375


@pytest.mark.parametrize("work", [TRAIN, EVAL, PLAIN])
def test_every_work_has_its_transform_to_uint8_channels_first(work: str) -> None:
    transform = pickle.loads(pickle.dumps(transform_of(Task("", 1, 1, 0, work=work, image_shape=(3, 64, 64)))))
    pixels = transform(Image.fromarray(np.full((HEIGHT, WIDTH, 3), (10, 20, 30), np.uint8)))
    assert (pixels.shape, pixels.dtype) == ((3, HEIGHT, WIDTH) if work == PLAIN else (3, 64, 64), np.uint8)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert [set(np.unique(channel).tolist()) for channel in pixels] == [{10}, {20}, {30}]


def test_boxes_lie_inside_and_have_the_drawn_distribution() -> None:
    random.seed(7)
    boxes = np.array([RandomResizedCropFlip().draw_box(WIDTH, HEIGHT) for _ in range(2000)])
    left, top, right, bottom = boxes.T
    assert min(left.min(), top.min()) >= 0
    assert (right.max(), bottom.max()) <= (WIDTH, HEIGHT)
    share = (right - left) * (bottom - top) / (WIDTH * HEIGHT)
    assert 0.078 < share.min() < 0.1
    assert 0.9 < share.max() <= 1
    # Where no drawn piece fits, it is the middle.
    assert RandomResizedCropFlip(scale=(4.0, 4.0)).draw_box(1000, 10) == (493, 0, 506, 10)


def test_an_evaluation_sees_the_middle_of_the_resized_image() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8))
    whole = np.asarray(image.resize((384, 256), Image.Resampling.BILINEAR))
    assert np.array_equal(ResizeCenterCrop()(image), channels_first(Image.fromarray(whole[16:240, 80:304])))
