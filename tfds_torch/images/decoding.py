"""Decoding of single images, in every way that images are read: their pixels equal Pillow's of the same file."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg, pillow, pillow_only, png, png_16, raw
from tfds_torch.images.decoders.decoder import (
    NUM_CHANNELS,
    Decoder,
    EncodedImage,
    ImageDecodeError,
    Pixels,
    Window,
)
from tfds_torch.images.headers import MOST_PIXELS, Header, ImageFormat, read_header
from tfds_torch.storage.image_formats import READABLE_FORMATS, find_format

__all__ = [
    "CHANNELS",
    "BadImageError",
    "EncodedImage",
    "ImageDecodeError",
    "ImageDecoder",
    "OtherSizeError",
    "Pixels",
]

CHANNELS: Mapping[str | None, int] = {None: 0, "L": 1, "RGB": 3, "RGBA": 4}
"""Mode of images -> number of channels; 0: as stored."""

_DECODERS: Mapping[ImageFormat, Sequence[Decoder]] = {
    ImageFormat.PNG: (png, png_16, pillow),
    ImageFormat.GIF: (pillow,),
    ImageFormat.BMP: (pillow,),
    ImageFormat.WEBP: (pillow,),
    ImageFormat.TIFF: (pillow_only,),
    ImageFormat.AVIF: (pillow_only,),
    ImageFormat.JPEG2000: (pillow_only,),
    ImageFormat.PPM: (pillow_only,),
}
"""The decoders of each format, tried in this order: one that refuses an image returns None.

`decoders/jpeg.py` chooses those of JPEG; `raw` converts stored pixels."""

_STORED_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


class BadImageError(Exception):
    """One of several images cannot be used.

    Attributes:
        position: the image's place among them.
        reason: a sentence.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


class OtherSizeError(BadImageError):
    """An image is not of the size of its batch."""


