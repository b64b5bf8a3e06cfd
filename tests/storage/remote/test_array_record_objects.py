"""ArrayRecord objects give the records that the package array_record reads of the same files."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.made_shards import DATASET, MadeSplit
from storage.remote.object_server import ObjectServer

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.storage.array_record.footer import are_chunks, find_chunks
from tfds_torch.storage.array_record.highway_hash import highway_hashes
from tfds_torch.storage.array_record.remote_index import ChunkIndex
from tfds_torch.storage.array_record.remote_reader import RemoteArrayRecordReader
from tfds_torch.storage.array_record.riegeli import find_decompress
from tfds_torch.storage.array_record.source import ArrayRecordFilesReader
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.source import FileInstruction

MakeStore = Callable[..., ObjectStore]
pytestmark = pytest.mark.usefixtures("cache_home")
BLOCK = 1 << 16
SIZES = [0, 1, 300, 70_000, 0, 200_000, 30, 65_536, 5, 65_472, 1000, 1024, 9_000_000, 2, 0]
"""Of records: empty ones, some that a block header interrupts, one that is larger than a block of the cache."""


@pytest.fixture
def store(make_store: MakeStore) -> ObjectStore:
    return make_store()


def write_file(path: Path, records: Sequence[bytes], options: str = "group_size:1") -> bytes:
    """Writes a file, and returns its bytes."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path.read_bytes()


