"""Which libturbojpeg is used: the first one that can be loaded, has the functions and decodes a test image right."""

import ctypes.util
import gc
import logging
import shutil
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython
from encoded_images import HAS_TURBOJPEG, photograph, pillow_pixels, save

from tfds_torch import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg, simplejpeg, turbojpeg, turbojpeg_library
from tfds_torch.images.decoders.turbojpeg import Found, Handle, check_pixels
from tfds_torch.images.decoders.turbojpeg_library import Library, NotUsableError
from tfds_torch.images.decoding import ImageDecoder
from tfds_torch.images.headers import read_header

needs_turbojpeg = pytest.mark.skipif(not HAS_TURBOJPEG, reason="needs libturbojpeg 3")
FOUND = turbojpeg.find().library


@pytest.fixture(autouse=True)
def searched_anew() -> Iterator[None]:
    """Lets each test look for libraries, decoders and warnings itself."""
    cached = (turbojpeg.find, jpeg.decoders_of, jpeg.describe, jpeg.warn_of_problems)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder, as conda's, whose library comes first."""
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path / "lib" / "libturbojpeg.so.0"


def library_of_mathematics() -> str:
    """Returns a shared library without a function of libturbojpeg."""
    return ctypes.util.find_library("m") or pytest.skip("needs libm")


@needs_turbojpeg
def test_an_environments_own_library_comes_before_the_wheels(prefix: Path) -> None:
    assert FOUND is not None
    shutil.copy(FOUND.path, prefix)
    found = turbojpeg.find()
    assert found.problems == ()
    assert found.library is not None
    assert found.library.path == str(prefix)
    assert found.library.version == FOUND.version


@needs_turbojpeg
def test_a_library_that_cannot_be_loaded_is_passed_over(prefix: Path, caplog: pytest.LogCaptureFixture) -> None:
    prefix.write_bytes(b"not a library")
    found = turbojpeg.find()
    assert found.library is not None
    assert found.problems[0].startswith(f"{prefix} cannot be loaded (")
    jpeg.warn_of_problems()
    assert caplog.messages == []  # Another one reads.


def test_a_library_without_the_functions_is_not_used() -> None:
    with pytest.raises(NotUsableError, match=r"^lacks tj3Decompress8$"):
        Library(library_of_mathematics())


def test_a_library_of_version_2_is_passed_over_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    functions = type("Functions", (), {"tjDecompress2": None})()
    monkeypatch.setattr(turbojpeg_library.ctypes, "PyDLL", lambda name: functions)
    monkeypatch.setattr(turbojpeg_library.ctypes, "CDLL", lambda name: functions)
    monkeypatch.setattr(turbojpeg, "candidates", lambda: iter(["libturbojpeg.so.0"]))
    assert turbojpeg.find() == Found(None, (), ("libturbojpeg.so.0 is of version 2",))
    jpeg.warn_of_problems()
    assert caplog.messages == []
    with pytest.raises(ConfigError, match=r"on this machine \(libturbojpeg\.so\.0 is of version 2\)\."):
        ReadOptions(jpeg_decoder="turbojpeg")


@needs_turbojpeg
def test_a_library_that_decodes_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOUND is not None
    (place, size, shrink, checksum), other = turbojpeg._TESTS
    monkeypatch.setattr(turbojpeg, "_TESTS", ((place, size, shrink, checksum ^ 1), other))
    with pytest.raises(NotUsableError, match=r"^decodes other pixels of a small JPEG than Pillow does$"):
        check_pixels(FOUND)


@needs_turbojpeg
def test_a_library_that_cannot_decode_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOUND is not None
    monkeypatch.setattr(turbojpeg, "_TEST_IMAGE", turbojpeg._TEST_IMAGE[:-100])
    with pytest.raises(NotUsableError, match=r"^does not decode a region of a small JPEG$"):
        check_pixels(FOUND)


def test_what_cannot_be_used_is_said_once_and_simplejpeg_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = "/usr/lib/libturbojpeg.so.0 lacks tj3Set"
    monkeypatch.setattr(turbojpeg, "find", lambda: Found(None, (problem,)))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            jpeg.warn_of_problems()
    assert caplog.messages == [
        f"{problem}. JPEG is decoded by simplejpeg instead, which takes longer. pip install 'tfds-torch[fast-jpeg]' "
        f"brings a library that can be used; ReadOptions(jpeg_decoder='simplejpeg') does not look for one."
    ]
    assert jpeg.resolve("auto") == "simplejpeg"
    assert jpeg.describe("auto").startswith("simplejpeg 1.")
    with pytest.raises(ConfigError) as caught:
        ReadOptions(jpeg_decoder="turbojpeg")
    assert str(caught.value) == (
        f"jpeg_decoder='turbojpeg': there is no libturbojpeg of version 3 or later on this machine ({problem}). "
        f"pip install 'tfds-torch[fast-jpeg]' brings one, as do conda and Homebrew (jpeg-turbo); jpeg_decoder='auto' "
        f"does without."
    )


