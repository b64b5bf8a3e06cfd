"""Where random crops lie: the distribution of torchvision's RandomResizedCrop, for many images at once."""

import math

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.int64]
"""int64 [n, 4]: top, left, height, width, in pixels of the image."""

NUM_ATTEMPTS = 10
NUM_DRAWS = 4 * NUM_ATTEMPTS
"""Random numbers that a box takes."""


def random_resized_crops(
    sizes: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Boxes:
    """Returns a random box for each of n images.

    As in torchvision: ten times, an area is drawn uniformly among the fractions `scale` of the image's, and a ratio of
    width to height whose logarithm is uniform; the first box that fits is taken, at a uniform place. Where none fits,
    it is the largest box in the image's centre whose ratio is allowed.

    Args:
        sizes: int64 [n, 2], heights and widths, each >= 1.
        uniforms: float64 [n, NUM_DRAWS], in [0, 1).
        scale: least and greatest fraction of the area.
        ratio: least and greatest width by height.

    Returns:
        int64 [n, 4].

    Source: torchvision 0.28, `transforms.RandomResizedCrop.get_params`.
    """
    # [n, 1] for the images, [n, NUM_ATTEMPTS] for each of the attempts.
    heights, widths = sizes[:, :1].astype(np.float64), sizes[:, 1:].astype(np.float64)
    draws = uniforms.reshape(len(sizes), NUM_ATTEMPTS, 4)
    areas = heights * widths * _between(draws[..., 0], *scale)
    ratios = np.exp(_between(draws[..., 1], *map(math.log, ratio)))
    box_widths, box_heights = np.round(np.sqrt(areas * ratios)), np.round(np.sqrt(areas / ratios))
    fits = np.logical_and.reduce([box_widths > 0, box_widths <= widths, box_heights > 0, box_heights <= heights])
    tops = np.floor(draws[..., 2] * (heights - box_heights + 1))
    lefts = np.floor(draws[..., 3] * (widths - box_widths + 1))
    attempts = np.stack([tops, lefts, box_heights, box_widths], axis=-1)
    first = attempts[np.arange(len(sizes)), fits.argmax(axis=1)].astype(np.int64)
    return np.where(fits.any(axis=1)[:, None], first, _central_boxes(sizes, ratio))


def _between(uniforms: NDArray[np.float64], least: float, greatest: float) -> NDArray[np.float64]:
    return least + uniforms * (greatest - least)


def _central_boxes(sizes: NDArray[np.int64], ratio: tuple[float, float]) -> Boxes:
    heights, widths = sizes[:, 0], sizes[:, 1]
    found = widths / heights
    box_widths = np.where(found > ratio[1], np.round(heights * ratio[1]), widths)
    box_heights = np.where(found < ratio[0], np.round(widths / ratio[0]), heights)
    # The box of an image of a pixel's width or height would round to nothing.
    box_widths, box_heights = np.clip(box_widths, 1, widths), np.clip(box_heights, 1, heights)
    return np.stack(
        [(heights - box_heights) // 2, (widths - box_widths) // 2, box_heights, box_widths], axis=-1
    ).astype(np.int64)
