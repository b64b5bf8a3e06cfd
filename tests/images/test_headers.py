"""Headers are read as decoders would find them, whatever stands before them; anything else tells nothing."""

import io
import struct

import pytest
from encoded_images import SIZE, behind_start, encoded_images, jpeg_segment, photograph, save
from image_writers import png_chunk, write_bmp
from PIL import Image

from tfds_torch.images.headers import Header, ImageFormat, read_header

WIDTH, HEIGHT = SIZE
JPEG = save(photograph(), "JPEG")
FORMATS = {
    "jpeg": ImageFormat.JPEG,
    "png": ImageFormat.PNG,
    "gif": ImageFormat.GIF,
    "bmp": ImageFormat.BMP,
    "webp": ImageFormat.WEBP,
}


@pytest.mark.parametrize("name", encoded_images())
def test_format_and_size_are_those_of_pillow(name: str) -> None:
    image = encoded_images()[name]
    header = read_header(image)
    assert header is not None
    assert header.format == FORMATS[name.split()[0]]
    with Image.open(io.BytesIO(image)) as opened:
        assert (header.width, header.height) == opened.size


@pytest.mark.parametrize(
    ("name", "channels", "bit_depth"),
    [
        ("jpeg grey", 1, 8),
        ("jpeg baseline", 3, 8),
        ("jpeg progressive", 3, 8),
        ("jpeg cmyk", 4, 8),
        ("jpeg ycck", 4, 8),
        ("png grey 1 bit", 1, 1),
        ("png grey 16 bit", 1, 16),
        ("png grey alpha", 2, 8),
        ("png grey alpha 16 bit", 2, 16),
        ("png grey with a transparent colour", 1, 8),
        ("png rgb", 3, 8),
        ("png rgb 16 bit", 3, 16),
        ("png rgb with a transparent colour", 3, 8),
        ("png rgba", 4, 8),
        ("png palette 2 bit", 3, 2),
        ("png palette", 3, 8),
        ("png palette with a transparent colour", 4, 8),
        ("png palette with alpha", 4, 8),
        ("gif", 3, 8),
        ("gif with a transparent colour", 4, 8),
        ("bmp palette 1 bit", 3, 1),
        ("bmp palette 4 bit", 3, 4),
        ("bmp palette 8 bit", 3, 8),
        ("bmp 16 bit", 3, 5),
        ("bmp 24 bit of OS/2", 3, 8),
        ("bmp 32 bit", 3, 8),
        ("bmp 32 bit with alpha", 4, 8),
        ("bmp 32 bit without alpha", 3, 8),
        ("webp lossy", 3, 8),
        ("webp lossless", 3, 8),
        ("webp lossy with alpha", 4, 8),
        ("webp lossless with alpha", 4, 8),
    ],
)
def test_channels_and_bits_are_those_stored(name: str, channels: int, bit_depth: int) -> None:
    header = read_header(encoded_images()[name])
    assert header is not None
    assert header[:-1] == (FORMATS[name.split()[0]], HEIGHT, WIDTH, channels, bit_depth)


@pytest.mark.parametrize("name", [name for name in encoded_images() if name.startswith("jpeg")])
def test_a_jpeg_that_is_decoded_from_top_to_bottom_says_where_its_height_stands(name: str) -> None:
    image = encoded_images()[name]
    header = read_header(image)
    assert header is not None
    assert bool(header.height_at) == (image.find(b"\xff\xc0") > 0)
    if header.height_at:
        assert struct.unpack_from(">H", image, header.height_at) == (header.height,)


