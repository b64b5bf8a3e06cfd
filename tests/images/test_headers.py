"""Headers are read as decoders would find them, whatever stands before them; anything else tells nothing."""

import io
import struct

import pytest
from encoded_images import SIZE, behind_start, encoded_images, first_scans, jpeg_segment, photograph, save
from image_writers import png_chunk, write_bmp
from PIL import Image

from tfds_torch.images.headers import Header, ImageFormat, has_all_scans, read_header

WIDTH, HEIGHT = SIZE
JPEG = save(photograph(), "JPEG")
FORMATS = {
    "jpeg": ImageFormat.JPEG,
    "png": ImageFormat.PNG,
    "gif": ImageFormat.GIF,
    "bmp": ImageFormat.BMP,
    "webp": ImageFormat.WEBP,
    "tiff": ImageFormat.TIFF,
    "avif": ImageFormat.AVIF,
    "j2k": ImageFormat.JPEG2000,
    "ppm": ImageFormat.PPM,
}


def test_format_and_size_are_those_of_pillow() -> None:
    found, expected = {}, {}
    for name, image in encoded_images().items():
        header = read_header(image)
        found[name] = header and (header.format, header.width, header.height)
        with Image.open(io.BytesIO(image)) as opened:
            expected[name] = (FORMATS[name.split()[0]], *opened.size)
    assert found == expected


CHANNELS_AND_BITS = {
    "jpeg grey": (1, 8),
    "jpeg baseline": (3, 8),
    "jpeg progressive": (3, 8),
    "jpeg cmyk": (4, 8),
    "jpeg ycck": (4, 8),
    "png grey 1 bit": (1, 1),
    "png grey 16 bit": (1, 16),
    "png grey alpha": (2, 8),
    "png grey alpha 16 bit": (2, 16),
    "png grey with a transparent colour": (1, 8),
    "png rgb": (3, 8),
    "png rgb 16 bit": (3, 16),
    "png rgb with a transparent colour": (3, 8),
    "png rgba": (4, 8),
    "png palette 2 bit": (3, 2),
    "png palette": (3, 8),
    "png palette with a transparent colour": (4, 8),
    "png palette with alpha": (4, 8),
    "gif": (3, 8),
    "gif with a transparent colour": (4, 8),
    "bmp palette 1 bit": (3, 1),
    "bmp palette 4 bit": (3, 4),
    "bmp palette 8 bit": (3, 8),
    "bmp 16 bit": (3, 5),
    "bmp 24 bit of OS/2": (3, 8),
    "bmp 32 bit": (3, 8),
    "bmp 32 bit with alpha": (4, 8),
    "bmp 32 bit without alpha": (3, 8),
    "webp lossy": (3, 8),
    "webp lossless": (3, 8),
    "webp lossy with alpha": (4, 8),
    "webp lossless with alpha": (4, 8),
    "tiff rgb": (3, 8),
    "tiff rgb 16 bit": (3, 16),
    "tiff rgba": (4, 8),
    "tiff cmyk": (3, 8),
    "tiff grey": (1, 8),
    "tiff grey alpha": (2, 8),
    "tiff grey 12 bit": (1, 12),
    "tiff black and white": (1, 1),
    "tiff palette": (3, 8),
    "j2k": (3, 8),
    "j2k with alpha": (4, 8),
    "j2k grey 16 bit": (1, 16),
    "ppm": (3, 8),
    "ppm grey 16 bit": (1, 16),
    "ppm black and white": (1, 1),
}


def test_channels_and_bits_are_those_stored() -> None:
    headers = {name: read_header(encoded_images()[name]) for name in CHANNELS_AND_BITS}
    assert {name: header and header[:5] for name, header in headers.items()} == {
        name: (FORMATS[name.split()[0]], HEIGHT, WIDTH, *stored) for name, stored in CHANNELS_AND_BITS.items()
    }


def test_a_jpeg_that_is_decoded_from_top_to_bottom_says_where_its_height_stands() -> None:
    found, expected = {}, {}
    for name, image in encoded_images().items():
        if name.startswith("jpeg"):
            header = read_header(image)
            assert header is not None, name
            found[name] = struct.unpack_from(">H", image, header.height_at)[0] if header.height_at else None
            expected[name] = header.height if image.find(b"\xff\xc0") > 0 else None
    assert found == expected


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
    assert header[:5] == (ImageFormat.JPEG, HEIGHT, WIDTH, 3, 8)
    assert struct.unpack_from(">H", image, header.height_at) == (HEIGHT,)


@pytest.mark.parametrize("marker", range(0xC0, 0xD0))
def test_the_frame_of_a_jpeg_decides_whether_it_shrinks(marker: int) -> None:
    header = read_header(JPEG.replace(b"\xff\xc0", bytes([0xFF, marker]), 1))
    if marker in (0xC4, 0xC8, 0xCC):  # Not of frames.
        assert header is None
        return
    assert header is not None
    assert header.is_shrinkable is (marker not in (0xC3, 0xC7, 0xCB, 0xCF))


