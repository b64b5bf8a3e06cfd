"""The pixel contract: what ImageDecoder decodes equals what Pillow decodes, for every encoding and mode."""

import io
import random
from collections.abc import Iterator

import numpy as np
import pytest
from encoded_images import (
    JPEG_DECODERS,
    decode,
    encoded_images,
    photograph,
    pillow_pixels,
    save,
    stored_mode,
    with_alpha,
)
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.images.decoders import png, simplejpeg
from tfds_torch.images.decoding import CHANNELS, ImageDecodeError, ImageDecoder

OF_ANY_DECODER = [
    pytest.param(name, *decoder.values, marks=decoder.marks)
    for name in encoded_images()
    for decoder in (JPEG_DECODERS if name.startswith("jpeg") else [pytest.param("auto")])
]
"""Each image with each decoder that it can be given to."""

JPEG_NAMES = [name for name in encoded_images() if name.startswith("jpeg")]


def draft(image: bytes, mode: str, shrink: int) -> NDArray[np.uint8]:
    """Returns what Pillow decodes of a JPEG that libjpeg downsizes."""
    file = Image.open(io.BytesIO(image))
    file.draft(None, (file.width // shrink, file.height // shrink))
    pixels = np.asarray(file.convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize(("name", "jpeg_decoder"), OF_ANY_DECODER)
def test_pixels_equal_pillows(name: str, jpeg_decoder: str, mode: str | None) -> None:
    image = encoded_images()[name]
    expected = pillow_pixels(image, stored_mode(image, mode))
    found = decode(image, mode, jpeg_decoder=jpeg_decoder)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    assert found.flags["WRITEABLE"]


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize(("name", "jpeg_decoder"), OF_ANY_DECODER)
def test_pixels_are_the_same_in_given_memory(name: str, jpeg_decoder: str, mode: str | None) -> None:
    image, decoder = encoded_images()[name], ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
    expected = decode(image, mode)
    batch = np.full((3, *expected.shape), 7, np.uint8)
    decoder.decode_into(image, decoder.read_header(image), batch[1])
    np.testing.assert_array_equal(batch[1], expected)
    assert (batch[::2] == 7).all()


@pytest.mark.parametrize("name", encoded_images())
def test_pixels_are_the_same_without_the_fast_decoders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = encoded_images()[name]
    expected = [decode(image, mode) for mode in CHANNELS]
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    monkeypatch.setattr(png, "decode_png", None)
    for mode, pixels in zip(CHANNELS, expected, strict=True):
        np.testing.assert_array_equal(decode(image, mode, jpeg_decoder="simplejpeg"), pixels)


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("name", JPEG_NAMES)
def test_shrunk_pixels_equal_pillows_drafts(name: str, jpeg_decoder: str, mode: str | None) -> None:
    image, decoder = encoded_images()[name], ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
    header = decoder.read_header(image)
    for shrink in (2, 4, 8) if header.is_shrinkable else ():
        expected = draft(image, stored_mode(image, mode), shrink)
        assert expected.shape[:2] == (-(-header.height // shrink), -(-header.width // shrink))
        np.testing.assert_array_equal(decode(image, mode, shrink, jpeg_decoder), expected)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
@pytest.mark.parametrize("height", range(8, 18))
def test_shrunk_sizes_are_rounded_up(height: int, jpeg_decoder: str) -> None:
    for width in range(8, 42):
        image = save(Image.new("RGB", (width, height), (90, 60, 30)), "JPEG")
        for shrink in (2, 4, 8):
            assert decode(image, "RGB", shrink, jpeg_decoder).shape == (-(-height // shrink), -(-width // shrink), 3)


def test_alpha_is_dropped_and_not_blended() -> None:
    opaque, translucent = photograph(), with_alpha(photograph())
    np.testing.assert_array_equal(decode(save(translucent, "PNG"), "RGB"), np.asarray(opaque))
    np.testing.assert_array_equal(decode(save(translucent, "PNG"), "L")[..., 0], np.asarray(opaque.convert("L")))


def test_of_16_bits_the_upper_8_are_kept() -> None:
    gray = np.asarray(photograph().convert("L"))[..., None]
    for name in ("png grey 16 bit", "png grey 16 bit interlaced"):
        np.testing.assert_array_equal(decode(encoded_images()[name], None), gray)
    np.testing.assert_array_equal(decode(encoded_images()["png rgb 16 bit"], None), np.asarray(photograph()))


def test_images_without_loss_are_what_was_written() -> None:
    names = ("png rgb", "png rgb interlaced", "png with gamma", "webp lossless", "webp animated")
    bmp_names = (
        "bmp 24 bit",
        "bmp 24 bit from the top down",
        "bmp 24 bit of OS/2",
        "bmp 32 bit",
        "bmp 32 bit with alpha",
    )
    for name in (*names, *bmp_names):
        np.testing.assert_array_equal(decode(encoded_images()[name], "RGB"), np.asarray(photograph()), err_msg=name)


# What is damaged


def lengths_to_cut(image: bytes) -> list[int]:
    return sorted({*range(0, len(image), max(1, len(image) // 100)), *range(max(0, len(image) - 40), len(image))})


@pytest.mark.parametrize(("name", "jpeg_decoder"), OF_ANY_DECODER)
def test_a_cut_image_is_an_error_or_whole(name: str, jpeg_decoder: str) -> None:
    image = encoded_images()[name]
    whole = decode(image, "RGB", jpeg_decoder=jpeg_decoder)
    for length in lengths_to_cut(image):
        try:
            found = decode(image[:length], "RGB", jpeg_decoder=jpeg_decoder)
        except ImageDecodeError:
            continue
        np.testing.assert_array_equal(found, whole, err_msg=f"cut to {length} of {len(image)} bytes")


@pytest.mark.parametrize(("name", "jpeg_decoder"), OF_ANY_DECODER)
def test_an_image_cut_in_its_middle_is_an_error(name: str, jpeg_decoder: str) -> None:
    image = encoded_images()[name]
    if name == "gif animated":  # Its middle is behind its first frame.
        image = image[: len(image) // 2]
    with pytest.raises(ImageDecodeError):
        decode(image[: len(image) // 2], "RGB", jpeg_decoder=jpeg_decoder)


def damaged(image: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yields an image with changed, lost and inserted bytes, most of them near its beginning."""
    for last in (len(image), min(len(image), 150)):
        for _ in range(20):
            changed = bytearray(image)
            for _ in range(rng.randrange(1, 6)):
                changed[rng.randrange(last)] = rng.randrange(256)
            yield bytes(changed)
            position = rng.randrange(last)
            yield image[:position] + rng.randbytes(rng.randrange(9)) + image[position + rng.randrange(9) :]


@pytest.mark.parametrize(("name", "jpeg_decoder"), OF_ANY_DECODER)
def test_a_damaged_image_is_an_error_or_of_the_size_in_its_header(name: str, jpeg_decoder: str) -> None:
    rng, reasons = random.Random(name), []
    for number, image in enumerate(damaged(encoded_images()[name], rng)):
        decoder = ImageDecoder(list(CHANNELS)[number % len(CHANNELS)], 100_000, jpeg_decoder)
        try:
            header = decoder.read_header(image)
            found = decoder.decode(image, header)
        except ImageDecodeError as error:
            reasons.append(str(error))
        else:
            assert found.shape == (header.height, header.width, decoder.num_channels(header))
    assert [reason for reason in reasons if not reason.endswith(".") or "\n" in reason] == []
