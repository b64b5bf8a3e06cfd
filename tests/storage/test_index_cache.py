"""Index files: whole and for these shards, or not used."""

import os
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage import index_cache
from tfds_torch.storage.index_cache import DamagedIndexError, UnusableIndexError
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.tfrecord import index as record_index
from tfds_torch.storage.tfrecord.index import offsets_cache


@dataclass(frozen=True)
class IndexedShards:
    dataset: str
    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    counts: tuple[int, ...]


def load_offsets(path: Path, shards: IndexedShards) -> Int64Array:
    return replace(offsets_cache(*astuple(shards)), path=path).load()


def store_offsets(path: Path, shards: IndexedShards, offsets: Int64Array) -> None:
    replace(offsets_cache(*astuple(shards)), path=path).store(offsets)


SHARDS = IndexedShards("fake:1.0.0", ("/a", "/b", "/c"), ((60, 5), (0, 6), (16, 7)), (2, 0, 1))
OFFSETS = np.array([0, 30, 60, 0, 0, 16], np.int64)
HEAD_SIZE = 16


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "name.index"
    store_offsets(path, SHARDS, OFFSETS)
    return path


def rewrite(path: Path, change: Callable[[bytearray], object]) -> None:
    """Changes what lies behind the head, and gives it the right checksum."""
    content = bytearray(path.read_bytes()[HEAD_SIZE:])
    change(content)
    path.write_bytes(struct.pack("<8sII", b"tfdsidx\n", 1, google_crc32c.value(bytes(content))) + content)


def test_offsets_come_back_and_cannot_be_written_to(stored: Path) -> None:
    offsets = load_offsets(stored, SHARDS)
    assert offsets.tolist() == OFFSETS.tolist()
    assert not offsets.flags.writeable
    assert not offsets.flags.owndata


def test_an_example_takes_eight_bytes(tmp_path: Path) -> None:
    one = IndexedShards("fake:1.0.0", ("/a",), ((16 * 10_000, 5),), (10_000,))
    store_offsets(tmp_path / "many", one, np.arange(10_001) * 16)
    assert (tmp_path / "many").stat().st_size < 8 * 10_000 + 200


def test_paths_that_are_not_text_are_kept_apart(tmp_path: Path) -> None:
    odd = replace(SHARDS, paths=("/\udce9", "/b", '/"c'))
    store_offsets(tmp_path / "odd", odd, OFFSETS)
    assert load_offsets(tmp_path / "odd", odd).tolist() == OFFSETS.tolist()


def test_content_of_many_pieces_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(record_index, "_OFFSETS_AT_ONCE", 8)
    one = IndexedShards("fake:1.0.0", ("/a",), ((17 * 1000, 5),), (1000,))
    store_offsets(tmp_path / "many", one, np.arange(1001) * 17)
    assert load_offsets(tmp_path / "many", one).tolist() == list(range(0, 17 * 1001, 17))


# Other shards.


@pytest.mark.parametrize(
    "other",
    [
        replace(SHARDS, dataset="fake:1.0.1"),
        replace(SHARDS, paths=("/a", "/b", "/d")),
        replace(SHARDS, stamps=((61, 5), (0, 6), (16, 7))),
        replace(SHARDS, stamps=((60, 5), (0, 8), (16, 7))),
        replace(SHARDS, counts=(1, 1, 1)),
        IndexedShards("fake:1.0.0", ("/a",), ((60, 5),), (2,)),
    ],
)
def test_an_index_of_other_or_changed_shards_is_refused(stored: Path, other: IndexedShards) -> None:
    with pytest.raises(UnusableIndexError, match="the shards have changed, or are others") as caught:
        load_offsets(stored, other)
    assert type(caught.value) is UnusableIndexError


# Damage.


def test_a_flipped_bit_of_any_byte_is_found(stored: Path) -> None:
    whole = stored.read_bytes()
    every_bit_of_the_head = range(8 * 24)
    for bit in [*every_bit_of_the_head, *(8 * position + position % 8 for position in range(24, len(whole)))]:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        stored.write_bytes(changed)
        with pytest.raises(DamagedIndexError):
            load_offsets(stored, SHARDS)


