"""A small image folder, as `tfds.ImageFolder` reads it: `root/<split>/<label>/<image>`."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tfds_fixtures import draw_image

NUM_TRAIN, NUM_TEST = 58, 14
LABELS = ("circle", "grün x", "square", "zebra")
"""`zebra` has no image in train, `square` none in test."""

_FORMATS = (".png", ".jpg", ".JPEG", ".Png")
_CHANNELS = {".png": 4, ".Png": 3, ".jpg": 3, ".JPEG": 1}


def write_image_folder(root: Path) -> Path:
    """Writes `train`, `test`, a split `empty`, and what does not belong there; returns the root.

    .png files have an alpha channel, .JPEG files are gray.
    """
    for split, labels, number in (("train", LABELS[:3], NUM_TRAIN), ("test", LABELS[::3], NUM_TEST)):
        for label in LABELS:
            (root / split / label).mkdir(parents=True)
        for i in range(number):
            extension = _FORMATS[i % 4]
            write_image(root / split / labels[i % len(labels)] / f"a {i}{extension}", i, _CHANNELS[extension])
    (root / "empty" / "square").mkdir(parents=True)
    (root / "notes").mkdir()
    (root / "notes" / "not an image.txt").write_text("no label folder: no split")
    (root / "train" / "circle" / "readme.txt").write_text("no image")
    (root / "train" / "stray.png").write_bytes(b"not below a label")
    (root / "train" / "circle" / "more").mkdir()
    return root


def write_image(path: Path, number: int, channels: int = 3) -> None:
    pixels = draw_image(number, channels)
    pixels = pixels[..., 0] if channels == 1 else pixels
    Image.fromarray(np.ascontiguousarray(pixels)).save(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: copy before changing anything."""
    return write_image_folder(tmp_path_factory.mktemp("folder") / "root")


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "own"))
