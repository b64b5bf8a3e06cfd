"""Sizes of encoded images, read from their headers: nothing is decoded before its size is known."""

import re
import struct
from enum import IntEnum
from typing import NamedTuple

from tfds_torch.storage.image_formats import find_format

MOST_PIXELS = 178_956_970
"""Of an image, unless a caller allows more: Pillow refuses larger ones as decompression bombs."""

_unpack_png = struct.Struct(">IIBB").unpack_from  # Width, height, bit depth, colour type.
_unpack_png_chunk = struct.Struct(">I4s").unpack_from  # Length, kind.
_unpack_jpeg_frame = struct.Struct(">BHHB").unpack_from  # Bit depth, height, width, number of components.
_unpack_gif_frame = struct.Struct("<HHHH").unpack_from  # Left, top, width, height.
_unpack_bmp = struct.Struct("<IiHH").unpack_from  # Width, height, planes, bits per pixel.
_unpack_old_bmp = struct.Struct("<HHHH").unpack_from

_JPEG_FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_JPEG_TOP_DOWN = frozenset((0xC0, 0xC1))
_JPEG_LOSSLESS = frozenset((0xC3, 0xC7, 0xCB, 0xCF))
_JPEG_PROGRESSIVE = frozenset((0xC2, 0xCA))
_JPEG_WITHOUT_LENGTH = frozenset((0x00, 0x01, *range(0xD0, 0xD9)))
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_find_jpeg_marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search
"""What can follow a scan: neither a stuffed byte, nor a restart marker, nor fill."""
_ALL_COEFFICIENTS = (1 << 64) - 1  # Of a block, a bit each.

_LEAST_SHRUNK_SIDE = 8  # Of a JPEG. Below, several scales of libjpeg-turbo give the same size.

_PNG_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, _PNG_PALETTE: 3, 4: 2, 6: 4}
"""Colour type -> number of channels."""

_BMP_BITFIELDS = 3
_BMP_DEPTHS = {1: 1, 4: 4, 8: 8, 16: 5, 24: 8, 32: 8}
"""Bits per pixel -> bits per sample; of a palette's indices."""
_OLD_BMP_BYTES, _MOST_PALETTE_BITS = 12, 8


class ImageFormat(IntEnum):
    """How an image is encoded; PIXELS: not at all."""

    JPEG = 0
    PNG = 1
    GIF = 2
    BMP = 3
    WEBP = 4
    PIXELS = 5
    TIFF = 6
    AVIF = 7
    JPEG2000 = 8
    PPM = 9


