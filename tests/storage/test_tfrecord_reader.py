"""TfrecordReader: the examples asked for, in the order asked, each verified."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.made_shards import DATASET, MadeSplit, write_shards
from storage.tfrecord_writer import FOOTER_SIZE, HEADER_SIZE, boundaries, write

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage import open_files
from tfds_torch.storage.tfrecord import index as record_index
from tfds_torch.storage.tfrecord import source as tfrecord_source
from tfds_torch.storage.tfrecord.framing import read_records, scan_offsets
from tfds_torch.storage.tfrecord.index import RecordIndex
from tfds_torch.storage.tfrecord.source import TfrecordReader


@pytest.fixture
def split(tmp_path: Path, cache_home: Path) -> MadeSplit:
    """Three shards, and a second, shorter instruction for the first."""
    made = write_shards(tmp_path / "data", [6, 0, 9])
    made.add_instruction(made.instructions[0].path, 2, 3)
    return made


@pytest.fixture
def reader(split: MadeSplit) -> Iterator[TfrecordReader]:
    with TfrecordReader(RecordIndex.open(split.table)) as opened:
        yield opened


@pytest.fixture
def as_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets readers that are opened in the test take these files for ones that are too large to be read as wholes."""
    monkeypatch.setattr(open_files, "_READ_AS_WHOLE_BYTES", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and size of every read, as they are made."""
    made: list[tuple[int, int]] = []
    really_read = os.pread

    def read(descriptor: int, size: int, offset: int) -> bytes:
        made.append((offset, size))
        return really_read(descriptor, size, offset)

    monkeypatch.setattr(open_files.os, "pread", read)
    return made


def replace_byte(path: str, position: int, mask: int) -> None:
    """Changes a byte without a trace in the file's size and time."""
    stamp = os.stat(path)
    content = bytearray(Path(path).read_bytes())
    content[position] ^= mask
    Path(path).write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


# What is read.


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), most=st.sampled_from([1, 50, 1000, 4 << 20]))
def test_any_examples_come_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, most: int
) -> None:
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    made = write_shards(tmp_path_factory.mktemp("data"), counts)
    split = MadeSplit(records=made.records)
    for shard in data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=5)):
        skip = data.draw(st.integers(0, counts[shard]))
        split.add_instruction(list(made.records)[shard], skip, data.draw(st.integers(0, counts[shard] - skip)))
    expected = [  # Read from the beginning of every file.
        record
        for item in split.instructions
        for record in list(read_records(item.path))[item.skip : item.skip + item.take]
    ]
    index = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=40)) if expected else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_files, "_RANGE_BYTES", most)
        with TfrecordReader(RecordIndex.open(split.table)) as reader:
            assert reader.read(np.array(index, np.int64)) == [expected[number] for number in index]


def test_every_record_is_read_once_per_call_and_counted(
    split: MadeSplit, reader: TfrecordReader, reads: list[tuple[int, int]]
) -> None:
    # Examples 2 and 15 are the same record, through two instructions.
    index = np.array([2, 11, 2, 15, 0])
    assert reader.read(index) == [split.examples[number] for number in index]
    assert reader.num_read == len(reads) == 3
    reader.read(np.array([2]))
    assert reader.num_read == 4
    assert reader.read(np.array([], np.int64)) == []
    assert reader.num_read == 4


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.tuples(st.integers(0, 17), st.integers(0, 320), st.integers(0, 320)), max_size=30),
    gap=st.sampled_from([0, 30, 4096]),
    most=st.sampled_from([1, 500, 4 << 20]),
)
def test_any_parts_of_examples_come_in_the_order_asked(
    split: MadeSplit, reader: TfrecordReader, parts: list[tuple[int, int, int]], gap: int, most: int
) -> None:
    bounds = [(number, min(first, last), max(first, last)) for number, first, last in parts]
    index, start, stop = np.array(bounds, np.int64).reshape(-1, 3).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_files, "_RANGE_BYTES", most)
        patch.setattr(tfrecord_source, "_GAP_BYTES", gap)
        found = reader.read_parts(index, start, stop)
    assert found == [split.examples[number][first:last] for number, first, last in bounds]


