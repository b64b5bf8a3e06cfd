"""The formats of image files that are read, in one list.

Formats whose readers run other programs or draw pages (EPS, PDF, WMF) are not in it, though Pillow has plugins.
"""

import re
from typing import NamedTuple


class ImageFormatError(ValueError):
    """An image file cannot be read; the message is a sentence."""


class FileFormat(NamedTuple):
    """A format of image files.

    Attributes:
        name: name of the format, for messages.
        pillow: name of the format in Pillow.
        extensions: extensions of its files, without a dot; files that are written get the first one.
        start: pattern that matches the first bytes of its files.
        is_pillows: whether only Pillow reads the format, including the header.
    """

    name: str
    pillow: str
    extensions: tuple[str, ...]
    start: re.Pattern[bytes]
    is_pillows: bool = False


_J2K_EXTENSIONS = ("jp2", "j2k", "j2c", "jpc", "jpf", "jpx")
_PPM_EXTENSIONS = ("ppm", "pgm", "pbm", "pnm", "pfm")

FORMATS = (
    FileFormat("JPEG", "JPEG", ("jpg", "jpeg"), re.compile(rb"\xff\xd8\xff")),
    FileFormat("PNG", "PNG", ("png",), re.compile(rb"\x89PNG\r\n\x1a\n")),
    FileFormat("GIF", "GIF", ("gif",), re.compile(rb"GIF8[79]a")),
    FileFormat("BMP", "BMP", ("bmp",), re.compile(rb"BM")),
    FileFormat("WebP", "WEBP", ("webp",), re.compile(rb"RIFF....WEBP", re.DOTALL)),
    FileFormat("TIFF", "TIFF", ("tif", "tiff"), re.compile(rb"II[*+]\0|MM\0[*+]"), is_pillows=True),
    FileFormat("AVIF", "AVIF", ("avif",), re.compile(rb"....ftyp(avi[fs]|m[is]f1)", re.DOTALL), is_pillows=True),
    FileFormat(
        "JPEG 2000",
        "JPEG2000",
        _J2K_EXTENSIONS,
        re.compile(rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n"),
        is_pillows=True,
    ),
    FileFormat("PPM", "PPM", _PPM_EXTENSIONS, re.compile(rb"P[1-6f][\t-\r ]+[0-9#]"), is_pillows=True),
)

EXTENSIONS = tuple(extension for one in FORMATS for extension in one.extensions)
"""Extensions of the files of all formats, without a dot."""

READABLE_FORMATS = f"{', '.join(one.name for one in FORMATS[:-1])} or {FORMATS[-1].name}"
"""The names of the formats, for messages."""

_MOST_START_BYTES = 64  # White space may stand before the number of a PPM.


def find_format(image: bytes | bytearray | memoryview) -> FileFormat | None:
    """Return the format of an image file, or of its first bytes; None: it is not in a format that is read."""
    start = bytes(image[:_MOST_START_BYTES])
    return next((one for one in FORMATS if one.start.match(start)), None)