class Header(NamedTuple):
    """The header of an image: its format and size.

    Attributes:
        format: how it is encoded.
        height: in pixels.
        width: in pixels.
        channels: as stored: 1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha; 4 also for CMYK and YCCK JPEG. Of
            images with a palette 3, or 4 where the palette has transparent colours.
        bit_depth: bits of a sample, or of a palette's index.
        height_at: where a JPEG that is decoded from top to bottom (not progressive, not lossless, not arithmetic) has
            its height, two bytes; 0 in any other image.
        is_lossless: whether it is a lossless JPEG, which cannot be shrunk: simplejpeg would write beyond its memory.
        pillow_mode: Pillow's mode of a TIFF, AVIF, JPEG 2000 or PPM, which it alone reads; "" of any other image.
    """

    format: ImageFormat
    height: int
    width: int
    channels: int
    bit_depth: int
    height_at: int = 0
    is_lossless: bool = False
    pillow_mode: str = ""

    @property
    def frame_end(self) -> int:
        """Number of bytes up to the end of the frame header of a JPEG that is decoded from top to bottom, else 0.

        Images that begin with the same bytes have the same header.
        """
        return self.height_at and self.height_at + 5 + 3 * self.channels

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether it is a JPEG of 8 bits a sample, grey or coloured, not CMYK."""
        return self.format == ImageFormat.JPEG and self.channels in (1, 3) and self.bit_depth == 8

    @property
    def is_shrinkable(self) -> bool:
        """Whether every decoder can downsize it by 2, 4 or 8 while it decodes, which is faster: most JPEG."""
        return self.is_plain_jpeg and not self.is_lossless and min(self.height, self.width) >= _LEAST_SHRUNK_SIDE


def read_header(image: bytes) -> Header | None:
    """Return the header of an image file; None: it is not an image.

    Of JPEG, PNG, GIF, BMP and WebP, the beginning of the file is enough.
    """
    if image.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(image)
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return _read_png(image)
    if image.startswith((b"GIF87a", b"GIF89a")):
        return _read_gif(image)
    if image.startswith(b"BM"):
        return _read_bmp(image)
    if image.startswith(b"RIFF") and image[8:12] == b"WEBP":
        return _read_webp(image)
    return _read_by_pillow(image)


def has_all_scans(image: bytes) -> bool:
    """Return whether a JPEG that is stored progressively has all bits of all coefficients; True for any other JPEG.

    A file that was saved before its last scans came is well-formed, and no decoder warns. libjpeg-turbo smooths the
    missing bits: each version in its own way, and differently beside a window than in the whole image.
    """
    missing: dict[int, int] = {}  # Component -> its coefficients that lack bits.
    position, end = 2, len(image) - 10
    while 0 <= position <= end:
        marker = image[position + 1]
        if image[position] != 0xFF or marker == 0xFF:
            position = _next_jpeg_marker(image, position)
            continue
        start, position = position + 4, position + 2 + ((image[position + 2] << 8) | image[position + 3])
        if marker == _JPEG_SCAN:
            if position > len(image):
                return False
            first, last, bits = image[position - 3 : position]
            if not bits & 15:  # No lower bits follow.
                for component in image[start + 1 : position - 3 : 2]:
                    missing[component] = missing.get(component, 0) & ~((2 << last) - (1 << first))
                if not any(missing.values()):
                    return True
            position = _next_jpeg_marker(image, position)
        elif marker in _JPEG_FRAMES:
            if marker not in _JPEG_PROGRESSIVE:
                return True
            components = image[start + 6 : position : 3]
            missing = dict.fromkeys(components, _ALL_COEFFICIENTS)
            if len(missing) < len(components):
                return False  # Scans do not tell which of them they are about.
        elif marker == _JPEG_END or marker in _JPEG_WITHOUT_LENGTH:
            return False
    return False


def _next_jpeg_marker(image: bytes, position: int) -> int:
    """Return where the next marker is behind coded bytes, or behind what decoders skip; -1: nowhere."""
    found = _find_jpeg_marker(image, position)
    return -1 if found is None else found.start()


def is_indexed(image: bytes, header: Header) -> bool:
    """Return whether the pixels of an image with this header are stored as indices of a palette's colours."""
    if header.pillow_mode:
        return header.pillow_mode in ("P", "PA")
    if header.format == ImageFormat.PNG:
        return image[25] == _PNG_PALETTE
    if header.format == ImageFormat.BMP:
        at = 24 if image[14] == _OLD_BMP_BYTES else 28
        return int.from_bytes(image[at : at + 2], "little") <= _MOST_PALETTE_BITS
    return header.format == ImageFormat.GIF


def _read_by_pillow(image: bytes) -> Header | None:
    from tfds_torch.images.decoders.decoder import ImageDecodeError  # These need this module.
    from tfds_torch.images.decoders.pillow_only import read_header

    file_format = find_format(image)
    try:
        return read_header(image, file_format) if file_format is not None and file_format.is_pillows else None
    except ImageDecodeError:
        return None


def _read_jpeg(image: bytes) -> Header | None:
    """Walk the segments up to the one that begins the frame."""
    position, end = 2, len(image) - 10
    while position <= end:
        if image[position] != 0xFF:  # Decoders skip bytes that are not a marker.
            position = image.find(b"\xff", position)
            if position < 0:
                return None
            continue
        marker = image[position + 1]
        if marker in _JPEG_FRAMES:
            bit_depth, height, width, channels = _unpack_jpeg_frame(image, position + 4)
            height_at = position + 5 if marker in _JPEG_TOP_DOWN else 0
            return Header(ImageFormat.JPEG, height, width, channels, bit_depth, height_at, marker in _JPEG_LOSSLESS)
        if marker == 0xFF:  # Fill.
            position += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            position += 2
        else:
            length = (image[position + 2] << 8) | image[position + 3]
            if length < 2:
                return None
            position += 2 + length
    return None


