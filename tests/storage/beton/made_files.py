"""Small `.beton` files for tests."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.storage.beton.fields import (
    BetonArray,
    BetonBytes,
    BetonField,
    BetonFloat,
    BetonInt,
    BetonJson,
    BetonTensor,
)
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

DATA = Path(__file__).with_name("data")
PAGE = 2**21
FIELDS: dict[str, BetonField] = {
    "image": BetonImage("raw"),
    "label": BetonInt(),
    "score": BetonFloat(),
    "text": BetonBytes(),
    "facts": BetonJson(),
    "box": BetonArray("float32", (2, 2)),
    "codes": BetonTensor("int16", (3,)),
}


def unpack(name: str, folder: Path) -> Path:
    """Writes a file of FFCV, unpacked, into a folder."""
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((DATA / name).read_bytes()))
    return path


def sample_of(number: int, size: tuple[int, int] = (6, 5)) -> dict[str, Any]:
    """Returns a sample with a value for each of FIELDS."""
    return {
        "image": np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8),
        "label": number % 3,
        "score": number / 8,
        "text": b"text" * number,
        "facts": {"number": number, "name": "ä"},
        "box": np.full((2, 2), number, np.float32),
        "codes": np.arange(3, dtype=np.int16) * number,
    }


def write_samples(path: Path, num_samples: int = 7, *, with_ids: bool = True, **options: Any) -> list[dict[str, Any]]:
    """Writes samples with ids, and returns them."""
    samples = [sample_of(number) for number in range(num_samples)]
    with BetonWriter(path, FIELDS, num_samples, page_size=PAGE, **options) as writer:
        for number, sample in enumerate(samples):
            writer.add(sample, id=f"folder/{number}.png" if with_ids else None)
    return samples


def write_images(path: Path, num_samples: int, side: int = 8, **options: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Writes raw images of one size with the labels n % 10, and returns the pixels, uint8 [n, side, side, 3]."""
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, side, side, 3), dtype=np.uint8)
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(path, fields, num_samples, page_size=PAGE, **options) as writer:
        for number in range(num_samples):
            writer.add((pixels[number], number % 10))
    return pixels


def left_behind(folder: Path) -> list[str]:
    """Returns the temporary files in a folder."""
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]
