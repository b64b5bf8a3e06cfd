"""libturbojpeg, version 3 or later: where it is found on this machine, its functions, and a test before it is used.

The wheel `turbojpeg` (extra `fast-jpeg`) brings one, a pre-release of 2023. conda, Homebrew and many systems have later
ones, which come first; Debian 12 and 13 and Ubuntu 24.04 have version 2, which lacks the functions.

Source: turbojpeg.h of libjpeg-turbo 3.0.
"""

import base64
import ctypes
import importlib.util
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STOP_ON_WARNING, SUBSAMPLING, WIDTH, HEIGHT = 0, 4, 5, 6
"""Parameters of a handle: TJPARAM_STOPONWARNING, _SUBSAMP, _JPEGWIDTH, _JPEGHEIGHT."""

PIXEL_FORMATS = {"RGB": 0, "L": 6, "RGBA": 7}
"""Mode -> TJPF."""

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_VERSION = re.compile(rb"libjpeg-turbo version ([0-9.]+)")

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


class _Region(ctypes.Structure):
    _fields_ = [("left", c_int), ("top", c_int), ("width", c_int), ("height", c_int)]


class _ScalingFactor(ctypes.Structure):
    _fields_ = [("numerator", c_int), ("denominator", c_int)]


class NotUsableError(Exception):
    """A library cannot be used; the message is a clause that says why."""


