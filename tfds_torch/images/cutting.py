"""Windows of many small images of one size, cut out and mirrored all at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.decoding import Pixels


def cut_windows_of(pixels: Pixels, starts: NDArray[np.int64], fill: Any, out: Pixels) -> None:
    """Cuts a window out of each of n images, padded where it reaches outside.

    Args:
        pixels: uint8 [n, h, w, C], contiguous.
        starts: int64 [n, 2], top and left of the windows; negative outside of the image.
        fill: the grey level, or one for each channel, of what is padded.
        out: uint8 [n, H, W, C], contiguous.
    """
    num_images, height, width, num_channels = pixels.shape
    size = np.array(out.shape[1:3])
    before = np.maximum(0, -starts.min(axis=0))
    after = np.maximum(0, (starts + size).max(axis=0) - (height, width))
    padded = pixels
    if before.any() or after.any():
        shape = (num_images, before[0] + height + after[0], before[1] + width + after[1], num_channels)
        padded = np.empty(shape, np.uint8)
        padded[:] = fill
        padded[:, before[0] : before[0] + height, before[1] : before[1] + width] = pixels
    # Lines of bytes, so that whole lines are copied.
    lines = padded.reshape(num_images, padded.shape[1], -1)
    window = (size[0], size[1] * num_channels)
    places = (num_images, lines.shape[1] - window[0] + 1, lines.shape[2] - window[1] + 1)
    windows: Pixels = np.ndarray((*places, *window), np.uint8, lines, 0, (*lines.strides, *lines.strides[1:]))
    tops, lefts = (starts + before).T
    out.reshape(num_images, size[0], -1)[...] = windows[np.arange(num_images), tops, lefts * num_channels]


def mirror(pixels: Pixels, flips: NDArray[np.bool_]) -> None:
    """Mirrors some of n images, uint8 [n, H, W, C], left to right, where they lie.

    A channel at a time: numpy copies a line of one channel in one go, and a line of pixels pixel by pixel, which takes
    five times as long.
    """
    which = np.flatnonzero(flips)
    if not len(which):
        return
    before = pixels[which]
    after = np.empty_like(before)
    for channel in range(pixels.shape[-1]):
        after[..., channel] = before[:, :, ::-1, channel]
    pixels[which] = after
