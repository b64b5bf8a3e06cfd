"""Single examples: the values that batches have, decoded in whichever process may load tensorflow."""

import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tfds_fixtures import (
    CLASSES,
    NUM_TEST,
    NUM_TRAIN,
    Datasets,
    Read,
    has_tensorflow,
    read_one,
    record_offsets,
    replace_bytes_feature,
    shard_files,
    write_shard,
)

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError, WorkerError
from tfds_torch.parsers import example_decoder, single_examples
from tfds_torch.parsers.example_decoder import Example
from tfds_torch.parsers.parser import LEDGER_FIELDS
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.tensorflow_runtime import QUIET_ENVIRON
from tfds_torch.records.record_run import RecordRun
from tfds_torch.records.tfrecord import read_records
from tfds_torch.runtime import fresh_process

FEATURES = (
    *("caption", "depth", "file_name", "flag", "frames", "image/filename", "mask", "matrix", "nested", "objects"),
    *("pair", "precise", "sizes", "small", "vector", "weight", "words", "zipped", "nested/inner/tags", "objects/label"),
)
slow = pytest.mark.slow
MODES = (None, "L", "RGB", "RGBA")
CLASS_MAP = {"circle": 4, "square": 3, "triangle": 2, "star": 1, "cross": 0}


@pytest.fixture(scope="module", autouse=True)
def _end_the_process() -> Iterator[None]:
    """One process decodes for all tests of this module: tensorflow takes seconds to load."""
    yield
    single_examples._process.close()


# What an example is

READS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "every feature": ({"name": "shapes", "split": "train[:60]+test"}, ("image", "label", *FEATURES, *LEDGER_FIELDS)),
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
    "only the ledger": ({"name": "tiny"}, ("id",)),
    "nothing": ({"name": "tiny"}, ()),
    "an image folder": ({"name": "image_folder", "split": "train+test"}, ("image", "label", "image/filename")),
    "labels of an image folder": (
        {"name": "image_folder", "split": "test", "class_map": dict.fromkeys(range(4), 9)},
        ("label",),
    ),
}


def read_batches(root: str, folder: str) -> dict[str, list[Example]]:
    """Returns what batches hold, example by example. Runs in a child."""
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


@pytest.fixture(scope="module")
def batches(datasets: Datasets, folder: Path) -> dict[str, list[Example]]:
    return fresh_process.call(read_batches, str(datasets.root), str(folder))


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
    assert_equal(parser[np.int64(3)], parser[3])
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


def test_a_slice_is_a_list_and_iterating_ends_with_the_split(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "test", image_key=None)
    everything = list(parser)
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


def test_many_examples_come_in_several_answers(datasets: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ParserTfds(datasets.root, "shapes")
    expected = parser.examples_by_index(range(50))
    monkeypatch.setattr(single_examples, "_REQUEST_BYTES", 7 * parser.mean_example_bytes)
    num_asked = count_calls(monkeypatch, single_examples._process, "ask")
    assert_equal(parser.examples_by_index(range(50)), expected)
    assert num_asked() == 8


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], int]:
    calls: list[Any] = []
    original = getattr(owner, name)

    def counted(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(owner, name, counted)
    return lambda: len(calls)


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
    parser = ParserTfds(datasets.root, "shapes")
    runs = tuple(
        RecordRun(f"gs://bucket/{os.path.basename(run.path)}", run.skip, run.take, run.first_index, run.num_in_shard)
        for run in parser.files
    )
    object.__setattr__(parser._stream.files, "runs", runs)
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
        f"right: it was written that way. tensorflow says: Unknown image file format."
    )
    assert "\n" not in str(caught.value)
    assert parser.examples_by_index([7], ["caption"])[0].features["caption"].startswith("a ")


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (Path.unlink, ShardError, "is missing"),
        (lambda path: path.write_bytes(b""), CorruptRecordError, "is empty"),
        (lambda path: path.write_bytes(b"no image"), CorruptRecordError, "(index 11) cannot be decoded: it is damaged"),
    ],
    ids=["missing", "empty", "damaged"],
)
def test_a_bad_file_of_an_image_folder_is_named(
    own_folder: Path, damage: Callable[[Path], Any], kind: type[Exception], message: str
) -> None:
    parser = ParserTfds(own_folder, "image_folder")
    path = own_folder / parser[11].id
    damage(path)
    with pytest.raises(kind) as caught:
        parser[10:13]
    assert f"{path} of image_folder:1.0.0 {message}" in str(caught.value)


def test_a_label_that_the_class_map_lacks_is_a_config_error(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "tiny", class_map={"circle": 0, "square": 1})
    assert [example.label for example in parser[:2]] == [0, 1]
    with pytest.raises(ConfigError, match="the class map has no label for 'triangle'"):
        parser[2]


@slow
def test_a_process_that_was_killed_is_said_once(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "tiny")
    expected = parser[0]
    process = single_examples._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        parser[0]
    assert_equal(parser[0], expected)


