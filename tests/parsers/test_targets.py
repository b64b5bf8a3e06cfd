"""Targets, as they are read: new labels of a class map, and lists of several binary fields."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import CLASSES, NUM_TEST, NUM_TRAIN, Datasets
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset
from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

BATCH_SIZE = 10
BY_NAME = {name: (label + 1) % 5 for label, name in enumerate(CLASSES)}  # Twice is not once.
BY_NUMBER = {number: (number + 7) % 256 for number in range(300)}
SEVERAL = ("flag", "small", "nested/count", "precise")


@dataclass(frozen=True)
class Case:
    """A target of `shapes`.

    Attributes:
        arguments: of ParserTfds.
        labels: the expected labels of the examples, by their number.
        is_scalar: whether they are `Batch.label`.
    """

    arguments: dict[str, Any]
    labels: list[Any] = field(repr=False)
    is_scalar: bool = True


NUMBERS = range(NUM_TRAIN + NUM_TEST)
POSITIONS = [[*[0] * (i % 2 == 0), *[1] * (i % 256 > 0), *[2, 3] * (i > 0)] for i in NUMBERS]
CASES = {
    "classes": Case({}, [i % 5 for i in NUMBERS]),
    "classes by name": Case({"class_map": BY_NAME}, [(i % 5 + 1) % 5 for i in NUMBERS]),
    "classes by number": Case({"class_map": {label: label + 1 for label in range(5)}}, [i % 5 + 1 for i in NUMBERS]),
    "integers": Case({"target_key": "small", "class_map": BY_NUMBER}, [(i + 7) % 256 for i in NUMBERS]),
    "booleans": Case({"target_key": "flag", "class_map": {0: 3, True: 0}}, [3 * (i % 2) for i in NUMBERS]),
    "nested integers": Case(
        {"target_key": "nested/count", "class_map": {str(i * 10**10): i + 1 for i in NUMBERS}}, [i + 1 for i in NUMBERS]
    ),
    "texts": Case(
        {"target_key": "caption", "class_map": {f"a {CLASSES[i % 5]}, number {i}, grün": i // 2 for i in NUMBERS}},
        [i // 2 for i in NUMBERS],
    ),
    "sequence": Case(
        {"target_key": "sizes", "class_map": BY_NUMBER}, [[size + 7 for size in range(i % 5)] for i in NUMBERS], False
    ),
    "sequence of fixed length": Case(
        {"target_key": "pair", "class_map": BY_NUMBER}, [[(i + 7) % 256, (i + 8) % 256] for i in NUMBERS], False
    ),
    "sequence of classes": Case(
        {"target_key": "objects/label", "class_map": BY_NAME},
        [[((i + j) % 5 + 1) % 5 for j in range(i % 4)] for i in NUMBERS],
        False,
    ),
    "ragged texts": Case(
        {"target_key": "words", "class_map": {"": 0, "b": 1} | {f"w{i}": i + 2 for i in NUMBERS}},
        [[[i + 2, j] for j in range(i % 3)] + [[]] * (i % 2) for i in NUMBERS],
        False,
    ),
    "several": Case({"target_key": SEVERAL}, POSITIONS, False),
    "several, as timm writes them": Case({"target_key": "flag, small,nested/count,precise"}, POSITIONS, False),
    "several, mapped": Case(
        {"target_key": list(SEVERAL), "class_map": {"flag": 1, 1: 2, "nested/count": 3, 3: 0}},
        [[(position + 1) % 4 for position in positions] for positions in POSITIONS],
        False,
    ),
    "one of several": Case({"target_key": ["flag"]}, [[0] if i % 2 == 0 else [] for i in NUMBERS], False),
}

PADDED = ("classes", "texts", "sequence of classes", "several, mapped")
"""Cases that are also read by three ranks: arrays and lists."""

Example = tuple[int, Any, bool, str]
"""Number of the example, label, whether it is valid, id."""


def number_of(file_name: str) -> int:
    """Returns an example's number: all its other features follow from it."""
    return int(file_name[-8:-4])


