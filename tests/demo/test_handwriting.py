import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfds_torch.demo.embedded import draw_test_rows, encode_png, read_digits


@pytest.fixture(scope="module")
def table(root: Path) -> np.ndarray:
    """The file's own numbers, [1797, 65]."""
    with gzip.open(root / "tfds_torch" / "demo" / "data" / "digits.csv.gz", "rt") as file:
        return np.array([[int(value) for value in line.split(",")] for line in file])


def test_values_0_to_16_become_0_to_255_and_rows_keep_their_label(table: np.ndarray) -> None:
    images, labels = read_digits()
    assert images.shape == (1797, 8, 8, 1)
    assert images.dtype == np.uint8
    assert labels.tolist() == table[:, 64].tolist()
    assert (images.min(), images.max()) == (0, 255)
    assert np.rint(images.reshape(1797, 64) / 255 * 16).astype(int).tolist() == table[:, :64].tolist()


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_the_test_split_has_360_rows_and_every_label_its_share(seed: int) -> None:
    _, labels = read_digits()
    rows = draw_test_rows(labels, seed)
    assert len(rows) == len(set(rows.tolist())) == 360
    shares = np.bincount(labels) * 360 / 1797
    assert np.abs(np.bincount(labels[rows]) - shares).max() < 1
    assert rows.tolist() == draw_test_rows(labels, seed).tolist()


def test_another_seed_draws_other_rows() -> None:
    _, labels = read_digits()
    assert draw_test_rows(labels, 0).tolist() != draw_test_rows(labels, 1).tolist()


def test_png_files_are_gray_and_lossless() -> None:
    images, _ = read_digits()
    file = Image.open(io.BytesIO(encode_png(images[3])))
    assert (file.format, file.mode) == ("PNG", "L")
    assert np.asarray(file).tolist() == images[3, :, :, 0].tolist()
