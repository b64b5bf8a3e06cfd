"""ImageDecoder: limits, windows, given memory, the decoder of each image, flawed images, transparent colours."""

import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from encoded_images import (
    HAS_TURBOJPEG,
    behind_start,
    decode,
    encoded_images,
    jpeg_segment,
    photograph,
    pillow_pixels,
    save,
)
from image_writers import png_chunk, write_png
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.images import decoding
from tfds_torch.images.decoders import pillow, png, simplejpeg, turbojpeg
from tfds_torch.images.decoding import CHANNELS, ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import MOST_PIXELS, ImageFormat
from tfds_torch.storage.image_formats import READABLE_FORMATS

JPEG, PNG = save(photograph(), "JPEG"), save(photograph(), "PNG")
needs_turbojpeg = pytest.mark.skipif(not HAS_TURBOJPEG, reason="needs libturbojpeg 3")
HEADER = ImageDecoder().read_header(JPEG)


def jpeg_of_size(height: int, width: int) -> bytes:
    """Returns a JPEG whose header claims a size."""
    position = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:position] + struct.pack(">HH", height, width) + JPEG[position + 4 :]


# Headers and limits


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(b"", "It is empty.", id="empty"),
        pytest.param(b"text", f"Its 4 bytes are not a whole {READABLE_FORMATS} image.", id="text"),
        pytest.param(jpeg_of_size(0, 7), "It has 0 x 7 pixels: there is nothing to decode.", id="no-pixels"),
        pytest.param(
            jpeg_of_size(65_000, 65_000),
            "It has 65000 x 65000 pixels, and at most 178,956,970 are allowed: a preprocess with a larger "
            "max_pixels takes it, if this is not a mistake.",
            id="too-many",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_its_header(image: bytes, message: str) -> None:
    with pytest.raises(ImageDecodeError) as caught:
        ImageDecoder().read_header(image)
    assert str(caught.value) == message


def test_max_pixels_are_allowed_and_one_more_is_not() -> None:
    num_pixels = HEADER.height * HEADER.width
    assert ImageDecoder(max_pixels=num_pixels).read_header(JPEG) == HEADER
    with pytest.raises(ImageDecodeError, match="at most 1,664 are allowed"):
        ImageDecoder(max_pixels=num_pixels - 1).read_header(JPEG)


@pytest.mark.parametrize("name", ["jpeg baseline", "jpeg cmyk", "png palette", "gif", "bmp 24 bit"])
def test_pillows_own_limit_is_not_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert decode(encoded_images()[name]).shape == (37, 45, 3)


def test_the_usual_limit_is_pillows() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert abs(MOST_PIXELS - 2 * Image.MAX_IMAGE_PIXELS) <= 1


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        ImageDecoder("CMYK")
    assert str(caught.value) == "The mode of the images is 'CMYK'. It can be 'RGB', 'L', 'RGBA' or None (as stored)."


@pytest.mark.parametrize(
    ("name", "channels"),
    [("jpeg grey", 1), ("jpeg baseline", 3), ("jpeg cmyk", 3), ("png grey alpha", 2), ("png palette with alpha", 4)],
)
def test_the_number_of_channels_is_known_before_decoding(name: str, channels: int) -> None:
    header = ImageDecoder().read_header(encoded_images()[name])
    assert ImageDecoder(None).num_channels(header) == channels
    assert [ImageDecoder(mode).num_channels(header) for mode in ("L", "RGB", "RGBA")] == [1, 3, 4]


# Windows and given memory


@pytest.mark.parametrize("name", ["jpeg baseline", "jpeg cmyk", "png rgb", "gif"])
def test_a_window_is_cut_out(name: str) -> None:
    image, decoder = encoded_images()[name], ImageDecoder()
    found = decoder.decode(image, decoder.read_header(image), (3, 5, 7, 11))
    np.testing.assert_array_equal(found, pillow_pixels(image, "RGB")[3:10, 5:16])


def test_a_window_is_in_pixels_of_the_shrunk_image() -> None:
    found = ImageDecoder().decode(JPEG, HEADER, [2, 1, 8, 11], shrink=4)
    np.testing.assert_array_equal(found, ImageDecoder().decode(JPEG, HEADER, shrink=4)[2:10, 1:12])


def test_a_window_beyond_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"The window \(30, 0, 8, 8\) is not inside an image of 37 x 45 pixels of 3"):
        ImageDecoder().decode(JPEG, HEADER, [30, 0, 8, 8])


