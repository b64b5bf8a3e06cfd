"""Single examples: the values that batches have, decoded in the process that asks for them."""

import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
from tfds_fixtures import (
    CLASSES,
    NUM_TEST,
    NUM_TRAIN,
    Datasets,
    Read,
    as_remote,
    read_one,
    record_offsets,
    replace_bytes_feature,
    shard_files,
    write_shard,
)

from tfds_torch import MultiLoader, ParserBeton, ParserWebDataset, export_dataset
from tfds_torch.engines.batch import Example
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.parsers import examples
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.image_formats import READABLE_FORMATS
from tfds_torch.storage.tfrecord.framing import read_records

FEATURES = (
    *("caption", "depth", "file_name", "flag", "frames", "image/filename", "mask", "matrix", "nested", "objects"),
    *("pair", "precise", "sizes", "small", "vector", "weight", "words", "zipped", "nested/inner/tags", "objects/label"),
)
slow = pytest.mark.slow
MODES = (None, "L", "RGB", "RGBA")
CLASS_MAP = {"circle": 4, "square": 3, "triangle": 2, "star": 1, "cross": 0}


# What an example is

READS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "every feature": ({"name": "shapes", "split": "train[:60]+test"}, ("image", "label", *FEATURES, *METADATA_FIELDS)),
    **{
        f"png_rgba as {mode}": ({"name": "channels/png_rgba", "image_mode": mode}, ("image", "label")) for mode in MODES
    },
    **{f"jpeg_l as {mode}": ({"name": "channels/jpeg_l", "image_mode": mode}, ("image", "label")) for mode in MODES},
    "neither image nor label": ({"name": "sentences"}, ("text", "score")),
    "a class map": ({"name": "shapes", "split": "test", "class_map": CLASS_MAP}, ("label", "caption")),
    "a class map of texts": ({"name": "tiny", "class_map": CLASS_MAP}, ("label",)),
    "a class map of lists": (
        {"name": "shapes", "split": "test", "target_key": "objects/label", "class_map": CLASS_MAP},
        ("label",),
    ),
    "a class map, and another label": ({"name": "shapes", "split": "test", "class_map": CLASS_MAP}, ("image",)),
    "a nested target": ({"name": "shapes", "split": "test", "target_key": "nested/count"}, ("label",)),
    "positions as target": ({"name": "shapes", "split": "test", "target_key": ["flag", "small"]}, ("label",)),
    "only metadata": ({"name": "tiny"}, ("id",)),
    "nothing": ({"name": "tiny"}, ()),
    "an image folder": ({"name": "image_folder", "split": "train+test"}, ("image", "label", "image/filename")),
    "labels of an image folder": (
        {"name": "image_folder", "split": "test", "class_map": dict.fromkeys(range(4), 9)},
        ("label",),
    ),
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


