"""CropParameters: how images become images of one size, worked out from their sizes alone, before they are decoded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.crop_boxes import Boxes

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]

# A JPEG may be halved while it is decoded as long as at least this factor is left to the antialiased resize: what comes
# out then differs from that of the whole image by less than a grey level (measured with bilinear and bicubic).
_LEAST_FACTOR_LEFT = 2.5
_SHRINKS = (2, 4, 8)
_WIDEST_SUPPORT = 2.0  # Of the bicubic filter, in pixels of the coarser grid.


@dataclass(frozen=True)
class CropParameters:
    """How each of n images becomes an image of one size.

    Attributes:
        windows: int64 [n, 4], the pixels that are decoded: top, left, height, width.
        shrinks: int64 [n], 1, 2, 4 or 8: by what decoding downsizes them.
        resized: int64 [n, 2], height and width to which what was decoded is resized.
        steps: float64 [n, 2], pixels of what was decoded by pixel of the resized image, downwards and to the right.
        offsets: int64 [n, 2], where in the resized image the result begins; negative where it is padded.
        flips: bool [n], whether the result is mirrored, left to right.
        bicubic: bool [n], the filter; otherwise it is bilinear.
    """

    windows: Boxes
    shrinks: Int64Array
    resized: Int64Array
    steps: Float64Array
    offsets: Int64Array
    flips: NDArray[np.bool_]
    bicubic: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.windows)

    def keep_all(self, sizes: Int64Array, size: tuple[int, int]) -> bool:
        """Whether nothing is done to any image: all of them, int64 [n, 2], are of the size of the results."""
        return bool(
            (sizes == size).all()
            and (self.windows == (0, 0, *size)).all()
            and (self.resized == size).all()
            and (self.steps == 1).all()
            and not self.offsets.any()
            and not self.flips.any()
        )

    def only_cut(self, sizes: Int64Array) -> bool:
        """Whether nothing is resized, and all images, int64 [n, 2], are of one size."""
        return bool(
            (sizes == sizes[0]).all()
            and (self.steps == 1).all()
            and (self.shrinks == 1).all()
            and (self.resized == self.windows[:, 2:]).all()
        )

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Returns (resized, steps, offset, flip, bicubic) of each, in plain values."""
        columns = (self.resized, self.steps, self.offsets, self.flips, self.bicubic)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def crop_and_resize(
    boxes: Boxes, size: tuple[int, int], shrinkable: NDArray[np.bool_], flips: NDArray[np.bool_], bicubic: Any
) -> CropParameters:
    """Returns parameters by which a box of each image is resized to `size`, whatever its ratio.

    Where decoding shrinks an image, the box is rounded to whole pixels of the shrunk one.

    Args:
        boxes: int64 [n, 4].
        size: height and width of the results.
        shrinkable: bool [n], whether decoding can shrink it.
        flips: bool [n].
        bicubic: bool [n].
    """
    shrinks = _shrinks(boxes[:, 2:] / np.array(size), shrinkable)
    windows = boxes // shrinks[:, None] * shrinks[:, None]
    resized = np.broadcast_to(np.array(size, np.int64), (len(boxes), 2))
    steps = windows[:, 2:] / shrinks[:, None] / resized
    return CropParameters(windows, shrinks, resized, steps, np.zeros_like(resized), flips, bicubic)


def cut_windows(
    sizes: Int64Array, tops_and_lefts: Int64Array, size: tuple[int, int], flips: NDArray[np.bool_]
) -> CropParameters:
    """Returns parameters by which a window of `size` is cut out, not resized; outside of the image it is padded.

    Args:
        sizes: int64 [n, 2], of the images.
        tops_and_lefts: int64 [n, 2], where the windows begin; negative outside of the image.
        size: height and width of the results.
        flips: bool [n].
    """
    starts = np.maximum(tops_and_lefts, 0)
    stops = np.minimum(tops_and_lefts + np.array(size), sizes)
    windows = np.concatenate([starts, stops - starts], axis=1)
    none = np.zeros(len(sizes), np.bool_)
    return CropParameters(
        windows=windows,
        shrinks=np.ones(len(sizes), np.int64),
        resized=windows[:, 2:],
        steps=np.ones((len(sizes), 2)),
        offsets=np.minimum(tops_and_lefts, 0),
        flips=flips,
        bicubic=none,
    )


def resize_and_center(
    sizes: Int64Array, resized: Int64Array, size: tuple[int, int], shrinkable: NDArray[np.bool_], bicubic: Any
) -> CropParameters:
    """Returns parameters by which whole images are resized, and the centre of `size` is cut out, or padded to it.

    What lies below and to the right of the centre is not decoded, but for the pixels that its filter reaches.

    Args:
        sizes: int64 [n, 2], of the images.
        resized: int64 [n, 2], to which they are resized.
        size: height and width of the results.
        shrinkable: bool [n], whether decoding can shrink it.
        bicubic: bool [n].

    Source: torchvision 0.28, `functional.center_crop`.
    """
    target = np.array(size, np.int64)
    # Python's and numpy's rounding are the same: half to even.
    offsets = np.where(resized >= target, np.round((resized - target) / 2).astype(np.int64), -((target - resized) // 2))
    steps = sizes / resized
    shrinks = _shrinks(steps, shrinkable)
    stops = np.minimum(offsets + target, resized)
    reach = np.ceil(stops * steps + _WIDEST_SUPPORT * np.maximum(steps, 1)).astype(np.int64) + 1
    reach = -(-reach // shrinks[:, None]) * shrinks[:, None]
    windows = np.concatenate([np.zeros_like(sizes), np.minimum(reach, sizes)], axis=1)
    none = np.zeros(len(sizes), np.bool_)
    return CropParameters(windows, shrinks, stops, steps / shrinks[:, None], offsets, none, bicubic)


def resize_shorter_side(sizes: Int64Array, length: int) -> Int64Array:
    """Returns the sizes of images, int64 [n, 2], whose shorter side is resized to a length.

    Source: torchvision 0.28, `transforms.Resize` of one number.
    """
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    others = np.maximum(1, (length * longer / shorter).astype(np.int64))
    is_wide = sizes[:, 1] >= sizes[:, 0]
    return np.stack([np.where(is_wide, length, others), np.where(is_wide, others, length)], axis=1).astype(np.int64)


def resize_keeping_ratio(sizes: Int64Array, size: tuple[int, int], *, inside: bool) -> Int64Array:
    """Returns the sizes of images, int64 [n, 2], resized so that they cover `size`, or lie inside of it.

    Source: timm 1.0.31, `transforms.ResizeKeepRatio`.
    """
    ratios = sizes / np.array(size)
    ratio = (ratios.max if inside else ratios.min)(axis=1)[:, None]
    resized: Int64Array = np.maximum(1, np.round(sizes / ratio)).astype(np.int64)
    return resized


def _shrinks(factors: Float64Array, shrinkable: NDArray[np.bool_]) -> Int64Array:
    """Returns by what images can be shrunk while they are decoded, int64 [n], of the factors [n, 2] of the resize."""
    least = np.where(shrinkable, factors.min(axis=1), 0)
    shrinks = np.ones(len(factors), np.int64)
    for shrink in _SHRINKS:
        shrinks[least >= shrink * _LEAST_FACTOR_LEFT] = shrink
    return shrinks


def scaled_size(size: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """Returns height and width of which a centre of `size` is the fraction crop_pct, rounded down."""
    return math.floor(size[0] / crop_pct), math.floor(size[1] / crop_pct)