def test_only_jpeg_that_libjpeg_turbo_decodes_shrinks() -> None:
    shrinking = {
        name
        for name, image in encoded_images().items()
        if (header := ImageDecoder().read_header(image)).is_shrinkable and min(header.height, header.width) >= 8
    }
    assert shrinking == {
        name
        for name in encoded_images()
        if name.startswith("jpeg") and "cmyk" not in name and name not in ("jpeg ycck", "jpeg 1 by 1", "jpeg 7 by 3")
    }


def test_what_does_not_shrink_is_not_decoded_to_another_size() -> None:
    with pytest.raises(ValueError, match=r"^A PNG cannot be shrunk by 2 while it is decoded\.$"):
        ImageDecoder().decode(PNG, ImageDecoder().read_header(PNG), shrink=2)


def test_simplejpeg_decodes_into_given_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: list[Any] = []
    decode_jpeg = simplejpeg.decode_jpeg

    def decode_and_note(*arguments: Any, buffer: Any, **keywords: Any) -> Any:
        buffers.append(buffer)
        return decode_jpeg(*arguments, buffer=buffer, **keywords)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode_and_note)
    out = np.empty((HEADER.height, HEADER.width, 3), np.uint8)
    ImageDecoder(jpeg_decoder="simplejpeg").decode_into(JPEG, HEADER, out)
    assert [buffer is out for buffer in buffers] == [True]


@needs_turbojpeg
def test_turbojpeg_decodes_into_given_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    outs: list[Any] = []
    decode_to = turbojpeg.Handle.decode

    def decode_and_note(handle: turbojpeg.Handle, image: bytes, out: Any, mode: str) -> int:
        outs.append(out)
        return decode_to(handle, image, out, mode)

    monkeypatch.setattr(turbojpeg.Handle, "decode", decode_and_note)
    out = np.empty((HEADER.height, HEADER.width, 3), np.uint8)
    ImageDecoder(jpeg_decoder="turbojpeg").decode_into(JPEG, HEADER, out)
    assert [one is out for one in outs] == [True]


@pytest.mark.parametrize("image", [JPEG, PNG, encoded_images()["gif"]], ids=["jpeg", "png", "gif"])
def test_memory_of_another_size_is_refused(image: bytes) -> None:
    decoder = ImageDecoder()
    for shape in ((37, 44, 3), (37, 45, 4), (37, 45)):
        with pytest.raises(ImageDecodeError, match="It has 37 x 45 pixels of 3 channels, and there is room for"):
            decoder.decode_into(image, decoder.read_header(image), np.empty(shape, np.uint8))


def test_memory_that_is_not_contiguous_is_refused() -> None:
    out = np.empty((HEADER.height, HEADER.width * 2, 3), np.uint8)[:, ::2]
    with pytest.raises(ValueError, match=r"The memory to decode to is not contiguous: its strides are \(270, 6, 1\)\."):
        ImageDecoder().decode_into(JPEG, HEADER, out)


# Threads and processes


def test_a_decoder_travels_to_another_process() -> None:
    decoder = pickle.loads(pickle.dumps(ImageDecoder("L", 2_000)))
    assert decoder.decode(JPEG, decoder.read_header(JPEG)).shape == (37, 45, 1)
    with pytest.raises(ImageDecodeError, match="at most 2,000 are allowed"):
        decoder.read_header(jpeg_of_size(50, 41))


