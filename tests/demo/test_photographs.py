import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from tfds_torch.demo.photographs import LABELS, make_photograph

NUM = 160


@pytest.fixture(scope="module")
def series() -> list[tuple[str, bytes]]:
    return [make_photograph(index, seed=0) for index in range(NUM)]


def test_files_have_60_to_120_kilobytes(series: list[tuple[str, bytes]]) -> None:
    for label in LABELS:
        kilobytes = np.array([len(jpeg) / 1000 for found, jpeg in series if found == label])
        assert np.mean((kilobytes >= 60) & (kilobytes <= 120)) > 0.98
        assert kilobytes.min() > 50
        assert kilobytes.max() < 135
        assert 80 < kilobytes.mean() < 100


def test_images_are_rgb_of_about_500_pixels_in_both_orientations(series: list[tuple[str, bytes]]) -> None:
    images = [Image.open(io.BytesIO(jpeg)) for _, jpeg in series]
    sizes = np.array([image.size for image in images])
    assert {(image.format, image.mode) for image in images} == {("JPEG", "RGB")}
    assert (sizes.max(axis=1) >= 470).all()
    assert (sizes.max(axis=1) <= 520).all()
    assert (sizes.min(axis=1) >= 300).all()
    assert 0.6 < np.mean(sizes[:, 0] > sizes[:, 1]) < 0.8
    assert len({tuple(size) for size in sizes.tolist()}) > NUM / 2


def test_labels_alternate_and_no_two_files_are_alike(series: list[tuple[str, bytes]]) -> None:
    assert [label for label, _ in series] == ["china", "flower"] * (NUM // 2)
    assert len({jpeg for _, jpeg in series}) == NUM


def test_a_photograph_depends_on_its_seed_and_index_alone(series: list[tuple[str, bytes]]) -> None:
    for index in (NUM - 1, 7, 0):
        again, other = (hashlib.sha256(make_photograph(index, seed)[1]).digest() for seed in (0, 1))
        assert again == hashlib.sha256(series[index][1]).digest()
        assert again != other


def test_the_two_classes_look_different(series: list[tuple[str, bytes]]) -> None:
    means = {label: [] for label in LABELS}
    for label, jpeg in series[:40]:
        means[label].append(np.asarray(Image.open(io.BytesIO(jpeg)), dtype=np.float64).mean(axis=(0, 1)))
    red_over_blue = {label: np.array(colours)[:, 0] - np.array(colours)[:, 2] for label, colours in means.items()}
    assert red_over_blue["flower"].mean() > red_over_blue["china"].mean()
