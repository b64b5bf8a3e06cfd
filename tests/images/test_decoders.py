"""Which decoder decodes what, and what each of them does with flawed images and transparent colours."""

import struct
from typing import Any

import numpy as np
import pytest
from encoded_images import behind_start, encoded_images, jpeg_segment, photograph, save
from image_writers import png_chunk, write_png

from tfds_torch.images import decoding
from tfds_torch.images.decoders import jpeg, pillow, png, png_strips
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import ImageFormat

JPEG, PNG = save(photograph(), "JPEG"), save(photograph(), "PNG")


def decode(image: bytes, mode: str | None = "RGB") -> Any:
    decoder = ImageDecoder(mode)
    return decoder.decode(image, decoder.read_header(image))


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

    spy(jpeg, "simplejpeg")
    spy(png, "kornia-rs")
    spy(png_strips, "strips")
    spy(pillow, "Pillow")
    return names


@pytest.mark.parametrize(
    ("name", "mode", "decoder"),
    [
        ("jpeg baseline", "RGB", "simplejpeg"),
        ("jpeg baseline", "L", "simplejpeg"),
        ("jpeg progressive", "RGBA", "simplejpeg"),
        ("jpeg grey", "RGB", "simplejpeg"),
        ("jpeg rgb", "RGB", "simplejpeg"),
        ("jpeg with junk at its end", "RGB", "simplejpeg"),
        ("jpeg with junk between segments", "RGB", "Pillow"),
        ("jpeg cmyk", "RGB", "Pillow"),
        ("jpeg ycck", "RGB", "Pillow"),
        ("png rgb", "RGB", "kornia-rs"),
        ("png rgb", None, "kornia-rs"),
        ("png rgb", "L", "strips"),
        ("png rgba", "RGBA", "kornia-rs"),
        ("png rgba", "RGB", "strips"),
        ("png grey", "L", "kornia-rs"),
        ("png grey", "RGB", "strips"),
        ("png rgb interlaced", "RGB", "kornia-rs"),
        ("png palette", "RGB", "strips"),
        ("png rgb 16 bit", "RGB", "strips"),
        ("png grey alpha", None, "strips"),
        ("gif", "RGB", "Pillow"),
        ("bmp 24 bit", "RGB", "Pillow"),
        ("webp lossy", "RGB", "Pillow"),
    ],
)
def test_the_fastest_decoder_that_can_decodes(name: str, mode: str | None, decoder: str, decoded_by: list[str]) -> None:
    decode(encoded_images()[name], mode)
    assert decoded_by == [decoder]


@pytest.mark.parametrize(("height", "decoder"), [(128, "kornia-rs"), (129, "strips")])
def test_large_png_images_go_to_the_decoder_that_frees_the_lock(
    height: int, decoder: str, decoded_by: list[str]
) -> None:
    decode(save(photograph((128, height)), "PNG"))
    assert decoded_by == [decoder]


@pytest.mark.parametrize(
    ("image", "found"),
    [(JPEG, "Pillow finds 37 x 45"), (PNG, "the PNG has 37 x 45")],
    ids=["jpeg", "png"],
)
def test_a_decoder_that_finds_another_size_is_not_believed(image: bytes, found: str) -> None:
    header = ImageDecoder().read_header(image)._replace(height=36)
    with pytest.raises(ImageDecodeError) as caught:
        ImageDecoder().decode(image, header)
    assert str(caught.value) == f"Its header says 36 x 45 pixels, and {found}."


def test_an_image_that_no_decoder_takes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_DECODERS", {ImageFormat.JPEG: (png,)})
    with pytest.raises(ImageDecodeError, match=r"^No decoder takes it\.$"):
        decode(JPEG)


# What is flawed or cannot be decoded


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(JPEG[:-200], r"^Pillow says: image file is truncated \(\d+ bytes not processed\)\.$", id="jpeg"),
        pytest.param(PNG[:-200], r"^The PNG ends early: its [\d,]+ bytes end before its last chunk", id="png"),
        pytest.param(
            JPEG.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
            r"^Pillow says: cannot handle 12-bit layers\.$",
            id="12-bit",
        ),
        pytest.param(
            PNG[:70] + bytes([PNG[70] ^ 1]) + PNG[71:],
            r"^A checksum of the PNG does not match: its bytes are not what was written\.$",
            id="png-checksum",
        ),
    ],
)
def test_what_is_wrong_with_an_image_is_said(image: bytes, message: str) -> None:
    with pytest.raises(ImageDecodeError, match=message):
        decode(image)


def test_an_error_without_words_is_told_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Any) -> Any:
        raise EOFError

    monkeypatch.setattr(pillow, "_FILES", {ImageFormat.GIF: fail})
    with pytest.raises(ImageDecodeError, match=r"^Pillow says: EOFError\.$"):
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


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3)])
def test_a_transparent_colour_of_16_bits_cannot_become_alpha(kind: int, channels: int) -> None:
    samples = np.full((2, 2, channels), 0x1234, np.uint16)
    image = write_png(samples, kind, 16, [png_chunk(b"tRNS", struct.pack(">H", 0x1235) * channels)])
    assert (decode(image, "RGB") == 0x12).all()
    with pytest.raises(ImageDecodeError) as caught:
        decode(image, "RGBA")
    assert str(caught.value) == "It has a transparent colour of 16 bits, which cannot be decoded as RGBA."