def test_where_there_is_no_library_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turbojpeg, "candidates", lambda: iter(()))
    jpeg.warn_of_problems()
    assert caplog.messages == []
    assert jpeg.resolve("auto") == "simplejpeg"
    with pytest.raises(ConfigError, match=r"of version 3 or later on this machine\. pip install"):
        ReadOptions(jpeg_decoder="turbojpeg")


def test_without_simplejpeg_pillow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turbojpeg, "candidates", lambda: iter(()))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    assert jpeg.resolve("auto") == "pillow"
    assert jpeg.describe("auto").startswith("pillow (libjpeg-turbo ")
    with pytest.raises(ConfigError, match=r"^jpeg_decoder='simplejpeg': simplejpeg is not installed\."):
        ReadOptions(jpeg_decoder="simplejpeg")


def test_a_decoder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions(jpeg_decoder="turbo-jpeg")
    assert str(caught.value) == (
        "Unknown jpeg_decoder 'turbo-jpeg': the decoders are auto, turbojpeg, simplejpeg, pillow. "
        "Did you mean 'turbojpeg'?"
    )


@needs_turbojpeg
def test_the_decoder_is_described_with_the_librarys_version() -> None:
    assert FOUND is not None
    assert jpeg.describe("auto") == jpeg.describe("turbojpeg") == f"turbojpeg (libjpeg-turbo {FOUND.version})"
    assert FOUND.version[0].isdigit()


@needs_turbojpeg
def test_each_thread_has_a_handle_which_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[weakref.ref[Handle]] = []

    class NotedHandle(Handle):
        def __init__(self, library: Library) -> None:
            super().__init__(library)
            handles.append(weakref.ref(self))

    turbojpeg.find()  # It tests the library with handles of its own.
    monkeypatch.setattr(turbojpeg, "Handle", NotedHandle)
    monkeypatch.setattr(turbojpeg, "_of_thread", threading.local())
    image = save(photograph(), "JPEG")
    header = read_header(image)
    assert header is not None

    def decode_two() -> None:
        for _ in range(2):
            turbojpeg.decode(image, header, "RGB", (slice(0, 8), slice(0, 8)), 1, None)

    threads = [threading.Thread(target=decode_two) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    gc.collect()
    assert [handle() for handle in handles] == [None] * 3


@needs_turbojpeg
def test_the_wheels_own_module_is_not_imported(run_python: RunPython) -> None:
    code = """
import sys
from tfds_torch.images.decoders import turbojpeg
assert turbojpeg.find().library is not None
assert "turbojpeg" not in sys.modules, "imported"
"""
    assert run_python("-c", code).returncode == 0


@needs_turbojpeg
def test_images_that_begin_alike_share_what_is_read_of_the_first_header(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = photograph((40, 60)), photograph((40, 60)).rotate(180), photograph((60, 40))
    images = [save(picture, "JPEG") for picture in pictures]
    turbojpeg.find()
    read, real = list[bytes](), turbojpeg.Handle.read_header

    def read_and_note(handle: Handle, image: bytes) -> int:
        read.append(image)
        return real(handle, image)

    monkeypatch.setattr(turbojpeg.Handle, "read_header", read_and_note)
    monkeypatch.setattr(turbojpeg, "_of_thread", threading.local())
    decoder = ImageDecoder("RGB", jpeg_decoder="turbojpeg")
    for image in (images[0], images[1], images[0], images[2], images[2], images[1]):
        header = decoder.read_header(image)
        out = np.empty((header.height, header.width, 3), np.uint8)
        decoder.decode_into(image, header, out)
        np.testing.assert_array_equal(out, pillow_pixels(image, "RGB"))
        if image is images[2]:  # Another selection of the same handle.
            np.testing.assert_array_equal(decoder.decode(image, header, (3, 3, 8, 8)), out[3:11, 3:11])
    assert read == [images[0], images[2], images[2], images[2], images[2], images[1]]
