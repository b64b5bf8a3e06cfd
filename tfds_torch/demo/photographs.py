"""JPEG photographs of ImageNet-like size, each a function of (seed, index) alone, from two real photographs.

(And of Pillow's and numpy's versions: they decide how a number becomes a pixel.)

A piece of a photograph is cut, scaled to a long side of about 500 pixels, perhaps flipped, toned, and given film
grain: with the grain and the quality below, a file has the 60 to 120 KB of an ImageNet file, and costs a decoder the
same.
"""

import functools
import io
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LABELS = ("china", "flower")

_JPEG_QUALITY = 94
# Standard deviation in gray levels; the blurred background of the flower leaves more room in the file.
_GRAIN = {"china": 4.0, "flower": 6.0}
_GRAIN_FIELD = 1024
_LONG_SIDE = (470, 521)
_ASPECT = (0.66, 0.8)
_PROBABILITY_LANDSCAPE = 0.7


def make_photograph(index: int, seed: int) -> tuple[str, bytes]:
    """Return photograph `index` of an endless series: even ones show china, odd ones a flower.

    Returns:
        The label, one of `LABELS`, and an RGB JPEG file, long side 470 to 520 pixels, landscape or portrait.
    """
    label = LABELS[index % len(LABELS)]
    rng = np.random.default_rng([seed, index])
    image = _cut(load_photograph(label), rng)
    image = image.point(draw_tones(rng))
    pixels = _add_grain(image, label, rng)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_JPEG_QUALITY)
    return label, file.getvalue()


@functools.cache
def load_photograph(label: str) -> Image.Image:
    """Return one of the two photographs, RGB, 640x427."""
    with resources.files("tfds_torch.demo").joinpath("data", f"{label}.jpg").open("rb") as file:
        return Image.open(file).convert("RGB")


def _cut(photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a piece of 70 to 100 % of the largest that fits, scaled to the drawn size, flipped half of the time."""
    long_side = int(rng.integers(*_LONG_SIDE))
    short_side = round(long_side * rng.uniform(*_ASPECT))
    landscape = rng.random() < _PROBABILITY_LANDSCAPE
    width, height = (long_side, short_side) if landscape else (short_side, long_side)
    scale = min(photograph.width / width, photograph.height / height) * rng.uniform(0.7, 1.0)
    left = rng.uniform(0, photograph.width - width * scale)
    top = rng.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    image = photograph.resize((width, height), Image.Resampling.BICUBIC, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def draw_tones(rng: np.random.Generator) -> list[int]:
    """Draw a gamma curve for each of R, G and B, as the flat table [3 * 256] that Pillow takes."""
    gammas = rng.uniform(0.8, 1.25, size=(3, 1))
    levels = np.arange(256) / 255
    table: list[int] = np.rint(255 * levels**gammas).astype(int).ravel().tolist()  # [3, 256] -> [768]
    return table


def _add_grain(image: Image.Image, label: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the image with a window of the grain field on all three channels: uint8 [H, W, 3]."""
    top, left = rng.integers(0, _GRAIN_FIELD - _LONG_SIDE[1], size=2)
    grain = grain_field(label)[top : top + image.height, left : left + image.width, None]  # [H, W, 1]
    pixels = np.asarray(image) + grain  # [H, W, 3] int16
    return np.clip(pixels, 0, 255).astype(np.uint8)


@functools.cache
def grain_field(label: str) -> NDArray[np.int16]:
    """Return noise, drawn once (drawing it per photograph would take longer than encoding it): int16 [1024, 1024]."""
    field = np.random.default_rng(0).normal(0.0, _GRAIN[label], size=(_GRAIN_FIELD, _GRAIN_FIELD))
    return np.rint(field).astype(np.int16)
