"""ArrayBuffer has Pillow's own pixels, and FastArrayBuffer's are close to them."""

import pickle

import numpy as np
import pytest
from picture_fixtures import crop_with_pillow, photograph
from PIL import Image

from tfds_torch.images import fast_resize
from tfds_torch.images.batch_buffer import ArrayBuffer, resize_with_pillow
from tfds_torch.images.fast_resize import FastArrayBuffer

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


# FastArrayBuffer


def draw(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 4 + 2, width // 4 + 2, channels), dtype=np.uint8)
    image = Image.fromarray(small[..., 0] if channels == 1 else small).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, channels).copy()


@pytest.mark.parametrize("bicubic", [False, True])
def test_many_crops_are_pillows_within_a_grey_level_on_average(bicubic: bool) -> None:
    assert fast_resize.resizer is not None, "else Pillow is held against itself"
    rng = np.random.default_rng(1)
    for seed in range(60):
        (height, width), (rows, columns) = rng.integers(5, 300, 2), rng.integers(5, 200, 2)
        size = int(rows), int(columns)
        share = rng.uniform(0.5, 1, 2)  # What is left is only reached by the filter.
        steps = (float(share[0] * height / size[0]), float(share[1] * width / size[1]))
        pixels = draw(int(height), int(width), seed=seed)
        ours = FastArrayBuffer(np.empty((1, 1, 1, 3), np.uint8)).resize(pixels, size, steps, bicubic=bicubic)
        difference = np.abs(ours.astype(int) - resize_with_pillow(pixels, size, steps, bicubic=bicubic))
        assert difference.mean() < 0.5
        assert difference.max() <= (6 if bicubic else 2)


@pytest.mark.parametrize("flip", [False, True])
def test_a_row_is_filled_and_its_neighbours_stay(flip: bool) -> None:
    memory = np.full((3, 20, 30, 3), 7, np.uint8)
    pixels = draw(40, 60)
    FastArrayBuffer(memory).fill_row(1, pixels, (2.0, 2.0), bicubic=False, flip=flip)
    plain = ArrayBuffer((1, 20, 30, 3))
    plain.fill_row(0, pixels, (2.0, 2.0), bicubic=False, flip=flip)
    assert np.abs(memory[1].astype(int) - plain.pixels[0]).max() <= 1
    assert (memory[[0, 2]] == 7).all()


@pytest.mark.parametrize("channels", [1, 4])
def test_grey_images_and_those_with_an_opacity_are_exactly_pillows(channels: int) -> None:
    pixels = draw(40, 60, channels)
    ours = FastArrayBuffer(np.empty((1, 1, 1, channels), np.uint8)).resize(pixels, (20, 20), (2.0, 3.0), bicubic=False)
    assert np.array_equal(ours, resize_with_pillow(pixels, (20, 20), (2.0, 3.0), bicubic=False))


@pytest.mark.parametrize("bicubic", [False, True])
def test_without_the_extra_everything_is_exactly_pillows(bicubic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_resize, "resizer", None)
    memory, pixels = np.zeros((1, 20, 20, 3), np.uint8), draw(40, 60)
    FastArrayBuffer(memory).fill_row(0, pixels, (2.0, 3.0), bicubic=bicubic, flip=False)
    assert np.array_equal(memory[0], resize_with_pillow(pixels, (20, 20), (2.0, 3.0), bicubic=bicubic))
