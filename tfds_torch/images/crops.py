"""Crops: the part of each image that becomes the result; worked out from sizes alone, before a pixel is decoded.

A preprocess returns `Crops`: boxes. `CropParameters` are made from them: how the images are decoded and resized.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array, draw_uniforms

BoolArray = NDArray[np.bool_]
Float64Array = NDArray[np.float64]
Boxes = NDArray[np.int64]
"""int64 [n, 4]: top, left, height, width, in pixels of the image."""

KEEP, COVER, INSIDE = "keep", "cover", "inside"

Resize = int | tuple[int, int] | tuple[str, int, int] | str
"""The size to which whole images are resized: the pixels of the shorter side; (height, width); ("cover", height,
width) or ("inside", height, width): with their ratio, so that they cover that size or lie inside of it; "keep": they
are not resized."""

NUM_ATTEMPTS = 10
NUM_DRAWS = 4 * NUM_ATTEMPTS
"""Random numbers that a box takes."""

# A JPEG may be halved while it is decoded as long as at least this factor is left to the antialiased resize: the result
# then differs from that of the whole image by less than a grey level (measured with bilinear and bicubic).
_LEAST_FACTOR_LEFT = 2.5
_SHRINKS = (2, 4, 8)
_PILLOW_CHOOSES_PASSES = int(PIL.__version__.split(".")[0]) >= 13
_WIDEST_SUPPORT = 2.0  # Of the bicubic filter, in pixels of the coarser grid.


class PreprocessError(Exception):
    """A preprocess failed for an example, or returned a box that cannot be cut out of its image.

    Attributes:
        position: the example's place among the examples of the call.
        reason: a sentence.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


class ExampleRandom:
    """Random numbers of n examples, which depend on nothing but the seed, the pass and the example.

    They are the same in any batch, rank, worker or thread, and after a resume. An instance belongs to one thread.

    Args:
        keys: int64 [n], sample keys, see `plan.order`.
        seed: any integer >= 0.
        first: number of the first random number of each example.
    """

    def __init__(self, keys: Int64Array, seed: int, first: int = 0) -> None:
        self._keys, self._seed, self._next = keys, seed, first

    def uniforms(self, draws: int | Sequence[int]) -> Float64Array:
        """Return the next random numbers of each example; no other call returns the same ones.

        Args:
            draws: how many of the next numbers; or which of them, in ascending order: those between are left out.

        Returns:
            float64 [n, m], uniform in [0, 1).
        """
        which = range(draws) if isinstance(draws, int | np.integer) else draws
        numbers = [self._next + number for number in which]
        self._next = numbers[-1] + 1 if numbers else self._next
        return draw_uniforms(self._keys, self._seed, numbers)


