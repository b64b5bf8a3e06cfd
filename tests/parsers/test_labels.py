"""Labels outside of a dataset's classes: an error wherever they are read, never a label of a batch. -1 is no label."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from picture_fixtures import save
from PIL import Image
from storage.beton.made_files import PAGE
from storage.example_writer import nested_parts, write_example
from tfds_fixtures import call_reader, write_shard

from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserBeton,
    ParserTfds,
    ReadOptions,
    World,
    create_loader,
)
from tfds_torch.errors import CorruptRecordError, DatasetNotFoundError
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

CLASSES = ["circle", "square", "triangle", "star"]
NUM_EXAMPLES, SHARDS, BAD = 10, (6, 4), 7
IMAGE = save(Image.new("RGB", (8, 8), (10, 20, 30)), "PNG")
ID = "marks-train.tfrecord-00001-of-00002__1"
OUTSIDE = (4, -2, -100, 2**62, -(2**63))
SAID = r"which is not a label of the 4 classes: they are 0 to 3, and -1 for none"


def list_features() -> Any:
    f = tfds.features
    return f.FeaturesDict(
        {
            "image": f.Image(shape=(8, 8, 3), encoding_format="png"),
            "label": f.ClassLabel(names=CLASSES),
            "objects": f.Sequence({"bbox": f.BBoxFeature(), "label": f.ClassLabel(num_classes=4)}),
            "labels": f.Sequence(f.ClassLabel(num_classes=4)),
            "rows": f.Sequence(f.Sequence(f.ClassLabel(num_classes=4))),
            "cat": f.ClassLabel(num_classes=2),
            "unknown": f.ClassLabel(),
        }
    )


def values_of(number: int) -> dict[str, Any]:
    """Returns an example whose labels are all within its classes."""
    return {
        "image": IMAGE,
        "label": number % 5 - 1,
        "objects/label": [number % 4] * (number % 3),
        "labels": [-1, 3][: number % 3],
        "rows": [[number % 4], [], [3, -1]],
        "cat": number % 2,
        "unknown": number * 1000,
    }


def write_marks(root: Path, changed: Mapping[str, Any]) -> Path:
    """Writes the dataset `marks`, with other values of example BAD; returns the root."""
    directory = root / "marks" / "1.0.0"
    directory.mkdir(parents=True)
    records = []
    for number in range(NUM_EXAMPLES):
        values = values_of(number) | (changed if number == BAD else {})  # type: ignore[operator]
        parts = nested_parts("rows", values.pop("rows"), 2)
        boxes = [0.25] * 4 * len(values["objects/label"])
        listed = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
        records.append(write_example({**listed, **parts, "objects/bbox": boxes or None}))
    write_shard(directory / "marks-train.tfrecord-00000-of-00002", records[: SHARDS[0]])
    write_shard(directory / "marks-train.tfrecord-00001-of-00002", records[SHARDS[0] :])
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=list_features(),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=list(SHARDS), num_bytes=NUM_EXAMPLES * 400)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    return root


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_marks(tmp_path_factory.mktemp("right"), {})


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one label of 4, the first number that is not a class."""
    return write_marks(tmp_path_factory.mktemp("wrong"), {"label": 4})


def labels_of(parser: ParserTfds) -> list[Any]:
    batches = list(parser.batches(World()))
    return [label for batch in batches for label in (batch.features["label"] if batch.label is None else batch.label)]


@pytest.mark.parametrize("label", OUTSIDE)
def test_a_label_outside_of_the_classes_is_an_error_with_id_and_value(label: int, tmp_path: Path) -> None:
    parser = ParserTfds(write_marks(tmp_path, {"label": label}), "marks", batch_size=4)
    with pytest.raises(CorruptRecordError, match=f"is {label}, {SAID}") as caught:
        list(parser.batches(World()))
    assert ID in str(caught.value)
    assert "'label'" in str(caught.value)
    assert len(list(parser.with_batch_size(1).batches(World(), 0, BAD + 1))) == NUM_EXAMPLES - BAD - 1