class ImageDecoder:
    """Decodes images in the thread that calls it. Thread-safe and picklable.

    EXIF orientation and colour profiles are ignored, as by TFDS and timm. Alpha is dropped for RGB and L, not blended.
    Of 16 bits the upper 8 are kept.

    Args:
        mode: mode of the pixels: `RGB`, `L`, `RGBA`, or None for the channels as stored (RGB for CMYK).
        max_pixels: an image with more pixels is not decoded.
        jpeg_decoder: one of `decoders.jpeg.CHOICES`.

    Raises:
        ConfigError: another mode.
    """

    def __init__(self, mode: str | None = "RGB", max_pixels: int = MOST_PIXELS, jpeg_decoder: str = "auto") -> None:
        if mode not in CHANNELS:
            raise ConfigError(f"The mode of the images is {mode!r}. It can be 'RGB', 'L', 'RGBA' or None (as stored).")
        self._mode = mode
        self._max_pixels = max_pixels
        self._jpeg_decoder = jpeg_decoder

    def read_header(self, image: EncodedImage) -> Header:
        """Return the header of an image, encoded or stored as pixels uint8 [h, w, C], before it is decoded.

        Raises:
            ImageDecodeError: it is empty, is not an image, or has no pixels or more than `max_pixels`.
        """
        if isinstance(image, np.ndarray):
            return self.header_of_pixels(image.shape)
        header = read_header(image)
        if header is None:
            if not len(image):
                raise ImageDecodeError("It is empty.")
            found = find_format(image)
            if found is not None and found.is_pillows:
                pillow_only.read_header(image, found)  # It raises an error that names the fault.
            raise ImageDecodeError(f"Its {len(image)} bytes are not a whole {READABLE_FORMATS} image.")
        return self._checked(header)

    def header_of_pixels(self, shape: tuple[int, ...]) -> Header:
        """Return a header for an image that is stored as pixels.

        Args:
            shape: (h, w, C) of the pixels.

        Raises:
            ImageDecodeError: it has no pixels or more than `max_pixels`.
        """
        height, width, channels = shape
        return self._checked(Header(ImageFormat.PIXELS, height, width, channels, 8))

    def _checked(self, header: Header) -> Header:
        num_pixels = header.height * header.width
        if not 0 < num_pixels <= self._max_pixels:
            has = f"It has {header.height} x {header.width} pixels"
            if not num_pixels:
                raise ImageDecodeError(f"{has}: there is nothing to decode.")
            raise ImageDecodeError(
                f"{has}, and at most {self._max_pixels:,} are allowed: a preprocess with a larger max_pixels takes it, "
                f"if this is not a mistake."
            )
        return header

    def num_channels(self, header: Header) -> int:
        """Return the number of channels of the pixels of an image with this header."""
        return NUM_CHANNELS[self._mode_of(header)]

    def decode(
        self, image: EncodedImage, header: Header, window: Sequence[int] | None = None, shrink: int = 1
    ) -> Pixels:
        """Return the pixels of an image, or of a window of it: uint8 [h, w, C], not always contiguous.

        Args:
            image: encoded.
            header: header of the image, from `read_header`.
            window: top, left, height, width, in pixels of the shrunk image; None: all of it.
            shrink: factor by which it is downsized: 1, or 2, 4 or 8 where `header.is_shrinkable`. Sizes are rounded up.

        Raises:
            ImageDecodeError: it cannot be decoded, or only in part, or to another size than in its header.
            ValueError: the window is not inside the image, or the image cannot be shrunk.
        """
        if shrink > 1 and not header.is_shrinkable:
            raise ValueError(f"A {header.format.name} cannot be shrunk by {shrink} while it is decoded.")
        mode = self._mode_of(header)
        shape = (-(-header.height // shrink), -(-header.width // shrink), NUM_CHANNELS[mode])
        top, left, height, width = (0, 0, *shape[:2]) if window is None else window
        if min(top, left) < 0 or top + height > shape[0] or left + width > shape[1]:
            raise ValueError(
                f"The window {top, left, height, width} is not inside an image of {_describe_shape(shape)}."
            )
        inside = slice(top, top + height), slice(left, left + width)
        pixels = self._decode(image, header, mode, inside, shrink, None)
        promised = (height, width, shape[2])
        if pixels.shape != promised:
            raise ImageDecodeError(
                f"It decodes to {_describe_shape(pixels.shape)}, and its header promises {_describe_shape(promised)}."
            )
        return pixels

    def decode_into(self, image: EncodedImage, header: Header, out: Pixels) -> None:
        """Decode a whole image into `out`, uint8 [h, w, C], contiguous, without another copy where the decoder can.

        Raises:
            ImageDecodeError: it cannot be decoded, or is of another size than `out`, whose content is then undefined.
            ValueError: `out` is not contiguous.
        """
        mode = self._mode_of(header)
        shape = (header.height, header.width, NUM_CHANNELS[mode])
        if out.shape != shape:
            raise ImageDecodeError(
                f"It has {_describe_shape(shape)}, and there is room for {_describe_shape(out.shape)}."
            )
        if not out.flags["C_CONTIGUOUS"]:
            raise ValueError(f"The memory to decode to is not contiguous: its strides are {out.strides}.")
        self._decode(image, header, mode, (slice(0, shape[0]), slice(0, shape[1])), 1, out)

    def _decode(
        self, image: EncodedImage, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None
    ) -> Pixels:
        if isinstance(image, np.ndarray):
            return raw.convert(image, mode, out)[window]
        for decoder in self._decoders(header):
            pixels = decoder.decode(image, header, mode, window, shrink, out)
            if pixels is not None:
                return pixels
        raise ImageDecodeError("No decoder takes it.")

    def _decoders(self, header: Header) -> Sequence[Decoder]:
        if header.format == ImageFormat.JPEG:
            return jpeg.decoders_of(self._jpeg_decoder)
        return _DECODERS[header.format]

    def _mode_of(self, header: Header) -> str:
        if self._mode is not None:
            return self._mode
        if header.format == ImageFormat.JPEG and header.channels == 4:
            return "RGB"  # The four channels of CMYK are not those of other images.
        return _STORED_MODES.get(header.channels, "RGB")


def _describe_shape(shape: Sequence[int]) -> str:
    return f"{shape[0]} x {shape[1]} pixels of {shape[2]} channels" if len(shape) == 3 else f"the shape {tuple(shape)}"
