"""Cutting of decoded images: windows of many small images all at once, and masks like their images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.batch_buffer import resize_with_pillow
from tfds_torch.images.crops import CropParameters
from tfds_torch.images.decoding import BadImageError, Pixels
from tfds_torch.plan.order import Int64Array


def cut_windows_of(pixels: Pixels, starts: Int64Array, fill: Any, out: Pixels) -> None:
    """Cut a window out of each of n images, padded where it reaches outside.

    Args:
        pixels: uint8 [n, h, w, C], contiguous.
        starts: int64 [n, 2], top and left of the windows; negative outside of the image.
        fill: the grey level of the padding, or one for each channel.
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
    """Mirror some of n images, uint8 [n, H, W, C], left to right, where they lie.

    It mirrors one channel at a time: numpy copies a line of one channel in one go, and a line of pixels pixel by pixel,
    which takes five times as long.
    """
    which = np.flatnonzero(flips)
    if not len(which):
        return
    before = pixels[which]
    after = np.empty_like(before)
    for channel in range(pixels.shape[-1]):
        after[..., channel] = before[:, :, ::-1, channel]
    pixels[which] = after


def turn_over(pixels: Pixels, vflips: NDArray[np.bool_]) -> None:
    """Mirror some of n images, uint8 [n, H, W, C], top to bottom, where they lie."""
    for number in np.flatnonzero(vflips).tolist():
        pixels[number] = pixels[number, ::-1].copy()


def check_masks(masks: Mapping[str, Sequence[Pixels]], sizes: Int64Array) -> None:
    """Raise BadImageError where a mask is of another size than its image, int64 [n, 2]."""
    for name, values in masks.items():
        for position, (mask, size) in enumerate(zip(values, sizes.tolist(), strict=True)):
            if list(mask.shape[:2]) != size:
                raise BadImageError(
                    position,
                    f"Its {name!r} has {mask.shape[0]} x {mask.shape[1]} pixels, and its image {size[0]} x {size[1]}: "
                    f"what goes through the same crop must be of the same size.",
                )


def cut_alike(
    masks: Sequence[NDArray[Any]],
    parameters: CropParameters,
    size: tuple[int, int],
    are_pictures: Sequence[bool] | None = None,
    fill: int | tuple[int, ...] = 0,
) -> list[NDArray[Any]]:
    """Return masks, [h, w, C], cropped, resized and mirrored like their n images.

    Args:
        masks: [h, w, C], of the sizes of their images; numbers of any type.
        parameters: how the images are cut.
        size: height and width of the results, pixels.
        are_pictures: which masks, uint8, are resized bilinearly with antialiasing; the others take the nearest pixel;
            None: all do.
        fill: grey level of a picture's padding, or one for each channel; numbers are 0 where they are padded.

    Source: Pillow, `Image.resize` with NEAREST.
    """
    cut = []
    smooth = [False] * len(masks) if are_pictures is None else are_pictures
    plain = (column.tolist() for column in (parameters.windows, parameters.shrinks, parameters.vflips))
    rows = zip(masks, smooth, parameters.rows(), *plain, strict=True)
    for mask, is_smooth, (resized, steps, offset, flip, *_), window, shrink, vflip in rows:
        out = np.zeros((*size, mask.shape[-1]), mask.dtype)
        if is_smooth:
            levels = fill[: mask.shape[-1]] if isinstance(fill, tuple) and len(fill) > 1 else fill
            out[:] = levels
            top, left, height, width = window
            part, scale = mask[top : top + height, left : left + width], (steps[0] * shrink, steps[1] * shrink)
            if scale != (1.0, 1.0) or list(part.shape[:2]) != resized:
                part = resize_with_pillow(np.ascontiguousarray(part), (resized[0], resized[1]), scale, bicubic=False)
            part = part[max(offset[0], 0) : offset[0] + size[0], max(offset[1], 0) : offset[1] + size[1]]
            top, left = max(-offset[0], 0), max(-offset[1], 0)
            out[top : top + part.shape[0], left : left + part.shape[1]] = part
        else:
            lines, columns = (
                _nearest(size[axis], resized[axis], offset[axis], steps[axis] * shrink, window[axis], mask.shape[axis])
                for axis in (0, 1)
            )
            out[lines[0][:, None], columns[0]] = mask[lines[1][:, None], columns[1]]
        out = out[:, ::-1] if flip else out
        cut.append(out[::-1] if vflip else out)
    return cut


def _nearest(
    length: int, resized: int, offset: int, step: float, first: int, available: int
) -> tuple[Int64Array, Int64Array]:
    """Return positions along a side of the result, and the pixels of the whole image that are nearest to them."""
    positions = np.arange(max(-offset, 0), min(length, resized - offset))
    pixels = first + np.floor((positions + offset + 0.5) * step).astype(np.int64)
    return positions, np.minimum(pixels, available - 1)
