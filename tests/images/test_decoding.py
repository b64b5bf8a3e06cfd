"""ImageDecoder: limits, windows, given memory, who decodes what, and what it says about what it cannot decode."""

import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from encoded_images import (
    encoded_images,
    photograph,
    pillow_pixels,
    save,
)
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg
from tfds_torch.images.decoding import CHANNELS, ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import MOST_PIXELS

JPEG, PNG = save(photograph(), "JPEG"), save(photograph(), "PNG")
HEADER = ImageDecoder().read_header(JPEG)


def decode(image: bytes, mode: str | None = "RGB") -> Any:
    decoder = ImageDecoder(mode)
    return decoder.decode(image, decoder.read_header(image))


def jpeg_of_size(height: int, width: int) -> bytes:
    """Returns a JPEG whose header claims a size."""
    position = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:position] + struct.pack(">HH", height, width) + JPEG[position + 4 :]


# Headers and limits


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(b"", "It is empty.", id="empty"),
        pytest.param(b"text", "Its 4 bytes are not a whole JPEG, PNG, GIF, BMP or WebP image.", id="text"),
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
        if ImageDecoder().shrinks(header := ImageDecoder().read_header(image)) and min(header.height, header.width) >= 8
    }
    assert shrinking == {
        name
        for name in encoded_images()
        if name.startswith("jpeg") and "cmyk" not in name and name not in ("jpeg ycck", "jpeg 1 by 1", "jpeg 7 by 3")
    }


def test_what_does_not_shrink_is_not_decoded_to_another_size() -> None:
    with pytest.raises(ImageDecodeError) as caught:
        ImageDecoder().decode(PNG, ImageDecoder().read_header(PNG), shrink=2)
    assert str(caught.value) == (
        "It decodes to 37 x 45 pixels of 3 channels, and its header says 19 x 23 pixels of 3 channels."
    )


def test_jpeg_is_decoded_into_given_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: list[Any] = []
    decode_jpeg = jpeg.decode_jpeg

    def decode_and_note(*arguments: Any, buffer: Any, **keywords: Any) -> Any:
        buffers.append(buffer)
        return decode_jpeg(*arguments, buffer=buffer, **keywords)

    monkeypatch.setattr(jpeg, "decode_jpeg", decode_and_note)
    out = np.empty((HEADER.height, HEADER.width, 3), np.uint8)
    ImageDecoder().decode_into(JPEG, HEADER, out)
    assert [buffer is out for buffer in buffers] == [True]


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
        return zlib.crc32(np.ascontiguousarray(pixels))

    expected = [checksum(number) for number in range(len(images))]
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(checksum, range(len(images)))) == expected
