"""The 1,797 handwritten digits, and which of them are the test split."""

import gzip
import io
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.demo.spec import NUM_DIGITS_TEST

LABELS = tuple("0123456789")
_MAX_VALUE = 16


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns images, uint8 [1797, 8, 8, 1] (the file's 0..16 scaled to 0..255), and labels, int64 [1797], 0..9."""
    packed = resources.files("tfds_torch.demo").joinpath("data", "digits.csv.gz").read_bytes()
    rows = np.loadtxt(io.StringIO(gzip.decompress(packed).decode("ascii")), delimiter=",", dtype=np.int64)  # [1797, 65]
    images = np.rint(rows[:, :-1] * (255 / _MAX_VALUE)).astype(np.uint8)
    return images.reshape(-1, 8, 8, 1), rows[:, -1]


def draw_test_rows(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Returns the rows of the test split: of every label the same share, drawn by the seed.

    Args:
        labels: int64 [N].
        seed: which rows of each label are drawn.

    Returns:
        int64 [360], ascending. A label's count is its exact share of 360, rounded so that the sum is 360.
    """
    counts = np.bincount(labels)
    shares = counts * NUM_DIGITS_TEST / len(labels)
    taken = np.floor(shares).astype(np.int64)
    # Largest remainders first; a stable sort, so that ties do not depend on numpy's choice of algorithm.
    most_cut = np.argsort(taken - shares, kind="stable")
    taken[most_cut[: NUM_DIGITS_TEST - taken.sum()]] += 1
    drawn = [
        np.random.default_rng([seed, label]).permutation(np.flatnonzero(labels == label))[:num]
        for label, num in enumerate(taken)
    ]
    return np.sort(np.concatenate(drawn))


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Returns a grayscale PNG file of an image uint8 [H, W, 1]."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()
