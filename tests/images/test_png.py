"""PNG: Pillow's pixels, and an error wherever a file ends early."""

import functools
import itertools
import random
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from encoded_images import decode, encoded_images, photograph, pillow_pixels, save, stored_mode, with_alpha
from image_writers import png_chunk, write_png

from tfds_torch.images.decoders import png, png_16
from tfds_torch.images.decoding import CHANNELS, ImageDecodeError, ImageDecoder

IMAGES = {name: image for name, image in encoded_images().items() if name.startswith("png")}


def filtered_png(kind: int, bit_depth: int, width: int, height: int, seed: int = 0) -> bytes:
    """Returns a PNG of noise whose rows have all five filters, in any order."""
    rng = np.random.default_rng(seed)
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    lines = rng.integers(0, 256, (height, 1 + (width * samples * bit_depth + 7) // 8), np.uint8)
    lines[:, 0] = rng.integers(0, 5, height)
    palette = [png_chunk(b"PLTE", rng.integers(0, 256, 3 << bit_depth, np.uint8).tobytes())] * (kind == 3)
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, kind, 0, 0, 0))
    pixels = zlib.compress(lines.tobytes(), 1)
    parts = [png_chunk(b"IDAT", pixels[at : at + 5000]) for at in range(0, len(pixels), 5000)]
    return b"\x89PNG\r\n\x1a\n" + b"".join([header, *palette, *parts]) + png_chunk(b"IEND", b"")


KINDS = [
    (0, 1),
    (0, 2),
    (0, 4),
    (0, 8),
    (0, 16),
    (2, 8),
    (2, 16),
    (3, 1),
    (3, 4),
    (3, 8),
    (4, 8),
    (4, 16),
    (6, 8),
    (6, 16),
]


# Pixels


def not_pillows(images: Mapping[Any, bytes], modes: Iterable[str | None]) -> list[str]:
    """Returns which images have other pixels than Pillow's, and in which mode."""
    wrong = []
    for (name, image), mode in itertools.product(images.items(), modes):
        try:
            np.testing.assert_array_equal(decode(image, mode), pillow_pixels(image, stored_mode(image, mode)))
        except Exception as error:
            wrong.append(f"{name}, {mode}: {error}")
    return wrong


def test_pixels_are_pillows_without_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "decode_png", None)
    wrong = not_pillows(IMAGES, CHANNELS)
    assert not wrong, "\n".join(wrong)


def test_every_filter_is_undone_as_pillow_does() -> None:
    wrong = not_pillows({kind: filtered_png(*kind, 157, 90) for kind in KINDS}, ("L", "RGB", "RGBA"))
    assert not wrong, "\n".join(wrong)


def test_grey_images_of_16_bits_keep_them_where_that_is_asked_for() -> None:
    image = filtered_png(0, 16, 61, 47)
    header = ImageDecoder("L").read_header(image)
    found = png_16.decode_numbers(image, header)
    assert (found.shape, found.dtype) == ((47, 61, 1), np.dtype(np.uint16))
    np.testing.assert_array_equal((found >> 8).astype(np.uint8), decode(image, "L"))
    assert (found & 255).std() > 50, "the lower bytes are there"