# Which process decodes


def test_one_process_of_its_own_decodes_for_all_parsers(datasets: Datasets, folder: Path) -> None:
    parsers = [ParserTfds(datasets.root, "sentences", f"train[:{i}]") for i in range(1, 12)]
    texts = [example.features["text"] for example in ParserTfds(datasets.root, "sentences")[:11]]
    assert len(set(texts)) == 11
    for _ in range(2):  # More than are kept open.
        assert [parser[-1].features["text"] for parser in parsers] == texts
    assert ParserTfds(folder, "image_folder")[0].image is not None
    children = {child.pid for child in psutil.Process().children()}
    process = single_examples._process._process
    assert process is not None
    assert process.pid in children
    assert not has_tensorflow()
    assert "tensorflow" not in sys.modules


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


def look(parser: ParserTfds) -> dict[str, Any]:
    """Returns where examples are decoded. Runs in processes of all kinds."""
    told: dict[str, Any] = {"label": parser[2].label, "tensorflow here": has_tensorflow()}
    process = single_examples._process._process
    told["own process"] = process is not None
    single_examples._process.close()
    return told


def look_and_tell(told: Any, parser: ParserTfds) -> None:
    told.send(look(parser))


@pytest.mark.parametrize(
    ("method", "is_daemon"),
    [
        pytest.param("fork", True, id="forked worker"),
        pytest.param("spawn", True, id="spawned worker", marks=slow),
        pytest.param("spawn", False, id="spawned training process", marks=slow),
    ],
)
def test_a_loaders_worker_decodes_by_itself_and_a_training_process_does_not(
    datasets: Datasets, method: str, is_daemon: bool
) -> None:
    parser = ParserTfds(datasets.root, "tiny", target_key="id")
    parser[0]  # Looked at before workers start, as people do.
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    worker = context.Process(target=look_and_tell, args=(theirs, parser), daemon=is_daemon)
    worker.start()
    assert ours.poll(60)
    assert ours.recv() == {"label": 1002, "tensorflow here": is_daemon, "own process": not is_daemon}
    worker.join()


def read_where_tensorflow_runs(root: str) -> dict[str, Any]:
    """In one process: decodes here once tensorflow is loaded; reads once for a call; holds no parser; forks."""
    import tensorflow  # noqa: F401

    told: dict[str, Any] = {}
    reads: list[int] = []
    original = example_decoder.open_reader

    def open_counting(*args: Any, **kwargs: Any) -> Any:
        reader = original(*args, **kwargs)
        read = reader.read

        def count(index: Sequence[int]) -> Any:
            reads.append(len(index))
            return read(index)

        reader.read = count
        return reader

    example_decoder.open_reader = open_counting
    parser = ParserTfds(root, "shapes")
    told["indices"] = [example.index for example in parser.examples_by_index([5, 3, 5, 209, 0])]
    told["changed"] = parser.examples_by_index([0, 0])[0].image.flags.writeable
    told["own process"] = single_examples._process._process is not None
    parser.examples_by_index([1, 2], ["id"])
    told["reads"] = list(reads)
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(
        target=look_and_tell, args=(theirs, ParserTfds(root, "tiny", target_key="id")), daemon=True
    )
    worker.start()
    told["forked"] = ours.recv()
    worker.join()
    held = weakref.ref(parser)
    del parser
    gc.collect()
    told["held"] = held() is not None
    return told


@slow
def test_where_tensorflow_runs_it_decodes_and_each_call_reads_once(datasets: Datasets) -> None:
    told = fresh_process.call(read_where_tensorflow_runs, str(datasets.root))
    assert told.pop("forked") == {"label": 1002, "tensorflow here": True, "own process": True}
    assert told == {
        "indices": [5, 3, 5, 209, 0],
        "changed": True,
        "own process": False,
        "reads": [5, 2],
        "held": False,
    }


# Lives of whole programs

PROGRAM = """
import os, signal, sys
from tfds_torch import ParserTfds
from tfds_torch.parsers import single_examples
os.setpgrp()  # Ctrl-C in a terminal reaches the whole group.
parser = ParserTfds(sys.argv[1], "tiny")
parser[0]
print(single_examples._process._process.pid, flush=True)
if sys.argv[2] == "ctrl-c":
    os.killpg(0, signal.SIGINT)
    while True:
        parser[1]
"""


@slow
@pytest.mark.parametrize(("ending", "code", "said"), [("end", 0, ""), ("ctrl-c", -signal.SIGINT, "KeyboardInterrupt")])
def test_no_process_is_left_however_a_program_ends(
    ending: str, code: int, said: str, datasets: Datasets, run_python: Callable[..., Any]
) -> None:
    command = ("-W", "always::ResourceWarning", "-c", PROGRAM, str(datasets.root), ending)
    done = run_python(*command, env=QUIET_ENVIRON)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1:] == [said] * bool(said), done.stderr
    pid = int(done.stdout)
    assert psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)[1] == []