@dataclass(frozen=True, eq=False)
class Crops:
    """The part of each of n images that becomes the result: a box, or else the centre of the resized image.

    Attributes:
        boxes: int [n, 4]: top, left, height, width, in pixels of the image. A box is resized to the result, whatever
            its ratio. Only a box of the result's size may reach outside of its image; there it is padded.
        resized: int [n, 2], instead of boxes: heights and widths to which whole images are resized, pixels. The centre
            becomes the result, padded where it is smaller.
        flips: bool [n], whether the result is mirrored, left to right; None: no result is.
        bicubic: bool [n], whether the filter is bicubic, otherwise bilinear; None: all are bilinear.
        starts: int [n, 2], with `resized`: top and left of the result in the resized image, pixels, negative where it
            is padded; None: those of the centre.
        vflips: bool [n], whether the result is mirrored, top to bottom; None: no result is.

    Raises:
        ValueError: neither boxes nor resized is set, or both are; starts is set without resized; an array has another
            shape or type.
    """

    boxes: Boxes | None = None
    resized: Int64Array | None = None
    flips: BoolArray | None = None
    bicubic: BoolArray | None = None
    starts: Int64Array | None = None
    vflips: BoolArray | None = None

    def __post_init__(self) -> None:
        if (self.boxes is None) is (self.resized is None):
            raise ValueError("Crops takes either boxes, or resized for the centres of whole images")
        if self.starts is not None and self.resized is None:
            raise ValueError("Crops: starts are places in resized images, and there is no resized")
        count = len(self)
        num_columns = {"boxes": 4, "resized": 2, "starts": 2}
        for name in ("boxes", "resized", "flips", "bicubic", "starts", "vflips"):
            value = getattr(self, name)
            if value is None:
                continue
            is_table = name in num_columns
            shape = (count, num_columns[name]) if is_table else (count,)
            dtype, allowed_kinds = ("int64", "iu") if is_table else ("bool", "b")
            is_array = isinstance(value, np.ndarray)
            if not is_array or value.shape != shape or value.dtype.kind not in allowed_kinds:
                found = f"{value.dtype} {list(value.shape)}" if is_array else f"{value!r:.100}"
                raise ValueError(f"Crops: {name} must be a numpy array {dtype} {list(shape)}, not {found}")
            object.__setattr__(self, name, value.astype(dtype, copy=False))
        if self.resized is not None and (self.resized < 1).any():
            raise ValueError(f"Crops: resized must be at least 1, and one is {self.resized.min()}")

    def __len__(self) -> int:
        rows = self.resized if self.boxes is None else self.boxes
        # The check of the arguments asks for the length first: they may be of any type then.
        return len(rows) if np.ndim(rows) else 0  # type: ignore[arg-type]

    def parameters(self, sizes: Int64Array, size: tuple[int, int], shrinkable: BoolArray) -> "CropParameters":
        """Return how n images are decoded and resized.

        Where decoding shrinks an image, its box is rounded to whole pixels of the shrunk image.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            size: height and width of the results, pixels.
            shrinkable: bool [n], whether decoding can shrink the image.

        Raises:
            PreprocessError: a box has no pixel of its image, or reaches outside of it and must be resized; or the
                result has no pixel of the resized image.
        """
        all_false = np.zeros(len(self), np.bool_)
        bicubic = all_false if self.bicubic is None else self.bicubic
        target = np.array(size, np.int64)
        if self.resized is not None:
            starts = central_starts(self.resized, target) if self.starts is None else self.starts
            geometry = _cut_resized(self.resized, starts, sizes, target, shrinkable)
            columns_first = resizes_columns_first(sizes, self.resized) if bicubic.any() else all_false
        else:
            assert self.boxes is not None  # noqa: S101 (or there is resized)
            geometry = _cut_boxes(self.boxes, sizes, target, shrinkable)
            columns_first = resizes_columns_first(self.boxes[:, 2:], target) if bicubic.any() else all_false
        windows, shrinks, resized, steps, offsets = geometry
        return CropParameters(
            windows=windows,
            shrinks=shrinks,
            resized=resized,
            steps=steps,
            offsets=offsets,
            flips=all_false if self.flips is None else self.flips,
            bicubic=bicubic,
            columns_first=columns_first,
            vflips=all_false if self.vflips is None else self.vflips,
        )


_Geometry = tuple[Boxes, Int64Array, Int64Array, Float64Array, Int64Array]
"""windows, shrinks, resized, steps and offsets of CropParameters."""


def _cut_boxes(boxes: Boxes, sizes: Int64Array, target: Int64Array, shrinkable: BoolArray) -> _Geometry:
    """Return how the boxes are decoded and resized to the target; a box of the target's size may be padded."""
    starts, lengths = boxes[:, :2], boxes[:, 2:]
    offsets, windows = np.minimum(starts, 0), np.empty_like(boxes)
    windows[:, :2] = starts - offsets
    windows[:, 2:] = np.minimum(starts + lengths, sizes) - windows[:, :2]
    none_is_resized = bool((lengths == target).all())
    # A cheap test, so that the check of each box runs only where one may be wrong.
    if windows[:, 2:].min(initial=1) < 1 or (not none_is_resized and bool((windows != boxes).any())):
        _check_boxes(boxes, sizes, target)
    shrinks = np.ones(len(boxes), np.int64)
    if none_is_resized:
        return windows, shrinks, windows[:, 2:], np.ones(lengths.shape), offsets
    resized = np.where((lengths == target).all(axis=1)[:, None], windows[:, 2:], target)
    if shrinkable.any():
        shrinks = _shrinks(lengths / target, shrinkable)
        windows = windows // shrinks[:, None] * shrinks[:, None]
    return windows, shrinks, resized, windows[:, 2:] / shrinks[:, None] / resized, offsets