def _read_png(image: bytes) -> Header | None:
    if len(image) < 29 or image[12:16] != b"IHDR":
        return None
    width, height, bit_depth, kind = _unpack_png(image, 16)
    channels = _PNG_CHANNELS.get(kind)
    if channels is None:
        return None
    if kind == _PNG_PALETTE:
        channels = _count_palette_channels(image)
        if channels is None:
            return None
    return Header(ImageFormat.PNG, height, width, channels, bit_depth)


def _count_palette_channels(image: bytes) -> int | None:
    """Walk the chunks of a PNG from its palette to its pixels."""
    position = 33
    while position + 8 <= len(image):
        length, kind = _unpack_png_chunk(image, position)
        if kind == b"tRNS":
            return 4
        if kind == b"IDAT":
            return 3
        position += 12 + length
    return None


def _read_gif(image: bytes) -> Header | None:
    """Walk the blocks up to the first frame, which can be larger than the screen that the file begins with."""
    if len(image) < 13:
        return None
    width, height = int.from_bytes(image[6:8], "little"), int.from_bytes(image[8:10], "little")
    position, channels = 13 + _palette_bytes(image[10]), 3
    while position + 10 <= len(image):
        if image[position] == 0x2C:  # A frame.
            left, top, frame_width, frame_height = _unpack_gif_frame(image, position + 1)
            size = (max(height, top + frame_height), max(width, left + frame_width))
            return Header(ImageFormat.GIF, *size, channels, 8)
        if image[position] == 0x3B:  # The end.
            return None
        if image[position] != 0x21:  # Pillow skips bytes that are not a block.
            position += 1
            continue
        if image[position + 1] == 0xF9 and image[position + 2] and image[position + 3] & 1:
            channels = 4
        position += 2
        while position < len(image) and image[position]:
            position += 1 + image[position]
        position += 1
    return None


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _read_bmp(image: bytes) -> Header | None:
    if len(image) < 34:
        return None
    header_bytes = int.from_bytes(image[14:18], "little")
    if header_bytes == _OLD_BMP_BYTES:
        width, height, _, num_bits = _unpack_old_bmp(image, 18)
        has_alpha = False
    else:
        width, height, _, num_bits = _unpack_bmp(image, 18)  # A negative height: stored from top to bottom.
        compression = int.from_bytes(image[30:34], "little")
        has_alpha = num_bits == 32 and compression == _BMP_BITFIELDS and header_bytes >= 56
        if has_alpha:
            if len(image) < 70:
                return None
            has_alpha = _has_alpha_mask(image)
    if num_bits not in _BMP_DEPTHS:
        return None
    return Header(ImageFormat.BMP, abs(height), width, 4 if has_alpha else 3, _BMP_DEPTHS[num_bits])


def _has_alpha_mask(image: bytes) -> bool:
    # Pillow reads four masks of zeros as blue, green, red and alpha.
    return any(image[66:70]) or not any(image[54:70])


def _read_webp(image: bytes) -> Header | None:
    if len(image) < 30:
        return None
    kind = image[12:16]
    if kind == b"VP8 ":
        if image[23:26] != b"\x9d\x01\x2a":
            return None
        width = int.from_bytes(image[26:28], "little") & 0x3FFF
        height = int.from_bytes(image[28:30], "little") & 0x3FFF
        has_alpha = False
    elif kind == b"VP8L":
        if image[20] != 0x2F:
            return None
        bits = int.from_bytes(image[21:25], "little")
        width, height, has_alpha = (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1, bool(bits >> 28 & 1)
    elif kind == b"VP8X":
        width, height = int.from_bytes(image[24:27], "little") + 1, int.from_bytes(image[27:30], "little") + 1
        has_alpha = bool(image[20] & 0x10)
    else:
        return None
    return Header(ImageFormat.WEBP, height, width, 4 if has_alpha else 3, 8)
