"""The pixel contract: what ImageDecoder decodes equals what Pillow decodes, for every encoding and mode."""

import io
import itertools
import random
from collections.abc import Callable, Iterable, Iterator

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

DECODERS = [*JPEG_DECODERS, pytest.param("auto")]
"""Those of JPEGs, and the one that all other images are given to."""


def names_for(jpeg_decoder: str) -> list[str]:
    """Returns the images that are given to a decoder."""
    return [name for name in encoded_images() if name.startswith("jpeg") == (jpeg_decoder != "auto")]


def check_each(check: Callable[..., None], cases: Iterable[object]) -> None:
    """Checks every case, and names all that fail; a tuple is several arguments."""
    failed = []
    for case in cases:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{case}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


def draft(image: bytes, mode: str, shrink: int) -> NDArray[np.uint8]:
    """Returns what Pillow decodes of a JPEG that libjpeg downsizes."""
    file = Image.open(io.BytesIO(image))
    file.draft(None, (file.width // shrink, file.height // shrink))
    pixels = np.asarray(file.convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


@pytest.mark.parametrize("jpeg_decoder", DECODERS)
def test_pixels_equal_pillows(jpeg_decoder: str) -> None:
    def check(name: str, mode: str | None) -> None:
        image = encoded_images()[name]
        expected = pillow_pixels(image, stored_mode(image, mode))
        found = decode(image, mode, jpeg_decoder=jpeg_decoder)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
        assert found.flags["WRITEABLE"]

    check_each(check, itertools.product(names_for(jpeg_decoder), CHANNELS))


@pytest.mark.parametrize("jpeg_decoder", DECODERS)
def test_pixels_are_the_same_in_given_memory(jpeg_decoder: str) -> None:
    def check(name: str, mode: str | None) -> None:
        image, decoder = encoded_images()[name], ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
        expected = decode(image, mode)
        batch = np.full((3, *expected.shape), 7, np.uint8)
        decoder.decode_into(image, decoder.read_header(image), batch[1])
        np.testing.assert_array_equal(batch[1], expected)
        assert (batch[::2] == 7).all()

    check_each(check, itertools.product(names_for(jpeg_decoder), CHANNELS))


def test_pixels_are_the_same_without_the_fast_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(itertools.product(encoded_images(), CHANNELS))
    expected = {(name, mode): decode(encoded_images()[name], mode) for name, mode in cases}
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    monkeypatch.setattr(png, "decode_png", None)

    def check(name: str, mode: str | None) -> None:
        found = decode(encoded_images()[name], mode, jpeg_decoder="simplejpeg")
        np.testing.assert_array_equal(found, expected[name, mode])

    check_each(check, cases)


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
def test_shrunk_pixels_equal_pillows_drafts(jpeg_decoder: str) -> None:
    def check(name: str, mode: str | None) -> None:
        image, decoder = encoded_images()[name], ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
        header = decoder.read_header(image)
        for shrink in (2, 4, 8) if header.is_shrinkable else ():
            expected = draft(image, stored_mode(image, mode), shrink)
            assert expected.shape[:2] == (-(-header.height // shrink), -(-header.width // shrink))
            np.testing.assert_array_equal(decode(image, mode, shrink, jpeg_decoder), expected)

    check_each(check, itertools.product(names_for(jpeg_decoder), CHANNELS))


@pytest.mark.parametrize("jpeg_decoder", JPEG_DECODERS)
def test_shrunk_sizes_are_rounded_up(jpeg_decoder: str) -> None:
    def check(height: int, width: int) -> None:
        image = save(Image.new("RGB", (width, height), (90, 60, 30)), "JPEG")
        for shrink in (2, 4, 8):
            assert decode(image, "RGB", shrink, jpeg_decoder).shape == (-(-height // shrink), -(-width // shrink), 3)

    check_each(check, itertools.product(range(8, 18), range(8, 42)))


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


@pytest.mark.parametrize("jpeg_decoder", DECODERS)
def test_a_cut_image_is_an_error_or_whole(jpeg_decoder: str) -> None:
    def check(name: str) -> None:
        image = encoded_images()[name]
        whole = decode(image, "RGB", jpeg_decoder=jpeg_decoder)
        for length in lengths_to_cut(image):
            try:
                found = decode(image[:length], "RGB", jpeg_decoder=jpeg_decoder)
            except ImageDecodeError:
                continue
            np.testing.assert_array_equal(found, whole, err_msg=f"cut to {length} of {len(image)} bytes")

    check_each(check, names_for(jpeg_decoder))


@pytest.mark.parametrize("jpeg_decoder", DECODERS)
def test_an_image_cut_in_its_middle_is_an_error(jpeg_decoder: str) -> None:
    def check(name: str) -> None:
        image = encoded_images()[name]
        if name in ("gif animated", "tiff of two pages"):  # Its middle is behind its first frame.
            image = image[: len(image) // 2]
        with pytest.raises(ImageDecodeError):
            decode(image[: len(image) // 2], "RGB", jpeg_decoder=jpeg_decoder)

    check_each(check, names_for(jpeg_decoder))


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


@pytest.mark.parametrize("jpeg_decoder", DECODERS)
def test_a_damaged_image_is_an_error_or_of_the_size_in_its_header(jpeg_decoder: str) -> None:
    def check(name: str) -> None:
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

    check_each(check, names_for(jpeg_decoder))
