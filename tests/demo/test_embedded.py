"""Digits and photographs: how they are made, and that TFDS reads them from the files alone."""

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from PIL import Image
from zygote import tensorflow_zygote

from demo.conftest import PHOTOS
from demo.fresh import ask_a_bucket, build_each, build_watched, read_with_tfds
from tfds_torch.demo.embedded import draw_test_rows, encode_png, read_digits
from tfds_torch.demo.photographs import LABELS, make_photograph
from tfds_torch.demo.spec import DemoSpec

Examples = dict[tuple[str, str], list[dict[str, Any]]]
NUM = 160


@pytest.fixture(scope="module")
def examples(demo_root: Path) -> Examples:
    """(name, split) -> examples as TFDS reads them."""
    splits = [("digits", "train"), ("digits", "test"), ("photos", "train")]
    return tensorflow_zygote().call(read_with_tfds, str(demo_root), splits)


@pytest.fixture(scope="module")
def series() -> list[tuple[str, bytes]]:
    return [make_photograph(index, seed=0) for index in range(NUM)]


def digest(data: bytes) -> str:
    """Stands for a file: pytest takes minutes to show how two long `bytes` differ."""
    return hashlib.sha256(data).hexdigest()


def read_shard_lengths(folder: Path) -> dict[str, list[int]]:
    info = json.loads((folder / "dataset_info.json").read_text())
    return {split["name"]: [int(length) for length in split["shardLengths"]] for split in info["splits"]}


def test_a_demo_dataset_is_written_without_tensorflow(run_python: RunPython, tmp_path: Path) -> None:
    code = """
import sys
from tfds_torch.demo.preparation import build
from tfds_torch.demo.spec import DemoSpec
older = DemoSpec.fake("food101:1.0.0", 1, splits=("train",))
for spec in DemoSpec.embedded("digits"), DemoSpec.fake("cifar10", 3), older:
    print(build(spec, sys.argv[1], "nothing", progress=False))
print("tensorflow" in sys.modules)
"""
    done = run_python("-c", code, str(tmp_path))
    assert done.stdout.splitlines() == ["digits/1.0.0", "cifar10/3.0.2", "food101/1.0.0", "False"], done.stderr


