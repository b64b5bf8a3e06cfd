"""Sizes are read from headers as decoders would find them, whatever stands before them; anything else tells nothing."""

import io
import struct

import pytest
from PIL import Image

from tfds_torch.pipeline.image_headers import PREFIX_BYTES, Encoding, Header, read_header

HEIGHT, WIDTH = 19, 301


def encoded(file_format: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (WIDTH, HEIGHT), 7).save(file, file_format, **options)
    return file.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def behind_start(inserted: bytes) -> bytes:
    """Returns a JPEG with bytes inserted behind its first marker."""
    image = encoded("JPEG")
    return image[:2] + inserted + image[2:]


@pytest.mark.parametrize(
    ("image", "encoding"),
    [
        pytest.param(encoded("JPEG"), Encoding.JPEG, id="jpeg"),
        pytest.param(encoded("JPEG", progressive=True), Encoding.JPEG, id="progressive"),
        pytest.param(encoded("JPEG", "L"), Encoding.JPEG, id="gray"),
        pytest.param(encoded("JPEG", "CMYK"), Encoding.JPEG, id="cmyk"),
        pytest.param(encoded("JPEG", restart_marker_rows=1), Encoding.JPEG, id="restart-intervals"),
        pytest.param(encoded("PNG"), Encoding.PNG, id="png"),
        pytest.param(encoded("PNG", "P"), Encoding.PNG, id="palette"),
        pytest.param(encoded("PNG", "I;16"), Encoding.PNG, id="16-bit"),
        pytest.param(encoded("GIF", "P"), Encoding.OTHER, id="gif"),
        pytest.param(encoded("BMP"), Encoding.OTHER, id="bmp"),
    ],
)
def test_the_size_is_read_from_the_header(image: bytes, encoding: Encoding) -> None:
    assert read_header(image) == Header(encoding, HEIGHT, WIDTH)
    assert read_header(image[:PREFIX_BYTES]) == Header(encoding, HEIGHT, WIDTH)


def test_a_bmp_that_is_stored_from_top_to_bottom_has_a_negative_height() -> None:
    image = bytearray(encoded("BMP"))
    image[22:26] = struct.pack("<i", -HEIGHT)
    assert read_header(bytes(image)) == Header(Encoding.OTHER, HEIGHT, WIDTH)
    assert Image.open(io.BytesIO(bytes(image))).size == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    "inserted",
    [
        pytest.param(b"\xff" * 5, id="fill"),
        pytest.param(b"\xff\x01", id="TEM"),
        pytest.param(b"\xff\xd0\xff\xd7", id="restart"),
        pytest.param(segment(0xFE, b"a comment"), id="comment"),
        pytest.param(segment(0xE1, b"Exif\0\0" + b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01" * 3), id="a-preview"),
        pytest.param(segment(0xC4, b""), id="a-table"),
        pytest.param(segment(0xC8, b"\x08\x00\x01\x00\x01"), id="reserved"),
        pytest.param(segment(0xCC, b"\x08\x00\x01\x00\x01"), id="arithmetic-conditioning"),
        pytest.param(b"\xff" * 3 + segment(0xE2, b"x" * 20) + b"\xff" * 2, id="all-of-them"),
    ],
)
def test_what_stands_before_the_frame_of_a_jpeg_is_passed_over(inserted: bytes) -> None:
    assert read_header(behind_start(inserted)) == Header(Encoding.JPEG, HEIGHT, WIDTH)


@pytest.mark.parametrize("length", [PREFIX_BYTES, 65_533])
def test_behind_long_metadata_only_the_whole_image_tells(length: int) -> None:
    image = behind_start(segment(0xE1, b"Exif\0\0" + b"\xff\xc0" * ((length - 6) // 2)))
    assert read_header(image[:PREFIX_BYTES]) is None
    assert read_header(image) == Header(Encoding.JPEG, HEIGHT, WIDTH)
    assert Image.open(io.BytesIO(image)).size == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xd8", id="two-bytes"),
        pytest.param(b"\xff\xd8\xff", id="three-bytes"),
        pytest.param(b"no image at all, but long enough for one" * 9, id="text"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + b"\0" * 15, id="cut-png"),
        pytest.param(b"GIF89a\0\0\0", id="cut-gif"),
        pytest.param(b"BM" + b"\0" * 23, id="cut-bmp"),
        pytest.param(encoded("JPEG")[:40], id="cut-jpeg"),
        pytest.param(b"\xff\xd8" + b"\xff" * 500, id="nothing-but-fill"),
        pytest.param(behind_start(b"\0\0"), id="no-marker"),
        pytest.param(behind_start(b"\xff\xe1\0\0") + b"\0" * 9, id="a-segment-without-length"),
        pytest.param(b"RIFF\x10\0\0\0WEBPVP8 ", id="webp"),
    ],
)
def test_what_is_no_image_tells_nothing(image: bytes) -> None:
    assert read_header(image) is None


def test_every_beginning_of_an_image_tells_its_size_or_nothing() -> None:
    for file_format in ("JPEG", "PNG", "BMP"):
        image = encoded(file_format)
        found = {read_header(image[:length]) for length in range(len(image))}
        assert {header and header[1:] for header in found} == {None, (HEIGHT, WIDTH)}


def test_claims_are_told_as_they_are() -> None:
    image = bytearray(encoded("PNG"))
    image[16:24] = struct.pack(">II", 60_000, 0)
    assert read_header(bytes(image)) == Header(Encoding.PNG, 0, 60_000)
