"""BatchBuffer: the memory of one batch's images, into whose rows they are decoded and resized."""

import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.decoding import Pixels
from tfds_torch.storage.stored_pixels import gather_with_numpy


class BatchBuffer(Protocol):
    """The images of one batch, uint8 [B, H, W, C]. Different rows may be written by different threads."""

    @property
    def pixels(self) -> Pixels:
        """The memory, uint8 [B, H, W, C], of which every row is contiguous."""

    @property
    def images(self) -> Any:
        """The images in the form that the buffer's maker wants, such as a tensor."""

    def channels_first(self, num_images: int | None) -> Any:
        """Returns the images of windows in that form: [B, C, H, W], or [B / num_images, num_images, C, H, W]."""

    def gather(self, memory: Pixels, starts: NDArray[np.int64], out: Pixels) -> None:
        """Copies n pieces that begin at `starts` of memory, uint8 [m], to `out`, uint8 [n, length], in one call."""

    def resize(self, pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], *, bicubic: bool) -> Pixels:
        """Returns an image resized with antialiasing, uint8 [*size, C], as Pillow does it.

        Args:
            pixels: uint8 [h, w, C].
            size: height and width of the result.
            steps: pixels of the image by pixel of the result; size x steps may be less than the image, whose other
                pixels are only reached by the filter.
            bicubic: the filter; otherwise it is bilinear.
        """

    def fill_row(self, row: int, pixels: Pixels, steps: tuple[float, float], *, bicubic: bool, flip: bool) -> None:
        """Resizes an image to the size of the rows, as `resize` does, and writes it into one, perhaps mirrored."""

    def part(self, start: int, stop: int, shape: tuple[int, int, int, int]) -> "BatchBuffer":
        """Returns bytes start..stop-1 of the memory as a buffer of [B, H, W, C]."""


class MakeBatchBuffer(Protocol):
    """Makes batch buffers. It can be pickled."""

    def __call__(self, shape: tuple[int, int, int, int]) -> BatchBuffer:
        """Returns a buffer of [B, H, W, C]."""


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
        self, pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], *, bicubic: bool
    ) -> Pixels:
        return resize_with_pillow(pixels, size, steps, bicubic=bicubic)

    def fill_row(  # noqa: D102
        self, row: int, pixels: Pixels, steps: tuple[float, float], *, bicubic: bool, flip: bool
    ) -> None:
        out = self.pixels[row]
        resized = self.resize(pixels, (out.shape[0], out.shape[1]), steps, bicubic=bicubic)
        out[:] = resized[:, ::-1] if flip else resized


def resize_with_pillow(pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], *, bicubic: bool) -> Pixels:
    """Returns an image resized by Pillow; see `BatchBuffer.resize`."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    # Rounded floats may reach beyond the image by a trifle.
    box = (0, 0, min(size[1] * steps[1], image.width), min(size[0] * steps[0], image.height))
    resized = np.asarray(image.resize((size[1], size[0]), resample, box))
    return resized[..., None] if resized.ndim == 2 else resized
