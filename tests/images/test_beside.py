"""What images beside the image become: numbers as they are stored, or pictures."""

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tfds_torch.images.beside import BesideDecoder, Kind
from tfds_torch.images.crops import Crops
from tfds_torch.images.cutting import cut_alike
from tfds_torch.images.decoding import ImageDecodeError
from tfds_torch.storage.map_style.pixels import image_beside

INDICES = np.array([[0, 1, 2], [255, 2, 7]], np.uint8)
DEEP = np.array([[0, 1, 256], [4096, 30000, 65535]], np.uint16)
COLOURS = np.random.default_rng(0).integers(0, 256, (2, 3, 3)).astype(np.uint8)


def palette_of(indices: np.ndarray) -> Image.Image:
    """Returns an image of mode P whose colours say nothing of their indices."""
    image = Image.frombytes("P", indices.shape[::-1], indices.tobytes())
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768).astype(np.uint8).tobytes())
    return image


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


STORED: dict[str, tuple[Image.Image, str, np.ndarray]] = {
    "palette": (palette_of(INDICES), "PNG", INDICES),
    "palette, transparent": (palette_of(INDICES), "PNG with tRNS", INDICES),
    "palette of 4 bits": (palette_of(INDICES % 8), "PNG of 4 bits", INDICES % 8),
    "palette, BMP": (palette_of(INDICES), "BMP", INDICES),
    "palette, GIF": (palette_of(np.array([[0, 1, 2], [3, 2, 1]], np.uint8)), "GIF", np.array([[0, 1, 2], [3, 2, 1]])),
    "bits": (Image.fromarray(INDICES > 1), "PNG", INDICES > 1),
    "bits, BMP": (Image.fromarray(INDICES > 1), "BMP", INDICES > 1),
    "grey": (Image.fromarray(INDICES), "PNG", INDICES),
    "grey, BMP": (Image.fromarray(INDICES), "BMP", INDICES),
    "grey of 16 bits": (Image.fromarray(DEEP), "PNG", DEEP),
}
OPTIONS: dict[str, dict[str, Any]] = {"PNG with tRNS": {"transparency": 0}, "PNG of 4 bits": {"bits": 4}}


@pytest.mark.parametrize("name", STORED)
def test_numbers_are_those_that_are_stored(name: str) -> None:
    image, kind, wanted = STORED[name]
    file = encoded(image, kind.split()[0], **OPTIONS.get(kind, {}))
    for decoder in (BesideDecoder(), BesideDecoder("numbers")):
        found = decoder.decode(file)
        assert found.dtype == (np.uint16 if wanted.dtype == np.uint16 else np.uint8)
        assert found[..., 0].tolist() == wanted.astype(found.dtype).tolist()
        assert found.shape == (*wanted.shape, 1)
        assert not decoder.is_picture(file)
    picture = BesideDecoder("picture").decode(file)
    if wanted.dtype != np.uint16:
        assert (picture == np.asarray(image.convert("RGB"))).all()
    else:
        assert (picture == (wanted >> 8)[..., None]).all()


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "WEBP", "JPEG"])
def test_colours_of_8_bits_are_pictures(file_format: str) -> None:
    file = encoded(Image.fromarray(COLOURS), file_format)
    with Image.open(io.BytesIO(file)) as opened:
        wanted = np.asarray(opened.convert("RGB"))
    kinds: tuple[Kind | None, ...] = (None, "picture", "numbers")
    for kind in kinds:
        decoder = BesideDecoder(kind)
        assert (decoder.decode(file) == wanted).all()
        assert decoder.is_picture(file) is (kind != "numbers")


def test_an_opacity_is_no_part_of_a_picture_and_one_of_numbers() -> None:
    pixels = np.dstack([COLOURS, INDICES])
    assert (BesideDecoder().decode(encoded(Image.fromarray(pixels))) == COLOURS).all()
    assert (BesideDecoder("numbers").decode(encoded(Image.fromarray(pixels))) == pixels).all()


def test_arrays_come_as_they_are_and_only_bytes_can_be_pictures() -> None:
    floats = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3, 1)
    assert BesideDecoder().decode(floats) is floats
    assert BesideDecoder("picture").decode(INDICES[..., None]).tolist() == np.stack([INDICES] * 3, -1).tolist()
    with pytest.raises(ImageDecodeError, match=re.escape("It is float32 [2, 3, 1], and a picture is uint8")):
        BesideDecoder("picture").decode(floats)


@pytest.mark.parametrize(
    ("mode", "dtype", "numbers"),
    [
        ("P", np.uint8, INDICES),
        ("1", np.uint8, INDICES > 1),
        ("L", np.uint8, INDICES),
        ("I;16", np.uint16, DEEP),
        ("I", np.int32, DEEP.astype(np.int32) * -70000),
        ("F", np.float32, DEEP / np.float32(7)),
    ],
)
def test_numbers_of_pillows_images_are_kept(mode: str, dtype: Any, numbers: np.ndarray) -> None:
    image = palette_of(INDICES) if mode == "P" else Image.fromarray(numbers)
    assert image.mode == mode
    found = image_beside(image)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (dtype, (2, 3, 1))
    assert found[..., 0].tolist() == numbers.astype(dtype).tolist()


def test_channels_of_arrays_are_the_first_or_the_last_axis() -> None:
    deep = np.zeros((13, 40, 50), np.uint16)
    for shape in ((40, 50), (40, 50, 13), (40, 50, 1), (1, 40, 50), (13, 40, 50)):
        found = image_beside(np.resize(deep, shape))
        assert isinstance(found, np.ndarray)
        assert found.shape[:2] == (40, 50)
    for shape in ((12, 12, 13), (13, 12, 12), (12, 12, 12)):  # A square is the image's.
        found = image_beside(np.resize(deep, shape))
        assert isinstance(found, np.ndarray)
        assert found.shape[:2] == (12, 12)
    assert image_beside(torch.zeros(12, 12, 12)).shape == (12, 12, 12)  # type: ignore[union-attr]
    assert image_beside(torch.zeros(4, 50, 3)).shape == (50, 3, 4)  # type: ignore[union-attr]
    assert image_beside(np.zeros((4, 50, 3))).shape == (4, 50, 3)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=re.escape("It is uint16 [3], and an image is [h, w]")):
        image_beside(np.zeros(3, np.uint16))


def test_a_picture_is_cut_as_pillow_resizes_it_and_padded_with_the_fill() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (40, 30, 3)).astype(np.uint8)
    crops = Crops(np.array([(4, 6, 20, 16)]), flips=np.array([True]))
    parameters = crops.parameters(np.array([(40, 30)]), (9, 11), np.array([False]))
    wanted = Image.fromarray(pixels[4:24, 6:22]).resize((11, 9), Image.Resampling.BILINEAR)
    (found,) = cut_alike([pixels], parameters, (9, 11), [True])
    assert (found == np.asarray(wanted)[:, ::-1]).all()
    padded = Crops(np.array([(-1, -2, 4, 6)])).parameters(np.array([(2, 3)]), (4, 6), np.array([False]))
    (found,) = cut_alike([COLOURS], padded, (4, 6), [True], (9, 8, 7))
    assert (found[1:3, 2:5] == COLOURS).all()
    assert found[0, 0].tolist() == found[3, 5].tolist() == [9, 8, 7]
