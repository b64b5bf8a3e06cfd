"""FastArrayBuffer resizes as Pillow does."""

import numpy as np
import pytest
from PIL import Image

from tfds_torch.images import fast_resize
from tfds_torch.images.batch_buffer import ArrayBuffer, resize_with_pillow
from tfds_torch.images.fast_resize import FastArrayBuffer


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
        (height, width), size = rng.integers(5, 300, 2), tuple(map(int, rng.integers(5, 200, 2)))
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