def test_parts_that_lie_apart_are_read_apart(
    split: MadeSplit, reader: TfrecordReader, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord_source, "_GAP_BYTES", 10)
    reader.read_parts(np.array([14, 14, 14]), np.array([0, 20, 200]), np.array([10, 40, 210]))
    assert [size for _, size in reads] == [40, len(split.examples[14][200:210])]


def test_neighbours_are_read_together_and_nothing_else_is(
    split: MadeSplit, reader: TfrecordReader, reads: list[tuple[int, int]]
) -> None:
    reader.read(np.array([4, 8, 3, 9, 1, 7]))
    first, last = (boundaries(split.records[split.instructions[place].path]) for place in (0, 2))
    assert reads == [
        (first[1], first[2] - first[1]),
        (first[3], first[5] - first[3]),
        (last[1], last[4] - last[1]),
    ]
    assert reader.num_read == 6


def test_the_ends_of_two_files_are_no_neighbours(reader: TfrecordReader, reads: list[tuple[int, int]]) -> None:
    reader.read(np.array([5, 6]))
    assert len(reads) == 2


def test_an_empty_record_between_two_is_not_read(
    tmp_path: Path, cache_home: Path, reads: list[tuple[int, int]]
) -> None:
    split = MadeSplit(records={str(write(tmp_path / "data" / "shard", [b"a", b"", b"b"])): [b"a", b"", b"b"]})
    split.add_instruction(next(iter(split.records)), 0, 3)
    with TfrecordReader(RecordIndex.open(split.table)) as reader:
        assert reader.read(np.array([0, 2])) == [b"a", b"b"]
    assert reads == [(0, 17), (33, 17)]


def test_long_ranges_are_read_in_pieces(tmp_path: Path, cache_home: Path, reads: list[tuple[int, int]]) -> None:
    records = [bytes([number]) * 1_000_000 for number in range(12)]
    split = MadeSplit(records={str(write(tmp_path / "data" / "shard", records)): records})
    split.add_instruction(next(iter(split.records)), 0, 12)
    with TfrecordReader(RecordIndex.open(split.table)) as reader:
        assert reader.read(np.arange(12)) == records
    assert 3 <= len(reads) <= 4
    assert sum(size for _, size in reads) == boundaries(records)[-1]


