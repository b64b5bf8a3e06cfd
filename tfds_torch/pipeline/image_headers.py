"""Sizes of encoded images, read from their headers: nothing is decoded before its size is known to be bearable."""

import struct
from enum import IntEnum
from typing import NamedTuple

PREFIX_BYTES = 1024
"""Of an image, which nearly always hold its size; photographs may have previews before it."""

_unpack_png_size = struct.Struct(">II").unpack_from  # Width, height.

_JPEG_FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_JPEG_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))


class Encoding(IntEnum):
    """How an image is encoded."""

    JPEG = 0
    PNG = 1
    OTHER = 2


class Header(NamedTuple):
    """What an image says of itself, in pixels."""

    encoding: Encoding
    height: int
    width: int


def read_header(image: bytes) -> Header | None:
    """Returns encoding and size of an image; None where these bytes do not tell.

    Args:
        image: the beginning of a JPEG, PNG, GIF or BMP file, or all of it.
    """
    if image.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(image)
    if image.startswith(b"\x89PNG\r\n\x1a\n") and len(image) >= 24:
        width, height = _unpack_png_size(image, 16)
        return Header(Encoding.PNG, height, width)
    if image.startswith((b"GIF87a", b"GIF89a")) and len(image) >= 10:
        return Header(Encoding.OTHER, int.from_bytes(image[8:10], "little"), int.from_bytes(image[6:8], "little"))
    if image.startswith(b"BM") and len(image) >= 26:
        height = int.from_bytes(image[22:26], "little", signed=True)  # Negative: stored from top to bottom.
        return Header(Encoding.OTHER, abs(height), abs(int.from_bytes(image[18:22], "little", signed=True)))
    return None


def _read_jpeg(image: bytes) -> Header | None:
    """Walks the segments up to the one that begins the frame."""
    position = 2
    while position + 9 <= len(image):
        if image[position] != 0xFF:
            return None
        marker = image[position + 1]
        if marker == 0xFF:  # Fill.
            position += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            position += 2
        elif marker in _JPEG_FRAMES:
            height, width = image[position + 5 : position + 7], image[position + 7 : position + 9]
            return Header(Encoding.JPEG, int.from_bytes(height, "big"), int.from_bytes(width, "big"))
        else:
            position += 2 + int.from_bytes(image[position + 2 : position + 4], "big")
    return None
