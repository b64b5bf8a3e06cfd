"""ArrayBuffer: Pillow's own pixels, in the array that is handed over."""

import pickle

import numpy as np
import pytest
from picture_fixtures import crop_with_pillow, photograph
from PIL import Image

from tfds_torch.images.batch_buffer import ArrayBuffer

SIZE = (48, 64)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_a_row_is_what_pillow_makes_of_the_image(mode: str, bicubic: bool, flip: bool) -> None:
    for source in ((200, 133), (31, 20)):
        image = photograph("china", source).convert(mode)
        pixels = np.asarray(image).reshape(source[1], source[0], -1)
        buffer = ArrayBuffer((3, *SIZE, pixels.shape[-1]))
        buffer.pixels[:] = 7
        buffer.fill_row(1, pixels, (source[1] / SIZE[0], source[0] / SIZE[1]), bicubic=bicubic, flip=flip)
        wanted = crop_with_pillow(image, (0, 0, source[1], source[0]), SIZE, bicubic=bicubic, flip=flip)
        np.testing.assert_array_equal(buffer.pixels[1], wanted)
        assert (buffer.pixels[[0, 2]] == 7).all()


def test_pixels_beyond_the_steps_are_reached_by_the_filter_alone() -> None:
    image = photograph("flower", (120, 90))
    pixels = np.asarray(image)
    resized = ArrayBuffer((1, 1, 1, 3)).resize(pixels, (20, 30), (2.25, 1.5), bicubic=False)
    wanted = np.asarray(image.resize((30, 20), Image.Resampling.BILINEAR, (0, 0, 45, 45)))
    np.testing.assert_array_equal(resized, wanted)


def test_steps_that_are_rounded_beyond_the_image_are_taken() -> None:
    pixels = np.zeros((49, 49, 3), np.uint8)
    for length in range(1, 100):
        step = np.nextafter(49 / length, 50)
        assert ArrayBuffer((1, 1, 1, 3)).resize(pixels, (length, length), (step, step), bicubic=True).shape[0] == length


def test_the_images_are_the_memory_itself() -> None:
    buffer = ArrayBuffer((2, 5, 6, 3))
    assert buffer.images is buffer.pixels
    assert (buffer.images.shape, buffer.images.dtype) == ((2, 5, 6, 3), np.uint8)
    assert buffer.images.flags["C_CONTIGUOUS"]


def test_its_maker_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(ArrayBuffer)) is ArrayBuffer
