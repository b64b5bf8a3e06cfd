"""TIFF, AVIF, JPEG 2000 and PPM, which Pillow alone reads: stored as they are, within limits, and no other format."""

import io
import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from encoded_images import decode, encoded_images, photograph, save
from image_writers import write_tiff
from PIL import EpsImagePlugin, Image

from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import BesideDecoder
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.storage import pillow_files
from tfds_torch.storage.beton.image_field import decode_with_pillow
from tfds_torch.storage.image_formats import FORMATS, find_format
from tfds_torch.storage.map_style.pixels import image_beside, is_image

PILLOWS = [name for name in encoded_images() if name.startswith(("tiff", "avif", "j2k", "ppm"))]
GREY = {256: 3, 257: 2, 258: 8, 259: 1, 262: 1, 277: 1, 278: 2}
"""Tags of a grey TIFF of 2 x 3 pixels, of one strip."""


def test_every_format_is_told_by_its_first_bytes_and_by_no_others() -> None:
    found = {name: find_format(image[:64]) for name, image in encoded_images().items()}
    pillows = {name: Image.open(io.BytesIO(image)).format for name, image in encoded_images().items()}
    assert {name: one and one.pillow for name, one in found.items()} == pillows
    assert {one.pillow for one in FORMATS}.isdisjoint({"EPS", "PDF", "WMF", "MPEG", "GRIB", "HDF5", "FITS"})
    for other in (
        b"",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"P5",
        b"P7\n9",
        b"PK\3\4",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"\0\0\0\x18ftypheic",
    ):
        assert find_format(other) is None
        assert not is_image(other)


