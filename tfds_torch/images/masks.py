"""Masks: other images that go through the same crop as theirs."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.crops import CropParameters
from tfds_torch.images.decoding import BadImageError, Pixels

Int64Array = NDArray[np.int64]


def check_masks(masks: Mapping[str, Sequence[Pixels]], sizes: Int64Array) -> None:
    """Raises BadImageError where a mask is of another size than its image, int64 [n, 2]."""
    for name, values in masks.items():
        for position, (mask, size) in enumerate(zip(values, sizes.tolist(), strict=True)):
            if list(mask.shape[:2]) != size:
                raise BadImageError(
                    position,
                    f"Its {name!r} has {mask.shape[0]} x {mask.shape[1]} pixels, and its image {size[0]} x {size[1]}: "
                    f"what goes through the same crop must be of the same size.",
                )


def cut_alike(masks: Sequence[Pixels], parameters: CropParameters, size: tuple[int, int]) -> list[Pixels]:
    """Returns other images, uint8 [h, w, C], cropped, resized and mirrored like n images, by the nearest pixel.

    Args:
        masks: of the same sizes as the images.
        parameters: of the images.
        size: height and width of the results.

    Returns:
        n images uint8 [H, W, C], 0 where they are padded.

    Source: Pillow, `Image.resize` with NEAREST.
    """
    return list(_cut_alike(masks, parameters, size))


def _cut_alike(masks: Sequence[Pixels], parameters: CropParameters, size: tuple[int, int]) -> Iterator[Pixels]:
    rows = zip(masks, parameters.rows(), parameters.windows.tolist(), parameters.shrinks.tolist(), strict=True)
    for mask, (resized, steps, offset, flip, _), window, shrink in rows:
        out = np.zeros((*size, mask.shape[-1]), mask.dtype)
        lines, columns = (
            _nearest(size[axis], resized[axis], offset[axis], steps[axis] * shrink, window[axis], mask.shape[axis])
            for axis in (0, 1)
        )
        part = mask[lines[1][:, None], columns[1]]
        out[lines[0][:, None], columns[0]] = part
        yield out[:, ::-1] if flip else out


def _nearest(
    length: int, resized: int, offset: int, step: float, first: int, available: int
) -> tuple[Int64Array, Int64Array]:
    """Returns positions along a side of the result, and the pixels of the whole image that are nearest to them."""
    positions = np.arange(max(-offset, 0), min(length, resized - offset))
    pixels = first + np.floor((positions + offset + 0.5) * step).astype(np.int64)
    return positions, np.minimum(pixels, available - 1)