def test_an_example_alone_has_image_and_label(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    example, by_id = parser[-1], parser[parser[-1].id]
    assert_equal(example, by_id)
    assert (example.index, example.label, example.features) == (NUM_TRAIN - 1, example.label, {})
    assert type(example.label) is int
    assert (example.image.dtype, example.image.ndim, example.image.shape[-1]) == (np.uint8, 3, 3)
    assert_equal(parser[np.int64(3)], parser[3])  # type: ignore[call-overload]
    assert [type(e.index) for e in parser.examples_by_index(np.arange(3))] == [int] * 3


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


def test_a_multi_loader_reads_all_features_where_there_are_no_image_and_label(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "channels/png_rgb", batch_size=5, image_key=None, target_key=None)
    with MultiLoader(parser, 1) as loader:
        first = next(iter(loader))
    assert set(first.features) == {"stored/image", "stored/label"}
    np.testing.assert_array_equal(first.features["stored/image"][2], parser[2].features["image"])
    assert list(first.features["stored/label"]) == [parser[i].features["label"] for i in range(5)]


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


def test_a_slice_is_a_list_and_iterating_ends_with_the_split(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "test", image_key=None)
    everything = list(parser)  # type: ignore[call-overload]
    assert [example.index for example in everything] == list(range(NUM_TEST))
    for key in (slice(2, 5), slice(None, None, -7), slice(30, 99), slice(5, 2)):
        assert_equal(parser[key], everything[key])


def test_an_example_is_ones_own_to_change(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    first, second = parser.examples_by_index([0, 0])
    before = second.image.copy()
    first.image[:] = 0
    np.testing.assert_array_equal(second.image, before)
    np.testing.assert_array_equal(parser[0].image, before)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_examples_are_read_and_decoded_a_chunk_at_a_time(
    num_threads: int, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = ParserTfds(datasets.root, "shapes", read=ReadOptions(num_threads=num_threads))
    expected = parser.examples_by_index(range(50))
    monkeypatch.setattr(examples, "_CHUNK_BYTES", 7 * parser.mean_example_bytes)
    assert num_reads_of(parser, lambda: assert_equal(parser.examples_by_index(range(50)), expected)) == 8


def num_reads_of(parser: ParserTfds, call: Callable[[], Any]) -> int:
    """Returns how often a call reads of the source."""
    source = type(parser.source)
    with mock.patch.object(source, "read", autospec=True, side_effect=source.read) as read:
        call()
    return read.call_count


# Errors


@pytest.mark.parametrize(
    ("keys", "fields", "message"),
    [
        ([0], ("image", "lable"), "lable"),
        ([0], "image", r"fields='image' must be a sequence"),
        ([None], ("image",), "None names no example"),
        (3, ("image",), "by a list of indices and ids"),
    ],
)
def test_what_cannot_be_asked_for_is_a_config_error(datasets: Datasets, keys: Any, fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParserTfds(datasets.root, "shapes").examples_by_index(keys, fields)


@pytest.mark.parametrize("key", [NUM_TRAIN, "shapes-train.tfrecord-00000-of-00007__40"])
def test_an_example_that_there_is_not_is_an_index_error(datasets: Datasets, key: Any) -> None:
    with pytest.raises(ExampleNotFoundError, match="there is no example") as caught:
        ParserTfds(datasets.root, "shapes")[key]
    assert isinstance(caught.value, IndexError | ConfigError)


def test_remote_files_are_a_config_error_that_says_what_to_do(datasets: Datasets) -> None:
    parser = as_remote(ParserTfds(datasets.root, "shapes"))
    with pytest.raises(ConfigError, match=r"gs://bucket/.* is remote\. Copy the dataset to this machine, or read it"):
        parser[0]


@pytest.fixture
def own(datasets: Datasets, tmp_path: Path) -> Path:
    """A version directory of shapes that may be damaged."""
    return Path(shutil.copytree(datasets.shapes, tmp_path / "shapes" / "1.0.0"))


def test_a_corrupt_record_is_named_and_the_others_are_read(own: Path) -> None:
    path = shard_files(own, "train")[0]
    data = bytearray(path.read_bytes())
    data[record_offsets(path)[5] + 40] ^= 1
    path.write_bytes(data)
    parser = ParserTfds(None, own)
    with pytest.raises(CorruptRecordError, match=path.name):
        parser.examples_by_index([4, 5, 6])
    assert [example.index for example in parser.examples_by_index([4, 6])] == [4, 6]


def test_a_missing_shard_is_named(own: Path) -> None:
    path = shard_files(own, "train")[2]
    path.unlink()
    with pytest.raises(ShardError, match=f"{path.name} is missing"):
        ParserTfds(None, own)[0]


def test_an_image_that_cannot_be_decoded_is_named(own: Path) -> None:
    path = shard_files(own, "train")[0]
    records = list(read_records(path))
    records[7] = replace_bytes_feature(records[7], "image", lambda _: b"no image at all")
    write_shard(path, records)
    parser = ParserTfds(None, own)
    with pytest.raises(CorruptRecordError) as caught:
        parser.examples_by_index([9, 7, 3])
    assert str(caught.value).startswith(
        f"{path}: record 7 (index 7, id {path.name}__7) of shapes:1.0.0 cannot be decoded, though its checksum is "
        f"right: it was written that way. Its 15 bytes are not a whole {READABLE_FORMATS} image."
    )
    assert "\n" not in str(caught.value)
    assert parser.examples_by_index([7], ["caption"])[0].features["caption"].startswith("a ")


def test_a_label_that_the_class_map_lacks_is_a_config_error(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "tiny", class_map={"circle": 0, "square": 1})
    assert [example.label for example in parser[:2]] == [0, 1]
    with pytest.raises(ConfigError, match="the class map has no label for 'triangle'"):
        parser[2]


# Which process decodes


def test_no_process_is_started(datasets: Datasets, folder: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for parser in (ParserTfds(datasets.root, "shapes"), ParserTfds(folder, "image_folder")):
        assert parser[0].image is not None
        assert len(parser[:40]) == 40
    assert ParserTfds(datasets.root, "sentences")[0].features.keys() == {"text", "score"}
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


WITHOUT_TENSORFLOW = """
import sys
from importlib.machinery import ModuleSpec
from tfds_torch import ParserTfds

class Refusal:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] == "tensorflow" else None

    def create_module(self, spec):
        raise AssertionError(f"{spec.name} was imported")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refusal())
root, folder, features = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
parser = ParserTfds(root, "shapes", "train+test")
assert parser[0].image.shape[-1] == 3
assert len(parser.examples_by_index(range(parser.num_examples), features)) == 248
assert ParserTfds(root, "sentences")[0].features["text"]
assert len(ParserTfds(folder, "image_folder")[:]) == 58
assert "tensorflow" not in sys.modules
if sys.argv[4] == "twin":
    import tensorflow
"""


@pytest.mark.parametrize(("twin", "code"), [("", 0), pytest.param("twin", 1, marks=pytest.mark.slow)])
def test_tensorflow_is_not_imported(
    twin: str, code: int, datasets: Datasets, folder: Path, run_python: Callable[..., Any]
) -> None:
    features = ",".join(("image", "label", *FEATURES))
    done = run_python("-c", WITHOUT_TENSORFLOW, str(datasets.root), str(folder), features, twin)
    assert done.returncode == code, done.stderr
    assert ("tensorflow was imported" in done.stderr) == bool(twin)


def test_each_call_reads_every_example_once(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    assert num_reads_of(parser, lambda: parser.examples_by_index([5, 3, 5, 209, 0])) == 1
    assert num_reads_of(parser, lambda: parser[3]) == 1


def test_metadata_alone_reads_no_example(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    source = type(parser.source)
    with mock.patch.object(source, "read", autospec=True, side_effect=source.read) as read:
        examples = parser.examples_by_index([1, 2], ["id"])
    assert [example.id for example in examples] == parser.ids(np.array([1, 2]))
    assert read.call_args_list == []


def test_a_parser_can_be_pickled_and_changed_after_it_was_asked(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", batch_size=4)
    expected = parser[3]
    copies = [pickle.loads(pickle.dumps(parser)), parser.with_batch_size(8), parser.with_read(ReadOptions())]
    for copy in copies:
        assert_equal(copy[3], expected)


def test_threads_may_share_a_parser(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    with ThreadPoolExecutor(8) as pool:
        assert [example.index for example in pool.map(parser.__getitem__, range(60))] == list(range(60))


def send_labels(told: Any, parser: ParserTfds) -> None:
    told.send([parser[2].label, [example.label for example in parser[:]], num_reads_of(parser, lambda: parser[1])])


@pytest.mark.parametrize(
    ("method", "is_daemon"),
    [
        pytest.param("fork", True, id="forked worker"),
        pytest.param("spawn", True, id="spawned worker", marks=slow),
        pytest.param("spawn", False, id="spawned training process", marks=slow),
    ],
)
def test_a_parser_that_was_used_goes_on_in_other_processes_and_here(
    method: str, is_daemon: bool, datasets: Datasets
) -> None:
    parser = ParserTfds(datasets.root, "tiny", target_key="id")
    expected = [example.label for example in parser]  # Looked at before workers start, as people do.
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    worker = context.Process(target=send_labels, args=(theirs, parser), daemon=is_daemon)
    worker.start()
    assert ours.poll(60)
    assert ours.recv() == [expected[2], expected, 1]
    assert [example.label for example in parser] == expected
    worker.join()


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


def read_after_a_fork_from_tensorflow(root: str) -> tuple[list[int], list[int]]:
    """Returns the indices that are read in a process in which tensorflow ran, and in one that was forked from it."""
    import tensorflow as tf

    tf.constant(1)
    parser = ParserTfds(root, "shapes")
    here = [example.index for example in parser.examples_by_index([5, 3, 5, 209, 0])]
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=send_indices, args=(theirs, parser), daemon=True)
    worker.start()
    theirs.close()
    there = ours.recv()
    worker.join()
    return here, there


def send_indices(told: Any, parser: ParserTfds) -> None:
    examples = parser.examples_by_index([5, 3, 5, 209, 0])
    assert not psutil.Process().children()
    told.send([example.index for example in examples])


@slow
def test_where_tensorflow_ran_or_was_inherited_examples_are_read_as_anywhere(datasets: Datasets) -> None:
    here, there = subprocess_call.call(read_after_a_fork_from_tensorflow, str(datasets.root))
    assert here == there == [5, 3, 5, 209, 0]