def to_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [to_plain(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def examples_of(batch: Batch) -> list[Example]:
    labels = to_plain(batch.features["label"] if batch.label is None else batch.label)
    numbers = map(number_of, batch.features["file_name"])
    return list(zip(numbers, labels, batch.valid.tolist(), batch.id, strict=True))


def make_parser(root: str | Path, name: str, **arguments: Any) -> ParserTfds:
    given: dict[str, Any] = {"split": "train+test", "batch_size": BATCH_SIZE, "image_key": None} | arguments
    return ParserTfds(root, "shapes", **given, **CASES[name].arguments)


@pytest.fixture(scope="module")
def reads(datasets: Datasets) -> dict[str, list[Batch]]:
    """Case -> its batches."""
    fields = ("label", "file_name", "small")
    return {name: list(make_parser(datasets.root, name, seed=5).batches(fields=fields)) for name in CASES}


def assert_labels(name: str, examples: list[Example], num_valid: int = NUM_TRAIN + NUM_TEST) -> None:
    """Asserts that every example has its label, and padding none."""
    case = CASES[name]
    for number, label, valid, id_ in examples:
        stored = case.labels[number]
        padding = -100 if case.is_scalar else [-100] * len(stored)
        assert label == (stored if valid else padding), (number, id_)
    assert sorted(number for number, _, valid, _ in examples if valid) == list(NUMBERS)[:num_valid]


@pytest.mark.parametrize("name", CASES)
def test_every_example_has_its_label(reads: dict[str, list[Batch]], name: str) -> None:
    assert_labels(name, [example for batch in reads[name] for example in examples_of(batch)])
    for batch in reads[name]:
        assert batch.features["small"].tolist() == [number_of(file) % 256 for file in batch.features["file_name"]]
        if CASES[name].is_scalar:  # A scalar label is an array, and others are features.
            assert batch.label.dtype == np.int64
            assert batch.features.keys() == {"file_name", "small"}
        else:
            assert batch.label is None
            assert isinstance(batch.features["label"], list)
    if name.startswith("several"):  # Positions are lists of int.
        assert {type(one) for batch in reads[name] for label in batch.features["label"] for one in label} == {int}


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_three_ranks_is_told_apart(datasets: Datasets, name: str) -> None:
    parser = make_parser(datasets.root, name)
    ranks = [
        [
            example
            for batch in parser.batches(World(rank, 3), fields=("label", "file_name"))
            for example in examples_of(batch)
        ]
        for rank in range(3)
    ]
    assert [len(examples) for examples in ranks] == [90, 90, 90]
    assert_labels(name, [example for examples in ranks for example in examples])
    assert sum(not valid for examples in ranks for _, _, valid, _ in examples) == 270 - 248


# Behind a DataLoader


def read_with_worker(parser: ParserTfds, num_workers: int, method: str) -> list[Example]:
    dataset = ImageDataset(parser, fields=("file_name", "label", "valid", "id"))
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=list, multiprocessing_context=method)
    rows = [row for batch in loader for row in batch]
    return [(number_of(file_name), to_plain(label), valid, id_) for file_name, label, valid, id_ in rows]


@pytest.mark.parametrize("name", ["classes by name", pytest.param("several, mapped", marks=pytest.mark.slow)])
def test_workers_map_every_label_once(datasets: Datasets, name: str) -> None:
    assert_labels(name, read_with_worker(make_parser(datasets.root, name), 2, "fork"))


# What a parser says of its classes


def test_the_classes_are_those_of_the_map(datasets: Datasets) -> None:
    parser = make_parser(datasets.root, "classes by name")
    assert parser.class_to_idx == BY_NAME
    assert parser.class_names == ["cross", "circle", "square", "triangle", "star"]
    parser.class_to_idx.clear()
    assert parser.class_to_idx == BY_NAME
    assert make_parser(datasets.root, "classes by number").class_names is None
    assert make_parser(datasets.root, "several, mapped").class_names == ["precise", "flag", "small", "nested/count"]
    assert (
        make_parser(datasets.root, "classes by name").fingerprint == make_parser(datasets.root, "classes").fingerprint
    )


def test_several_keys_are_the_classes(datasets: Datasets) -> None:
    for name in ("several", "several, as timm writes them"):
        parser = make_parser(datasets.root, name)
        assert parser.dataset.target_key == SEVERAL
        assert parser.class_names == list(SEVERAL)
        assert parser.class_to_idx == {"flag": 0, "small": 1, "nested/count": 2, "precise": 3}


def test_a_sequence_of_labels_has_their_classes(datasets: Datasets) -> None:
    assert ParserTfds(datasets.root, "shapes", target_key="objects/label").class_names == CLASSES
    for key in ("sizes", "words", "objects", "frames"):
        assert ParserTfds(datasets.root, "shapes", target_key=key).class_names is None


# What cannot work


@pytest.mark.parametrize("key", ["small", "flag"])
def test_padding_of_narrow_targets_has_the_label_of_padding(datasets: Datasets, key: str) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train", batch_size=4, target_key=key)
    batches = [batch for rank in range(3) for batch in parser.batches(World(rank, 3))]
    padding = [batch.label[~batch.valid] for batch in batches if batch.label is not None]
    assert len(padding) == len(batches)
    assert set(np.concatenate(padding).tolist()) == {-100}
