"""Image folders: the examples of `tfds.ImageFolder`, with every promise of a prepared dataset."""

import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from image_folder_fixtures import LABELS, NUM_TEST, NUM_TRAIN
from PIL import Image
from tfds_fixtures import call_reader, has_tensorflow
from zygote import torch_zygote

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.world import World

NAME = "image_folder"
FIELDS = ("image", "label", "image/filename")


@dataclass(frozen=True)
class Theirs:
    """What `tfds.ImageFolder` says and reads."""

    class_names: list[str]
    num_examples: dict[str, int]
    examples: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Job:
    """A pipeline of an image folder's epoch."""

    arguments: dict[str, Any]
    world: World = World()
    epoch: int = 0
    start_batch: int = 0
    fields: tuple[str, ...] = ("label",)


@dataclass(frozen=True)
class Seen:
    """What was read in the process that loads tensorflow.

    Attributes:
        theirs: by TFDS.
        batches: of every job.
        attempts: type and message of a damaged folder's error, and how many examples came before it.
        unread: labels of a folder whose images are gone.
    """

    theirs: Theirs
    batches: list[list[Batch]]
    attempts: list[tuple[str, str, int]]
    unread: list[int]


def read_everything(root: str, jobs: Sequence[Job], damaged: Sequence[ParserTfds], unread: ParserTfds) -> Seen:
    """Runs in the reader."""
    builder = tfds.ImageFolder(root)
    splits = {split: info.num_examples for split, info in builder.info.splits.items()}
    examples = {split: list(tfds.as_numpy(builder.as_dataset(split=split))) for split in splits if splits[split]}
    batches = [
        list(ParserTfds(root, NAME, **job.arguments).batches(job.world, job.epoch, job.start_batch, fields=job.fields))
        for job in jobs
    ]
    labels = [int(label) for batch in unread.batches(fields=("label",)) for label in batch.label]
    theirs = Theirs(builder.info.features["label"].names, splits, examples)
    return Seen(theirs, batches, [attempt(parser) for parser in damaged], labels)


def attempt(parser: ParserTfds) -> tuple[str, str, int]:
    count = 0
    try:
        for batch in parser.batches(World(), fields=("image",)):
            count += len(batch)
    except TfdsTorchError as error:
        return type(error).__name__, str(error), count
    return "", "", count


@pytest.fixture(scope="module")
def damaged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[ParserTfds, Path]]:
    """(damage, position, training) -> a parser of a folder with a damaged image, and its path."""
    parsers: dict[Any, tuple[ParserTfds, Path]] = {}
    for damage in DAMAGES:
        for position, is_training in ((0, False), (41, False), (NUM_TRAIN - 1, True)):
            root = Path(shutil.copytree(folder, tmp_path_factory.mktemp("damaged") / "root"))
            arguments: dict[str, Any] = {"is_training": is_training, "batch_size": 4, "repeats": 2 * is_training}
            parser = ParserTfds(root, NAME, **arguments)
            path = root / parser.ids(np.array([position]))[0]
            damage(path)
            if damage is replace_by_link_to_nothing:  # May have been there from the beginning.
                parser = ParserTfds(root, NAME, **arguments)
            parsers[damage, position, is_training] = parser, path
    return parsers


@pytest.fixture(scope="module")
def seen(folder: Path, damaged: dict[Any, tuple[ParserTfds, Path]], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    gone = Path(shutil.copytree(folder, tmp_path_factory.mktemp("gone") / "root"))
    unread = ParserTfds(gone, NAME)
    shutil.rmtree(gone)
    return call_reader(read_everything, str(folder), ALL_JOBS, [parser for parser, _ in damaged.values()], unread)


@pytest.fixture(scope="module")
def batches(seen: Seen) -> dict[str, list[list[Batch]]]:
    """Name of a list of jobs -> what each of them read."""
    results = iter(seen.batches)
    return {name: [next(results) for _ in jobs] for name, jobs in JOBS.items()}


@pytest.fixture(scope="module")
def theirs(seen: Seen) -> Theirs:
    return seen.theirs


@pytest.fixture(scope="module")
def ids(theirs: Theirs, folder: Path) -> dict[str, list[str]]:
    """Split -> paths below the root, in TFDS's order."""
    return {
        split: [os.path.relpath(example["image/filename"].decode(), folder) for example in examples]
        for split, examples in theirs.examples.items()
    }


# As TFDS


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_example_is_the_one_of_tfds_in_its_order(
    batches: dict[str, list[list[Batch]]], theirs: Theirs, split: str
) -> None:
    read = batches["expressions"][list(EXPRESSIONS).index(split)]
    index = [i for batch in read for i in batch.index.tolist()]
    labels = [int(label) for batch in read for label in batch.label]
    files = [name for batch in read for name in batch.features["image/filename"]]
    images = [image for batch in read for image in batch.image]
    examples = theirs.examples[split]
    assert index == list(range(len(examples)))
    assert files == [example["image/filename"].decode() for example in examples]
    assert labels == [example["label"] for example in examples]
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


def test_ids_are_paths_below_the_root(folder: Path, ids: dict[str, list[str]]) -> None:
    parser = ParserTfds(folder, NAME, "train+test")
    assert parser.ids(np.arange(parser.num_examples)) == ids["train"] + ids["test"]
    assert parser.ids(np.array([60, 0, 3, 0])) == [ids["test"][2], ids["train"][0], ids["train"][3], ids["train"][0]]


def name_files(root: str) -> list[Any]:
    """Runs in a child."""
    parser = ParserTfds(root, NAME, "test")
    names = [parser.filenames(**form) for form in ({}, {"basename": True}, {"absolute": True})]
    return [*names, pickle.loads(pickle.dumps(parser)).fingerprint == parser.fingerprint, has_tensorflow()]


def test_filenames_and_the_parser_need_no_tensorflow(folder: Path, ids: dict[str, list[str]]) -> None:
    plain, basename, absolute, is_same, is_loaded = torch_zygote().call(name_files, str(folder))
    assert is_same
    assert not is_loaded
    assert plain == ids["test"]
    assert basename == [os.path.basename(name) for name in ids["test"]]
    assert absolute == [str(folder / name) for name in ids["test"]]


# Splits

EXPRESSIONS: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "train": lambda train, test: train,
    "test": lambda train, test: test,
    "train[:50%]": lambda train, test: train[:29],
    "train[50%:]": lambda train, test: train[29:],
    "train[10:37]": lambda train, test: train[10:37],
    "train[-5:]": lambda train, test: train[-5:],
    "train+test": lambda train, test: train + test,
    "test + train[3:4]": lambda train, test: test + train[3:4],
    "train[:50%]+test[:50%]": lambda train, test: train[:29] + test[:7],
    "train[40:]+train[:10]": lambda train, test: train[40:] + train[:10],
    "all": lambda train, test: test + train,
    "empty+test": lambda train, test: test,
    "empty": lambda train, test: [],
}


