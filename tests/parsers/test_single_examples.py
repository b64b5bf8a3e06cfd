"""Single examples: the values that batches have, decoded in the process that asks for them."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import (
    CLASSES,
    NUM_TRAIN,
    Datasets,
    Read,
    as_remote,
    read_one,
)

from tfds_torch import ParserBeton, ParserWebDataset, export_dataset
from tfds_torch.engines.batch import Example
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.parser import ParserTfds

FEATURES = (
    *("caption", "depth", "file_name", "flag", "frames", "image/filename", "mask", "matrix", "nested", "objects"),
    *("pair", "precise", "sizes", "small", "vector", "weight", "words", "zipped", "nested/inner/tags", "objects/label"),
)
slow = pytest.mark.slow
CLASS_MAP = {"circle": 4, "square": 3, "triangle": 2, "star": 1, "cross": 0}


# What an example is

READS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "every feature": (
        {"name": "shapes", "split": "train[:60]+test"},
        ("image", "label", *FEATURES, "valid", "index", "id"),
    ),
    "png_rgba as L": ({"name": "channels/png_rgba", "image_mode": "L"}, ("image", "label")),
    "jpeg_l as stored": ({"name": "channels/jpeg_l", "image_mode": None}, ("image", "label")),
    "neither image nor label": ({"name": "sentences"}, ("text", "score")),
    "a class map of texts": ({"name": "tiny", "class_map": CLASS_MAP}, ("label",)),
    "a class map of lists": (
        {"name": "shapes", "split": "test", "target_key": "objects/label", "class_map": CLASS_MAP},
        ("label",),
    ),
    "positions as target": ({"name": "shapes", "split": "test", "target_key": ["flag", "small"]}, ("label",)),
    "nothing": ({"name": "tiny"}, ()),
    "an image folder": ({"name": "image_folder", "split": "train+test"}, ("image", "label", "image/filename")),
}


@pytest.fixture(scope="module")
def batches(datasets: Datasets, folder: Path) -> dict[str, list[Example]]:
    """What batches hold, example by example."""
    root = str(datasets.root)
    return {
        name: list(split_batches(Read({"root": root_of(arguments, root, folder), **arguments}, fields=fields)))
        for name, (arguments, fields) in READS.items()
    }


def root_of(arguments: dict[str, Any], root: object, folder: object) -> str:
    return str(folder if arguments["name"] == "image_folder" else root)


def split_batches(read: Read) -> Iterator[Example]:
    for batch in read_one("", Read({"batch_size": 16, **read.arguments}, fields=read.fields)):
        labels = [None] * len(batch) if batch.label is None else batch.label.tolist()
        for i, label in enumerate(labels):
            image = None if batch.image is None else batch.image[i]
            features = {name: values[i] for name, values in batch.features.items()}
            yield Example(image, label, int(batch.index[i]), batch.id[i], features)


def assert_equal(ours: Any, theirs: Any, where: str = "") -> None:
    """Asserts that two values are the same, in type, shape and every bit."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, Example):
        assert_equal(vars(ours), vars(theirs), f"{where} {ours.id}")
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_equal(ours[key], theirs[key], f"{where}/{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(our, their, f"{where}[{i}]")
    else:
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None), where
        np.testing.assert_array_equal(ours, theirs, where)


@pytest.mark.parametrize("name", READS)
def test_examples_are_what_batches_hold_in_any_order(
    name: str, batches: dict[str, list[Example]], datasets: Datasets, folder: Path
) -> None:
    arguments, fields = READS[name]
    parser = ParserTfds(root_of(arguments, datasets.root, folder), **arguments)
    expected = batches[name]
    assert len(expected) == parser.num_examples
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(parser.num_examples), 2))
    keys = [parser.ids(np.array([i]))[0] if i % 3 else int(i) for i in order]
    examples = parser.examples_by_index(keys, fields)
    assert_equal(examples, [expected[i] for i in order], name)
    assert_equal(parser.examples_by_index([], fields), [])