def test_an_error_travels_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ImageDecodeError("It is empty.")))
    assert isinstance(error, ImageDecodeError)
    assert str(error) == "It is empty."


def test_threads_decode_the_same_pixels_with_one_decoder() -> None:
    images = list(encoded_images().values()) * 3
    decoders = {mode: ImageDecoder(mode) for mode in CHANNELS}

    def checksum(number: int) -> int:
        decoder = decoders[list(CHANNELS)[number % 4]]
        pixels = decoder.decode(images[number], decoder.read_header(images[number]))
        return zlib.crc32(np.ascontiguousarray(pixels))  # type: ignore[arg-type]

    expected = [checksum(number) for number in range(len(images))]
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(checksum, range(len(images)))) == expected


# Who decodes what


@pytest.fixture
def decoded_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with the names of the decoders that were not refused."""
    names: list[str] = []

    def spy(module: Any, name: str) -> None:
        decode = module.decode

        def decode_and_note(*arguments: Any) -> Any:
            pixels = decode(*arguments)
            if pixels is not None:
                names.append(name)
            return pixels

        monkeypatch.setattr(module, "decode", decode_and_note)

    spy(turbojpeg, "turbojpeg")
    spy(simplejpeg, "simplejpeg")
    spy(png, "kornia-rs")
    spy(pillow, "Pillow")
    return names


@pytest.mark.parametrize(
    ("name", "mode", "decoder"),
    [
        ("jpeg baseline", "RGB", "simplejpeg"),
        ("jpeg baseline", "L", "simplejpeg"),
        ("jpeg progressive", "RGBA", "simplejpeg"),
        ("jpeg progressive without its last scans", "RGB", "Pillow"),
        ("jpeg grey", "RGB", "simplejpeg"),
        ("jpeg rgb", "RGB", "simplejpeg"),
        ("jpeg with junk at its end", "RGB", "simplejpeg"),
        ("jpeg with junk between segments", "RGB", "Pillow"),
        ("jpeg cmyk", "RGB", "Pillow"),
        ("jpeg ycck", "RGB", "Pillow"),
        ("png rgb", "RGB", "kornia-rs"),
        ("png rgb", None, "kornia-rs"),
        ("png rgb", "L", "Pillow"),
        ("png rgba", "RGBA", "kornia-rs"),
        ("png rgba", "RGB", "Pillow"),
        ("png grey", "L", "kornia-rs"),
        ("png grey", "RGB", "Pillow"),
        ("png rgb interlaced", "RGB", "kornia-rs"),
        ("png palette", "RGB", "Pillow"),
        ("png rgb 16 bit", "RGB", "Pillow"),
        ("png grey alpha", None, "Pillow"),
        ("gif", "RGB", "Pillow"),
        ("bmp 24 bit", "RGB", "Pillow"),
        ("webp lossy", "RGB", "Pillow"),
    ],
)
def test_the_fastest_decoder_that_can_decodes(name: str, mode: str | None, decoder: str, decoded_by: list[str]) -> None:
    decode(encoded_images()[name], mode, jpeg_decoder="simplejpeg")
    assert decoded_by == [decoder]


@needs_turbojpeg
@pytest.mark.parametrize(
    ("name", "decoder"),
    [
        ("jpeg baseline", "turbojpeg"),
        ("jpeg progressive", "turbojpeg"),
        ("jpeg progressive without its last scans", "Pillow"),
        ("jpeg grey", "turbojpeg"),
        ("jpeg rgb", "turbojpeg"),
        ("jpeg with junk at its end", "turbojpeg"),
        ("jpeg with junk between segments", "Pillow"),
        ("jpeg cmyk", "Pillow"),
        ("jpeg ycck", "Pillow"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "turbojpeg"])
def test_turbojpeg_decodes_all_but_what_is_flawed_incomplete_or_cmyk(
    name: str, decoder: str, choice: str, decoded_by: list[str]
) -> None:
    decode(encoded_images()[name], jpeg_decoder=choice)
    assert decoded_by == [decoder]


def test_pillow_decodes_jpeg_where_it_was_chosen(decoded_by: list[str]) -> None:
    decode(JPEG, jpeg_decoder="pillow")
    assert decoded_by == ["Pillow"]


@pytest.mark.parametrize(("height", "decoder"), [(128, "kornia-rs"), (129, "Pillow")])
def test_large_png_images_go_to_the_decoder_that_frees_the_lock(
    height: int, decoder: str, decoded_by: list[str]
) -> None:
    decode(save(photograph((128, height)), "PNG"))
    assert decoded_by == [decoder]


@pytest.mark.parametrize(
    ("image", "found"),
    [(JPEG, "Pillow finds 37 x 45"), (PNG, "Pillow finds 37 x 45")],
    ids=["jpeg", "png"],
)
def test_a_decoder_that_finds_another_size_is_not_believed(image: bytes, found: str) -> None:
    header = ImageDecoder().read_header(image)._replace(height=36)
    with pytest.raises(ImageDecodeError) as caught:
        ImageDecoder().decode(image, header)
    assert str(caught.value) == f"Its header has 36 x 45 pixels, and {found}."


def test_an_image_that_no_decoder_takes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_DECODERS", {ImageFormat.PNG: (png,)})
    with pytest.raises(ImageDecodeError, match=r"^No decoder takes it\.$"):
        decode(encoded_images()["png palette"])


# What is flawed


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(
            JPEG[:-200], r"^Pillow reports: image file is truncated \(\d+ bytes not processed\)\.$", id="jpeg"
        ),
        pytest.param(PNG[:-200], r"^The PNG ends early: its [\d,]+ bytes end before its last chunk", id="png"),
        pytest.param(
            JPEG.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
            r"^Pillow reports: cannot handle 12-bit layers\.$",
            id="12-bit",
        ),
        pytest.param(
            PNG[:70] + bytes([PNG[70] ^ 1]) + PNG[71:],
            r"^A checksum of the PNG does not match: its bytes have changed\.$",
            id="png-checksum",
        ),
    ],
)
def test_what_is_wrong_with_an_image_is_said(image: bytes, message: str) -> None:
    with pytest.raises(ImageDecodeError, match=message):
        decode(image)


def test_an_error_without_words_is_reported_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Any) -> Any:
        raise EOFError

    monkeypatch.setattr(pillow, "_FILES", {ImageFormat.GIF: fail})
    with pytest.raises(ImageDecodeError, match=r"^Pillow reports: EOFError\.$"):
        decode(encoded_images()["gif"])


def test_running_out_of_memory_is_not_the_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(pillow, "_FILES", {ImageFormat.GIF: fail})
    with pytest.raises(MemoryError):
        decode(encoded_images()["gif"])


def test_broken_exif_data_is_not_looked_at() -> None:
    """Pillow warns about it, and warnings are errors here."""
    broken = jpeg_segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x1a\1" * 9)
    for name in ("jpeg cmyk", "jpeg baseline"):
        image = encoded_images()[name]
        np.testing.assert_array_equal(decode(behind_start(image, broken)), decode(image))


# Transparent colours


@pytest.mark.parametrize("bit_depth", [1, 2, 4, 8])
def test_a_transparent_grey_is_found_at_every_bit_depth(bit_depth: int) -> None:
    samples = np.arange(1 << bit_depth, dtype=np.uint16)[None, :, None]
    image = write_png(samples, 0, bit_depth, [png_chunk(b"tRNS", struct.pack(">H", 1))])
    alpha = decode(image, "RGBA")[0, :, 3]
    assert np.flatnonzero(alpha == 0).tolist() == [1]
