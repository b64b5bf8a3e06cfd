"""Image folders: the examples of `tfds.ImageFolder`, with every promise of a prepared dataset."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from image_folder_fixtures import LABELS, NUM_TEST, NUM_TRAIN
from PIL import Image
from tfds_fixtures import call_reader

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds

NAME = "image_folder"
FIELDS = ("image", "label", "image/filename")


@dataclass(frozen=True)
class Theirs:
    """What `tfds.ImageFolder` says and reads."""

    class_names: list[str]
    num_examples: dict[str, int]
    examples: dict[str, list[dict[str, Any]]]


def read_by_tfds(root: str) -> Theirs:
    """Runs in the reader."""
    builder = tfds.ImageFolder(root)
    splits = {split: info.num_examples for split, info in builder.info.splits.items()}
    examples = {split: list(tfds.as_numpy(builder.as_dataset(split=split))) for split in splits if splits[split]}
    return Theirs(builder.info.features["label"].names, splits, examples)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Theirs:
    return call_reader(read_by_tfds, str(folder))


@pytest.fixture(scope="module")
def ids(theirs: Theirs, folder: Path) -> dict[str, list[str]]:
    """Split -> paths below the root, in TFDS's order."""
    return {
        split: [os.path.relpath(example["image/filename"].decode(), folder) for example in examples]
        for split, examples in theirs.examples.items()
    }


# As TFDS


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_example_is_the_one_of_tfds_in_its_order(folder: Path, theirs: Theirs, split: str) -> None:
    read = list(ParserTfds(folder, NAME, split, batch_size=4).batches(fields=FIELDS))
    files = [name for batch in read for name in batch.features["image/filename"]]
    images = [image for batch in read for image in batch.image]
    examples = theirs.examples[split]
    assert [i for batch in read for i in batch.index.tolist()] == list(range(len(examples)))
    assert files == [example["image/filename"].decode() for example in examples]
    assert [int(label) for batch in read for label in batch.label] == [example["label"] for example in examples]
    for ours, example, name in zip(images, examples, files, strict=True):
        with Image.open(name) as stored:
            np.testing.assert_array_equal(ours, np.asarray(stored.convert("RGB")))
        assert ours.shape == example["image"].shape  # tensorflow's decoder has another arithmetic for JPEG.
        assert abs(ours.astype(int) - example["image"]).max() <= 4


def test_splits_and_classes_are_those_of_tfds(folder: Path, theirs: Theirs) -> None:
    assert ParserTfds.split_names(folder, NAME) == list(theirs.num_examples) == ["empty", "test", "train"]
    for split, number in theirs.num_examples.items():
        parser = ParserTfds(folder, NAME, split)
        assert parser.num_examples == number
        assert parser.class_names == theirs.class_names == list(LABELS)
    assert theirs.num_examples == {"empty": 0, "test": NUM_TEST, "train": NUM_TRAIN}


# Splits

EXPRESSIONS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "train[50%:]": lambda train, test: train[29:],
    "train[-5:]": lambda train, test: train[-5:],
    "test + train[3:4]": lambda train, test: test + train[3:4],
    "train[40:]+train[:10]": lambda train, test: train[40:] + train[:10],
    "all": lambda train, test: test + train,
    "empty": lambda train, test: [],
}


@pytest.mark.parametrize("split", EXPRESSIONS)
def test_every_split_expression_reads_in_the_order_of_tfds(folder: Path, ids: dict[str, list[str]], split: str) -> None:
    parser = ParserTfds(folder, NAME, split, batch_size=4)
    wanted = EXPRESSIONS[split](ids["train"], ids["test"])
    assert parser.num_examples == len(wanted)
    assert parser.ids(np.arange(parser.num_examples)) == parser.filenames() == wanted
    read = list(parser.batches(fields=("label", "image/filename")))
    assert [name for batch in read for name in batch.id] == wanted
    assert [int(label) for batch in read for label in batch.label] == [
        LABELS.index(name.split("/")[1]) for name in wanted
    ]
    assert [name for batch in read for name in batch.features["image/filename"]] == [
        str(folder / name) for name in wanted
    ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "tranin",
            "The splits are: empty (0 examples), test (14 examples), train (58 examples). Did you mean 'train'?",
        ),
        ("notes", "The splits are: empty (0 examples), test (14 examples), train (58 examples)."),
        ("train[", "image_folder:1.0.0: split 'train['"),
        ("train[9:3]", "begins at example 9 and ends before it, at 3"),
    ],
)
def test_a_split_that_cannot_be_is_refused(folder: Path, split: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ParserTfds(folder, NAME, split)
    assert message in str(caught.value)