@pytest.mark.parametrize(
    "inserted",
    [
        pytest.param(b"\xff" * 5, id="fill"),
        pytest.param(b"\xff\x01", id="TEM"),
        pytest.param(b"\xff\xd0\xff\xd7", id="restart"),
        pytest.param(jpeg_segment(0xFE, b"a comment"), id="comment"),
        pytest.param(jpeg_segment(0xE1, b"Exif\0\0" + b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01" * 3), id="a-preview"),
        pytest.param(jpeg_segment(0xE1, b"\xff\xc0" * 32_766), id="long-metadata"),
        pytest.param(jpeg_segment(0xC4, b""), id="a-table"),
        pytest.param(jpeg_segment(0xC8, b"\x08\x00\x01\x00\x01"), id="reserved"),
        pytest.param(jpeg_segment(0xCC, b"\x08\x00\x01\x00\x01"), id="arithmetic-conditioning"),
        pytest.param(b"\xff" * 3 + jpeg_segment(0xE2, b"x" * 20) + b"\xff" * 2, id="all-of-them"),
        pytest.param(jpeg_segment(0xFE, b"") + b"\0junk\xff\0", id="junk-between-segments"),
    ],
)
def test_what_stands_before_the_frame_of_a_jpeg_is_passed_over(inserted: bytes) -> None:
    image = behind_start(JPEG, inserted)
    header = read_header(image)
    assert header is not None
    assert header[:-1] == (ImageFormat.JPEG, HEIGHT, WIDTH, 3, 8)
    assert struct.unpack_from(">H", image, header.height_at) == (HEIGHT,)


def test_behind_long_metadata_only_the_whole_image_tells() -> None:
    image = behind_start(JPEG, jpeg_segment(0xE1, bytes(60_000)))
    assert read_header(image[:60_000]) is None


def test_a_gif_is_as_large_as_its_first_frame_at_least() -> None:
    image = bytearray(encoded_images()["gif"])
    image[6:10] = struct.pack("<HH", 3, 300)
    assert read_header(bytes(image)) == Header(ImageFormat.GIF, 300, WIDTH, 3, 8)


def test_four_masks_of_zeros_in_a_bmp_stand_for_colour_and_alpha_as_in_pillow() -> None:
    image = write_bmp([bytes(8)], 2, 32, masks=bytes(16))
    assert read_header(image) == Header(ImageFormat.BMP, 1, 2, 4, 8)
    with Image.open(io.BytesIO(image)) as opened:
        assert opened.mode == "RGBA"


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xd8", id="two-bytes"),
        pytest.param(b"\xff\xd8\xff", id="three-bytes"),
        pytest.param(b"not an image, but long enough for one" * 9, id="text"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + b"\0" * 15, id="cut-png"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IDAT", bytes(30)), id="png-without-header"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(9) + b"\5" + bytes(3)), id="png-of-no-kind"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(9) + b"\3" + bytes(3)), id="palette-alone"),
        pytest.param(b"GIF89a\0\0\0", id="cut-gif"),
        pytest.param(encoded_images()["gif"][:30], id="gif-without-frame"),
        pytest.param(b"GIF89a" + bytes(7) + b";" + bytes(20), id="gif-that-ends"),
        pytest.param(b"BM" + b"\0" * 23, id="cut-bmp"),
        pytest.param(b"BM" + b"\0" * 90, id="bmp-of-no-depth"),
        pytest.param(JPEG[:40], id="cut-jpeg"),
        pytest.param(b"\xff\xd8" + b"\xff" * 500, id="nothing-but-fill"),
        pytest.param(b"\xff\xd8\xff\xd0" + bytes(99), id="no-marker"),
        pytest.param(behind_start(JPEG, b"\xff\xe1\0\0"), id="a-segment-without-length"),
        pytest.param(b"RIFF\x10\0\0\0WEBPVP8 ", id="cut-webp"),
        pytest.param(b"RIFF\x10\0\0\0WEBPVP8 " + bytes(30), id="webp-without-key-frame"),
        pytest.param(b"RIFF\x10\0\0\0WEBPVP8L" + bytes(30), id="webp-without-signature"),
        pytest.param(b"RIFF\x10\0\0\0WEBPALPH" + bytes(30), id="webp-without-header"),
        pytest.param(b"RIFF\x10\0\0\0WAVEfmt " + bytes(30), id="sound"),
    ],
)
def test_what_is_not_an_image_tells_nothing(image: bytes) -> None:
    assert read_header(image) is None


@pytest.mark.parametrize("name", encoded_images())
def test_every_beginning_of_an_image_tells_the_same_or_nothing(name: str) -> None:
    image = encoded_images()[name]
    found = {read_header(image[:length]) for length in (*range(min(len(image), 900)), len(image))}
    assert found == {None, read_header(image)}


def test_sizes_are_those_that_the_header_claims() -> None:
    image = bytearray(encoded_images()["png rgb"])
    image[16:24] = struct.pack(">II", 60_000, 0)
    assert read_header(bytes(image)) == Header(ImageFormat.PNG, 0, 60_000, 3, 8)