def test_every_cut_is_found(stored: Path) -> None:
    whole = stored.read_bytes()
    for size in range(len(whole)):
        stored.write_bytes(whole[:size])
        with pytest.raises(DamagedIndexError):
            load_offsets(stored, SHARDS)


@pytest.mark.parametrize("more", [b"\0", bytes(8), bytes(4096)])
def test_more_than_was_written_is_found(stored: Path, more: bytes) -> None:
    with stored.open("ab") as file:
        file.write(more)
    with pytest.raises(DamagedIndexError):
        load_offsets(stored, SHARDS)


@pytest.mark.parametrize("content", [b"", b"{}", b"tfdsidx\n", b"PK\x03\x04" + bytes(200), bytes(1000)])
def test_a_foreign_file_is_no_index(stored: Path, content: bytes) -> None:
    stored.write_bytes(content)
    with pytest.raises(DamagedIndexError, match="it is not an index file"):
        load_offsets(stored, SHARDS)


def test_another_format_version_is_refused_and_named(stored: Path) -> None:
    content = bytearray(stored.read_bytes())
    content[8] = 7
    stored.write_bytes(content)
    with pytest.raises(DamagedIndexError, match="its format version is 7, ours is 1"):
        load_offsets(stored, SHARDS)


# Made to do harm: the checksum is right.


def table_size(value: int) -> Callable[[bytearray], object]:
    return lambda content: struct.pack_into("<Q", content, 0, value)


def offset(place: int, value: int) -> Callable[[bytearray], object]:
    return lambda content: struct.pack_into("<q", content, len(content) - 8 * (6 - place), value)


HOSTILE: dict[str, Callable[[bytearray], object]] = {
    **{f"table of {size} bytes": table_size(size) for size in (0, 1, 2**31, 2**63, 2**64 - 1)},
    **{f"offset {value}": offset(1, value) for value in (-1, 0, 15, 45, 60, 61, -(2**63), 2**63 - 1)},
    **{f"first {value}": offset(0, value) for value in (-1, 1, 14)},
    **{f"size {value}": offset(2, value) for value in (59, 61, 2**62)},
    "size of an empty shard": offset(3, 16),
    "last offset missing": lambda content: content.__delitem__(slice(-8, None)),
    "one offset more": lambda content: content.extend(bytes(8)),
    "nothing": lambda content: content.clear(),
    "table only": lambda content: content.__delitem__(slice(-48, None)),
}


def test_a_hostile_index_is_refused_and_takes_no_memory(stored: Path) -> None:
    whole, found = stored.read_bytes(), {}
    for name, change in HOSTILE.items():
        stored.write_bytes(whole)
        rewrite(stored, change)
        tracemalloc.start()
        try:
            found[name] = f"it is {load_offsets(stored, SHARDS)}"
        except UnusableIndexError:
            found[name] = "refused" if tracemalloc.get_traced_memory()[1] < 1_000_000 else "it takes memory"
        except Exception as error:
            found[name] = repr(error)
        finally:
            tracemalloc.stop()
    assert found == dict.fromkeys(HOSTILE, "refused")


def test_the_tests_own_rewriting_is_right(stored: Path) -> None:
    rewrite(stored, lambda content: None)
    assert load_offsets(stored, SHARDS).tolist() == OFFSETS.tolist()


# Writing.


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        store_offsets(stored, SHARDS, OFFSETS + 1)
    assert stored.read_bytes() == before
    assert list(stored.parent.iterdir()) == [stored]


def test_what_a_killed_writer_left_is_removed_by_the_next(stored: Path) -> None:
    leftover, of_another = stored.with_name("name.index.abc.tmp"), stored.with_name("other.index.abc.tmp")
    leftover.touch()
    of_another.touch()
    store_offsets(stored, SHARDS, OFFSETS)
    assert sorted(stored.parent.iterdir()) == [stored, of_another]


def test_offsets_of_the_other_byte_order_are_stored_alike(tmp_path: Path) -> None:
    swapped: Int64Array = OFFSETS.astype(">i8")
    store_offsets(tmp_path / "name", SHARDS, swapped)
    assert load_offsets(tmp_path / "name", SHARDS).tolist() == OFFSETS.tolist()
