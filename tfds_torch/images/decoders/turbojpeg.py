"""JPEG by libturbojpeg 3: of a photograph only the window is decoded. Its pixels equal Pillow's.

Every row above the window still has to be read, since blocks are encoded one after the other; but neither these nor
the columns beside the window become pixels (540 us instead of 640 for a photograph of 385 x 513 pixels).

Pillow decodes the images that the library warns about: it tells a harmless flaw from a file that is cut.
"""

import base64
import threading
import zlib
from functools import cache
from typing import NamedTuple

import numpy as np

from tfds_torch.images.decoders.decoder import JPEG_END, NUM_CHANNELS, Pixels, Window, to_gray
from tfds_torch.images.decoders.turbojpeg_library import (
    DECOMPRESS,
    HEIGHT,
    PIXEL_FORMATS,
    STOP_ON_WARNING,
    SUBSAMPLING,
    WIDTH,
    Library,
    NotUsableError,
    Region,
    ScalingFactor,
    TooOldError,
    candidates,
)
from tfds_torch.images.headers import Header, has_all_scans

_MARGIN = 2
"""Pixels around a window: colours are stored for every second pixel, and are mixed with those of their neighbours."""
_BLOCK_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32}
"""TJSAMP (4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1) -> pixels between the columns where a region can begin."""

_TEST_IMAGE = base64.b85decode(
    b"|JeWF01!$>Nk#wx0RR9200961|JwjV08lqPMm#c5MnOheRZw4e$bxuoZg};txsk~K|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0"
    b"|Nq+nLjhG<T6k%A>w<#o|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsBM01*fPFaSUU0U`hb5di}c"
    b"0sq7R7ytnQ0RaI30000000000000650RRO5!~i7_0RRC50|NyC0RR91000000RRFKArdh`15t4zVS$mM1mXY002cuP0RaI3000000000000002"
    b"0RRL4!~h`?00IC71Oos70000000000009CKAu&-Bae?u{(eVG;01N{G00I#M5dc2`lYMS^?-xH4F|G3*o5x4dQnuMN3}f;jr?=$bdmnL{ud(<3"
    b"PHfWpWctCR(px>P1tu8(0HVK1bDkLy)H&j0s8te6oRk`VXARQ<@eKxJq+w_=Hv1-?r_6V@?TI?7bs=s0&ToDAC8{2)OCF1A?6Y$2vUb5KPM%N6"
    b"R7m9J`UhOK2RVY14~br|X*8D4Ye7l8YQu$7oEu3QPrD5v+ww0##(Y4^)%L;XLtS2DwtfkT>U_s+%FLCvG#o|`WA0#kvu|ycoZ2IjxO&&pTnxZg"
    b"XWDo4D?xVolcQ%GMGI*eMM`9;Qtg6mBLxz)nB9+3V2MutPyg8"
)
"""A JPEG of 48 x 64 pixels of three colours, 4:2:0."""

_TESTS = (((16, 11), (22, 30), 1, 1871809170), ((16, 5), (8, 9), 2, 3447347676))
"""Region (left, top), (width, height), shrink, and the CRC-32 of its RGB pixels as Pillow decodes them."""

_of_thread = threading.local()