@pytest.mark.parametrize(
    "numbers",
    [
        ((1, 1), (5, 5), (24, 7)),
        pytest.param(((360, 7),), marks=pytest.mark.slow),  # Also the size of the test split of digits.
    ],
)
def test_the_number_of_shards_is_exact(numbers: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    specs = [DemoSpec.embedded("photos", *one) for one in numbers]
    tensorflow_zygote().call(build_each, str(tmp_path), specs)
    for number, spec in enumerate(specs):
        folder = tmp_path / str(number) / "photos" / "1.0.0"
        lengths = read_shard_lengths(folder)["train"]
        assert (sum(lengths), len(lengths)) == (spec.num_examples, spec.num_shards)
        assert min(lengths) >= 1
        assert len(list(folder.glob("photos-train.tfrecord-*"))) == spec.num_shards


FEATURES = {
    "digits": ("0123456789", {"shape": {"dimensions": ["8", "8", "1"]}, "dtype": "uint8", "encodingFormat": "png"}, []),
    "photos": (
        LABELS,
        {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"},
        ["file_name"],
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_the_features_are_those_of_an_image_folder(demo_root: Path, name: str) -> None:
    labels, image, others = FEATURES[name]
    folder = demo_root / name / "1.0.0"
    features = json.loads((folder / "features.json").read_text())["featuresDict"]["features"]
    assert sorted(features) == sorted(["image", "label", *others])
    assert features["image"]["image"] == image
    assert features["label"]["classLabel"] == {"numClasses": str(len(labels))}
    assert (folder / "label.labels.txt").read_text().split() == list(labels)


def test_credits_travel_with_the_dataset(demo_root: Path) -> None:
    digits, photos = (
        json.loads((demo_root / name / "1.0.0" / "dataset_info.json").read_text()) for name in ("digits", "photos")
    )
    assert "Alpaydin" in digits["citation"]
    assert "CC BY 4.0" in digits["description"]
    for credit in ("danielbuechele", "vultilion", "CC BY 2.0"):
        assert credit in photos["description"]


# Digits


def test_values_0_to_16_become_0_to_255_and_rows_keep_their_label(root: Path) -> None:
    with gzip.open(root / "tfds_torch" / "demo" / "data" / "digits.csv.gz", "rt") as file:
        table = np.array([[int(value) for value in line.split(",")] for line in file])  # [1797, 65]
    images, labels = read_digits()
    assert (images.shape, images.dtype) == ((1797, 8, 8, 1), np.uint8)
    assert labels.tolist() == table[:, 64].tolist()
    assert (images.min(), images.max()) == (0, 255)
    assert np.rint(images.reshape(1797, 64) / 255 * 16).astype(int).tolist() == table[:, :64].tolist()
    image = Image.open(io.BytesIO(encode_png(images[3])))
    assert (image.format, image.mode) == ("PNG", "L")
    assert np.asarray(image).tolist() == images[3, :, :, 0].tolist()


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_the_test_split_has_360_rows_and_every_label_its_share(seed: int) -> None:
    _, labels = read_digits()
    rows = draw_test_rows(labels, seed)
    assert len(rows) == len(set(rows.tolist())) == 360
    shares = np.bincount(labels) * 360 / 1797
    assert np.abs(np.bincount(labels[rows]) - shares).max() < 1
    assert rows.tolist() == draw_test_rows(labels, seed).tolist() != draw_test_rows(labels, seed + 1).tolist()


def test_digits_holds_every_row_of_the_file_once_and_the_drawn_ones_are_test(
    demo_root: Path, examples: Examples
) -> None:
    assert read_shard_lengths(demo_root / "digits" / "1.0.0") == {"train": [479, 479, 479], "test": [360]}
    images, labels = read_digits()
    is_test = np.isin(np.arange(1797), draw_test_rows(labels, 0))
    for split, chosen in (("train", ~is_test), ("test", is_test)):
        rows = zip(images[chosen], labels[chosen], strict=True)
        found = ((digest(example["pixels"].tobytes()), int(example["label"])) for example in examples["digits", split])
        assert sorted(found) == sorted((digest(image.tobytes()), int(label)) for image, label in rows)


# Photographs


def test_photos_are_the_jpeg_bytes_as_they_were_made(examples: Examples) -> None:
    made = {}
    for index in range(PHOTOS["num_examples"]):
        label, jpeg = make_photograph(index, PHOTOS["seed"])
        made[f"{label}_{index:06d}.jpg"] = (digest(jpeg), LABELS.index(label))
    read = examples["photos", "train"]
    found = {example["file_name"].decode(): (digest(example["image"]), example["label"]) for example in read}
    assert found == made
    assert list(made)[12] == "china_000012.jpg"


def test_files_have_60_to_120_kilobytes(series: list[tuple[str, bytes]]) -> None:
    for label in LABELS:
        kilobytes = np.array([len(jpeg) / 1000 for found, jpeg in series if found == label])
        assert np.mean((kilobytes >= 60) & (kilobytes <= 120)) > 0.98
        assert 50 < kilobytes.min() < kilobytes.max() < 135
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


def test_a_photograph_depends_on_its_seed_and_index_alone(series: list[tuple[str, bytes]]) -> None:
    assert [label for label, _ in series] == ["china", "flower"] * (NUM // 2)
    assert len({jpeg for _, jpeg in series}) == NUM
    for index in (NUM - 1, 7, 0):
        again, other = (digest(make_photograph(index, seed)[1]) for seed in (0, 1))
        assert again == digest(series[index][1]) != other
    means: dict[str, list[Any]] = {label: [] for label in LABELS}
    for label, jpeg in series[:40]:
        means[label].append(np.asarray(Image.open(io.BytesIO(jpeg)), dtype=np.float64).mean(axis=(0, 1)))
    red_over_blue = {label: np.mean([colour[0] - colour[2] for colour in colours]) for label, colours in means.items()}
    assert red_over_blue["flower"] > red_over_blue["china"]


# The network


@pytest.mark.slow
def test_a_build_asks_nothing_of_the_network(tmp_path: Path) -> None:
    # Builders of the fakes read label names from the download.
    fakes = [DemoSpec.fake("cifar10", 3), DemoSpec.fake("coco/2017", 3)]
    specs = [DemoSpec.embedded("digits"), DemoSpec.embedded("photos", 3), *fakes]
    asked = tensorflow_zygote().call(build_watched, str(tmp_path), specs)
    assert asked == {spec.full_name: [] for spec in specs}


@pytest.mark.slow
def test_a_request_of_tensorflow_would_have_been_seen(tmp_path: Path) -> None:
    """The test above can fail."""
    assert "google" in tensorflow_zygote().call(ask_a_bucket, str(tmp_path))
