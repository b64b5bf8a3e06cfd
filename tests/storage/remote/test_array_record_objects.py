"""ArrayRecord objects come whole into the cache, where the package array_record reads them."""

import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from storage.made_shards import DATASET, MadeSplit
from storage.remote.object_server import ObjectServer

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.storage.array_record import package
from tfds_torch.storage.array_record.source import ArrayRecordFilesReader
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.remote.plain_files import PlainFiles
from tfds_torch.storage.remote.store import ObjectStore

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
        numbers.randbytes(size) if place % 2 else (numbers.randbytes(size // 8 + 1) * 8)[:size]
        for place, size in enumerate(sizes)
    ]


def serve(
    server: ObjectServer, folder: Path, shards: Sequence[Sequence[bytes]], options: str = "group_size:1"
) -> MadeSplit:
    """Serves shards; the split leaves out the first record of the second one."""
    split = MadeSplit()
    for number, records in enumerate(shards):
        content = write_file(folder / f"{number}", records, options)
        url = server.put(f"{folder.name}/fake-train.array_record-{number:05d}-of-{len(shards):05d}", content)
        split.records[url] = list(records)
        skip = min(number, 1)
        split.add_instruction(url, skip, len(records) - skip)
    return split


def open_reader(split: MadeSplit, store: ObjectStore) -> ArrayRecordFilesReader:
    return ArrayRecordFilesReader(split.table, ObjectFiles(store))


def read_all(split: MadeSplit, store: ObjectStore) -> list[bytes]:
    with open_reader(split, store) as reader:
        return reader.read(np.arange(len(split.examples)))


def cached(store: ObjectStore) -> list[Path]:
    """Returns the files of the cache that hold whole objects."""
    return sorted(Path(store.cache).glob("objects/*.plain/0-*[0-9]"))


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3", "group_size:2,brotli", "group_size:1,transpose"])
def test_any_examples_come_in_the_order_asked(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, options: str
) -> None:
    split = serve(server, tmp_path, [made(SIZES, 1), made(SIZES[3:8], 2), made([40] * 120, 3)], options)
    numbers = random.Random(4)
    with open_reader(split, store) as reader:
        assert not server.asked, "nothing is fetched before it is needed"
        for count in (0, 1, 7, 200):
            index = np.array([numbers.randrange(len(split.examples)) for _ in range(count)], np.int64)
            reader.advise(index)
            assert reader.read(index) == [split.examples[number] for number in index]
        found = reader.read_parts(np.array([5, 5, 8]), np.array([0, 10, 3]), np.array([4, 250_000, 3]))
        assert found == [split.examples[5][:4], split.examples[5][10:], b""]
        for url in split.table.files:
            assert list(reader.scan(url, lambda _: None)) == split.records[url]
    sizes = [(tmp_path / str(number)).stat().st_size for number in range(3)]
    assert sorted(path.stat().st_size for path in cached(store)) == sorted(sizes)
    assert store.stats()["bytes_fetched"] == sum(sizes), "each byte once"


def test_two_fetchers_share_one_file(
    server: ObjectServer, store: ObjectStore, make_store: MakeStore, tmp_path: Path
) -> None:
    split = serve(server, tmp_path, [made([3000] * 40, 1), made([3000] * 40, 2)])
    other = make_store()
    assert read_all(split, store) == read_all(split, other) == split.examples
    assert len(cached(store)) == 2
    fetched = store.stats()["bytes_fetched"] + other.stats()["bytes_fetched"]
    assert fetched == sum(path.stat().st_size for path in cached(store))


# The cache's room.


def test_a_file_that_is_held_stays_and_an_open_one_gives_way(
    server: ObjectServer, make_store: MakeStore, tmp_path: Path
) -> None:
    split = serve(server, tmp_path, [made([7, 300_001], number) for number in range(5)])
    urls = split.table.files
    size = (tmp_path / "0").stat().st_size
    store = make_store(max_bytes=2 * size + 300_000)
    files = ObjectFiles(store)
    objects = PlainFiles(store, urls, files.stamps(urls))
    reader = open_reader(split, store)
    assert reader.read(np.array([1])) == [split.examples[1]]  # It stays open.
    with objects.held(1) as held:
        version = os.stat(held.path)
        for number in (2, 3, 4):
            with objects.held(number):
                assert len(cached(store)) == 2
            assert os.path.samestat(version, os.stat(held.path)), "it is read at this moment"
        assert Path(held.path).read_bytes() == (tmp_path / "1").read_bytes()
    assert reader.read(np.array([0, 2, 5])) == [split.examples[number] for number in (0, 2, 5)]
    assert sum(path.stat().st_size for path in cached(store)) <= 2 * size + 300_000
    reader.close()
    objects.close()


def test_a_file_that_the_cache_cannot_hold_is_refused_with_the_numbers(
    server: ObjectServer, make_store: MakeStore, tmp_path: Path
) -> None:
    split = serve(server, tmp_path, [made([7, 300_001], 1)])
    size = (tmp_path / "0").stat().st_size
    said = rf"{split.table.files[0]} has no room .* it has {size} bytes .* may take \d+ .* Raise max_bytes"
    with pytest.raises(ConfigError, match=said):
        read_all(split, make_store(max_bytes=200_000))
    store = make_store(max_bytes=size + 100_000, timeout_s=0.5)
    urls = [*split.table.files, server.put("other.array_record", (tmp_path / "0").read_bytes())]
    objects = PlainFiles(store, urls, ObjectFiles(store).stamps(urls))
    with (
        objects.held(0),
        pytest.raises(ConfigError, match=rf"{urls[1]} has no room in the cache"),
        objects.held(1),
    ):
        pass
    objects.close()


def test_a_cache_below_one_window_is_refused_with_the_numbers(
    server: ObjectServer, make_store: MakeStore, tmp_path: Path
) -> None:
    split = serve(server, tmp_path, [made([7, 100_001], number) for number in range(6)])
    windows = [(0, [(0, 0), (1, 0), (2, 0)]), (1, [(3, 0), (4, 0), (5, 0)])]
    said = r"max_bytes=400000 \(0 MiB\), and the files of one window, which are fetched whole, are \d{6} bytes"
    with open_reader(split, make_store(max_bytes=400_000)) as reader, pytest.raises(ConfigError, match=said):
        reader.follow(windows)


@pytest.mark.parametrize("room", [1.1, 2.3])
def test_one_window_is_room_enough(server: ObjectServer, make_store: MakeStore, tmp_path: Path, room: float) -> None:
    split = serve(server, tmp_path, [made([7, 100_001, 9], number) for number in range(8)])
    size = (tmp_path / "0").stat().st_size + 3 * 4096
    most = int(room * 4 * size) + 100_000
    store = make_store(max_bytes=most)
    numbers = random.Random(1)
    windows = [numbers.sample(range(8), 4) for _ in range(12)]
    first = np.array([split.instructions[file].first_index for file in range(8)])
    readers = [open_reader(split, store) for _ in range(2)]
    for reader in readers:
        reader.follow((number, [(file, 0) for file in files]) for number, files in enumerate(windows))
    for files in windows:
        for reader in readers:
            index = first[files]
            assert reader.read(index) == [split.examples[number] for number in index]
            assert sum(path.stat().st_size for path in Path(store.cache).glob("objects/*/*-*")) <= most
    for reader in readers:
        reader.close()


# Damage.


def damage(server: ObjectServer, place: int) -> None:
    """Flips a bit of the only object."""
    (path,) = server.objects
    content = bytearray(server.objects[path])
    content[place] ^= 1
    server.put(path, bytes(content))


def test_no_flipped_bit_gives_another_record(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    records = made([300, 0, 303, 20, 40_001], 1)
    split = serve(server, tmp_path, [records])
    (path,) = server.objects
    whole = server.objects[path]
    used = [*range(64, 1000, 97), 20_000, *range(len(whole) - BLOCK, len(whole) - BLOCK + 120, 23)]
    num_corrupt = 0
    for place in used:
        server.put(path, whole)
        damage(server, place)
        try:
            assert read_all(split, store) == split.examples
        except ShardError:
            num_corrupt += 1
    assert num_corrupt > len(used) // 2


def test_a_damaged_record_is_named(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    records = made([301, 80_001, 303], 1)
    split = serve(server, tmp_path, [records], "group_size:1,uncompressed")
    (path,) = server.objects
    damage(server, server.objects[path].index(records[1][:100]) + 50)
    url = split.table.files[0]
    with open_reader(split, store) as reader:
        assert reader.read(np.array([0, 2])) == [records[0], records[2]]
        said = rf"example 1 of {DATASET}: {url}: record 1: .*The file is corrupt; prepare the dataset again\."
        with pytest.raises(CorruptRecordError, match=said):
            reader.read(np.arange(3))
        with pytest.raises(CorruptRecordError, match=rf"^{url}: record 1: "):
            list(reader.scan(url, lambda _: None))


@pytest.mark.parametrize("size", [None, 0, 1000])
def test_what_was_damaged_in_the_cache_is_fetched_again(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, size: int | None
) -> None:
    split = serve(server, tmp_path, [made([301, 80_001, 303], 1)])
    assert read_all(split, store) == split.examples
    (path,) = cached(store)
    if size is None:
        content = bytearray(path.read_bytes())
        content[500] ^= 1
        path.write_bytes(content)
    else:
        os.truncate(path, size)
    with open_reader(split, store) as other, open_reader(split, store) as reader:
        assert reader.read(np.array([2])) == [split.examples[2]]
        assert reader.read(np.arange(3)) == other.read(np.arange(3)) == split.examples
    assert store.stats()["bytes_fetched"] == 2 * path.stat().st_size


def test_a_link_in_the_cache_is_replaced(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split = serve(server, tmp_path, [made([301], 1)])
    assert read_all(split, store) == split.examples
    (path,) = cached(store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_all(split, store) == split.examples
    assert not path.is_symlink()


def test_a_deleted_cache_is_fetched_again(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split = serve(server, tmp_path, [made([301, 302], 1)])
    with open_reader(split, store) as reader:
        for _ in range(3):
            assert reader.read(np.array([1, 0])) == split.examples[::-1]
            for path in cached(store):
                path.unlink()


@pytest.mark.parametrize("size", [0, 63, BLOCK, 3 * BLOCK, -1])
def test_a_shard_that_was_cut_is_named(server: ObjectServer, store: ObjectStore, tmp_path: Path, size: int) -> None:
    split = serve(server, tmp_path, [made([90_000] * 5, 1)])
    (path,) = server.objects
    server.put(path, server.objects[path][:size])
    with pytest.raises(ShardError, match=rf"{split.table.files[0]} holds 0 of 5 examples"):
        read_all(split, store)


def test_another_number_of_records_is_a_shard_error(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split = serve(server, tmp_path, [made([9] * 5)])
    (path,) = server.objects
    server.put(path, write_file(tmp_path / "other", made([9] * 4)))
    with pytest.raises(ShardError, match=rf"{split.table.files[0]} holds 4 of 5 examples"):
        read_all(split, store)


def test_a_shard_that_changed_and_one_that_is_missing_are_errors(
    server: ObjectServer, store: ObjectStore, tmp_path: Path
) -> None:
    split = serve(server, tmp_path, [made([900] * 5, 1)])
    (path,) = server.objects
    with open_reader(split, store) as reader:
        assert list(reader.stamps)
        server.put(path, write_file(tmp_path / "other", made([900] * 5, 2)))
        with pytest.raises(ShardError, match=rf"{split.table.files[0]} changed since it was first looked at"):
            reader.read(np.arange(5))
    del server.objects[path]
    with pytest.raises(ShardError, match=rf"{split.table.files[0]}"):
        read_all(split, store)


def test_without_the_package_the_extra_is_named(
    server: ObjectServer, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = serve(server, tmp_path, [made([9])])
    monkeypatch.setattr(package, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"is not installed: `pip install 'tfds-torch\[array-record\]'`"):
        open_reader(split, store)


# Processes.

READ = """
import sys
import numpy as np
from tfds_torch.storage.array_record.source import ArrayRecordFilesReader
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.source import FileInstruction

url, count, cache = sys.argv[1], int(sys.argv[2]), sys.argv[3]
table = InstructionTable([FileInstruction(url, 0, count, 0, count)], "killed")
with ArrayRecordFilesReader(table, ObjectFiles(ObjectStore(RemoteOptions(cache_dir=cache)))) as reader:
    print("begun", flush=True)
    print(sum(map(len, reader.read(np.arange(count)))))
"""


def test_no_killed_process_leaves_a_half_file(server: ObjectServer, make_store: MakeStore, tmp_path: Path) -> None:
    split = serve(server, tmp_path, [made([400_001] * 40, 1)])
    arguments = [sys.executable, "-c", READ, split.table.files[0], "40"]
    numbers = random.Random(1)
    for attempt in range(4):
        cache = tmp_path / f"cache{attempt % 2}"
        process = subprocess.Popen([*arguments, str(cache)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(numbers.uniform(0.0, 0.6))
        process.kill()
        process.communicate()
        for path in cache.glob("objects/*.plain/0-*[0-9]"):
            assert path.read_bytes() == (tmp_path / "0").read_bytes()
    for number in range(2):
        assert read_all(split, make_store(cache_dir=tmp_path / f"cache{number}")) == split.examples


def test_a_forked_child_reads_on_and_holds_nothing(server: ObjectServer, store: ObjectStore, tmp_path: Path) -> None:
    split = serve(server, tmp_path, [made([3000] * 9, 1), made([3000] * 9, 2)])
    files = ObjectFiles(store)
    objects = files.open_plain(split.table.files, files.stamps(split.table.files))
    (readable, writable), (until, end) = os.pipe(), os.pipe()
    with open_reader(split, store) as reader:
        assert reader.read(np.array([3])) == [split.examples[3]]
        with objects.held(0) as held:
            child = os.fork()
            if not child:
                with suppress(BaseException):
                    is_right = reader.read(np.array([12, 3])) == [split.examples[12], split.examples[3]]
                    os.write(writable, b"y" if is_right else b"n")
                    os.read(until, 1)
                os._exit(0)
        os.close(writable)
        assert os.read(readable, 1) == b"y"
        with open(held.path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The child lives, and does not hold it.
        os.write(end, b"x")
        assert os.waitpid(child, 0)[1] == 0
    for descriptor in (readable, until, end):
        os.close(descriptor)
    objects.close()
