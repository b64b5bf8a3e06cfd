"""What every decoder of images is, and how it fails."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.headers import Header

Pixels = NDArray[np.uint8]
"""Of one image: [h, w, C]."""

EncodedImage = bytes | Pixels
"""An image as it is stored: the bytes of its file, or its pixels."""

Window = tuple[int, int, int, int]
"""Part of an image: top, left, height, width, in pixels of the image as it is decoded."""

NUM_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
"""What decoders return, by Pillow's names."""


class ImageDecodeError(ValueError):
    """An image that cannot be decoded; the message is the reason, a sentence."""


def describe_pillow_error(error: Exception) -> str:
    """Returns the first line of an error of Pillow's, which raises a dozen types for broken files."""
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return f"Pillow reports: {first_line.rstrip('.')}."


def cut(pixels: Pixels, window: Window) -> Pixels:
    """Returns a window of an image, uint8 [h, w, C], without a copy."""
    top, left, height, width = window
    return pixels[top : top + height, left : left + width]


class Decoder(Protocol):
    """Decodes images, in the thread that calls it. Thread-safe. A module with these functions is a decoder."""

    def shrinks(self, header: Header) -> bool:
        """Whether an image with this header can be downsized while it is decoded."""

    def decode(
        self, image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None
    ) -> Pixels | None:
        """Returns the pixels of a window, uint8 [h, w, C]; None where another decoder has to do it.

        Args:
            image: encoded.
            header: of the image.
            mode: one of `NUM_CHANNELS`.
            window: inside the shrunk image; its pixels are those of the whole image there.
            shrink: 1, or 2, 4 or 8 for an image that it `shrinks`: both sides are divided by it and rounded up.
            out: uint8 [h, w, C], contiguous, where to decode a whole image to, which is not shrunk; None: into memory
                of its own.

        Raises:
            ImageDecodeError: no decoder can decode this image.
        """