def test_an_example_alone_has_what_there_is(datasets: Datasets) -> None:
    unlabelled = ParserTfds(datasets.root, "shapes", target_key=None)[0]
    assert unlabelled.label is None
    assert unlabelled.image is not None
    text_target = ParserTfds(datasets.root, "tiny")[1]
    assert (text_target.label, text_target.features) == (None, {"label": CLASSES[1]})
    features = ParserTfds(datasets.root, "sentences")[4].features
    number = int(features["text"].removeprefix("sentence "))
    assert_equal(features, {"text": f"sentence {number}", "score": np.float32(number / 2)})


def test_without_image_and_label_an_example_has_all_features(datasets: Datasets) -> None:
    whole = ParserTfds(datasets.root, "shapes")[3]
    parser = ParserTfds(datasets.root, "shapes", image_key=None, target_key=None)
    (example,) = parser[3:4]
    assert_equal(parser[example.id], example)
    assert (example.image, example.label) == (None, None)
    assert set(example.features) == set(parser.element_spec.fields) - {"index", "id", "valid"}
    assert_equal(example.features["image"], whole.image)
    assert example.features["label"] == whole.label
    others = ["objects", "words", "caption", "depth"]
    assert_equal({name: example.features[name] for name in others}, parser.examples_by_index([3], others)[0].features)
    with pytest.raises(ConfigError, match=r"'image' was asked for, but the parser has image_key=None"):
        parser.examples_by_index([3])


def test_features_of_other_formats_are_all_there_without_image_and_label(datasets: Datasets, tmp_path: Path) -> None:
    source = ParserTfds(datasets.root, "channels/png_rgb")
    path = tmp_path / "channels.beton"
    export_dataset(source, path, format="beton")
    export_dataset(source, tmp_path / "tars", format="webdataset")
    (tar,) = (tmp_path / "tars").glob("*.tar")
    cases = (
        (ParserBeton(path, image_key=None, target_key=None), ("image", "label"), ParserBeton(path)),
        (ParserWebDataset(tar, {"picture": "png", "class": "cls"}), ("picture", "class"), ParserWebDataset(tar)),
    )
    for parser, names, usual in cases:
        found = parser[4]
        assert (found.image, found.label) == (None, None)
        assert set(found.features) == set(names)
        np.testing.assert_array_equal(found.features[names[0]], usual[4].image)
        assert found.features[names[1]] == usual[4].label


def test_an_example_is_ones_own_to_change(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    first, second = parser.examples_by_index([0, 0])
    before = second.image.copy()
    first.image[:] = 0
    np.testing.assert_array_equal(second.image, before)
    np.testing.assert_array_equal(parser[0].image, before)


# Errors


def test_remote_files_are_a_config_error_that_says_what_to_do(datasets: Datasets) -> None:
    parser = as_remote(ParserTfds(datasets.root, "shapes"))
    with pytest.raises(ConfigError, match=r"gs://bucket/.* is remote\. Copy the dataset to this machine, or read it"):
        parser[0]


def test_a_label_that_the_class_map_lacks_is_a_config_error(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "tiny", class_map={"circle": 0, "square": 1})
    assert [example.label for example in parser[:2]] == [0, 1]
    with pytest.raises(ConfigError, match="the class map has no label for 'triangle'"):
        parser[2]


# Which process decodes


def test_threads_may_share_a_parser(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    with ThreadPoolExecutor(8) as pool:
        assert [example.index for example in pool.map(parser.__getitem__, range(60))] == list(range(60))


def test_a_forked_process_reads_while_threads_of_its_parent_do(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", read=ReadOptions(num_threads=2))
    expected = [example.label for example in parser.examples_by_index(range(NUM_TRAIN), ["label"])]
    context = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(4) as pool:
        reading = pool.map(lambda i: parser[i].label, range(NUM_TRAIN))
        pipes = []
        for _ in range(3):
            ours, theirs = context.Pipe()
            worker = context.Process(target=send_all_labels, args=(theirs, parser), daemon=True)
            worker.start()
            pipes.append((ours, worker))
        assert list(reading) == expected
    for ours, worker in pipes:
        assert ours.poll(60)
        assert ours.recv() == expected
        worker.join()


def send_all_labels(told: Any, parser: ParserTfds) -> None:
    told.send([example.label for example in parser[:]])