@pytest.mark.usefixtures("as_large_files")
def test_advice_is_given_once_for_each_range_and_reads_nothing(
    split: MadeSplit, reader: TfrecordReader, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(open_files.os, "posix_fadvise", lambda _, *arguments: advised.append(arguments))
    reader.advise(np.array([4, 11, 3, 4]))
    first, last = (boundaries(split.records[split.instructions[place].path]) for place in (0, 2))
    assert advised == [
        (first[3], first[5] - first[3], os.POSIX_FADV_WILLNEED),
        (last[5], last[6] - last[5], os.POSIX_FADV_WILLNEED),
    ]
    assert reads == []
    assert reader.num_read == 0
    reader.advise(np.array([], np.int64))


def test_small_files_are_asked_for_as_wholes_and_once(reader: TfrecordReader, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(open_files.os, "posix_fadvise", lambda _, *arguments: advised.append(arguments))
    for index in ([4, 11, 3], [0]):
        reader.advise(np.array(index))
    assert advised == [(0, os.path.getsize(path), os.POSIX_FADV_WILLNEED) for path in reader.index.files]


def test_where_the_system_takes_no_advice_none_is_given(
    reader: TfrecordReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    reader.advise(np.array([0]))


def test_a_closed_reader_reads_nothing(reader: TfrecordReader) -> None:
    reader.read(np.array([0]))
    reader.close()
    reader.close()
    with pytest.raises(ConfigError, match="was closed"):
        reader.read(np.array([0]))


# Damage after the index was built.


def test_every_flipped_byte_is_an_error_that_names_example_file_and_offset(split: MadeSplit) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    starts = boundaries(split.records[path])
    for position in range(starts[3], starts[4]):
        replace_byte(path, position, 0x40)
        with TfrecordReader(index) as reader, pytest.raises(CorruptRecordError) as caught:
            reader.read(np.array([0, 10, 9, 8]))
        assert str(caught.value).startswith(f"example 9 of {DATASET}: {path}: record 3 at offset {starts[3]}: its ")
        replace_byte(path, position, 0x40)
    with TfrecordReader(index) as reader:
        assert reader.read(np.array([9])) == [split.examples[9]]


def test_the_messages_of_damage_say_what_is_damaged(split: MadeSplit) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    start, end = boundaries(split.records[path])[3:5]
    where = f"example 9 of {DATASET}: {path}: record 3 at offset {start}: "
    size = end - start - HEADER_SIZE - FOOTER_SIZE
    for position, problem in [
        (start, "its header is not the one that was indexed: the file is corrupt."),
        (start + 9, "its header is not the one that was indexed: the file is corrupt."),
        (start + HEADER_SIZE, f"its {size} bytes do not have their checksum: the file is corrupt."),
        (end - 1, f"its {size} bytes do not have their checksum: the file is corrupt."),
    ]:
        replace_byte(path, position, 1)
        with TfrecordReader(index) as reader, pytest.raises(CorruptRecordError) as caught:
            reader.read(np.array([9]))
        assert str(caught.value) == f"{where}{problem} Prepare the dataset again."
        replace_byte(path, position, 1)


def test_without_verification_damaged_data_is_returned_and_a_damaged_header_is_not(split: MadeSplit) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    start = boundaries(split.records[path])[3]
    replace_byte(path, start + HEADER_SIZE, 1)
    with TfrecordReader(index, verify_checksums=False) as reader:
        (data,) = reader.read(np.array([9]))
    assert data == bytes([split.examples[9][0] ^ 1]) + split.examples[9][1:]
    replace_byte(path, start + 1, 1)
    with TfrecordReader(index, verify_checksums=False) as reader, pytest.raises(CorruptRecordError, match="its header"):
        reader.read(np.array([9]))


def exchange(path: str, records: list[bytes]) -> None:
    """Writes other records without a trace in the file's size and time."""
    stamp = os.stat(path)
    write(Path(path), records)
    assert os.stat(path).st_size == stamp.st_size
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are looked at again, as they are."""
    paths: list[str] = []

    def scan(path: str, *rest: Any) -> Int64Array:
        if not rest:
            paths.append(path)
        return scan_offsets(path, *rest)

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    return paths


def test_records_exchanged_behind_the_index_are_read_after_another_look(
    split: MadeSplit, scanned: list[str], cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    exchange(path, split.records[path][::-1])
    with TfrecordReader(index) as reader:
        for _ in range(2):
            assert reader.read(np.arange(4, 15)) == split.examples[4:6] + split.records[path][::-1]
            assert reader.read(np.array([0, 16])) == [split.examples[0], split.examples[16]]
    assert scanned == [path]
    assert [record.getMessage() for record in caplog.records] == [
        f"The index of {DATASET} is built again: {path} was exchanged for a file of the same size and time."
    ]
    # The others find the index that was built again.
    with TfrecordReader(RecordIndex.open(split.table)) as reader:
        assert reader.read(np.arange(6, 15)) == split.records[path][::-1]
    assert scanned == [path]


def test_a_reader_with_the_stale_index_takes_what_another_process_built_again(
    split: MadeSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = [RecordIndex.open(split.table) for _ in range(2)]
    path = split.instructions[2].path
    exchange(path, split.records[path][::-1])
    for index, may_build in zip(stale, (True, False), strict=True):
        if not may_build:
            monkeypatch.delattr(record_index, "find_records")
        with TfrecordReader(index) as reader:
            assert reader.read(np.arange(6, 15)) == split.records[path][::-1]


def test_without_a_cache_folder_a_stale_index_is_built_again_in_memory(split: MadeSplit, cache_home: Path) -> None:
    cache_home.write_text("a file where the folder should be")
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    exchange(path, split.records[path][::-1])
    with TfrecordReader(index) as reader:
        assert reader.read(np.arange(6, 15)) == split.records[path][::-1]


def test_a_file_exchanged_for_one_with_fewer_records_is_a_shard_error_that_counts(split: MadeSplit) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    first, second, *rest = split.records[path]
    exchange(path, [first + second + bytes(HEADER_SIZE + FOOTER_SIZE), *rest])
    with TfrecordReader(index) as reader, pytest.raises(ShardError, match=rf"{path} holds 8 of 9 examples"):
        reader.read(np.array([6]))


def test_a_damaged_file_is_looked_at_again_only_once(split: MadeSplit, scanned: list[str]) -> None:
    index = RecordIndex.open(split.table)
    path = split.instructions[2].path
    starts = boundaries(split.records[path])
    replace_byte(path, starts[3] + HEADER_SIZE, 1)
    replace_byte(path, starts[5] + HEADER_SIZE, 1)
    with TfrecordReader(index) as reader:
        for example in (9, 11, 9):
            with pytest.raises(CorruptRecordError, match=rf"^example {example} of .* do not have their checksum"):
                reader.read(np.array([example]))
        assert reader.read(np.array([8])) == [split.examples[8]]
    assert scanned == [path]


def test_a_file_cut_while_it_is_open_is_an_error_that_says_it_changed(split: MadeSplit, reader: TfrecordReader) -> None:
    path = split.instructions[2].path
    starts = boundaries(split.records[path])
    reader.read(np.array([6]))
    os.truncate(path, starts[3] + 5)
    with pytest.raises(CorruptRecordError) as caught:
        reader.read(np.array([9, 0]))
    assert str(caught.value) == (
        f"example 9 of {DATASET}: {path}: record 3 at offset {starts[3]}: the file ends inside it: it was cut. The "
        f"file changed since it was indexed: it had {starts[-1]} bytes and has {starts[3] + 5}. Prepare the dataset "
        f"again."
    )


def test_in_a_range_the_record_that_was_cut_is_named(split: MadeSplit, reader: TfrecordReader) -> None:
    path = split.instructions[2].path
    starts = boundaries(split.records[path])
    reader.read(np.array([6]))
    os.truncate(path, starts[4])
    with pytest.raises(CorruptRecordError, match=rf"^example 10 of .* record 4 at offset {starts[4]}: the file ends"):
        reader.read(np.arange(8, 13))


def test_a_file_that_vanished_or_changed_is_named_with_its_example(split: MadeSplit, reader: TfrecordReader) -> None:
    path = split.instructions[2].path
    with Path(path).open("ab") as file:
        file.write(b"more")
    with pytest.raises(
        ShardError, match=rf"^example 7 of {DATASET}: The shard file {path} changed while it was in use"
    ):
        reader.read(np.array([8, 7]))
    os.remove(path)
    with pytest.raises(ShardError, match=rf"^example 7 of {DATASET}: The shard file {path} is missing"):
        reader.read(np.array([8, 7]))


# Threads and processes.


def test_threads_may_read_at_once(split: MadeSplit) -> None:
    wrong: list[int] = []
    index = RecordIndex.open(split.table)
    with TfrecordReader(index) as reader:
        reader._files._most = 1  # Every read closes the file of the one before.
        together = threading.Barrier(4)

        def read(seed: int) -> None:
            numbers = np.random.default_rng(seed)
            together.wait()
            for _ in range(100):
                asked = numbers.integers(0, 18, 5)
                if reader.read(asked) != [split.examples[number] for number in asked]:
                    wrong.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
