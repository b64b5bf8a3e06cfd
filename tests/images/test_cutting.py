"""Windows of many small images at once are those of each by itself."""

import numpy as np
import pytest

from tfds_torch.images.cutting import cut_windows_of, mirror


@pytest.mark.parametrize("num_channels", [1, 3, 4])
@pytest.mark.parametrize(("size", "reach"), [((8, 9), 3), ((8, 9), 0), ((5, 4), 0), ((12, 20), 6)])
def test_windows_are_those_of_each_image_padded(num_channels: int, size: tuple[int, int], reach: int) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 8, 9, num_channels), dtype=np.uint8)
    room = np.array([8, 9]) - size
    starts = rng.integers(np.minimum(room, 0) - reach, np.maximum(room, 0) + reach + 1, (20, 2))
    fill = tuple(range(7, 7 + num_channels))
    out = np.empty((20, *size, num_channels), np.uint8)
    cut_windows_of(pixels, starts, fill, out)
    for image, (top, left), window in zip(pixels, starts.tolist(), out, strict=True):
        padded = np.full((60, 60, num_channels), fill, np.uint8)
        padded[25:33, 25:34] = image
        assert (window == padded[25 + top : 25 + top + size[0], 25 + left : 25 + left + size[1]]).all()


def test_some_are_mirrored_where_they_lie() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 5, 3), dtype=np.uint8)
    flips, before = np.array([True, False, True, False, False, True]), pixels.copy()
    mirror(pixels, flips)
    assert (pixels[flips] == before[flips, :, ::-1]).all()
    assert (pixels[~flips] == before[~flips]).all()
    mirror(pixels, np.zeros(6, np.bool_))
    assert (pixels[~flips] == before[~flips]).all()