@pytest.mark.parametrize("split", EXPRESSIONS)
def test_every_split_expression_counts_in_the_order_of_tfds(
    folder: Path, ids: dict[str, list[str]], split: str
) -> None:
    parser = ParserTfds(folder, NAME, split)
    wanted = EXPRESSIONS[split](ids["train"], ids["test"])
    assert parser.num_examples == len(wanted)
    assert parser.ids(np.arange(parser.num_examples)) == parser.filenames() == wanted


def test_every_split_expression_reads_what_it_counts(
    folder: Path, batches: dict[str, list[list[Batch]]], theirs: Theirs, ids: dict[str, list[str]]
) -> None:
    labels = {
        name: example["label"]
        for split in ids
        for name, example in zip(ids[split], theirs.examples[split], strict=True)
    }
    for split, read in zip(EXPRESSIONS, batches["expressions"], strict=True):
        wanted = EXPRESSIONS[split](ids["train"], ids["test"])
        assert [name for batch in read for name in batch.id] == wanted
        assert [int(label) for batch in read for label in batch.label] == [labels[name] for name in wanted]
        files = [name for batch in read for name in batch.features["image/filename"]]
        assert files == [str(folder / name) for name in wanted]


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


MODES = {"RGB": 3, "L": 1, "RGBA": 4, None: 0}
JOBS = {
    "expressions": [Job({"split": split, "batch_size": 4}, fields=FIELDS) for split in EXPRESSIONS],
    "modes": [Job({"image_mode": mode}, fields=("image",)) for mode in MODES],
}
ALL_JOBS = [job for jobs in JOBS.values() for job in jobs]


@pytest.mark.parametrize("is_training", [False, True])
def test_mode_files_is_refused_as_there_are_no_shards(folder: Path, is_training: bool) -> None:
    parser = ParserTfds(folder, NAME, is_training=is_training, batch_size=2, read=ReadOptions(mode="files"))
    with pytest.raises(ConfigError) as caught:
        parser.batches()
    if is_training:
        assert "deals shards to the pipelines, and image_folder:1.0.0 has none" in str(caught.value)
        assert "'index', 'examples' or 'auto'" in str(caught.value)
    for mode, found in (("auto", "index"), ("index", "index"), ("examples", "examples")):
        parser = ParserTfds(folder, NAME, is_training=is_training, batch_size=2, read=ReadOptions(mode=mode))
        assert parser.read_mode(World()) == found


# Images


def stored_pixels(path: Path) -> np.ndarray:
    """Returns uint8 [H, W, C]."""
    with Image.open(path) as image:
        return np.atleast_3d(np.asarray(image))


def test_every_image_mode_gives_its_channels(folder: Path, batches: dict[str, list[list[Batch]]]) -> None:
    for (mode, channels), read in zip(MODES.items(), batches["modes"], strict=True):
        assert sum(len(batch.id) for batch in read) > 0
        for batch in read:
            for name, image in zip(batch.id, batch.image, strict=True):
                stored = stored_pixels(folder / name)
                assert image.dtype == np.uint8
                assert image.shape == (*stored.shape[:2], channels or stored.shape[2])
                if mode in (None, "RGBA") and stored.shape[2] == 4:
                    np.testing.assert_array_equal(image, stored)


def test_labels_alone_open_no_file(seen: Seen, theirs: Theirs) -> None:
    assert seen.unread == [example["label"] for example in theirs.examples["train"]]


# Damage


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def scramble(path: Path) -> None:
    path.write_bytes(b"\x89PNG no image at all")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


DAMAGES = {
    remove: ("ShardError", "is missing: it was removed after the folder was listed, or is a link to nothing"),
    empty: ("CorruptRecordError", "is empty: it holds no image"),
    scramble: ("CorruptRecordError", "cannot be decoded: it is damaged, or not an image. "),
    cut: ("CorruptRecordError", "cannot be decoded: it is damaged, or not an image. "),
    replace_by_folder: ("ShardError", "is a directory, not an image file"),
    replace_by_link_to_nothing: ("ShardError", "is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damaged_image_is_an_error_that_names_it(
    seen: Seen, damaged: dict[Any, tuple[ParserTfds, Path]], damage: Any
) -> None:
    kind, words = DAMAGES[damage]
    for ((which, position, is_training), (_, path)), result in zip(damaged.items(), seen.attempts, strict=True):
        if which is damage:
            assert result[0] == kind, result
            assert f"{path} of image_folder:1.0.0" in result[1]
            assert words in result[1]
            assert result[2] < NUM_TRAIN or is_training
            if not is_training:
                assert result[2] <= position