def _check_boxes(boxes: Boxes, sizes: Int64Array, target: Int64Array) -> None:
    """Raise PreprocessError for the first box that has no pixel of its image, or is resized and reaches outside."""
    starts, lengths = boxes[:, :2], boxes[:, 2:]
    stops = starts + lengths
    reaches_outside = ((starts < 0) | (stops > sizes)).any(axis=1)
    is_resized = (lengths != target).any(axis=1)
    is_empty = ((lengths < 1) | (stops < 1) | (starts >= sizes)).any(axis=1)
    impossible = np.flatnonzero(is_empty | (reaches_outside & is_resized))
    if len(impossible):
        (height, width), box = sizes[impossible[0]].tolist(), tuple(boxes[impossible[0]].tolist())
        raise PreprocessError(
            int(impossible[0]),
            f"The box (top, left, height, width) = {box} cannot be cut out of {height} x {width} pixels: it must have "
            f"pixels of the image, and only a box of the result's size, {target[0]} x {target[1]}, may reach outside "
            f"of it.",
        )


def central_starts(sizes: Int64Array, target: Int64Array) -> Int64Array:
    """Return top and left of the centres of images, int64 [n, 2]; negative where these are smaller than the target.

    Source: torchvision 0.28, `functional.center_crop`; timm 1.0.31, `center_crop_or_pad`.
    """
    # Python's and numpy's rounding are the same: half to even.
    return np.where(sizes >= target, np.round((sizes - target) / 2).astype(np.int64), -((target - sizes) // 2))


def _cut_resized(
    resized: Int64Array, starts: Int64Array, sizes: Int64Array, target: Int64Array, shrinkable: BoolArray
) -> _Geometry:
    """Return how whole images are resized, and the results cut out of them or padded.

    Pixels below and to the right of the result are not decoded, but for those that the filter reaches.
    """
    is_outside = ((starts + target < 1) | (starts >= resized)).any(axis=1)
    if is_outside.any():
        position = int(is_outside.argmax())
        (top, left), (height, width) = starts[position].tolist(), resized[position].tolist()
        raise PreprocessError(
            position,
            f"The result of {target[0]} x {target[1]} pixels at (top, left) = {top, left} has no pixel of an image "
            f"that is resized to {height} x {width}.",
        )
    steps = sizes / resized
    shrinks = _shrinks(steps, shrinkable)
    stops = np.minimum(starts + target, resized)
    reach = np.ceil(stops * steps + _WIDEST_SUPPORT * np.maximum(steps, 1)).astype(np.int64) + 1
    reach = -(-reach // shrinks[:, None]) * shrinks[:, None]  # Up to whole pixels of the shrunk image.
    windows = np.concatenate([np.zeros_like(sizes), np.minimum(reach, sizes)], axis=1)
    return windows, shrinks, stops, steps / shrinks[:, None], starts


def _shrinks(factors: Float64Array, shrinkable: BoolArray) -> Int64Array:
    """Return the factors by which decoding can shrink images, int64 [n], from the factors [n, 2] of the resize."""
    least = np.where(shrinkable, factors.min(axis=1), 0)
    shrinks = np.ones(len(factors), np.int64)
    for shrink in _SHRINKS:
        shrinks[least >= shrink * _LEAST_FACTOR_LEFT] = shrink
    return shrinks


@dataclass(frozen=True)
class CropParameters:
    """How each of n images becomes an image of one size.

    Attributes:
        windows: int64 [n, 4], the pixels that are decoded: top, left, height, width.
        shrinks: int64 [n], 1, 2, 4 or 8: the factor by which decoding downsizes the image.
        resized: int64 [n, 2], height and width to which the decoded pixels are resized.
        steps: float64 [n, 2], decoded pixels by pixel of the resized image, downwards and to the right.
        offsets: int64 [n, 2], where in the resized image the result begins; negative where it is padded.
        flips: bool [n], whether the result is mirrored, left to right.
        bicubic: bool [n], whether the filter is bicubic; otherwise it is bilinear.
        columns_first: bool [n], whether bicubic resizes each column before the rows, as Pillow does for these sizes:
            either clips what overshoots. Bilinear never overshoots.
        vflips: bool [n], whether the result is mirrored, top to bottom.
    """

    windows: Boxes
    shrinks: Int64Array
    resized: Int64Array
    steps: Float64Array
    offsets: Int64Array
    flips: BoolArray
    bicubic: BoolArray
    columns_first: BoolArray
    vflips: BoolArray

    def __len__(self) -> int:
        return len(self.windows)

    def keep_all(self, sizes: Int64Array, size: tuple[int, int]) -> bool:
        """Return whether all images, of sizes int64 [n, 2], stay as they are: they have the size of the results."""
        return bool(
            (sizes == size).all()
            and (self.windows == (0, 0, *size)).all()
            and (self.resized == size).all()
            and (self.steps == 1).all()
            and not self.offsets.any()
            and not self.flips.any()
            and not self.vflips.any()
        )

    def only_cut(self, sizes: Int64Array) -> bool:
        """Return whether no image is resized, and all sizes, int64 [n, 2], are the same."""
        return bool(
            (sizes == sizes[0]).all()
            and (self.steps == 1).all()
            and (self.shrinks == 1).all()
            and (self.resized == self.windows[:, 2:]).all()
        )

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Return (resized, steps, offset, flip, bicubic, columns_first) of each, in plain values."""
        columns = (self.resized, self.steps, self.offsets, self.flips, self.bicubic, self.columns_first)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def resizes_columns_first(sizes: Int64Array, resized: Int64Array) -> BoolArray:
    """Return, bool [n], whether the installed Pillow resizes columns before rows for sizes int64 [n, 2].

    Source: Pillow 13, where the height must lose more than twice the pixels that the width loses; 12 never does.
    """
    lost = sizes - resized
    found: BoolArray = (lost[:, 0] > 0) & (lost[:, 0] > 2 * lost[:, 1]) & _PILLOW_CHOOSES_PASSES
    return found


def random_resized_crops(
    sizes: Int64Array, uniforms: Float64Array, scale: tuple[float, float], ratio: tuple[float, float]
) -> Boxes:
    """Return a random box for each of n images, int64 [n, 4].

    As in torchvision: ten times, an area is drawn uniformly among the fractions `scale` of the image's, and a ratio of
    width to height whose logarithm is uniform; the first box that fits is taken, at a uniform place. Where none fits,
    it is the largest box in the image's centre whose ratio is allowed.

    Args:
        sizes: int64 [n, 2], heights and widths, each >= 1.
        uniforms: float64 [n, NUM_DRAWS], in [0, 1).
        scale: least and greatest fraction of the area.
        ratio: least and greatest width by height.

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


def _between(uniforms: Float64Array, least: float, greatest: float) -> Float64Array:
    return least + uniforms * (greatest - least)


def _central_boxes(sizes: Int64Array, ratio: tuple[float, float]) -> Boxes:
    heights, widths = sizes[:, 0], sizes[:, 1]
    found = widths / heights
    box_widths = np.where(found > ratio[1], np.round(heights * ratio[1]), widths)
    box_heights = np.where(found < ratio[0], np.round(widths / ratio[0]), heights)
    # The box of an image of a pixel's width or height would round to nothing.
    box_widths, box_heights = np.clip(box_widths, 1, widths), np.clip(box_heights, 1, heights)
    return np.stack(
        [(heights - box_heights) // 2, (widths - box_widths) // 2, box_heights, box_widths], axis=-1
    ).astype(np.int64)


def resize_shorter_side(sizes: Int64Array, length: int) -> Int64Array:
    """Return the sizes of images, int64 [n, 2], whose shorter side is resized to a length.

    Source: torchvision 0.28, `transforms.Resize` of one number.
    """
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    others = np.maximum(1, (length * longer / shorter).astype(np.int64))
    is_wide = sizes[:, 1] >= sizes[:, 0]
    return np.stack([np.where(is_wide, length, others), np.where(is_wide, others, length)], axis=1).astype(np.int64)


def resize_keeping_ratio(sizes: Int64Array, size: tuple[int, int], *, inside: bool) -> Int64Array:
    """Return the sizes of images, int64 [n, 2], after a resize to cover `size`, or to lie inside of it.

    Source: timm 1.0.31, `transforms.ResizeKeepRatio`.
    """
    ratios = sizes / np.array(size)
    ratio = ratios.max(axis=1) if inside else ratios.min(axis=1)
    resized: Int64Array = np.maximum(1, np.round(sizes / ratio[:, None])).astype(np.int64)
    return resized


def resize_to(sizes: Int64Array, resize: Resize) -> Int64Array:
    """Return the sizes of images, int64 [n, 2], after a resize."""
    if isinstance(resize, int):
        return resize_shorter_side(sizes, resize)
    if isinstance(resize, str):
        return sizes
    if len(resize) == 3:
        return resize_keeping_ratio(sizes, resize[1:], inside=resize[0] == INSIDE)
    return np.broadcast_to(np.array(resize, np.int64), sizes.shape)


def scaled_size(size: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """Return height and width whose fraction crop_pct is `size`, rounded down."""
    return math.floor(size[0] / crop_pct), math.floor(size[1] / crop_pct)
