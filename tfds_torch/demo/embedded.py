"""The handwritten digits, and photographs of ImageNet-like size. Imports TFDS: for the process that builds."""

import gzip
import io
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.demo import photographs
from tfds_torch.demo.spec import NUM_DIGITS_TEST, Content, DemoSpec, Example

_MAX_VALUE = 16  # Of a digit's pixel, in the file.


def make_digits(spec: DemoSpec) -> Content:
    """Return the handwritten digits, stratified into train and test."""
    images, labels = read_digits()
    test_rows = draw_test_rows(labels, spec.seed).tolist()
    rows = {"train": sorted(set(range(len(labels))) - set(test_rows)), "test": test_rows}

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for row in rows[split]:
            yield row, {"image": encode_png(images[row]), "label": int(labels[row])}

    info = {
        "description": "1,797 handwritten digits, 8x8 gray levels, stratified by label into train and test. "
        "Values 0..16 of the source are scaled to 0..255. Licence: CC BY 4.0.",
        "citation": 'E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (test set), '
        "UCI Machine Learning Repository.",
        "homepage": "https://archive.ics.uci.edu/dataset/80",
        "features": _features((8, 8, 1), "png", tuple("0123456789")),
        "supervised_keys": ("image", "label"),
    }
    return Content(info, make_examples)


def make_photos(spec: DemoSpec) -> Content:
    """Return photographs of ImageNet-like size."""

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.split_sizes[split]):
            label, jpeg = photographs.make_photograph(index, spec.seed)
            yield index, {"image": jpeg, "label": label, "file_name": f"{label}_{index:06d}.jpg"}

    info = {
        "description": "JPEG photographs of ImageNet-like size, cut, scaled, flipped, toned and grained from two: "
        "'china' by danielbuechele and 'flower' by vultilion, both CC BY 2.0.",
        "homepage": "https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
        "features": _features((None, None, 3), "jpeg", photographs.LABELS, file_name=tfds.features.Text()),
        "supervised_keys": ("image", "label"),
    }
    return Content(info, make_examples)


def _features(shape: tuple[int | None, ...], encoding: str, labels: tuple[str, ...], **others: Any) -> Any:
    image = tfds.features.Image(shape=shape, encoding_format=encoding)
    return tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(names=list(labels)), **others})


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images, uint8 [1797, 8, 8, 1] (the file's 0..16 scaled to 0..255), and labels, int64 [1797], 0..9."""
    packed = resources.files("tfds_torch.demo").joinpath("data", "digits.csv.gz").read_bytes()
    rows = np.loadtxt(io.StringIO(gzip.decompress(packed).decode("ascii")), delimiter=",", dtype=np.int64)  # [1797, 65]
    images = np.rint(rows[:, :-1] * (255 / _MAX_VALUE)).astype(np.uint8)
    return images.reshape(-1, 8, 8, 1), rows[:, -1]


def draw_test_rows(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the rows of the test split: of every label the same share, drawn by the seed.

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
    """Return a grayscale PNG file of an image uint8 [H, W, 1]."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()