class Handle:
    """One of a library's decompressors, for one thread at a time. What its methods return but 0 is an error."""

    beginning = b""
    """How the image begins for whose size all of an image is selected, to the end of its frame header; empty: none."""

    def __init__(self, library: Library) -> None:
        self._functions, self._decompress = library.functions, library.decompress
        self._address: int | None = library.functions.tj3Init(DECOMPRESS)
        if not self._address:
            raise NotUsableError("its tj3Init returned nothing")
        library.functions.tj3Set(self._address, STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        if self._address:
            self._functions.tj3Destroy(self._address)

    def read_header(self, image: bytes) -> int:
        """Read the header of an image, to which the following calls apply."""
        failed: int = self._functions.tj3DecompressHeader(self._address, image, len(image))
        return failed

    def get(self, parameter: int) -> int:
        """Return the value of a parameter in the header; -1: the header does not have it."""
        value: int = self._functions.tj3Get(self._address, parameter)
        return value

    def select(self, shrink: int, region: Region) -> int:
        """Select a region of the image, shrunk."""
        failed: int = self._functions.tj3SetScalingFactor(self._address, ScalingFactor(1, shrink))
        return failed or self._functions.tj3SetCroppingRegion(self._address, region)

    def decode(self, image: bytes, out: Pixels, mode: str) -> int:
        """Decode the selected region into `out`, which must have room for it."""
        address = out.__array_interface__["data"][0]
        failed: int = self._decompress(self._address, image, len(image), address, 0, PIXEL_FORMATS[mode])
        return failed


class Found(NamedTuple):
    """The library of this machine, or None where there is none.

    Attributes:
        problems: the faults of the libraries that were found before it.
        too_old: the libraries of version 2.
    """

    library: Library | None
    problems: tuple[str, ...] = ()
    too_old: tuple[str, ...] = ()


@cache
def find() -> Found:
    """Return the first library that can be used; a process looks for it once."""
    problems: list[str] = []
    too_old: list[str] = []
    for name in candidates():
        try:
            library = Library(name)
            check_pixels(library)
        except NotUsableError as error:
            (too_old if isinstance(error, TooOldError) else problems).append(f"{name} {error}")
        else:
            return Found(library, tuple(problems), tuple(too_old))
    return Found(None, tuple(problems), tuple(too_old))


def check_pixels(library: Library) -> None:
    """Raise NotUsableError where a library decodes regions of an image to pixels that differ from Pillow's."""
    for (left, top), (width, height), shrink, checksum in _TESTS:
        handle, pixels = Handle(library), np.zeros((height, width, 3), np.uint8)
        failed = handle.read_header(_TEST_IMAGE) or handle.select(shrink, Region(left, top, width, height))
        if failed or handle.decode(_TEST_IMAGE, pixels, "RGB"):
            raise NotUsableError("does not decode a region of a small JPEG")
        # The neighbours of the outermost pixels, which their colours are mixed with, are not decoded.
        if zlib.crc32(pixels[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN].tobytes()) != checksum:
            raise NotUsableError("decodes other pixels of a small JPEG than Pillow does")


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Return a window of a whole JPEG of 8 bits, grey or coloured, not CMYK; None: Pillow has to decode it."""
    library = find().library
    if library is None or not header.is_plain_jpeg:
        return None
    if not header.height_at and not has_all_scans(image):
        return None
    handle: Handle | None = getattr(_of_thread, "handle", None)
    if handle is None:
        handle = _of_thread.handle = Handle(library)
    is_converted = mode == "L" and header.channels == 3
    stored, into = ("RGB", None) if is_converted else (mode, out)
    decoded = _decode(handle, image, header, stored, window, shrink, into)
    if decoded is None:
        _of_thread.handle = None  # After one flawed image, version 2.1.92 calls every one flawed.
        return None
    pixels, window = decoded
    if is_converted:
        pixels = to_gray(pixels)
        if out is not None:
            out[...] = pixels
            return out
    return pixels[window]


def _decode(
    handle: Handle, image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None
) -> tuple[Pixels, Window] | None:
    """Return a region of an image, and where in it the window lies; None: the library finds a flaw."""
    if out is not None and handle.beginning and image.startswith(handle.beginning):
        return None if handle.decode(image, out, mode) else (out, window)  # Of the size that was compared before.
    handle.beginning = b""
    if handle.read_header(image) or (handle.get(HEIGHT), handle.get(WIDTH)) != (header.height, header.width):
        return None
    rows, columns = window
    first_row = first_column = 0
    num_rows, num_columns = -(-header.height // shrink), -(-header.width // shrink)
    step = _BLOCK_WIDTHS.get(handle.get(SUBSAMPLING))
    if out is not None or step is None or not image.endswith(JPEG_END):
        failed = handle.select(shrink, Region(0, 0, 0, 0))
        if out is not None and shrink == 1:
            handle.beginning = image[: header.frame_end]
    else:
        first_row = max(0, rows.start - _MARGIN)
        first_column = max(0, columns.start - _MARGIN) * shrink // step * step // shrink
        num_rows = min(num_rows, rows.stop + _MARGIN) - first_row
        num_columns = min(num_columns, columns.stop + _MARGIN) - first_column
        failed = handle.select(shrink, Region(first_column, first_row, num_columns, num_rows))
    if failed:
        return None
    pixels = np.empty((num_rows, num_columns, NUM_CHANNELS[mode]), np.uint8) if out is None else out
    if handle.decode(image, pixels, mode):
        return None
    rows = slice(rows.start - first_row, rows.stop - first_row)
    return pixels, (rows, slice(columns.start - first_column, columns.stop - first_column))
