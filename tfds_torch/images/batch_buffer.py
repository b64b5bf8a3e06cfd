"""BatchBuffer: the memory of one batch's images, into whose rows they are decoded and resized."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.decoding import Pixels
from tfds_torch.storage.stored_pixels import gather_with_numpy

_WEIGHED = {"LA": "La", "RGBA": "RGBa"}
"""Modes with an opacity, by which Pillow weighs the colours that it mixes."""


class BatchBuffer(Protocol):
    """The images of one batch, uint8 [B, H, W, C]. Different rows may be written by different threads."""

    @property
    def pixels(self) -> Pixels:
        """The memory, uint8 [B, H, W, C], of which every row is contiguous."""

    @property
    def images(self) -> Any:
        """The images in the form that the buffer's maker wants, like a tensor."""

    def channels_first(self, num_images: int | None) -> Any:
        """Return the images of windows in that form: [B, C, H, W], or [B / num_images, num_images, C, H, W]."""

    def gather(self, memory: Pixels, starts: NDArray[np.int64], out: Pixels) -> None:
        """Copy n pieces that begin at `starts` of memory, uint8 [m], to `out`, uint8 [n, length], in one call."""

    def resize(
        self,
        pixels: Pixels,
        size: tuple[int, int],
        steps: tuple[float, float],
        *,
        bicubic: bool,
        columns_first: bool = False,
    ) -> Pixels:
        """Return an image resized with antialiasing, uint8 [*size, C], as Pillow does it.

        Args:
            pixels: uint8 [h, w, C].
            size: height and width of the result.
            steps: pixels of the image by pixel of the result; size x steps may be less than the image, whose other
                pixels are only reached by the filter.
            bicubic: the filter; otherwise it is bilinear.
            columns_first: whether bicubic resizes columns before rows, see `CropParameters`.
        """

    def fill_row(
        self,
        row: int,
        pixels: Pixels,
        steps: tuple[float, float],
        *,
        bicubic: bool,
        flip: bool,
        columns_first: bool = False,
    ) -> None:
        """Resize an image to the size of the rows, as `resize` does, and write it into one, perhaps mirrored."""

    def part(self, start: int, stop: int, shape: tuple[int, int, int, int]) -> "BatchBuffer":
        """Return bytes start..stop-1 of the memory as a buffer of [B, H, W, C]."""


class MakeBatchBuffer(Protocol):
    """Makes batch buffers. It can be pickled."""

    def __call__(self, shape: tuple[int, int, int, int]) -> BatchBuffer:
        """Return a buffer of [B, H, W, C]."""


class ArrayBuffer:
    """A batch buffer in numpy, for which Pillow resizes; made for a shape [B, H, W, C]."""

    gather = staticmethod(gather_with_numpy)

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self.pixels: Pixels = np.empty(shape, np.uint8)

    @property
    def images(self) -> Pixels:
        """The array."""
        return self.pixels

    def channels_first(self, num_images: int | None) -> Pixels:  # noqa: D102
        images = np.moveaxis(self.pixels, -1, 1)
        return images if num_images is None else images.reshape(-1, num_images, *images.shape[1:])

    def part(self, start: int, stop: int, shape: tuple[int, int, int, int]) -> "ArrayBuffer":  # noqa: D102
        buffer = copy.copy(self)
        buffer.pixels = self.pixels.reshape(-1)[start:stop].reshape(shape)
        return buffer

    def resize(  # noqa: D102
        self,
        pixels: Pixels,
        size: tuple[int, int],
        steps: tuple[float, float],
        *,
        bicubic: bool,
        columns_first: bool = False,
    ) -> Pixels:
        return resize_with_pillow(pixels, size, steps, bicubic=bicubic, columns_first=columns_first)

    def fill_row(  # noqa: D102
        self,
        row: int,
        pixels: Pixels,
        steps: tuple[float, float],
        *,
        bicubic: bool,
        flip: bool,
        columns_first: bool = False,
    ) -> None:
        out = self.pixels[row]
        size = (out.shape[0], out.shape[1])
        resized = self.resize(pixels, size, steps, bicubic=bicubic, columns_first=columns_first)
        out[:] = resized[:, ::-1] if flip else resized


Passes = Sequence[tuple[tuple[int, int], tuple[float, float]]]
"""Size and steps of resizes that follow each other."""


def passes_of(pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], *, columns_first: bool) -> Passes:
    """Return a resize of an image as two passes: one of its columns, one of its rows."""
    if columns_first:
        return ((size[0], pixels.shape[1]), (steps[0], 1.0)), (size, (1.0, steps[1]))
    return ((pixels.shape[0], size[1]), (1.0, steps[1])), (size, (steps[0], 1.0))


def resize_with_pillow(
    pixels: Pixels,
    size: tuple[int, int],
    steps: tuple[float, float],
    *,
    bicubic: bool,
    columns_first: bool = False,
) -> Pixels:
    """Return an image resized by Pillow; see `BatchBuffer.resize`."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    mode = image.mode
    if mode in _WEIGHED:  # As Pillow does it, here before the first of two passes.
        image = image.convert(_WEIGHED[mode])
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    # Pillow chooses the order by the size of the decoded pixels, which may be a part of the image.
    passes: Passes = passes_of(pixels, size, steps, columns_first=columns_first) if bicubic else ((size, steps),)
    for (height, width), (down, right) in passes:
        # Rounded floats may reach beyond the image by a trifle.
        box = (0, 0, min(width * right, image.width), min(height * down, image.height))
        image = image.resize((width, height), resample, box)
    resized = np.asarray(image if image.mode == mode else image.convert(mode))
    return resized[..., None] if resized.ndim == 2 else resized
