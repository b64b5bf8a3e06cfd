"""TfrecordSource and ArrayRecordSource: the encoded fields of a split's examples, by number."""

import os
import pickle
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from refused import said_of
from storage.example_writer import write_example
from storage.made_shards import DATASET, write_array_record
from storage.tfrecord_writer import boundaries
from storage.tfrecord_writer import write as write_tfrecord

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FieldSpec, FileInstruction, source_type
from tfds_torch.storage.tfrecord import shard_counts
from tfds_torch.storage.tfrecord.framing import count_records

SPECS = {"image": FieldSpec((), object), "label": FieldSpec((), np.int64), "absent": FieldSpec((), np.int64)}
COUNTS = (6, 0, 9)
FORMATS = ["tfrecord", "array_record"]


def example(number: int) -> bytes:
    return write_example({"image": [b"image %d" % number * 20], "label": [number]})


@dataclass
class Made:
    """A split of three shards, the second of which is empty, and its source.

    Attributes:
        folder: of the shards.
        file_format: of the shards.
        paths: of the shards.
        write: writes a shard.
    """

    folder: Path
    file_format: str
    paths: list[str]
    write: Callable[[Path, Sequence[bytes]], object]

    @property
    def instructions(self) -> list[FileInstruction]:
        return [FileInstruction(self.paths[0], 0, 6, 0, 6), FileInstruction(self.paths[2], 0, 9, 6, 9)]

    def source(self, instructions: Sequence[FileInstruction] | None = None, **arguments: Any) -> RecordSource:
        arguments = {"mean_example_bytes": 100, "empty_files": [self.paths[1]], **arguments}
        instructions = self.instructions if instructions is None else instructions
        source: RecordSource = source_type(self.file_format)(DATASET, instructions, SPECS, **arguments)
        return source


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path: Path, cache_home: Path) -> Made:
    return make(tmp_path / "data", request.param)


@pytest.fixture
def tfrecord(tmp_path: Path, cache_home: Path) -> Made:
    return make(tmp_path / "data", "tfrecord")


def make(folder: Path, file_format: str) -> Made:
    folder.mkdir()
    write = write_tfrecord if file_format == "tfrecord" else write_array_record
    paths = [str(folder / f"fake-train.{file_format}-{number:05d}-of-00003") for number in range(3)]
    first = 0
    for path, count in zip(paths, COUNTS, strict=True):
        write(Path(path), [example(number) for number in range(first, first + count)])
        first += count
    return Made(folder, file_format, paths, write)


def labels(source: RecordSource, index: Sequence[int]) -> list[int]:
    found: list[int] = source.read(np.array(index, np.int64), ["label"])["label"].tolist()
    return found


# What is read.


def test_examples_come_in_the_order_asked_with_the_fields_asked_for(made: Made) -> None:
    source = made.source()
    assert len(source) == 15
    columns = source.read(np.array([14, 0, 6, 0]), ["label", "image"])
    assert columns["label"].tolist() == [14, 0, 6, 0]
    assert columns["image"] == [b"image %d" % number * 20 for number in (14, 0, 6, 0)]
    assert list(source.read(np.array([3]), ["image"])) == ["image"]
    assert labels(source, []) == []


def test_what_it_says_of_itself(made: Made) -> None:
    source = made.source()
    assert (source.name, source.mean_example_bytes, source.has_shards) == (DATASET, 100, True)
    assert source.specs == SPECS
    assert source.instructions == tuple(made.instructions)
    assert source.obstacle is None
    assert source.can_stream == (made.file_format == "tfrecord")


def test_records_read_elsewhere_are_parsed_alike(made: Made) -> None:
    source = made.source()
    records = [example(3), example(9)]
    assert source.parse(records, np.array([3, 9]), ["label"])["label"].tolist() == [3, 9]
    with pytest.raises(
        CorruptRecordError, match=rf"{made.paths[2]}: record 3 \(index 9, .* lacks the feature 'absent'"
    ):
        source.parse([example(9)], np.array([9]), ["absent"])