def made(sizes: Sequence[int], seed: int = 0) -> list[bytes]:
    """Returns records of these sizes; every second one can be compressed."""
    numbers = random.Random(seed)
    return [
        numbers.randbytes(size) if place % 2 else numbers.randbytes(size // 8 + 1) * 8
        for place, size in enumerate(sizes)
    ]


def open_split(
    server: ObjectServer,
    store: ObjectStore,
    folder: Path,
    shards: Sequence[Sequence[bytes]],
    options: str = "group_size:1",
    block_records: int = 4,
) -> tuple[MadeSplit, RemoteArrayRecordReader]:
    """Serves shards; the split leaves out the first record of the second one."""
    split = MadeSplit()
    for number, records in enumerate(shards):
        content = write_file(folder / f"{number}", records, options)
        url = server.put(f"{folder.name}/fake-train.array_record-{number:05d}-of-{len(shards):05d}", content)
        split.records[url] = list(records)
        skip = min(number, 1)
        split.add_instruction(url, skip, len(records) - skip)
    return split, open_reader(split.table, store, block_records)


def open_reader(table: InstructionTable, store: ObjectStore, block_records: int = 4) -> RemoteArrayRecordReader:
    return RemoteArrayRecordReader(ChunkIndex(table, ObjectFiles(store), block_records))


@pytest.mark.parametrize(
    "options",
    [
        "group_size:1",
        "group_size:1,uncompressed",
        "group_size:3",
        "group_size:4,uncompressed,pad_to_block_boundary:true",
        "group_size:100",
    ],
)
@pytest.mark.parametrize("block_records", [1, 4, 1000])
def test_any_examples_come_in_the_order_asked(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, options: str, block_records: int
) -> None:
    shards = [made(SIZES[:9], 1), made(SIZES[3:8], 2), made([40] * 120, 3)]
    split, reader = open_split(server, store, tmp_path, shards, options, block_records)
    numbers = random.Random(4)
    with reader:
        for count in (0, 1, 7, 200):
            index = np.array([numbers.randrange(len(split.examples)) for _ in range(count)], np.int64)
            reader.advise(index)
            assert reader.read(index) == [split.examples[number] for number in index]
        found = reader.read_parts(np.array([5, 5, 8]), np.array([0, 10, 3]), np.array([4, 250_000, 3]))
        assert found == [split.examples[5][:4], split.examples[5][10:], b""]
        for file, url in enumerate(reader.index.files):
            stamp = reader.index.stamps[file]
            scanned = reader.scan(ObjectFiles(store), file, lambda _: None, stamp)
            assert list(scanned) == split.records[url]


def test_records_are_those_that_the_package_reads(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split, reader = open_split(server, store, tmp_path, [made(SIZES)])
    near = [FileInstruction(str(tmp_path / "0"), 0, len(SIZES), 0, len(SIZES))]
    index = np.arange(len(SIZES))
    assert reader.read(index) == ArrayRecordFilesReader(InstructionTable(near, DATASET)).read(index) == split.examples


sizes = st.lists(
    st.one_of(st.integers(0, 400), st.sampled_from([0, 65_400, 65_472, 65_473, 65_512, 65_536, 131_072]))
    | st.integers(0, 300_000),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=sizes, group=st.integers(1, 5), block_records=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_records_of_any_sizes_come_back(
    server: ObjectServer,
    store: ObjectStore,
    tmp_path: Path,
    sizes: list[int],
    group: int,
    block_records: int,
    seed: int,
) -> None:
    split, reader = open_split(server, store, tmp_path, [made(sizes, seed)], f"group_size:{group}", block_records)
    with reader:
        assert reader.read(np.arange(len(sizes))) == split.examples


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3"])
def test_windows_name_the_blocks_in_which_their_examples_lie(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, options: str
) -> None:
    split, reader = open_split(server, store, tmp_path, [made([500] * 22, 1), made([90] * 13, 2)], options, 4)
    index = reader.index
    parts = index._blocks
    examples = [(start, min(start + 4, len(split.examples))) for start in range(0, len(split.examples), 4)]
    windows = list(index.known_windows((number, list(parts.of(*one))) for number, one in enumerate(examples)))
    assert [number for number, _ in windows] == list(range(len(examples)))
    for (start, stop), (_, blocks) in zip(examples, windows, strict=True):
        located = index.locate(np.arange(start, stop))
        spans = [(file, *index.cuts(file)[block : block + 2].tolist()) for file, block in blocks]
        for file, begin, end in zip(located.file, located.start, located.stop, strict=True):
            assert any(file == one and first <= begin and end <= last for one, first, last in spans)
    if options == "group_size:1":
        every = [block for _, blocks in windows for block in blocks]
        assert len(every) == len(set(every)), "a block belongs to one window"


# What is fetched.


def test_nothing_of_a_shard_is_fetched_before_it_is_needed(
    server: ObjectServer, store: ObjectStore, tmp_path: Path
) -> None:
    shards = [made([100_000] * 20, 1), made([100_000] * 20, 2)]
    split, reader = open_split(server, store, tmp_path, shards)
    assert not server.asked
    assert reader.read(np.array([1])) == [split.examples[1]]
    (asked,) = (ranges for path, ranges in server.asked.items() if not path.endswith(".index"))
    size = len((tmp_path / "0").read_bytes())
    assert asked[0] == (size - 2 * BLOCK, size)
    assert sum(stop - start for start, stop in asked) < 2 * BLOCK + 5 * 100_100


def test_a_long_footer_is_a_second_request(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    numbers = random.Random(1)
    records = [numbers.randbytes(numbers.randrange(90)) for _ in range(40_000)]
    split, reader = open_split(server, store, tmp_path, [records])
    assert reader.read(np.array([39_999])) == [split.examples[-1]]
    assert len(split.examples) == 40_000
    (asked,) = (ranges for path, ranges in server.asked.items() if not path.endswith(".index"))
    size = len((tmp_path / "0").read_bytes())
    assert asked[0] == (size - 2 * BLOCK, size)
    assert asked[1][1] == size - BLOCK
    assert asked[1][0] < size - 2 * BLOCK


def test_the_index_is_kept(server: ObjectServer, store: ObjectStore, make_store: MakeStore, tmp_path: Path) -> None:
    split, reader = open_split(server, store, tmp_path, [made(SIZES[:8])])
    assert reader.read(np.array([2])) == [split.examples[2]]
    for path in server.asked:
        server.asked[path].clear()
    other = open_reader(split.table, make_store(cache_dir=tmp_path / "other"))
    assert other.read(np.array([2])) == [split.examples[2]]
    end = len((tmp_path / "0").read_bytes()) - BLOCK
    assert all(stop <= end for ranges in server.asked.values() for _, stop in ranges), "the end was read again"


# Damage.


def read_all(split: MadeSplit, store: ObjectStore) -> list[bytes]:
    return open_reader(split.table, store).read(np.arange(len(split.examples)))


@pytest.mark.parametrize("byte", [0, 9, 17, 33, 41, 50, 80])
def test_a_damaged_record_is_named(server: ObjectServer, store: ObjectStore, tmp_path: Path, byte: int) -> None:
    split, reader = open_split(server, store, tmp_path, [made([300, 301, 303], 1)])
    start = int(reader.index.locate(np.array([1])).start[0])
    damage(server, start + byte)
    url = split.instructions[0].path
    said = rf"example 1 of {DATASET}: {url}: record 1 at offset {start}: .* hash: the file is corrupt\. Prepare"
    with pytest.raises(CorruptRecordError, match=said):
        read_all(split, store)
    with pytest.raises(CorruptRecordError, match=rf"{url}: record 1 at offset {start}: .* hash"):
        list(reader.scan(ObjectFiles(store), 0, lambda _: None, open_reader(split.table, store).stamps[0]))


def test_no_flipped_bit_gives_another_short_record(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split, _ = open_split(server, store, tmp_path, [made([300, 0, 303, 20, 1], 1)])
    (path,) = server.objects
    whole = server.objects[path]
    used = [*range(64, 1000, 37), *range(len(whole) - BLOCK, len(whole) - BLOCK + 120, 11)]
    outcomes = {"whole": 0, "corrupt": 0}
    for place in used:
        server.put(path, whole)
        damage(server, place)
        try:
            assert read_all(split, store) == split.examples
            outcomes["whole"] += 1
        except CorruptRecordError:
            outcomes["corrupt"] += 1
    assert outcomes["corrupt"] > len(used) // 2
    assert outcomes["whole"], "the bits of no record's chunk are not looked at"


def test_a_long_record_whose_hash_is_wrong_is_found_when_it_is_asked_for(
    server: ObjectServer, store: ObjectStore, tmp_path: Path
) -> None:
    split, reader = open_split(server, store, tmp_path, [made([10, 80_001, 10], 1)])
    assert not reader.is_damaged(1)
    start = int(reader.index.locate(np.array([1])).start[0])
    damage(server, start + 40_000)
    other = open_reader(split.table, store)
    assert other.is_damaged(1)
    assert not other.is_damaged(0)


def test_bytes_that_are_damaged_on_the_way_are_fetched_again(
    server: ObjectServer, store: ObjectStore, tmp_path: Path
) -> None:
    split, _ = open_split(server, store, tmp_path, [made([300] * 9, 1)])
    (path,) = server.objects
    server.faults[path] = ["ok", "flip", "ok", "flip", "ok"]  # Size and ETag, the end, again, a block, again.
    assert read_all(split, store) == split.examples


@pytest.mark.parametrize("size", [0, 63, 70_000, BLOCK, 2 * BLOCK, 3 * BLOCK, -1, -BLOCK])
def test_a_file_that_was_cut_is_said(server: ObjectServer, store: ObjectStore, tmp_path: Path, size: int) -> None:
    split, _ = open_split(server, store, tmp_path, [made([90_000] * 5, 1)])
    (path,) = server.objects
    server.put(path, server.objects[path][:size])
    kind = r"was cut, or is damaged" if size not in (0,) else "is not an ArrayRecord file"
    with pytest.raises(CorruptRecordError, match=rf"{split.instructions[0].path} {kind}: .* Prepare the dataset again"):
        read_all(split, store)


def test_what_is_no_array_record_file_is_said(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split, _ = open_split(server, store, tmp_path, [made([9], 1)])
    (path,) = server.objects
    for content in (b"", b"x" * 100, os.urandom(4 * BLOCK), bytes(2 * BLOCK)):
        server.put(path, content)
        with pytest.raises(CorruptRecordError, match=r"is not an ArrayRecord file: .* Prepare the dataset again\.$"):
            read_all(split, store)


def test_another_number_of_records_is_a_shard_error(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split, _ = open_split(server, store, tmp_path, [made([9] * 5)])
    (path,) = server.objects
    server.put(path, write_file(tmp_path / "other", made([9] * 4)))
    with pytest.raises(ShardError, match=rf"{split.instructions[0].path} holds 4 of 5 examples"):
        read_all(split, store)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("group_size:1,brotli", "a chunk that is compressed by brotli"),
        ("group_size:1,snappy", "a chunk that is compressed by snappy"),
        ("group_size:1,transpose", "a transposed chunk"),
    ],
)
def test_files_of_other_options_are_refused(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, options: str, found: str
) -> None:
    split, reader = open_split(server, store, tmp_path, [made([900] * 3)], options)
    said = rf"{DATASET}: {split.instructions[0].path} has {found}; .*Copy the dataset to this machine"
    with pytest.raises(ConfigError, match=said):
        reader.read(np.arange(3))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"read by URL with zstandard, .*`pip install 'tfds-torch\[remote\]'`"):
        find_decompress(DATASET)


def test_a_forged_index_is_not_believed(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    _, reader = open_split(server, store, tmp_path, [made([900] * 7)], "group_size:3")
    (url,) = reader.index.files
    stamp = reader.index.stamps[0]
    total, found = find_chunks(ObjectFiles(store), url, stamp, reader.index.decompress)
    assert total == 7
    assert are_chunks(found, stamp[0], 7)
    for place, value in ((0, 0), (0, -1), (0, 2), (0, 1 << 40), (1, 0), (2, 0), (2, BLOCK + 5), (-1, stamp[0])):
        forged = found.copy()
        forged[place] = value
        assert not are_chunks(forged, stamp[0], 7)
    assert not are_chunks(found[:-1], stamp[0], 7)


def test_data_of_any_length_has_the_hash_that_the_package_writes(
    server: ObjectServer, store: ObjectStore, tmp_path: Path
) -> None:
    split, reader = open_split(server, store, tmp_path, [made(range(100))], "group_size:1,uncompressed")
    assert reader.read(np.arange(100)) == split.examples
    assert not any(reader.is_damaged(number) for number in range(100))


def test_hashes_are_those_of_each_string_alone() -> None:
    strings = [random.Random(size).randbytes(size) for size in [*range(70), 1000, 0, 33]]
    together = highway_hashes(strings)
    assert together.tolist() == [int(highway_hashes([one])[0]) for one in strings]
    assert len(set(together.tolist())) == len(strings) - 2, "two strings come twice"
    assert len(highway_hashes([])) == 0


def damage(server: ObjectServer, place: int) -> None:
    """Flips a bit of the only object."""
    (path,) = server.objects
    content = bytearray(server.objects[path])
    content[place] ^= 1
    server.put(path, bytes(content))
