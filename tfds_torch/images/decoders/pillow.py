"""Everything else by Pillow: GIF, BMP, WebP, CMYK JPEG, PNG with palettes or 16 bits, and what is flawed but readable.

Pillow's file classes are called, not `Image.open`: the header has told the format, and the limit of pixels is ours.
"""

import io
import struct
import zlib
from collections.abc import Mapping

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels
from tfds_torch.images.headers import Header, ImageFormat

_unpack_chunk = struct.Struct(">I4s").unpack_from
_unpack_checksum = struct.Struct(">I").unpack_from
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT"))


class _JpegFile(JpegImageFile):
    def getexif(self) -> Image.Exif:
        """Returns nothing: the resolution is not needed, and Pillow warns of broken EXIF data."""
        return Image.Exif()


_FILES: Mapping[ImageFormat, type[ImageFile]] = {
    ImageFormat.JPEG: _JpegFile,
    ImageFormat.PNG: PngImageFile,
    ImageFormat.GIF: GifImageFile,
    ImageFormat.BMP: BmpImageFile,
    ImageFormat.WEBP: WebPImageFile,
}


def shrinks(header: Header) -> bool:
    """Whether an image with this header can be downsized while it is decoded."""
    return False


def decode(image: bytes, header: Header, mode: str, shrink: int, out: Pixels | None, num_rows: int | None) -> Pixels:
    """Decodes any image; the first frame of animations.

    Of 16 bits the upper 8 are kept, for grey images too, of which Pillow's own `convert` makes 255 of all above 255.

    Args:
        image: encoded.
        header: its own.
        mode: `L`, `LA`, `RGB` or `RGBA`.
        shrink: 1; 2, 4 or 8 for a JPEG, which libjpeg downsizes.
        out: uint8 [h, w, C]; None: into memory of its own.
        num_rows: not used: all rows are decoded.

    Returns:
        uint8 [h, w, C].

    Raises:
        ImageDecodeError: Pillow cannot decode it, or the header told another size.
    """
    if header.format == ImageFormat.PNG and _has_broken_chunk(image):
        raise ImageDecodeError("A checksum of the PNG does not match: its bytes are not what was written.")
    try:
        decoded = _load(image, header, mode, shrink)
    except (ImageDecodeError, MemoryError):
        raise
    except Exception as error:  # Of broken files Pillow raises a dozen types.
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise ImageDecodeError(f"Pillow says: {first_line.rstrip('.')}.") from error
    pixels = decoded if decoded.ndim == 3 else decoded[..., None]
    if out is None:
        return pixels
    if out.shape != pixels.shape:
        raise ImageDecodeError(f"It decodes to {pixels.shape}, and there is room for {out.shape}.")
    out[...] = pixels
    return out


def _load(image: bytes, header: Header, mode: str, shrink: int) -> Pixels:
    file = _FILES[header.format](io.BytesIO(image))
    if file.size != (header.width, header.height):
        raise ImageDecodeError(
            f"Its header says {header.height} x {header.width} pixels, and Pillow finds {file.height} x {file.width}."
        )
    if shrink > 1:
        file.draft(None, (header.width // shrink, header.height // shrink))
    file.load()
    transparent = file.info.pop("transparency", None)  # Pillow warns where a conversion drops it.
    if header.format == ImageFormat.PNG and header.bit_depth == 16 and header.channels in (1, 3):
        if transparent is not None and mode == "RGBA":
            raise ImageDecodeError("It has a transparent colour of 16 bits, which cannot be decoded as RGBA.")
        if header.channels == 1:
            gray = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
            return np.array(gray.convert(mode))
    if transparent is not None and mode == "RGBA":
        if header.format == ImageFormat.PNG and header.channels == 1 and header.bit_depth in (2, 4):
            transparent *= 255 // ((1 << header.bit_depth) - 1)  # Pillow scales the pixels, and not this.
        file.info["transparency"] = transparent
    return np.array(file.convert(mode))


def _has_broken_chunk(image: bytes) -> bool:
    """Whether a checksum of the pixels or of the palette is wrong, at which Pillow does not look."""
    position, view = 8, memoryview(image)
    while position + 12 <= len(image):
        length, kind = _unpack_chunk(image, position)
        end = position + 8 + length
        if end + 4 > len(image):  # The file is cut: Pillow says so, if anything needed is missing.
            return False
        if kind in _PIXEL_CHUNKS and zlib.crc32(view[position + 4 : end]) != _unpack_checksum(image, end)[0]:
            return True
        position = end + 4
    return False