class Handle:
    """One of the library's decompressors, for one thread at a time. What its functions return but 0 is an error."""

    def __init__(self, library: "Library") -> None:
        self._library = library
        self._address: int | None = library.functions.tj3Init(_DECOMPRESS)
        if not self._address:
            raise NotUsableError("its tj3Init returned nothing")
        library.functions.tj3Set(self._address, STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        if self._address:
            self._library.functions.tj3Destroy(self._address)

    def read_header(self, image: bytes) -> int:
        """Reads the header of an image, which the following calls are about."""
        return int(self._library.functions.tj3DecompressHeader(self._address, image, len(image)))

    def get(self, parameter: int) -> int:
        """Returns what the header says; -1: nothing."""
        return int(self._library.functions.tj3Get(self._address, parameter))

    def select(self, shrink: int, left: int, top: int, width: int, height: int) -> int:
        """Selects a region of the image, shrunk; all numbers 0: all of it."""
        functions = self._library.functions
        # A region of the image before may not fit, and no function checks it while the factor changes.
        failed = functions.tj3SetScalingFactor(self._address, _ScalingFactor(1, shrink))
        return int(failed or functions.tj3SetCroppingRegion(self._address, _Region(left, top, width, height)))

    def decode(self, image: bytes, out: NDArray[np.uint8], pixel_format: int) -> int:
        """Decodes what was selected into `out`, which must have room for it. Python's lock is free meanwhile."""
        address = out.__array_interface__["data"][0]
        return int(self._library.decompress(self._address, image, len(image), address, 0, pixel_format))


class Library:
    """A libturbojpeg.

    Args:
        name: its path, or a name that the system finds.

    Raises:
        NotUsableError: it cannot be loaded, lacks functions, or fails the test.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            # A call that takes a microsecond keeps Python's lock: to get it back can take far longer.
            self.functions: Any = ctypes.PyDLL(name)
            self.decompress: Any = ctypes.CDLL(name).tj3Decompress8
        except OSError as error:
            raise NotUsableError(f"cannot be loaded ({error})") from None
        except AttributeError:
            raise NotUsableError("lacks tj3Decompress8: it is older than version 3") from None
        self.decompress.argtypes = [c_void_p, c_char_p, c_size_t, c_void_p, c_int, c_int]
        for function, (result, *arguments) in {
            "tj3Init": (c_void_p, c_int),
            "tj3Destroy": (None, c_void_p),
            "tj3Set": (c_int, c_void_p, c_int, c_int),
            "tj3Get": (c_int, c_void_p, c_int),
            "tj3DecompressHeader": (c_int, c_void_p, c_char_p, c_size_t),
            "tj3SetScalingFactor": (c_int, c_void_p, _ScalingFactor),
            "tj3SetCroppingRegion": (c_int, c_void_p, _Region),
        }.items():
            try:
                found = getattr(self.functions, function)
            except AttributeError:
                raise NotUsableError(f"lacks {function}") from None
            found.restype, found.argtypes = result, arguments
        self._of_thread = threading.local()
        self._test()

    @property
    def handle(self) -> Handle:
        """The handle of this thread."""
        handle: Handle | None = getattr(self._of_thread, "handle", None)
        if handle is None:
            handle = self._of_thread.handle = Handle(self)
        return handle

    @property
    def path(self) -> str:
        """Where it was found; its name, where that cannot be told."""
        if Path(self.name).is_absolute() or not sys.platform.startswith("linux"):
            return self.name
        mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        return next((line[line.index("/") :] for line in mapped if f"/{self.name}" in line), self.name)

    @property
    def version(self) -> str:
        """The version of libjpeg-turbo, which the library holds as a text; "unknown" where it does not."""
        try:
            found = _VERSION.search(Path(self.path).read_bytes())
        except OSError:
            found = None
        return "unknown" if found is None else found[1].decode()

    def _test(self) -> None:
        """Decodes regions of an image, and compares their pixels with those that Pillow finds there."""
        for (left, top), (width, height), shrink, checksum in _TESTS:
            pixels = np.zeros((height, width, 3), np.uint8)
            handle = self.handle
            failed = handle.read_header(_TEST_IMAGE) or handle.select(shrink, left, top, width, height)
            if failed or handle.decode(_TEST_IMAGE, pixels, PIXEL_FORMATS["RGB"]):
                raise NotUsableError("does not decode a region of a small JPEG")
            # The neighbours of the outermost pixels, which their colours are mixed with, are not decoded.
            if zlib.crc32(pixels[2:-2, 2:-2].tobytes()) != checksum:
                raise NotUsableError("decodes other pixels of a small JPEG than Pillow does")


class Found(NamedTuple):
    """The library of this machine, None: there is none; and what is wrong with those that were found before it."""

    library: Library | None
    problems: tuple[str, ...]


@cache
def find() -> Found:
    """Returns the first library that can be used. Looked for once a process."""
    problems: list[str] = []
    for name in _candidates():
        try:
            return Found(Library(name), tuple(problems))
        except NotUsableError as error:
            problems.append(f"{name} {error}")
    return Found(None, tuple(problems))


def _candidates() -> Iterator[str]:
    """Yields paths and names of libraries that exist: conda's, Homebrew's, the system's, the wheel's."""
    prefix, names = Path(sys.prefix), ("libturbojpeg.so.0", "libturbojpeg.dylib", "turbojpeg.dll")
    folders = (prefix / "lib", prefix / "Library" / "bin", *map(Path, ("/opt/homebrew/lib", "/usr/local/lib")))
    yield from (str(path) for folder in folders for path in map(folder.joinpath, names) if path.is_file())
    if sys.platform.startswith("linux") and _can_be_loaded(names[0]):
        yield names[0]
    # On Linux this asks a compiler where the first way found nothing, which takes longer than a first batch.
    elif not sys.platform.startswith("linux") and (name := find_library("turbojpeg")):
        yield name
    try:
        wheel = importlib.util.find_spec("turbojpeg")
    except (ImportError, ValueError):
        wheel = None
    if wheel is not None and wheel.origin is not None:
        beside = Path(wheel.origin).parent
        for pattern in ("turbojpeg.libs/libturbojpeg*", "turbojpeg.dylibs/libturbojpeg*", "turbojpeg-*.dll"):
            yield from map(str, sorted(beside.glob(pattern)))


def _can_be_loaded(name: str) -> bool:
    """Whether the system finds a library by its name; a damaged one counts as found."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return "No such file" not in str(error)
    return True