@pytest.mark.parametrize("is_interlaced", [False, True])
@pytest.mark.parametrize("kind", [0, 2, 4, 6])
def test_all_16_bits_of_a_file_become_any_channels(kind: int, is_interlaced: bool) -> None:
    """As tensorflow's decode_png(dtype=uint16) converts them."""
    num_stored = {0: 1, 2: 3, 4: 2, 6: 4}[kind]
    stored = np.random.default_rng(kind).integers(0, 65_536, (9, 11, num_stored)).astype(np.uint16)
    image = write_png(stored, kind, 16, interlaced=is_interlaced)
    header = ImageDecoder().read_header(image)
    levels = stored[..., : 1 if kind in (0, 4) else 3].astype(np.int64)
    red, green, blue = levels[..., 0], levels[..., levels.shape[-1] // 2], levels[..., -1]
    grey = (9797 * red + 19_234 * green + 3737 * blue + 16_384 >> 15)[..., None]
    opacity = stored[..., -1:] if kind in (4, 6) else np.full((9, 11, 1), 65_535)
    wanted = {
        1: grey,
        2: np.dstack([grey, opacity]),
        3: np.dstack([red, green, blue]),
        4: np.dstack([red, green, blue, opacity]),
    }
    for num_channels, numbers in wanted.items():
        found = png_16.decode_numbers(image, header, num_channels)
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(png_16.decode_numbers(image, header), stored)


@pytest.mark.parametrize("is_interlaced", [False, True])
@pytest.mark.parametrize("kind", [0, 2])
def test_a_transparent_colour_of_16_bits_is_compared_in_all_of_them(kind: int, is_interlaced: bool) -> None:
    stored = np.full((5, 7, 1 if kind == 0 else 3), 0x1234, np.uint16)
    stored[1, 2], stored[3, 4, -1] = 0x1235, 0x1235
    transparent = png_chunk(b"tRNS", struct.pack(f">{stored.shape[-1]}H", *stored[1, 2].tolist()))
    image = write_png(stored, kind, 16, [transparent], is_interlaced)
    is_opaque = (stored != stored[1, 2]).any(axis=2)
    assert is_opaque.sum() == (33 if kind == 0 else 34)
    header = ImageDecoder().read_header(image)
    for mode, channels in (("RGB", 3), ("L", 1), (None, stored.shape[-1])):
        np.testing.assert_array_equal(decode(image, mode), np.full((5, 7, channels), 0x12))
    wanted = np.dstack([np.full((5, 7, 3), 0x12, np.uint8), np.where(is_opaque, 255, 0)])
    np.testing.assert_array_equal(decode(image, "RGBA"), wanted)
    decoder, out = ImageDecoder("RGBA"), np.zeros((5, 7, 4), np.uint8)
    decoder.decode_into(image, header, out)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(decoder.decode(image, header, (1, 2, 3, 4)), wanted[1:4, 2:6])
    np.testing.assert_array_equal(
        png_16.decode_numbers(image, header, 4)[..., 3], np.where(is_opaque, np.uint16(65_535), np.uint16(0))
    )


def test_a_png_in_many_chunks_and_with_bytes_behind_its_end_is_whole() -> None:
    image = save(photograph((200, 150)), "PNG")
    np.testing.assert_array_equal(decode(image + b"left over"), np.asarray(photograph((200, 150))))
    small = save(photograph(), "PNG")
    np.testing.assert_array_equal(decode(small + b"left over"), np.asarray(photograph()))


# Files that end early


@functools.cache
def large() -> bytes:
    return save(photograph((700, 500)), "PNG")


def is_decoded(image: bytes, mode: str | None) -> bool:
    try:
        decode(image, mode)
    except ImageDecodeError:
        return False
    return True


@pytest.mark.parametrize("name", ["png rgb", "png grey", "png palette", "png grey 16 bit", "png rgb interlaced"])
def test_a_png_that_is_cut_at_any_byte_is_an_error(name: str) -> None:
    image = IMAGES[name]
    cuts = itertools.product(CHANNELS, range(len(image) + 1))
    decoded = [(mode, length) for mode, length in cuts if is_decoded(image[:length], mode)]
    assert decoded == [(mode, len(image)) for mode in CHANNELS]


@pytest.mark.parametrize("without", ["nothing", "kornia-rs"])
def test_a_large_png_that_is_cut_anywhere_is_an_error(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if without == "kornia-rs":
        monkeypatch.setattr(png, "decode_png", None)
    image, pick = large(), random.Random(4)
    for length in [*(pick.randrange(len(image)) for _ in range(200)), *range(len(image) - 14, len(image))]:
        with pytest.raises(ImageDecodeError, match=r"ends early|are not a whole"):
            decode(image[:length])


@pytest.mark.parametrize(("kind", "bit_depth"), [(0, 8), (2, 8), (3, 8), (2, 16)])
@pytest.mark.parametrize("side", [20, 300])
def test_a_png_with_fewer_rows_than_it_says_is_an_error(kind: int, bit_depth: int, side: int) -> None:
    """Every chunk is whole, and their checksums are right: Pillow would leave the missing rows black."""
    image = filtered_png(kind, bit_depth, side, side)
    taller = struct.pack(">IIBBBBB", side, side + 1, bit_depth, kind, 0, 0, 0)
    image = image[:8] + png_chunk(b"IHDR", taller) + image[33:]
    with pytest.raises(ImageDecodeError, match="The PNG ends early: it holds fewer rows than its header promises"):
        decode(image)


@pytest.mark.parametrize(("side", "is_interlaced"), [(200, False), (5, True)])
def test_a_black_png_with_fewer_rows_than_it_says_is_an_error(side: int, is_interlaced: bool) -> None:
    image = write_png(np.zeros((side, side, 1), np.uint16), 0, 8, interlaced=is_interlaced)
    assert not decode(image).any()
    taller = struct.pack(">IIBBBBB", side, side + 1, 8, 0, 0, 0, is_interlaced)
    with pytest.raises(ImageDecodeError, match="it holds fewer rows than its header promises"):
        decode(image[:8] + png_chunk(b"IHDR", taller) + image[33:])


PNG = save(photograph((200, 150)), "PNG")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            PNG[:8] + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 3, 0, 0, 0, 0)) + PNG[33:],
            "Pillow reports: not identified by this driver",
        ),
        (PNG[:33] + png_chunk(b"IEND", b""), "The PNG has no pixels: there is no IDAT chunk"),
        (PNG[:33] + png_chunk(b"IDAT", b"not zlib") + png_chunk(b"IEND", b""), "Pillow reports: broken data stream"),
        (
            PNG[:33] + png_chunk(b"IDAT", zlib.compress(b"\x07" * 601 * 150)) + png_chunk(b"IEND", b""),
            "Pillow reports: unrecognized data stream contents",
        ),
        (PNG[:60] + bytes([PNG[60] ^ 1]) + PNG[61:], "A checksum of the PNG does not match"),
    ],
    ids=["bits", "no pixels", "zlib", "filter", "checksum"],
)
def test_what_is_wrong_with_a_png_is_said(image: bytes, message: str) -> None:
    with pytest.raises(ImageDecodeError, match=message):
        decode(image)


def test_a_palette_that_is_not_there_is_an_error() -> None:
    image = write_png(np.zeros((200, 100, 1), np.uint16), 3, 8, [png_chunk(b"tRNS", b"\0")])
    with pytest.raises(ImageDecodeError, match="The PNG has no palette"):
        decode(image)


def test_alpha_is_kept_where_it_is_asked_for() -> None:
    image = with_alpha(photograph((200, 150)))
    np.testing.assert_array_equal(decode(save(image, "PNG"), "RGBA"), np.asarray(image))