def test_building_one_opens_no_file_and_a_path_stays_what_it_was(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(made.folder)
    relative = [replace(item, path=os.path.basename(item.path)) for item in made.instructions]
    source = made.source(relative, empty_files=[os.path.basename(made.paths[1])])
    monkeypatch.chdir(tmp_path)
    assert source.instructions == tuple(made.instructions)
    source.check()
    assert labels(source, [14]) == [14]
    gone = made.source([FileInstruction(str(tmp_path / "nothing"), 0, 3, 0, 3)])
    assert len(gone) == 3
    with pytest.raises(ShardError, match="nothing is missing"):
        labels(gone, [0])


def test_examples_that_are_announced_are_read_as_always(made: Made) -> None:
    source = made.source()
    source.announce(np.array([1, 14]))
    assert labels(source, [1, 14]) == [1, 14]
    os.remove(made.paths[2])
    made.source().announce(np.array([14]))  # Whoever reads it will hear of it.


@pytest.mark.parametrize("index", [-1, 15])
def test_an_index_outside_the_split_is_an_error(made: Made, index: int) -> None:
    with pytest.raises(ExampleNotFoundError, match=f"has no example {index} here: the split has 15 examples"):
        labels(made.source(), [0, index])


def test_a_closed_source_opens_its_files_again(made: Made) -> None:
    source = made.source()
    source.close()
    assert labels(source, [2]) == [2]
    source.close()
    assert source._reader is None
    assert labels(source, [2]) == [2]


# Ids.


def test_ids_are_those_of_tfds(made: Made) -> None:
    source = made.source()
    names = [os.path.basename(path) for path in made.paths]
    assert source.ids(np.array([14, 0, 6])) == [f"{names[2]}__8", f"{names[0]}__0", f"{names[2]}__0"]
    assert [source.find(name) for name in source.ids(np.arange(15))] == list(range(15))


def test_ids_count_the_records_of_the_shard_in_a_slice(made: Made) -> None:
    first, last = made.paths[0], made.paths[2]
    items = [FileInstruction(last, 5, 3, 0, 9), FileInstruction(first, 1, 2, 3, 6), FileInstruction(last, 0, 6, 5, 9)]
    source = made.source(items)
    shard = os.path.basename(last)
    assert source.ids(np.array([0, 10])) == [f"{shard}__5", f"{shard}__5"]
    assert source.find(f"{shard}__5") == 0  # The first one, of two.
    assert source.find(f"{shard}__4") == 9


UNKNOWN_IDS = [
    ("", "ids have the form '<shard file>__<record>', such as '{0}__0'."),
    ("{0}__07", "ids have the form"),
    ("{0}__-1", "ids have the form"),
    ("{0}__²", "ids have the form"),
    ("{0}__", "ids have the form"),
    ("{0}__" + "9" * 5000, "ids have the form"),
    ("{0}__6", "the split has the records 0 to 5 of this shard."),
    ("{1}__0", "the split has no example of a shard with this name."),
    ("{2}__8", "the split has the records 0 to 1, 4 to 4 of this shard."),
    ("nothing like it__0", "the split has no example of a shard with this name."),
    ("{0}x__0", "the split has no example of a shard with this name. Did you mean '{0}'?"),
]


def test_an_id_that_there_is_not_says_why(made: Made) -> None:
    names, last, wrong = [os.path.basename(path) for path in made.paths], made.paths[2], []
    items = [made.instructions[0], FileInstruction(last, 0, 2, 6, 9), FileInstruction(last, 4, 1, 8, 9)]
    for id, reason in UNKNOWN_IDS:
        said = said_of(ExampleNotFoundError, made.source(items).find, id := id.format(*names))
        if not said.startswith(f"{DATASET}: there is no example {quoted(id)}: {reason.format(*names)}"):
            wrong.append((id[:80], said))
    assert not wrong, str(wrong)


def test_an_empty_split_has_no_ids(made: Made) -> None:
    source = made.source([])
    assert source.ids(np.empty(0, np.int64)) == []
    with pytest.raises(ExampleNotFoundError, match=r"'<shard file>__<record>'\.$"):
        source.find("x")
    source.check()


# Identity.


def test_a_fingerprint_of_an_earlier_version_stays_what_it_was(made: Made) -> None:
    identity = made.source().identity
    text = (
        f"[('fake-train.{made.file_format}-00000-of-00003', 0, 6, 6), "
        f"('fake-train.{made.file_format}-00002-of-00003', 0, 9, 9)]"
    )
    assert repr(identity) == text


def test_identity_tells_no_path_and_which_records(made: Made, tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "elsewhere", made.file_format)
    assert made.source().identity == elsewhere.source().identity
    assert made.source().identity != made.source(made.instructions[:1]).identity


# Files held against their promise.


def test_whole_files_pass_and_are_looked_at_by_their_stamps_from_then_on(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made.source()
    source.check()
    reader = source._reader
    monkeypatch.setattr(type(source), "_open", None)
    monkeypatch.setattr(type(source), "_count_records", None)
    source.check()
    assert source._reader is reader


def test_a_file_that_was_replaced_is_opened_again(made: Made) -> None:
    source = made.source()
    assert labels(source, [6]) == [6]
    made.write(Path(made.paths[2]), [example(100 + number) for number in range(9)])
    source.check()
    assert labels(source, [0, 6, 14]) == [0, 100, 108]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_that_is_gone_or_holds_another_number_of_examples_is_a_shard_error(made: Made, is_open: bool) -> None:
    source = made.source()
    if is_open:
        source.check()
    made.write(Path(made.paths[2]), [example(number) for number in range(8)])
    for _ in range(2):
        with pytest.raises(ShardError, match=f"{made.paths[2]} holds 8 of 9 examples"):
            source.check()
    os.remove(made.paths[2])
    with pytest.raises(ShardError, match=f"The shard file {made.paths[2]} is missing"):
        source.check()
    os.mkfifo(made.paths[2])
    with pytest.raises(ShardError, match=f"The shard file {made.paths[2]} is a FIFO, not a regular file"):
        source.check()


def test_a_shard_that_is_promised_to_be_empty_is_looked_at(made: Made) -> None:
    path = Path(made.paths[1])
    source = made.source()
    for streamed in (None, [made.paths[0]]):
        source.check(streamed)
        made.write(path, [example(number) for number in range(16)])
        with pytest.raises(ShardError) as caught:
            source.check(streamed)
        assert str(caught.value) == (
            f"{path} holds 16 of 0 examples: dataset_info.json of {DATASET} promises 0. The file was cut or "
            f"exchanged; prepare the dataset again."
        )
        path.write_bytes(b"")
        source.check(streamed)
        path.unlink()
        source.check(streamed)
        path.mkdir()
        with pytest.raises(ShardError, match=f"{path} is a directory, not a regular file"):
            source.check(streamed)
        path.rmdir()


def test_only_the_files_that_are_streamed_are_counted_and_no_index_is_built(
    tfrecord: Made, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def count(path: str) -> int:
        counted.append(path)
        return count_records(path)

    monkeypatch.setattr(shard_counts, "count_records", count)
    source = tfrecord.source()
    os.remove(tfrecord.paths[0])
    for _ in range(2):
        source.check({tfrecord.paths[2]})
    assert counted == [tfrecord.paths[2]]
    assert not (cache_home / "tfds_torch" / "record_index").exists()
    with pytest.raises(ShardError, match="is missing"):
        source.check({tfrecord.paths[0]})


def test_remote_files_can_be_named_and_parsed_but_not_read(made: Made) -> None:
    path = "gs://bucket/fake-train.tfrecord-00000-of-00001"
    source = made.source([FileInstruction(path, 0, 5, 0, 5)], empty_files=["gs://bucket/empty"])
    source.check()
    source.check({path})
    assert source.obstacle == f"{path} is remote"
    assert source.instructions[0].path == path
    assert source.find(source.ids(np.array([3]))[0]) == 3
    assert source.parse([example(3)], np.array([3]), ["label"])["label"].tolist() == [3]
    with pytest.raises(ConfigError, match=f"{path} is not a file of this machine"):
        labels(source, [3])


# Damage.


def test_an_example_that_cannot_be_decoded_is_named_with_all_its_places(made: Made) -> None:
    shard = made.paths[2]
    assert str(made.source().undecodable(8, "No image.")) == (
        f"{shard}: record 2 (index 8, id {os.path.basename(shard)}__2) of {DATASET} cannot be decoded, though its "
        f"checksum is right: it was written that way. No image."
    )


def test_a_checksum_that_was_not_verified_is_not_said_to_be_right(made: Made) -> None:
    shard = made.paths[2]
    error = str(made.source(verify_checksums=False).undecodable(8, "No image."))
    if made.file_format == "array_record":  # It verifies what it reads in any case.
        assert "though its checksum is right" in error
    else:
        assert error == (
            f"{shard}: record 2 (index 8, id {os.path.basename(shard)}__2) of {DATASET} cannot be decoded. Its "
            f"checksum was not verified (verify_checksums=False): it was written that way, or is damaged. No image."
        )


def test_checksums_are_verified_when_asked_for(tfrecord: Made) -> None:
    path = Path(tfrecord.paths[0])
    content = bytearray(path.read_bytes())
    content[boundaries([example(0)])[1] - 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match=f"example 0 of {DATASET}: {path}: record 0 at offset 0: its"):
        labels(tfrecord.source(), [0])
    assert labels(tfrecord.source(verify_checksums=False), [1]) == [1]


def test_a_record_that_is_not_an_example_is_named(made: Made) -> None:
    path = Path(made.paths[0])
    made.write(path, [example(0), b"\xff no message", *map(example, range(2, 6))])
    with pytest.raises(CorruptRecordError) as caught:
        labels(made.source(), [4, 1, 0])
    assert f"{path}: record 1 (index 1, id {path.name}__1) of {DATASET} cannot be decoded" in str(caught.value)
    assert "It is not a tf.train.Example (" in str(caught.value)
    assert labels(made.source(), [4, 0]) == [4, 0]


def test_a_file_exchanged_without_a_trace_is_read_as_it_is_now(tfrecord: Made) -> None:
    path = tfrecord.paths[2]
    sizes = [f"{'x' * number}".encode() for number in range(9)]
    shuffled = [write_example({"label": [number], "image": [size]}) for number, size in enumerate(sizes)]
    tfrecord.write(Path(path), shuffled)
    tfrecord.source().check()
    stamp = os.stat(path)
    tfrecord.write(Path(path), shuffled[::-1])
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    source = tfrecord.source()
    source.check()
    assert labels(source, range(15)) == [*range(6), *range(8, -1, -1)]


# Threads and processes.


def test_a_source_travels_by_pickle_without_its_open_files(made: Made) -> None:
    source = made.source()
    before = len(pickle.dumps(source))
    assert labels(source, [7]) == [7]
    assert source.find(source.ids(np.array([7]))[0]) == 7
    content = pickle.dumps(source)
    assert len(content) < before + 1000
    copy = pickle.loads(content)
    assert copy._reader is None
    assert labels(copy, [7, 0]) == [7, 0]
    assert copy.identity == source.identity


def test_threads_open_the_files_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made.source()
    opened: list[object] = []
    really_open = source._open
    monkeypatch.setattr(source, "_open", lambda: opened.append(None) or really_open())
    together = threading.Barrier(4)
    found: list[list[int]] = []

    def read(seed: int) -> None:
        together.wait()
        for _ in range(20):
            index = np.random.default_rng(seed).integers(0, 15, 5).tolist()
            found.append([*labels(source, index)] if labels(source, index) == index else [])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(found)
    assert len(opened) == 1


def test_a_forked_process_goes_on_with_a_source_of_its_parent(made: Made, run_python: RunPython) -> None:
    code = f"""
    import os, pickle, signal
    import numpy as np

    source = pickle.loads({pickle.dumps(made.source())!r})
    index = np.array([14, 3])
    assert source.read(index, ["label"])["label"].tolist() == [14, 3]
    reader_lock = getattr(source._reader, "_files", source._reader)._lock._lock
    for lock in (source._lock._lock, reader_lock):
        lock.acquire()  # As another thread that opens files, and one that reads.

    def read_often(seed):  # Parent and children read at once: none moves the others' place in a file.
        numbers = np.random.default_rng(seed)
        for _ in range(100):
            index = numbers.integers(0, 15, 4)
            assert source.read(index, ["label"])["label"].tolist() == index.tolist()

    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            if number == 2:
                source.close()
            source.check()
            read_often(number)
            os._exit(0)
        children.append(child)
    source._lock._lock.release()
    reader_lock.release()
    read_often(3)
    print([os.waitpid(child, 0)[1] for child in children])
    """
    done = run_python("-c", textwrap.dedent(code), env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == "[0, 0, 0]\n", done.stderr