@pytest.mark.parametrize(
    ("target", "changed"),
    [
        ("labels", {"labels": [0, 4]}),
        ("rows", {"rows": [[0], [], [1, 4]]}),
        ("objects/label", {"objects/label": [4, 0]}),
        (("cat", "unknown"), {"cat": 2}),
        ("cat", {"cat": 2}),
    ],
    ids=str,
)
def test_labels_in_sequences_and_of_several_keys_are_checked(target: Any, changed: Any, tmp_path: Path) -> None:
    parser = ParserTfds(write_marks(tmp_path, changed), "marks", batch_size=4, target_key=target)
    with pytest.raises(CorruptRecordError, match=r"is [24], which is not a label of the [24] classes") as caught:
        list(parser.batches(World()))
    assert ID in str(caught.value)


def test_a_class_among_other_features_is_checked_too(tmp_path: Path) -> None:
    parser = ParserTfds(write_marks(tmp_path, {"objects/label": [9], "cat": 5}), "marks", batch_size=4)
    for field, value in (("objects", 9), ("objects/label", 9), ("cat", 5)):
        with pytest.raises(CorruptRecordError, match=f"is {value}, which is not a label"):
            list(parser.batches(World(), fields=("image", field)))
    assert len(list(parser.batches(World()))) == 3


def test_labels_of_the_classes_and_none_come_as_they_are_stored(right: Path) -> None:
    assert labels_of(ParserTfds(right, "marks", batch_size=4)) == [n % 5 - 1 for n in range(NUM_EXAMPLES)]
    for target in ("labels", "rows"):
        found = labels_of(ParserTfds(right, "marks", batch_size=4, target_key=target))
        as_lists = [[row.tolist() for row in one] if target == "rows" else one.tolist() for one in found]
        assert as_lists == [values_of(number)[target] for number in range(NUM_EXAMPLES)]
    several = labels_of(ParserTfds(right, "marks", batch_size=4, target_key=("cat", "label")))
    assert several == [[0] * (n % 2) + [1] * (n % 5 > 1) for n in range(NUM_EXAMPLES)]


def test_labels_of_an_unknown_number_of_classes_are_not_checked(right: Path) -> None:
    parser = ParserTfds(right, "marks", batch_size=4, target_key="unknown")
    assert labels_of(parser) == [number * 1000 for number in range(NUM_EXAMPLES)]


def padded_labels(root: str, mode: str) -> list[tuple[int, Any, Any]]:
    """Returns the examples that padding is made of on all of four ranks, and their labels of several forms."""
    found = []
    for rank in range(4):
        for target in ("label", "labels", "rows", ("cat", "label")):
            parser = ParserTfds(root, "marks", target_key=target, batch_size=2, read=ReadOptions(mode=mode))
            for batch in parser.batches(World(rank, 4)):
                labels = batch.features["label"] if batch.label is None else batch.label
                places = np.flatnonzero(~batch.valid).tolist()
                found += [(int(batch.index[at]), target, labels[at]) for at in places]
    return found


@pytest.mark.parametrize("mode", ["index", "examples"])
def test_padding_has_marked_labels_of_every_form(right: Path, mode: str) -> None:
    found = call_reader(padded_labels, str(right), mode)
    assert len(found) == 6 * 4
    for number, target, label in found:
        stored = values_of(number)
        if target == "label":
            assert label == -100
        elif target == "labels":
            assert label.tolist() == [-100] * len(stored["labels"])
        elif target == "rows":
            assert [row.tolist() for row in label] == [[-100] * len(row) for row in stored["rows"]]
        else:
            assert label == [-100] * ((stored["cat"] > 0) + (stored["label"] > 0))


def read_in_mode(root: str, mode: str) -> str:
    """Returns the error of an evaluation in a stream mode; loads tensorflow."""
    parser = ParserTfds(root, "marks", batch_size=4, read=ReadOptions(mode=mode))
    try:
        list(parser.batches(World()))
    except CorruptRecordError as error:
        return str(error)
    return "no error"


def test_a_stream_refuses_the_label_too(wrong: Path) -> None:
    said = call_reader(read_in_mode, str(wrong), "examples")
    assert f"is 4, {SAID}" in said
    assert ID in said


