"""Images inside other features: channels, 16 bits, frames."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from parsers.structured_examples import encode, encode_png_16
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import ImageDecodeError
from tfds_torch.parsers.tfds.image_values import ImageValues

COLOURS_16 = np.random.default_rng(0).integers(0, 65536, (5, 6, 4)).astype(np.uint16)


@pytest.mark.parametrize(("stored", "declared"), [(1, 1), (3, 3), (4, 4), (4, 3), (1, None), (3, None)])
def test_16_bits_are_kept(stored: int, declared: int | None) -> None:
    decoded = ImageValues((None, None, declared), np.dtype(np.uint16)).decode(encode_png_16(COLOURS_16[..., :stored]))
    assert decoded.dtype == np.uint16
    assert np.array_equal(decoded, COLOURS_16[..., : declared or stored])


def test_grey_of_16_bits_is_repeated_for_colours() -> None:
    decoded = ImageValues((None, None, 3), np.uint16).decode(encode_png_16(COLOURS_16[..., :1]))
    assert np.array_equal(decoded, COLOURS_16[..., [0, 0, 0]])


def test_8_bits_are_widened() -> None:
    image = np.array([[[0], [1], [255]]], np.uint8)
    assert ImageValues((None, None, 1), np.uint16).decode(encode(image)).tolist() == [[[0], [257], [65535]]]


def test_floats_are_the_bytes_of_pixels() -> None:
    depth = np.array([[0.0, -1.5, np.pi]], np.float32)
    image = encode(depth.view(np.uint8).reshape(1, 3, 4))
    decoded = ImageValues((None, None, 1), np.float32).decode(image)
    assert decoded.shape == (1, 3, 1)
    assert np.array_equal(decoded[..., 0], depth)


def test_all_frames_of_a_declared_gif_are_decoded() -> None:
    frames = [Image.new("RGB", (6, 5), color) for color in ("red", "lime", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    decoded = ImageValues((None, None, None, 3), np.uint8).decode(file.getvalue())
    assert np.array_equal(decoded, np.stack([np.asarray(frame) for frame in frames]))
    assert ImageValues((None, None, 3), np.uint8).decode(file.getvalue()).shape == (5, 6, 3)
    with pytest.raises(ImageDecodeError, match="Pillow reports"):
        ImageValues((None, None, None, 3), np.uint8).decode(file.getvalue()[:60])


@pytest.mark.parametrize(("stored", "declared"), [(1, 4), (3, 1), (3, 4)])
def test_channels_that_are_not_those_declared_are_an_error(stored: int, declared: int) -> None:
    with pytest.raises(ImageDecodeError, match=rf"The image has {stored} channels, and {declared} are declared\."):
        ImageValues((None, None, declared), np.uint16).decode(encode_png_16(COLOURS_16[..., :stored]))
    with pytest.raises(ImageDecodeError, match=r"The image has 3 channels, and 2 are declared\."):
        ImageValues((None, None, 2), np.uint8).decode(encode(np.zeros((2, 2, 3), np.uint8)))


def test_grey_and_alpha_of_16_bits_are_refused() -> None:
    with pytest.raises(ImageDecodeError, match=r"PNG images of 2 channels of 16 bits cannot be read\."):
        ImageValues((None, None, 2), np.uint16).decode(encode_png_16(COLOURS_16[..., :2]))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_of_16_bits_that_is_cut_anywhere_is_an_error(channels: int) -> None:
    image = encode_png_16(COLOURS_16[..., :channels])
    for length in range(len(image)):
        with pytest.raises(ImageDecodeError, match=r"ends early|not a whole|is empty"):
            ImageValues((None, None, channels), np.uint16).decode(image[:length])


def test_colours_of_16_bits_need_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia_rs.io", None)
    with pytest.raises(ConfigError, match=r"PNG images with colours of 16 bits.*pip install kornia-rs"):
        ImageValues((None, None, 3), np.uint16).decode(encode_png_16(COLOURS_16[..., :3]))
