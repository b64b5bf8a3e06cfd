"""The protocol of decoders of images, and their error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.headers import Header
from tfds_torch.storage.image_formats import ImageFormatError

Pixels = NDArray[np.uint8]
"""Of one image: [h, w, C]."""

EncodedImage = bytes | Pixels
"""An image as it is stored: the bytes of its file, or its pixels."""

Window = tuple[slice, slice]
"""Part of an image: its rows and columns, each with start and stop, in pixels of the image as it is decoded."""

NUM_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
"""Mode of the pixels that decoders return, by Pillow's names -> number of channels."""

JPEG_END = b"\xff\xd9"
"""The end of a whole file. Where a file lacks it, nothing is left out, so that the flaw is found."""


class ImageDecodeError(ValueError):
    """An image that cannot be decoded; the message is the reason, a sentence."""


def describe_pillow_error(error: Exception) -> str:
    """Return the first line of an error of Pillow, which raises a dozen types for broken files."""
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return f"Pillow reports: {first_line.rstrip('.')}."


@contextmanager
def pillow_errors() -> Iterator[None]:
    """Turn every error of Pillow into an ImageDecodeError, except a lack of memory."""
    try:
        yield
    except (ImageDecodeError, MemoryError):
        raise
    except ImageFormatError as error:
        raise ImageDecodeError(str(error)) from None
    except Exception as error:
        raise ImageDecodeError(describe_pillow_error(error)) from error


def to_gray(pixels: Pixels) -> Pixels:
    """Return grey levels, uint8 [h, w, 1], of pixels of three colours, as Pillow's `convert("L")` makes them.

    The Y channel of a JPEG would be faster by a third, and differs by up to 15 levels where colours are clipped.
    """
    return np.array(Image.frombuffer("RGB", pixels.shape[1::-1], pixels, "raw", "RGB", 0, 1).convert("L"))[..., None]


class Decoder(Protocol):
    """Decodes images, in the thread that calls it. Thread-safe. A module with this function is a decoder."""

    def decode(
        self, image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None
    ) -> Pixels | None:
        """Return the pixels of a window, uint8 [h, w, C]; None where another decoder has to do it.

        Args:
            image: encoded.
            header: header of the image.
            mode: one of `NUM_CHANNELS`.
            window: inside the shrunk image; its pixels are those of the whole image there, `pixels[window]`.
            shrink: 1, or 2, 4 or 8 where `header.is_shrinkable`: both sides are divided by it and rounded up.
            out: uint8 [h, w, C], contiguous, the memory for a whole image that is not shrunk; None: the decoder
                makes it.

        Raises:
            ImageDecodeError: no decoder can decode this image.
        """
