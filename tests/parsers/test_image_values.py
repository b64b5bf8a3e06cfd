"""Images inside other features: channels, 16 bits, frames."""

import io
import sys

import numpy as np
import pytest
from image_writers import write_gif
from PIL import Image

from parsers.structured_examples import encode, encode_png_16
from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import BesideDecoder
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


@pytest.mark.parametrize(
    ("disposal", "last"),
    [
        (0, ["BBGG", "BBWW", "GGWW"]),
        (1, ["BBGG", "BBWW", "GGWW"]),
        (2, ["RRGG", "RRWW", "GGWW"]),
        (3, ["GGGG", "GGWW", "GGWW"]),
    ],
)
def test_frames_of_a_gif_are_cleared_and_undone_as_browsers_do(disposal: int, last: list[str]) -> None:
    """TFDS's own decoder leaves them there, whatever the disposal."""
    colours = {"R": (255, 0, 0), "G": (0, 255, 0), "B": (0, 0, 255), "W": (255, 255, 255)}
    frames = [((0, 0, 4, 3), 1, 1), ((0, 0, 2, 2), 2, disposal), ((2, 1, 2, 2), 3, 1)]
    image = write_gif((4, 3), bytes(np.ravel(list(colours.values())).tolist()), frames)
    found = ImageValues((None, None, None, 3), np.uint8).decode(image)
    letters = {value: letter for letter, value in colours.items()}
    shown = [["".join(letters[tuple(pixel)] for pixel in row) for row in frame] for frame in found.tolist()]
    assert shown == [["GGGG"] * 3, ["BBGG", "BBGG", "GGGG"], last]


def test_frames_of_a_gif_have_the_size_of_its_screen() -> None:
    image = write_gif((4, 3), bytes(9) + b"\xff" * 3, [((1, 1, 2, 1), 3, 1)])
    found = ImageValues((None, None, None, 3), np.uint8).decode(image)
    assert found[..., 0].tolist() == [[[0] * 4, [0, 255, 255, 0], [0] * 4]]


def test_channels_that_are_not_those_declared_are_an_error() -> None:
    with pytest.raises(ImageDecodeError, match=r"The image has 3 channels, and 2 are declared\."):
        ImageValues((None, None, 2), np.uint8).decode(encode(np.zeros((2, 2, 3), np.uint8)))


@pytest.mark.parametrize(("stored", "declared"), [(1, 4), (3, 1), (3, 4), (4, 1), (2, 1), (2, 3), (2, 4)])
def test_16_bits_of_other_channels_are_converted(stored: int, declared: int) -> None:
    grey = COLOURS_16[..., :1]
    opacity = COLOURS_16[..., 3:] if stored in (2, 4) else np.full((5, 6, 1), 65_535)
    levels = [grey] if stored < 3 else [grey] * 3
    image = encode_png_16(np.dstack([*levels, opacity])[..., :stored])
    found = ImageValues((None, None, declared), np.uint16).decode(image)
    assert found.shape == (5, 6, declared)
    wanted = np.dstack([grey, grey, grey, opacity]) if declared > 1 else grey
    np.testing.assert_array_equal(found, wanted[..., :declared])


def test_grey_and_alpha_of_16_bits_are_read() -> None:
    image = encode_png_16(COLOURS_16[..., :2])
    for declared in (None, 2):
        found = ImageValues((None, None, declared), np.uint16).decode(image)
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, COLOURS_16[..., :2])
    np.testing.assert_array_equal(BesideDecoder().decode(image), COLOURS_16[..., :2])
    np.testing.assert_array_equal(ImageValues((None, None, 3), np.uint8).decode(image)[..., 0], COLOURS_16[..., 0] >> 8)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_file_of_16_bits_that_is_cut_anywhere_is_an_error(channels: int) -> None:
    image = encode_png_16(COLOURS_16[..., :channels])
    for length in range(len(image)):
        with pytest.raises(ImageDecodeError, match=r"ends early|not a whole|is empty"):
            ImageValues((None, None, channels), np.uint16).decode(image[:length])


def test_colours_of_16_bits_need_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia_rs.io", None)
    with pytest.raises(ConfigError, match=r"PNG images with colours of 16 bits.*pip install kornia-rs"):
        ImageValues((None, None, 3), np.uint16).decode(encode_png_16(COLOURS_16[..., :3]))
