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
from demo.reading import build_each
from tfds_torch.demo.embedded import draw_test_rows, read_digits
from tfds_torch.demo.photographs import make_photograph
from tfds_torch.demo.spec import DemoSpec

Examples = dict[tuple[str, str], list[dict[str, Any]]]


def digest(data: bytes) -> str:
    """Stands for a file: pytest takes minutes to show how two long `bytes` differ."""
    return hashlib.sha256(data).hexdigest()


def read_shard_lengths(folder: Path) -> dict[str, list[int]]:
    info = json.loads((folder / "dataset_info.json").read_text())
    return {split["name"]: [int(length) for length in split["shardLengths"]] for split in info["splits"]}


def read_features(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "features.json").read_text())["featuresDict"]["features"]


def test_a_demo_dataset_is_written_without_tensorflow(run_python: RunPython, tmp_path: Path) -> None:
    code = """
import sys
from tfds_torch.demo.preparation import build
from tfds_torch.demo.spec import DemoSpec
for spec in DemoSpec.embedded("digits"), DemoSpec.fake("cifar10", 3):
    print(build(spec, sys.argv[1], "nothing", progress=False))
print("tensorflow" in sys.modules)
"""
    done = run_python("-c", code, str(tmp_path))
    assert done.stdout.splitlines() == ["digits/1.0.0", "cifar10/3.0.2", "False"], done.stderr


def test_digits_has_1437_and_360_examples_and_the_asked_shards_of_train(demo_root: Path) -> None:
    lengths = read_shard_lengths(demo_root / "digits" / "1.0.0")
    assert lengths == {"train": [479, 479, 479], "test": [360]}
    assert sorted(path.name for path in (demo_root / "digits" / "1.0.0").glob("*tfrecord*")) == [
        "digits-test.tfrecord-00000-of-00001",
        *(f"digits-train.tfrecord-{shard:05}-of-00003" for shard in range(3)),
    ]


def test_digits_holds_every_row_of_the_file_once_with_its_label(examples: Examples) -> None:
    images, labels = read_digits()
    both = examples["digits", "train"] + examples["digits", "test"]
    found = sorted((digest(example["pixels"].tobytes()), int(example["label"])) for example in both)
    assert found == sorted((digest(image.tobytes()), int(label)) for image, label in zip(images, labels, strict=True))


def test_digits_test_is_the_drawn_rows(examples: Examples) -> None:
    images, labels = read_digits()
    rows = draw_test_rows(labels, 0)
    found = sorted(
        (digest(example["pixels"].tobytes()), int(example["label"])) for example in examples["digits", "test"]
    )
    assert found == sorted((digest(images[row].tobytes()), int(labels[row])) for row in rows)


def test_digits_are_png_of_8_by_8_gray_and_ten_classes(demo_root: Path, examples: Examples) -> None:
    features = read_features(demo_root / "digits" / "1.0.0")
    assert features["image"]["image"] == {
        "shape": {"dimensions": ["8", "8", "1"]},
        "dtype": "uint8",
        "encodingFormat": "png",
    }
    assert features["label"]["classLabel"] == {"numClasses": "10"}
    assert (demo_root / "digits" / "1.0.0" / "label.labels.txt").read_text().split() == list("0123456789")
    example = examples["digits", "train"][0]
    assert Image.open(io.BytesIO(example["image"])).format == "PNG"
    assert example["pixels"].shape == (8, 8, 1)
    assert example["pixels"].dtype == np.uint8


def test_photos_are_the_jpeg_bytes_as_they_were_made(examples: Examples) -> None:
    made = {}
    for index in range(PHOTOS["num_examples"]):
        label, jpeg = make_photograph(index, PHOTOS["seed"])
        made[f"{label}_{index:06d}.jpg"] = digest(jpeg)
    found = {example["file_name"].decode(): digest(example["image"]) for example in examples["photos", "train"]}
    assert found == made
    assert list(made)[12] == "china_000012.jpg"


def test_photos_labels_are_the_classes_of_the_file_names(demo_root: Path, examples: Examples) -> None:
    assert (demo_root / "photos" / "1.0.0" / "label.labels.txt").read_text().split() == ["china", "flower"]
    for example in examples["photos", "train"]:
        assert example["file_name"].decode().startswith(["china_", "flower_"][example["label"]])
        assert example["pixels"].shape[2] == 3
        assert example["pixels"].dtype == np.uint8


def test_the_features_of_photos_are_those_of_an_image_folder(demo_root: Path) -> None:
    features = read_features(demo_root / "photos" / "1.0.0")
    assert sorted(features) == ["file_name", "image", "label"]
    assert features["image"]["image"] == {
        "shape": {"dimensions": ["-1", "-1", "3"]},
        "dtype": "uint8",
        "encodingFormat": "jpeg",
    }
    assert features["label"]["classLabel"] == {"numClasses": "2"}
    assert features["file_name"]["pythonClassName"].endswith("Text")


def test_credits_travel_with_the_dataset(demo_root: Path) -> None:
    digits = json.loads((demo_root / "digits" / "1.0.0" / "dataset_info.json").read_text())
    photos = json.loads((demo_root / "photos" / "1.0.0" / "dataset_info.json").read_text())
    assert "Alpaydin" in digits["citation"]
    assert "CC BY 4.0" in digits["description"]
    for credit in ("danielbuechele", "vultilion", "CC BY 2.0"):
        assert credit in photos["description"]


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
