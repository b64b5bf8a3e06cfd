"""Targets, as they are read: new labels of a class map, and lists of several binary fields."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow_datasets as tfds
from refused import said_of
from tfds_fixtures import CLASSES, NUM_TEST, NUM_TRAIN, Datasets, call_reader, has_tensorflow
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset
from tfds_torch.engines import request as read_request
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.connectors import plain_features
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.tfds.targets import parse_target_key
from tfds_torch.plan.world import World
from tfds_torch.runtime import subprocess_call

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


def read_cases(parsers: dict[str, ParserTfds]) -> dict[str, dict[str, Any]]:
    """Returns case -> how it is read -> batches, or pieces of them. Runs in the reader."""
    return {name: dict(_read_case(parser, name in PADDED)) for name, parser in parsers.items()}


def _read_case(parser: ParserTfds, is_padded: bool) -> Iterator[tuple[str, Any]]:
    fields = ("label", "file_name", "small")
    with mock.patch.object(read_request, "_CHUNK_BYTES", 1):
        yield "pieces", list(parser.batches(World(), fields=fields, in_pieces=True))
        yield "whole", list(parser.batches(World(), fields=fields))
    if is_padded:
        yield "ranks", [list(parser.batches(World(rank, 3), fields=fields)) for rank in range(3)]


@pytest.fixture(scope="module")
def reads(datasets: Datasets) -> dict[str, dict[str, Any]]:
    parsers = {name: make_parser(datasets.root, name, seed=5) for name in CASES}
    assert not has_tensorflow()
    return call_reader(read_cases, parsers)


def assert_labels(name: str, examples: list[Example], num_valid: int = NUM_TRAIN + NUM_TEST) -> None:
    """Asserts that every example has its label, and padding none."""
    case = CASES[name]
    for number, label, valid, id_ in examples:
        stored = case.labels[number]
        padding = -100 if case.is_scalar else [-100] * len(stored)
        assert label == (stored if valid else padding), (number, id_)
    assert sorted(number for number, _, valid, _ in examples if valid) == list(NUMBERS)[:num_valid]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["whole", "pieces"])
def test_every_example_has_its_label(reads: dict[str, dict[str, Any]], name: str, how: str) -> None:
    batches = reads[name][how]
    assert_labels(name, [example for batch in batches for example in examples_of(batch)])
    sizes = [sum(map(len, pieces)) for _, pieces in groupby(batches, key=lambda batch: batch.batch)]
    assert sizes == [BATCH_SIZE] * 24 + [8]
    assert len(batches) == 25 or how == "pieces"
    assert len(batches) > 50 or how != "pieces"


@pytest.mark.parametrize("name", CASES)
def test_a_scalar_label_is_an_array_and_others_are_features(reads: dict[str, dict[str, Any]], name: str) -> None:
    assert len(reads[name]["whole"]) == 25
    for batch in reads[name]["whole"]:
        if CASES[name].is_scalar:
            assert batch.label.dtype == np.int64
            assert batch.features.keys() == {"file_name", "small"}
        else:
            assert batch.label is None
            assert isinstance(batch.features["label"], list)


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_three_ranks_is_told_apart(reads: dict[str, dict[str, Any]], name: str) -> None:
    ranks = [[example for batch in batches for example in examples_of(batch)] for batches in reads[name]["ranks"]]
    assert [len(examples) for examples in ranks] == [90, 90, 90]
    assert_labels(name, [example for examples in ranks for example in examples])
    assert sum(not valid for examples in ranks for _, _, valid, _ in examples) == 270 - 248


def test_a_feature_asked_for_by_its_own_name_keeps_its_values(reads: dict[str, dict[str, Any]]) -> None:
    for name in ("integers", "several, mapped"):
        assert len(reads[name]["whole"]) == 25
        for batch in reads[name]["whole"]:
            assert batch.features["small"].tolist() == [number_of(file) % 256 for file in batch.features["file_name"]]


def test_positions_are_lists_of_int(reads: dict[str, dict[str, Any]]) -> None:
    for name in ("several", "several, mapped"):
        labels = [label for batch in reads[name]["whole"] for label in batch.features["label"]]
        assert {type(label) for label in labels} == {list}
        assert {type(position) for label in labels for position in label} == {int}


# Behind a DataLoader


def read_with_worker(parser: ParserTfds, num_workers: int, method: str) -> list[Example]:
    dataset = ImageDataset(parser, fields=("file_name", "label", "valid", "id"))
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=list, multiprocessing_context=method)
    rows = [row for batch in loader for row in batch]
    return [(number_of(file_name), to_plain(label), valid, id_) for file_name, label, valid, id_ in rows]


@pytest.mark.parametrize("name", ["classes by name", pytest.param("several, mapped", marks=pytest.mark.slow)])
def test_workers_map_every_label_once(datasets: Datasets, name: str) -> None:
    assert_labels(name, read_with_worker(make_parser(datasets.root, name), 2, "fork"))


@pytest.mark.slow
def test_a_class_map_reaches_a_spawned_worker(datasets: Datasets, tmp_path: Path) -> None:
    """Also when its file is gone by then."""
    file = tmp_path / "classes.txt"
    file.write_text("\n".join(sorted(CLASSES, key=BY_NAME.__getitem__)))
    parser = ParserTfds(datasets.root, "shapes", "train+test", batch_size=BATCH_SIZE, class_map=file)
    file.unlink()
    assert_labels("classes by name", read_with_worker(parser, 1, "spawn"))


INHERITING: dict[str, dict[str, Any]] = {
    "index": {},
    "examples": {"read": ReadOptions(mode="examples")},
}


def read_after_tensorflow(root: str, how: str) -> tuple[list[Example], bool]:
    """Returns what a process reads that was forked from one in which tensorflow ran, and whether it reads by itself."""
    import tensorflow as tf

    tf.constant(1)
    parser = make_parser(root, "classes by name", **INHERITING[how])
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=send_labels, args=(theirs, parser), daemon=True)
    worker.start()
    theirs.close()
    received: tuple[list[Example], bool] = ours.recv()
    worker.join()
    return received


def send_labels(told: Any, parser: ParserTfds) -> None:
    with mock.patch.object(subprocess_call, "_Child", side_effect=subprocess_call._Child) as start:
        batches = parser.batches(fields=("label", "file_name"))
        examples = [example for batch in batches for example in examples_of(batch)]
    told.send((examples, not start.called))


@pytest.mark.slow
@pytest.mark.parametrize("how", INHERITING)
def test_labels_are_mapped_once_where_tensorflow_was_inherited(how: str, datasets: Datasets) -> None:
    examples, reads_by_itself = subprocess_call.call(read_after_tensorflow, str(datasets.root), how)
    assert_labels("classes by name", examples)
    assert reads_by_itself == (how == "index")


def test_an_unknown_label_is_said_by_the_worker_that_meets_it(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "test", batch_size=8, target_key="small", class_map={211: 0})
    dataset = ImageDataset(parser, fields=("label",))
    with pytest.raises(
        ConfigError, match=r"shapes:1\.0\.0: the class map has no label for \d+, the target of the exam"
    ):
        list(DataLoader(dataset, 8, num_workers=1))


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
        assert parser.target_key == SEVERAL
        assert parser.class_names == list(SEVERAL)
        assert parser.class_to_idx == {"flag": 0, "small": 1, "nested/count": 2, "precise": 3}


def test_a_sequence_of_labels_has_their_classes(datasets: Datasets) -> None:
    assert ParserTfds(datasets.root, "shapes", target_key="objects/label").class_names == CLASSES
    for key in ("sizes", "words", "objects", "frames"):
        assert ParserTfds(datasets.root, "shapes", target_key=key).class_names is None


def test_only_the_fields_of_the_target_are_decoded(datasets: Datasets) -> None:
    parser = make_parser(datasets.root, "several")
    with mock.patch.object(type(parser.source), "read", autospec=True, side_effect=type(parser.source).read) as read:
        (example,) = parser.examples_by_index([0], ["label"])
    assert example.features.keys() == {"label"}
    assert [call.args[2] for call in read.call_args_list] == [list(SEVERAL)]


# What cannot work


NO_TARGETS: list[tuple[dict[str, Any], str]] = [
    (
        {"target_key": "flag,lable"},
        "shapes:1.0.0: There is no target feature 'lable'. The dataset's features are: ",
    ),
    ({"target_key": ["label", "nested/conut"]}, "Did you mean 'nested/count'?"),
    ({"target_key": "flag,caption"}, "the target field 'caption' is not a scalar number but Text("),
    ({"target_key": ["flag", "sizes"]}, "the target field 'sizes' is not a scalar number but Sequence("),
    ({"target_key": ["flag", "vector"]}, "the target field 'vector' is not a scalar number but Tensor("),
    ({"target_key": ["flag", "nested"]}, "the target field 'nested' is not a scalar number but FeaturesDict("),
    ({"target_key": ["objects/label"]}, "the target field 'objects/label' is not a scalar number but ClassLabel("),
    ({"target_key": ["mask"]}, "the target field 'mask' is not a scalar number but Image("),
    ({"target_key": "flag,"}, "target_key='flag,': several target keys are different names of features, none of"),
    ({"target_key": ","}, "target_key=',': several target keys are different"),
    ({"target_key": "flag, flag"}, "target_key='flag, flag': several target keys are different"),
    ({"target_key": []}, "target_key=[]: several target keys are different"),
    ({"target_key": ["flag", ""]}, "target_key=['flag', '']: several target keys are different"),
    ({"target_key": ["flag", 3]}, "target_key=['flag', 3]: several target keys are different"),
    ({"target_key": 3}, "target_key=3 must be a feature's key, a sequence of keys, or None."),
    ({"target_key": b"flag"}, "target_key=b'flag' must be a feature's key"),
    ({"target_key": {"flag", "small"}}, " must be a feature's key, a sequence of keys, or None."),
    ({"target_key": ""}, "There is no target feature ''."),
    (
        {"target_key": None, "class_map": {0: 1}},
        "class_map gives the target new labels, but there is none: target_",
    ),
    ({"target_key": "weight", "class_map": {0: 1}}, "to integers and texts, and the target 'weight' is "),
    (
        {"target_key": "nested", "class_map": {0: 1}},
        "to integers and texts, and the target 'nested' is FeaturesDict(",
    ),
    ({"target_key": "objects", "class_map": {0: 1}}, "and the target 'objects' is Sequence("),
    ({"target_key": "objects/bbox", "class_map": {0: 1}}, "and the target 'objects/bbox' is BBoxFeature("),
    ({"target_key": "mask", "class_map": {0: 1}}, "and the target 'mask' is Image("),
    ({"target_key": "frames", "class_map": {0: 1}}, "Set target_key, or class_map=None."),
    (
        {"class_map": {"circle": 0}},
        "the class map has no label for 4 of the 5 classes: 'square', 'triangle', 'star',",
    ),
    ({"target_key": "objects/label", "class_map": {0: 0}}, "the class map has no label for 4 of the 5 classes"),
    ({"target_key": ["flag", "small"], "class_map": {"flag": 0}}, "no label for 1 of the 2 classes: 'small'."),
    (
        {"name": "sentences", "class_map": {0: 1}},
        "There is no target feature 'label'. The dataset's features are: ",
    ),
    ({"class_map": "nowhere.txt"}, "The class map 'nowhere.txt' does not exist in "),
]


def test_what_cannot_be_a_target_is_refused(datasets: Datasets) -> None:
    found = [
        (message, said_of(ConfigError, ParserTfds, datasets.root, **{"name": "shapes"} | arguments))
        for arguments, message in NO_TARGETS
    ]
    wrong = [(message, said) for message, said in found if message not in said]
    assert not wrong, str(wrong)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "shapes",
            "Use target_key='label' or target_key='objects/label' (of a sequence, all labels of an example), or ",
        ),
        (
            "sentences",
            "It has no labels with classes: use target_key=None, and fields=('image', ...) with the features ",
        ),
    ],
)
def test_a_target_that_is_missing_brings_the_ones_that_are_there(datasets: Datasets, name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ParserTfds(datasets.root, name, target_key="lable").check_fields(("label",))
    assert "There is no target feature 'lable'. The dataset's features are: " in str(caught.value)
    assert advice in str(caught.value)


def test_a_feature_with_a_comma_in_its_key_wins_over_several_keys() -> None:
    features = plain_features(tfds.features.FeaturesDict(dict.fromkeys(("cat,dog", "cat", "dog"), np.int64)))
    assert parse_target_key("cat,dog", features) == "cat,dog"
    assert parse_target_key("dog,cat", features) == ("dog", "cat")
    assert parse_target_key(["cat,dog", "dog"], features) == ("cat,dog", "dog")
    assert parse_target_key("bird", features) == "bird"
    assert parse_target_key(None, features) is None


@pytest.mark.parametrize("key", ["small", "flag"])
def test_padding_of_narrow_targets_has_the_label_of_padding(datasets: Datasets, key: str) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train", batch_size=4, target_key=key)
    batches = [batch for rank in range(3) for batch in parser.batches(World(rank, 3))]
    padding = [batch.label[~batch.valid] for batch in batches if batch.label is not None]
    assert len(padding) == len(batches)
    assert set(np.concatenate(padding).tolist()) == {-100}