def turn(image: Image.Image, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[274] = 6
    return save(image, "TIFF", exif=exif, **options)


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_a_tiff_is_not_turned_by_its_exif_orientation_as_no_other_image_is(compression: str | None) -> None:
    image = turn(photograph(), compression=compression)
    assert (decode(image) == np.asarray(photograph())).all()
    opened = pillow_files.open_image(image)
    assert opened.size == photograph().size
    assert (np.asarray(opened) == np.asarray(photograph())).all()
    assert (BesideDecoder("numbers").decode(image) == np.asarray(photograph())).all()


NUMBERS: dict[str, tuple[Callable[[], bytes], np.ndarray]] = {
    "bits, TIFF": (lambda: save(Image.fromarray(np.eye(3) > 0), "TIFF"), np.eye(3, dtype=np.uint8)),
    "bits, fax": (
        lambda: save(Image.fromarray(np.eye(3) > 0), "TIFF", compression="group4"),
        np.eye(3, dtype=np.uint8),
    ),
    "palette, TIFF": (
        lambda: encoded_images()["tiff palette"],
        np.asarray(Image.open(io.BytesIO(encoded_images()["tiff palette"]))),
    ),
    "grey of 4 bits, TIFF": (
        lambda: write_tiff([b"\x01\x20\xf4\x00"], {**GREY, 258: 4}),
        np.array([[0, 1, 2], [15, 4, 0]], np.uint8),
    ),
    "grey of 12 bits, TIFF": (
        lambda: write_tiff([bytes.fromhex("001002fff0") * 2], {**GREY, 258: 12}),
        np.array([[1, 2, 4095]] * 2, np.uint16),
    ),
    "grey of 16 bits, TIFF": (
        lambda: save(Image.fromarray(np.array([[0, 300, 65535]], np.uint16)), "TIFF"),
        np.array([[0, 300, 65535]], np.uint16),
    ),
    "grey of 16 bits, big endian": (
        lambda: save(Image.frombytes("I;16B", (3, 1), b"\0\0\1\x2c\xff\xff"), "TIFF"),
        np.array([[0, 300, 65535]], np.uint16),
    ),
    "int32, TIFF": (
        lambda: save(Image.fromarray(np.array([[-5, 70000]], np.int32)), "TIFF"),
        np.array([[-5, 70000]], np.int32),
    ),
    "float32, TIFF": (
        lambda: save(Image.fromarray(np.array([[-0.5, 1e9]], np.float32)), "TIFF"),
        np.array([[-0.5, 1e9]], np.float32),
    ),
    "grey of 16 bits, JPEG 2000": (
        lambda: save(Image.fromarray(np.array([[0, 300, 65535]] * 9, np.uint16)), "JPEG2000"),
        np.array([[0, 300, 65535]] * 9, np.uint16),
    ),
    "8 levels, PGM": (lambda: b"P5 3 1 7\n\0\3\7", np.array([[0, 3, 7]], np.uint8)),
    "200 levels, PGM": (lambda: b"P5 200 1 199\n" + bytes(range(200)), np.arange(200, dtype=np.uint8)[None]),
    "1,000 levels, PGM": (
        lambda: b"P5 1000 1 999\n" + np.arange(1000, dtype=">u2").tobytes(),
        np.arange(1000, dtype=np.uint16)[None],
    ),
    "levels as text, PGM": (lambda: b"P2 3 1 300 0 299 300\n", np.array([[0, 299, 300]], np.uint16)),
    "float32, PFM": (
        lambda: b"Pf 2 1 -1.0\n" + np.array([-0.5, 9], "<f4").tobytes(),
        np.array([[-0.5, 9]], np.float32),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_images_beside_the_image_keep_their_numbers(name: str) -> None:
    make, wanted = NUMBERS[name]
    for decoder in (BesideDecoder(), BesideDecoder("numbers")):
        image = image_beside({"bytes": make(), "path": None})
        found = decoder.decode(image)
        assert not decoder.is_picture(image)
        assert (found.dtype, found.shape) == (wanted.dtype, (*wanted.shape, 1))
        assert found[..., 0].tolist() == wanted.tolist()


def test_colours_are_pictures_and_those_of_16_bits_are_refused_where_bits_would_be_lost() -> None:
    pixels = np.asarray(photograph())
    for name in ("tiff rgb", "j2k", "ppm", "tiff rgba"):
        assert BesideDecoder().is_picture(encoded_images()[name])
        assert (BesideDecoder().decode(encoded_images()[name]) == pixels).all()
    deep = encoded_images()["tiff rgb 16 bit"]
    assert (BesideDecoder("picture").decode(deep) == pixels).all()
    assert not BesideDecoder().is_picture(deep)
    for image in (deep, b"P6 1 1 1000\n" + bytes(6)):
        with pytest.raises(
            ImageDecodeError, match="Its colours have 16 bits, of which Pillow gives the upper 8: name it"
        ):
            BesideDecoder().decode(image)


@pytest.mark.parametrize("name", ["int32, TIFF", "float32, TIFF", "float32, PFM"])
def test_an_image_of_levels_without_a_range_is_refused(name: str) -> None:
    for mode in ("RGB", "L", None):
        with pytest.raises(
            ImageDecodeError, match="which has no range from black to white: convert it to 8 or 16 bits"
        ):
            decode(NUMBERS[name][0](), mode)


# Limits


@pytest.mark.parametrize("name", PILLOWS)
def test_more_pixels_than_allowed_are_not_decoded_and_pillows_own_limit_does_not_count(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = encoded_images()[name]
    with pytest.raises(ImageDecodeError, match=r"It has 37 x 45 pixels, and at most 1,664 are allowed"):
        ImageDecoder(max_pixels=37 * 45 - 1).read_header(image)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    assert decode(image).shape == (37, 45, 3)


def j2k_with(at: int, *numbers: int) -> bytes:
    """Returns a JP2 whose codestream has other numbers of 32 bits in its header."""
    image = encoded_images()["j2k"]
    start = image.index(b"\xff\x4f\xff\x51") + at
    return image[:start] + struct.pack(f">{len(numbers)}I", *numbers) + image[start + 4 * len(numbers) :]


HOSTILE: dict[str, tuple[bytes, str]] = {
    "strips missing": (
        write_tiff([b"\1\2\3"], {**GREY, 278: 1}),
        "The TIFF has fewer strips or tiles than its image needs.",
    ),
    "a plane missing": (
        write_tiff([bytes(6)] * 2, {**GREY, 258: (8, 8, 8), 262: 2, 277: 3, 284: 2}),
        "The TIFF has fewer strips or tiles than its image needs.",
    ),
    "a million strips": (
        write_tiff([bytes(6)] + [b""] * 1000, GREY),
        "The TIFF has 1,001 strips or tiles, and its image at most 6.",
    ),
    "a tile without end": (
        write_tiff([bytes(6)], {**GREY, 322: 2**30, 323: 16}, is_tiled=True),
        "The tiles of the TIFF, 16 x 1073741824, are larger than its image.",
    ),
    "strips without rows": (
        write_tiff([bytes(6)], {**GREY, 278: 0}),
        "The sides of the TIFF and of its parts are (2, 3, 0, 3).",
    ),
    "a TIFF without a size": (write_tiff([b"\1"], {}), "The sides of the TIFF and of its parts are (0, 0, 0, 0)."),
    "a TIFF of 7 samples": (
        write_tiff([bytes(42)], {**GREY, 258: (8,) * 7, 277: 7}),
        "Pillow reports: Invalid value for samples per pixel.",
    ),
    "a codestream of another size": (
        j2k_with(8, 60000, 60000),
        "Its header has 37 x 45 pixels, and its codestream 60000 x 60000.",
    ),
    "1,665 tiles": (j2k_with(24, 1, 1), "It has 1,665 tiles, which is too many for its size."),
    "no codestream": (encoded_images()["j2k"][:40] + bytes(40), "Pillow reports: Invalid header length."),
    "a PPM of negative height": (b"P6 3 -2 255 " + bytes(18), "Pillow reports: not identified by this driver."),
    "a PPM that ends in its header": (b"P6 3 2 25", "The PPM ends in its header."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_flawed_files_are_refused_before_memory_is_taken(name: str) -> None:
    image, reason = HOSTILE[name]
    with pytest.raises(ImageDecodeError) as caught:
        decode(image)
    assert str(caught.value) == reason


def test_a_format_that_is_not_listed_is_never_given_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has PostScript drawn by another program."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript runs."))
    drawing = save(photograph(), "EPS")
    assert not is_image(drawing)
    with pytest.raises(ImageDecodeError, match=r"are not a whole JPEG, PNG, .*TIFF, AVIF, JPEG 2000 or PPM image"):
        decode(drawing)
    beside = image_beside({"bytes": drawing, "path": None})
    for call, argument in itertools.product((BesideDecoder().decode, decode), (beside, drawing)):
        with pytest.raises(ImageDecodeError):
            call(argument)
    with pytest.raises(ConfigError, match="The image cannot be decoded"):
        decode_with_pillow(drawing)


def test_avif_needs_a_pillow_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("PIL.AvifImagePlugin")
    monkeypatch.setattr(plugin, "SUPPORTED", False)
    with pytest.raises(
        ImageDecodeError, match=r"It is an AVIF, which this Pillow \(.*\) cannot read: the wheels of 11\.3"
    ):
        decode(encoded_images()["avif"])