def test_a_jpeg_that_lacks_scans_is_told_from_a_whole_one() -> None:
    found = {name: has_all_scans(image) for name, image in encoded_images().items() if name.startswith("jpeg")}
    assert found == {name: name != "jpeg progressive without its last scans" for name in found}


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 1}, {"subsampling": 0, "quality": 30}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_each_scan_of_a_progressive_jpeg_is_needed(mode: str, options: dict[str, int]) -> None:
    image = save(photograph((90, 70)).convert(mode), "JPEG", progressive=True, **options)
    num_scans = image.count(b"\xff\xda")
    assert [has_all_scans(first_scans(image, number)) for number in range(1, num_scans + 1)] == [
        number == num_scans for number in range(1, num_scans + 1)
    ]


PROGRESSIVE = save(photograph((90, 70)), "JPEG", progressive=True)
LAST_SCAN = PROGRESSIVE.rindex(b"\xff\xda")


@pytest.mark.parametrize(
    ("image", "is_whole"),
    [
        pytest.param(PROGRESSIVE[:LAST_SCAN] + b"\xff\xff\xff" + PROGRESSIVE[LAST_SCAN:], True, id="fill"),
        pytest.param(behind_start(PROGRESSIVE, jpeg_segment(0xE1, first_scans(PROGRESSIVE, 2))), True, id="a-preview"),
        pytest.param(behind_start(first_scans(PROGRESSIVE, 2), jpeg_segment(0xE1, PROGRESSIVE)), False, id="preview"),
        pytest.param(first_scans(PROGRESSIVE, 9) + PROGRESSIVE, False, id="another-image-behind-it"),
        pytest.param(PROGRESSIVE.replace(b"\x03\x11\x01", b"\x02\x11\x01"), False, id="two-components-of-one-name"),
        pytest.param(PROGRESSIVE[: LAST_SCAN + 5], False, id="cut"),
        pytest.param(b"\xff\xd8\xff" + bytes(30), False, id="nothing"),
    ],
)
def test_scans_are_counted_where_decoders_find_them(image: bytes, is_whole: bool) -> None:
    assert has_all_scans(image) == is_whole


def test_no_beginning_of_a_progressive_jpeg_has_all_scans_before_the_last_one() -> None:
    found = [has_all_scans(PROGRESSIVE[:length]) for length in range(len(PROGRESSIVE) + 1)]
    assert not any(found[: LAST_SCAN + 10])
    assert found[-1]


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


NOT_IMAGES = {
    "empty": b"",
    "two bytes": b"\xff\xd8",
    "three bytes": b"\xff\xd8\xff",
    "text": b"not an image, but long enough for one" * 9,
    "cut png": b"\x89PNG\r\n\x1a\n" + b"\0" * 15,
    "png without header": b"\x89PNG\r\n\x1a\n" + png_chunk(b"IDAT", bytes(30)),
    "png of no kind": b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(9) + b"\5" + bytes(3)),
    "palette alone": b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(9) + b"\3" + bytes(3)),
    "cut gif": b"GIF89a\0\0\0",
    "gif without frame": encoded_images()["gif"][:30],
    "gif that ends": b"GIF89a" + bytes(7) + b";" + bytes(20),
    "cut bmp": b"BM" + b"\0" * 23,
    "bmp of no depth": b"BM" + b"\0" * 90,
    "cut jpeg": JPEG[:40],
    "nothing but fill": b"\xff\xd8" + b"\xff" * 500,
    "no marker": b"\xff\xd8\xff\xd0" + bytes(99),
    "a segment without length": behind_start(JPEG, b"\xff\xe1\0\0"),
    "cut webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "webp without key frame": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(30),
    "webp without signature": b"RIFF\x10\0\0\0WEBPVP8L" + bytes(30),
    "webp without header": b"RIFF\x10\0\0\0WEBPALPH" + bytes(30),
    "sound": b"RIFF\x10\0\0\0WAVEfmt " + bytes(30),
}


def told_by(image: bytes) -> Header | str | None:
    """Returns the header; of an error, which no image may cause, its text."""
    try:
        return read_header(image)
    except Exception as error:
        return repr(error)


def test_what_is_not_an_image_tells_nothing() -> None:
    assert {name: told_by(image) for name, image in NOT_IMAGES.items()} == dict.fromkeys(NOT_IMAGES)


def test_every_beginning_of_an_image_tells_the_same_or_nothing() -> None:
    found, expected = {}, {}
    for name, image in encoded_images().items():
        found[name] = {told_by(image[:length]) for length in (*range(min(len(image), 900)), len(image))}
        expected[name] = {None, read_header(image)}
    assert found == expected


def test_sizes_are_those_that_the_header_claims() -> None:
    image = bytearray(encoded_images()["png rgb"])
    image[16:24] = struct.pack(">II", 60_000, 0)
    assert read_header(bytes(image)) == Header(ImageFormat.PNG, 0, 60_000, 3, 8)
