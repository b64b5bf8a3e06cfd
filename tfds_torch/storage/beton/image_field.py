"""BetonImage: an image as JPEG or as pixels."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import draw_uniforms
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonField, Encoded
from tfds_torch.storage.beton.format import IMAGE_ID, IMAGE_ROW, JPEG, LARGEST_SIDE, RAW
from tfds_torch.storage.pillow_files import convert, open_image

Pixels = NDArray[np.uint8]
MODES = ("passthrough", "raw", "jpg", "smart", "proportion")
_LARGEST_JPEG_SIDE = 65_500  # The limit of libjpeg.


def decode_with_pillow(image: bytes) -> Pixels:
    """Return the pixels of an encoded image, uint8 [h, w, 3]; of pixels of 16 bits, the upper 8."""
    try:
        with open_image(image) as opened:
            opened.load()
            opened.info.pop("transparency", None)  # Pillow warns where a conversion drops transparency.
            return np.array(convert(opened, "RGB"))
    except MemoryError:
        raise
    except Exception as error:  # For broken files Pillow raises a dozen types of exceptions.
        raise ConfigError(f"The image cannot be decoded: {(str(error) or type(error).__name__).rstrip('.')}.") from None


@dataclass(frozen=True)
class BetonImage(BetonField):
    """An image of three channels, as JPEG or as pixels. FFCV reads nothing else.

    A value is an encoded image (bytes), a Pillow image, or pixels: uint8 [h, w, 3], or [h, w] and [h, w, 1] of grey.

    Attributes:
        mode: `passthrough`: a JPEG that FFCV can read (grey or colour, 8 bits) keeps its bytes; anything else is
            encoded as JPEG. `raw`: pixels. `jpg`: as JPEG, in any case. `smart`: as JPEG where the pixels take more
            than smart_threshold bytes, else as pixels. `proportion`: as JPEG with this probability, else as pixels.
        max_resolution: the longest side that is kept, in pixels: larger images are resized to it, with antialiasing;
            None: no limit.
        smart_threshold: bytes of pixels above which `smart` stores a JPEG; None: it never stores a JPEG.
        quality: quality of the JPEG, 1 to 100.
        proportion: probability of a JPEG with `proportion`, 0 to 1.
        seed: seed of the random choice, which depends on the seed and on the sample's number.
        decode: function that decodes an encoded image to pixels, uint8 [h, w, 3]; None: Pillow decodes.

    Raises:
        ConfigError: an attribute has a value that is not allowed.
    """

    mode: str = "passthrough"
    max_resolution: int | None = None
    smart_threshold: int | None = None
    quality: int = 90
    proportion: float = 0.5
    seed: int = 0
    decode: Callable[[bytes], Pixels] | None = field(default=None, repr=False)  # Does not change the format.
    type_id = IMAGE_ID
    row_type = IMAGE_ROW
    pointer_at = 3

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            names = ", ".join(map(repr, MODES))
            raise ConfigError(
                f"BetonImage: unknown mode {quoted(self.mode)}: choose one of "
                f"{names}.{did_you_mean(str(self.mode), MODES)}"
            )
        for name, least in (("max_resolution", 1), ("smart_threshold", 0)):
            if getattr(self, name) is not None:
                check_integer(f"BetonImage: {name}", getattr(self, name), least)
        check_integer("BetonImage: seed", self.seed, 0)
        if check_integer("BetonImage: quality", self.quality, 1) > 100:
            raise ConfigError(f"BetonImage: quality={self.quality} must be 1 to 100.")
        if not isinstance(self.proportion, int | float) or not 0 <= self.proportion <= 1:
            raise ConfigError(f"BetonImage: proportion={quoted(self.proportion)} must be a probability, 0 to 1.")

    def encode(self, value: Any, number: int) -> Encoded:
        """Return an image as it is stored; see `BetonField`."""
        should_stay = self.mode == "passthrough" and isinstance(value, bytes | bytearray | memoryview)
        if should_stay:
            size = readable_jpeg_size(bytes(value))
            if size is not None and (self.max_resolution is None or max(size) <= self.max_resolution):
                return Encoded((JPEG, size[1], size[0]), bytes(value))
        pixels = self._resize(self._pixels_of(value))
        height, width = pixels.shape[:2]
        if self._is_jpeg(pixels, number):
            return Encoded((JPEG, width, height), self._encode_jpeg(pixels), should_stay)
        return Encoded((RAW, width, height), pixels.tobytes())

    def _pixels_of(self, value: Any) -> Pixels:
        if isinstance(value, bytes | bytearray | memoryview):
            pixels = (self.decode or decode_with_pillow)(bytes(value))
        elif isinstance(value, Image.Image):
            pixels = np.array(value.convert("RGB"))
        elif isinstance(value, np.ndarray):
            pixels = _three_channels(value)
        else:
            raise ConfigError(f"{type(value).__name__} is not an image: give encoded bytes, a Pillow image or pixels.")
        height, width = pixels.shape[:2]
        if not 0 < height <= LARGEST_SIDE or not 0 < width <= LARGEST_SIDE:
            raise ConfigError(
                f"The image has {height} x {width} pixels: a side has 1 to {LARGEST_SIDE:,}. Resize it, or leave it "
                f"out."
            )
        return pixels

    def _resize(self, pixels: Pixels) -> Pixels:
        height, width = pixels.shape[:2]
        if self.max_resolution is None or max(height, width) <= self.max_resolution:
            return pixels
        ratio = self.max_resolution / max(height, width)
        size = max(1, math.floor(width * ratio)), max(1, math.floor(height * ratio))
        return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))

    def _is_jpeg(self, pixels: Pixels, number: int) -> bool:
        if self.mode == "smart":
            return self.smart_threshold is not None and pixels.nbytes > self.smart_threshold
        if self.mode == "proportion":
            return bool(draw_uniforms(np.array([number], np.int64), self.seed, 1)[0, 0] < self.proportion)
        return self.mode != "raw"

    def _encode_jpeg(self, pixels: Pixels) -> bytes:
        if max(pixels.shape[:2]) > _LARGEST_JPEG_SIDE:
            raise ConfigError(
                f"The image has {pixels.shape[0]} x {pixels.shape[1]} pixels, and JPEG at most {_LARGEST_JPEG_SIDE:,} "
                f"on a side: use mode='raw', or max_resolution."
            )
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=self.quality)
        return file.getvalue()


def readable_jpeg_size(image: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG that FFCV reads as it is: grey or of three colours; None for other files.

    Nothing is decoded.
    """
    if not image.startswith(b"\xff\xd8\xff"):
        return None
    try:
        opened = JpegImageFile(io.BytesIO(image))
    except MemoryError:
        raise
    except Exception:  # For broken files Pillow raises a dozen types of exceptions; decoding reports the file.
        return None
    width, height = opened.size
    is_readable = opened.mode in ("L", "RGB") and 0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE
    return (height, width) if is_readable else None


def _three_channels(pixels: NDArray[Any]) -> Pixels:
    shape = list(pixels.shape)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and shape[2] not in (1, 3)):
        raise ConfigError(
            f"The pixels are {pixels.dtype} {shape}: give uint8 [h, w, 3], or [h, w] of a grey image. Drop an opacity, "
            f"and scale floats to 0..255, first."
        )
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return np.ascontiguousarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels)
