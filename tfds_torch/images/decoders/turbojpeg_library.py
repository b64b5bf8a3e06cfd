"""libturbojpeg, version 3 or later: where it lies on this machine, and its functions.

The wheel `turbojpeg` (extra `fast-jpeg`) has one, a pre-release of 2023. conda, Homebrew and many systems have later
ones, which come first; Debian 12 and 13 and Ubuntu 24.04 have version 2, which lacks the functions.

Source: turbojpeg.h of libjpeg-turbo 3.0.
"""

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from ctypes.util import find_library
from pathlib import Path
from typing import Any

DECOMPRESS = 1  # TJINIT_DECOMPRESS
STOP_ON_WARNING, SUBSAMPLING, WIDTH, HEIGHT = 0, 4, 5, 6
"""Parameters of a handle: TJPARAM_STOPONWARNING, _SUBSAMP, _JPEGWIDTH, _JPEGHEIGHT."""

PIXEL_FORMATS = {"RGB": 0, "L": 6, "RGBA": 7}
"""Mode -> TJPF."""

_VERSION = re.compile(rb"libjpeg-turbo version ([0-9.]+)")


class Region(ctypes.Structure):
    """A part of the image, of whole blocks on its left; all numbers 0: all of it."""

    _fields_ = [("left", c_int), ("top", c_int), ("width", c_int), ("height", c_int)]


class ScalingFactor(ctypes.Structure):
    """The fraction by which sides are multiplied."""

    _fields_ = [("numerator", c_int), ("denominator", c_int)]


class NotUsableError(Exception):
    """A library cannot be used; the message is a clause that says why."""


class TooOldError(NotUsableError):
    """A library of version 2, as many systems have it: nothing is wrong with it."""


class Library:
    """A libturbojpeg.

    Args:
        name: its path, or a name that the system finds.

    Attributes:
        functions: all functions but `decompress`. They take microseconds and keep Python's lock: to get it back can
            take longer.
        decompress: tj3Decompress8, which releases the lock.

    Raises:
        TooOldError: it is of version 2.
        NotUsableError: it cannot be loaded, or lacks a function.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self.functions: Any = ctypes.PyDLL(name)
            self.decompress: Any = ctypes.CDLL(name).tj3Decompress8
        except OSError as error:
            raise NotUsableError(f"cannot be loaded ({error})") from None
        except AttributeError:
            if hasattr(self.functions, "tjDecompress2"):
                raise TooOldError("is of version 2") from None
            raise NotUsableError("lacks tj3Decompress8") from None
        self.decompress.argtypes = [c_void_p, c_char_p, c_size_t, c_void_p, c_int, c_int]
        for function, (result, *arguments) in {
            "tj3Init": (c_void_p, c_int),
            "tj3Destroy": (None, c_void_p),
            "tj3Set": (c_int, c_void_p, c_int, c_int),
            "tj3Get": (c_int, c_void_p, c_int),
            "tj3DecompressHeader": (c_int, c_void_p, c_char_p, c_size_t),
            "tj3SetScalingFactor": (c_int, c_void_p, ScalingFactor),
            "tj3SetCroppingRegion": (c_int, c_void_p, Region),
        }.items():
            try:
                found = getattr(self.functions, function)
            except AttributeError:
                raise NotUsableError(f"lacks {function}") from None
            found.restype, found.argtypes = result, arguments

    @property
    def path(self) -> str:
        """The path where it was found; its name, where the path is not known."""
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


def candidates() -> Iterator[str]:
    """Yield paths and names of libraries that exist: conda's, Homebrew's, the system's, the wheel's."""
    prefix, names = Path(sys.prefix), ("libturbojpeg.so.0", "libturbojpeg.dylib", "turbojpeg.dll")
    folders = (prefix / "lib", prefix / "Library" / "bin", *map(Path, ("/opt/homebrew/lib", "/usr/local/lib")))
    yield from (str(path) for folder in folders for path in map(folder.joinpath, names) if path.is_file())
    if sys.platform.startswith("linux") and _is_found(names[0]):
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


def _is_found(name: str) -> bool:
    """Return whether the system finds a library by its name; a damaged one counts as found."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return "No such file" not in str(error)
    return True