READERS: dict[str, Callable[[ParserTfds], object]] = {
    "an index": lambda parser: parser[BAD],
    "IndexedImageDataset": lambda parser: IndexedImageDataset(parser)[BAD],
    "Loader": lambda parser: list(create_loader(ImageDataset(parser, batched=True), num_workers=1)),
    "MultiLoader": lambda parser: list(MultiLoader(parser, 1)),
}


@pytest.mark.parametrize("name", READERS)
def test_however_it_is_read_the_label_is_an_error(name: str, wrong: Path) -> None:
    parser = ParserTfds(wrong, "marks", batch_size=4)
    with pytest.raises(CorruptRecordError, match=f"is 4, {SAID}") as caught:
        READERS[name](parser)
    assert ID in str(caught.value)


def test_an_example_with_such_a_label_is_replaced_and_counted_as_a_damaged_one(wrong: Path) -> None:
    read = ReadOptions(on_error="replace", max_replaced=1)
    training = ParserTfds(wrong, "marks", is_training=True, shuffle=False, batch_size=5, read=read)
    found = [index for batch in training.batches(World()) for index in batch.index.tolist()]
    assert found == [0, 1, 2, 3, 4, 5, 6, 8, 8, 9]
    evaluation = ParserTfds(wrong, "marks", batch_size=5, read=read)
    valid = np.concatenate([batch.valid for batch in evaluation.batches(World())])
    assert np.flatnonzero(~valid).tolist() == [BAD]
    with create_loader(ImageDataset(training, batched=True)) as loader:
        assert len(list(loader)) == 2
        assert loader.stats().replaced == 1


# Of other formats


def write_beton(path: Path, labels: Sequence[int], class_names: Mapping[str, Sequence[str]]) -> Path:
    fields = {"image": BetonImage(), "label": BetonInt()}
    with BetonWriter(path, fields, len(labels), page_size=PAGE, class_names=class_names) as writer:
        for label in labels:
            writer.add((IMAGE, label))
    return path


def test_a_beton_file_with_class_names_has_labels_of_these_only(tmp_path: Path) -> None:
    names = {"label": CLASSES}
    right = ParserBeton(write_beton(tmp_path / "right.beton", [3, -1, 0], names), batch_size=3)
    (batch,) = right.batches()
    assert batch.label is not None
    assert batch.label.tolist() == [3, -1, 0]
    wrong = ParserBeton(write_beton(tmp_path / "wrong.beton", [3, 0, 4], names), batch_size=3)
    for read in (lambda: list(wrong.batches()), lambda: wrong[2]):
        with pytest.raises(CorruptRecordError, match=f"sample 2 .*is 4, {SAID}"):
            read()
    unnamed = ParserBeton(write_beton(tmp_path / "unnamed.beton", [3, 0, 400], {}), batch_size=3)
    assert unnamed[2].label == 400


# Metadata


@pytest.mark.parametrize("number", ["3", "5"])
def test_a_number_of_classes_that_contradicts_the_names_is_refused_at_opening(number: str, tmp_path: Path) -> None:
    features = write_marks(tmp_path, {}) / "marks" / "1.0.0" / "features.json"
    declared = json.loads(features.read_text())
    label = declared["featuresDict"]["features"]["label"]["classLabel"]
    assert label == {"numClasses": "4"}
    label["numClasses"] = number
    features.write_text(json.dumps(declared))
    with pytest.raises(
        DatasetNotFoundError,
        match=rf"its label\.labels\.txt is damaged \(features\.json declares {number} classes, and it has 4 names\)",
    ):
        ParserTfds(tmp_path, "marks")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("grün\nrot\nblau\ngelb\n".encode("latin-1"), r"is not UTF-8 \(byte 2\): save its class names as UTF-8"),
        ("rot\nblau\ngelb\nbraun\n".encode("utf-16"), r"is not UTF-8 \(byte 0\)"),
        ("rot\nblau\ngelb\nbraun\n".encode("utf-8-sig"), "begins with a byte order mark: save it as UTF-8 without one"),
    ],
)
def test_class_names_of_another_encoding_are_refused_and_not_numbered(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    (write_marks(tmp_path, {}) / "marks" / "1.0.0" / "label.labels.txt").write_bytes(content)
    with pytest.raises(DatasetNotFoundError, match=f"label.labels.txt {reason}"):
        ParserTfds(tmp_path, "marks")
