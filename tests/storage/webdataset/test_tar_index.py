"""The index of tars: the samples that webdataset's own reader finds, built once, and never believed when damaged."""

import json
import logging
import os
import re
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.webdataset.made_tars import samples_of, write_samples, write_tar

from tfds_torch.errors import ShardError
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.webdataset import tar_index
from tfds_torch.storage.webdataset.tar_index import TarIndex, open_index, scan_tar

SAMPLES = [{"__key__": f"a/{n:04d}", "jpg": b"%d" % n * n, "cls": b"%d" % n, "seg.png": b"mask"} for n in range(9)]


def index_of(*paths: Path) -> TarIndex:
    return open_index([str(path) for path in paths], [stamp_of(path.stat()) for path in paths], "some tars")


def read_samples(index: TarIndex, *paths: Path) -> list[dict[str, Any]]:
    """Returns the samples of an index, with what lies where it says."""
    contents = [path.read_bytes() for path in paths]
    of_tar = np.repeat(np.arange(len(paths)), index.counts)
    found = []
    for number, key in enumerate(index.keys_of(np.arange(len(index)))):
        sample: dict[str, Any] = {"__key__": os.fsdecode(key)}
        for member in range(int(index.first[number]), int(index.first[number + 1])):
            start, size = int(index.offset[member]), int(index.size[member])
            sample[index.extensions[index.extension[member]]] = contents[of_tar[number]][start : start + size]
        found.append(sample)
    return found


@pytest.fixture
def tars(tmp_path: Path, cache_home: Path) -> tuple[Path, Path]:
    return (
        write_samples(tmp_path / "a-0.tar", SAMPLES[:5]),
        write_samples(tmp_path / "a-1.tar", SAMPLES[5:]),
    )


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars that were scanned."""
    paths: list[str] = []
    scan = tar_index.scan_tar
    monkeypatch.setattr(tar_index, "scan_tar", lambda path, *rest: paths.append(path) or scan(path, *rest))
    return paths


def index_file(cache_home: Path) -> Path:
    (file,) = (cache_home / "tfds_torch" / "record_index").glob("*.index")
    return file


def test_samples_are_those_that_webdataset_finds(tars: tuple[Path, Path]) -> None:
    index = index_of(*tars)
    assert read_samples(index, *tars) == samples_of(tars) == SAMPLES
    assert (index.counts, index.extensions, index.has_distinct_keys) == ((5, 4), ("cls", "jpg", "seg.png"), True)


def test_keys_end_at_the_first_dot_and_extensions_are_in_lower_case(tmp_path: Path, cache_home: Path) -> None:
    files = [("v1.0/x.JPG", b"1"), ("v1.0/x.Seg.PNG", b"2"), ("y.cls", b"3"), ("__meta__", b"-"), ("z.jpg", b"4")]
    path = write_tar(tmp_path / "a.tar", files)
    assert read_samples(index_of(path), path) == samples_of([path])
    assert index_of(path).keys_of(np.arange(3)) == [b"v1.0/x", b"y", b"z"]


def test_extensions_outside_of_ascii_are_in_lower_case_as_webdataset_has_them(tmp_path: Path, cache_home: Path) -> None:
    names = ["É.JPG", "ÄÖ", "İ", "ΟΔΟΣ", "\udcff.X"]
    path = write_tar(tmp_path / "a.tar", [(f"1.{name}", b"%d" % at) for at, name in enumerate(names)])
    index = index_of(path)
    assert read_samples(index, path) == samples_of([path])
    assert set(index.extensions) == {name.lower() for name in names}


EXTENSIONS = st.sampled_from(["jpg", "cls", "json", "seg.png", "TXT", "É.x"])
KEYS = st.text(st.sampled_from("ab/é-_ "), min_size=1, max_size=6).filter(lambda key: not key.endswith("/"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shards=st.lists(
        st.dictionaries(
            KEYS.filter(lambda key: not key.startswith("/")),
            st.dictionaries(EXTENSIONS, st.binary(max_size=600), min_size=1),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_samples_are_those_that_webdataset_finds(shards: Any, tmp_path: Path, cache_home: Path) -> None:
    paths = [
        write_tar(
            tmp_path / f"{number}.tar",
            [(f"{key}.{name}", value) for key, values in shard.items() for name, value in values.items()],
            tarfile.PAX_FORMAT,
        )
        for number, shard in enumerate(shards)
    ]
    try:
        index = index_of(*paths)
    except ShardError as error:  # Two shards, each with a part of what could be one sample.
        assert "is split: it begins at the end of" in str(error)  # noqa: PT017
        return
    assert read_samples(index, *paths) == samples_of(paths)
    keys = index.keys_of(np.arange(len(index)))
    assert index.has_distinct_keys == (len(set(keys)) == len(keys))
    assert [index.find_key(key, 0, len(index)) for key in keys] == [keys.index(key) for key in keys]


def test_a_key_is_found_in_a_range_only(tars: tuple[Path, Path]) -> None:
    index = index_of(*tars)
    assert [index.find_key(b"a/0006", *part) for part in ((0, 9), (6, 7), (0, 6), (7, 9), (0, 0))] == [6, 6] + [
        None
    ] * 3
    assert index.find_key(b"a/00060", 0, 9) is None
    assert index.find_key(b"/0006", 0, 9) is None


# What cannot be one sample


def test_a_split_sample_is_named(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("2.jpg", b"x"), ("1.cls", b"x")])
    with pytest.raises(
        ShardError, match=re.escape(f"{path}: the sample '1' is split: its member 'cls' at offset 2560 comes")
    ):
        index_of(path)


def test_of_several_split_samples_the_earliest_is_named(tmp_path: Path, cache_home: Path) -> None:
    numbers = [*range(300), *range(250, 5, -1), *range(300)]
    path = write_tar(tmp_path / "a.tar", [(f"{n}.{at}", b"x") for at, n in enumerate(numbers)])
    with pytest.raises(ShardError, match=re.escape("the sample '0' is split: its member '545' at offset ")):
        index_of(path)


def test_keys_of_the_same_hash_are_told_apart(
    tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "hash", lambda key: len(key), raising=False)
    one, two = (write_tar(tmp_path / f"{n}.tar", [(f"{n}{at:02d}.jpg", b"x") for at in range(20)]) for n in range(2))
    assert index_of(one, two).has_distinct_keys
    split = write_tar(tmp_path / "c.tar", [("1.jpg", b"x"), ("2.jpg", b"x"), ("3.jpg", b"x"), ("2.cls", b"x")])
    with pytest.raises(ShardError, match="the sample '2' is split"):
        index_of(split)


def test_distinct_keys_of_many_samples_take_little_memory(tmp_path: Path, cache_home: Path) -> None:
    num_samples = 40_000
    keys = np.frombuffer(b"".join(b"%09d" % n for n in range(num_samples)), np.uint8)
    stops = np.arange(1, num_samples + 1) * 9
    rest = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint16)
    index = TarIndex((num_samples,), (), True, (0,), (), "", np.zeros(num_samples + 1, np.int64), stops, *rest, keys)
    tracemalloc.start()
    try:
        with mock.patch.object(tar_index, "_KEYS_AT_ONCE", 1000):
            assert tar_index._find_repeated_key(index) is None
        assert tracemalloc.get_traced_memory()[1] < 20 * num_samples + 300_000
    finally:
        tracemalloc.stop()


def test_a_sample_that_goes_on_in_the_next_tar_is_named(tmp_path: Path, cache_home: Path) -> None:
    one = write_tar(tmp_path / "a.tar", [("1.jpg", b"x")])
    empty = write_tar(tmp_path / "b.tar", [])
    two = write_tar(tmp_path / "c.tar", [("1.cls", b"x")])
    with pytest.raises(ShardError, match=re.escape(f"{two}: the sample '1' is split: it begins at the end of {one}.")):
        index_of(one, empty, two)


def test_the_same_key_in_two_tars_are_two_samples(tmp_path: Path, cache_home: Path) -> None:
    one, two = (write_tar(tmp_path / name, [("1.jpg", b"x"), ("1.cls", b"1")]) for name in ("a.tar", "b.tar"))
    index = index_of(one, two)
    assert (len(index), index.has_distinct_keys) == (2, False)


def test_two_members_of_the_same_extension_are_an_error(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.JPG", b"y")])
    with pytest.raises(
        ShardError, match=r"the sample '1' has two members 'jpg': the second one, b'1.JPG', is at offset"
    ):
        index_of(path)


@pytest.mark.parametrize(
    "name", ["README", "a.b/README", "x.", ".hidden", "a/._1.jpg", "__MACOSX/x.jpg", "a/__MACOSX/x.jpg", "x" * 300]
)
def test_a_member_that_belongs_to_no_sample_is_skipped_and_counted(name: str, tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), (name, b"y"), ("1.cls", b"1")], tarfile.GNU_FORMAT)
    for _ in range(2):  # Built, and read again.
        index = index_of(path, write_tar(tmp_path / "b.tar", [("2.jpg", b"x")]))
        assert (index.counts, index.num_skipped) == ((1, 1), (1, 0))
        (shown,) = index.skipped
        assert shown == repr(name) if len(name) < 100 else len(shown) <= 103


def test_of_several_bad_tars_one_is_named_and_nothing_is_kept(tmp_path: Path, cache_home: Path) -> None:
    bad = [write_tar(tmp_path / f"{n}.tar", [("1.jpg", b"x"), ("1.jpg", b"y")]) for n in range(2)]
    with pytest.raises(ShardError, match=r"/[01]\.tar: the sample '1' has two members 'jpg'"):
        index_of(write_tar(tmp_path / "good.tar", []), *bad)
    assert list((cache_home / "tfds_torch" / "record_index").glob("*.index")) == []


def test_a_hostile_key_is_shown_harmlessly(tmp_path: Path, cache_home: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("\x1b[2J.jpg", b"x"), ("2.jpg", b"x"), ("\x1b[2J.cls", b"x")])
    with pytest.raises(ShardError) as caught:
        index_of(path)
    assert str(caught.value).isprintable()


# The file


def test_an_index_is_built_once(tars: tuple[Path, Path], scanned: list[str]) -> None:
    first, again = index_of(*tars), index_of(*tars)
    assert sorted(scanned) == [str(path) for path in tars]
    assert read_samples(again, *tars) == SAMPLES
    assert first.digest == again.digest
    assert not again.offset.flags.owndata  # Mapped, and shared by all processes.
    assert not again.offset.flags.writeable


def test_a_tar_that_changed_is_indexed_again(tars: tuple[Path, Path], scanned: list[str]) -> None:
    index_of(*tars)
    os.utime(tars[1], ns=(1, 1))
    index_of(*tars)
    assert len(scanned) == 4
    write_samples(tars[1], SAMPLES[6:])
    assert len(index_of(*tars)) == 8


def test_an_index_is_never_kept_under_the_stamp_of_another_tar(tars: tuple[Path, Path], cache_home: Path) -> None:
    paths, stamps = [str(path) for path in tars], [stamp_of(path.stat()) for path in tars]
    first = tars[1].rename(tars[1].with_name("first"))
    write_samples(tars[1], SAMPLES[8:])
    with pytest.raises(ShardError, match=r"a-1\.tar changed while it was being indexed: it had \d+ bytes and has \d+"):
        open_index(paths, stamps, "some tars")
    first.rename(tars[1])  # Its time comes back with it.
    assert read_samples(open_index(paths, stamps, "some tars"), *tars) == SAMPLES


def test_a_tar_that_is_written_to_during_its_scan_is_an_error(tars: tuple[Path, Path]) -> None:
    path = tars[0]
    with pytest.raises(ShardError, match=r"a-0\.tar changed while it was being indexed: it was written to"):
        scan_tar(str(path), lambda _: os.utime(path, ns=(1, 1)), stamp_of(path.stat()))


def test_a_digest_tells_samples_and_not_places(tmp_path: Path, cache_home: Path) -> None:
    def digest(name: str, files: Any, tar_format: int = tarfile.USTAR_FORMAT) -> str:
        return index_of(write_tar(tmp_path / name, files, tar_format, mtime=len(name))).digest

    files = [("1.jpg", b"x" * 600), ("1.cls", b"1")]
    assert digest("a.tar", files) == digest("bb.tar", files, tarfile.PAX_FORMAT)
    others = [files[:1], files[::-1], [("2.jpg", b"x" * 600), ("2.cls", b"1")], [("1.jpg", b"x"), ("1.cls", b"1")]]
    digests = [digest(f"{n}.tar", other) for n, other in enumerate([files, *others])]
    assert len(set(digests)) == len(digests)


def test_an_index_of_empty_tars_comes_back(tmp_path: Path, cache_home: Path, scanned: list[str]) -> None:
    paths = [write_tar(tmp_path / f"{n}.tar", []) for n in range(2)]
    assert len(index_of(*paths)) == len(index_of(*paths)) == 0
    assert len(scanned) == 2


def test_a_damaged_index_is_built_again_and_said_so(
    tars: tuple[Path, Path], cache_home: Path, scanned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    index_of(*tars)
    file = index_file(cache_home)
    content = bytearray(file.read_bytes())
    for position in range(0, len(content), 41):
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        scanned.clear()
        assert read_samples(index_of(*tars), *tars) == SAMPLES
        assert len(scanned) == 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def rewrite(file: Path, change: Callable[[bytearray, int], object]) -> None:
    """Changes what lies behind the table, and gives it the right checksum."""
    content = bytearray(file.read_bytes())
    (table_bytes,) = struct.unpack_from("<Q", content, 16)
    start = 24 + table_bytes
    change(content, start + -start % 8)
    content[12:16] = struct.pack("<I", google_crc32c.value(bytes(content[16:])))
    file.write_bytes(content)


def number(name: str, value: int, place: int = 3) -> Callable[[bytearray, int], object]:
    """Returns what sets a number of an array."""

    def change(content: bytearray, start: int) -> None:
        (head_bytes,) = struct.unpack_from("<Q", content, start)
        head = json.loads(content[start + 8 : start + 8 + head_bytes])
        at = start + 8 + head_bytes
        at += -at % 8
        lengths = {"first": 8 * (len(SAMPLES) + 1), "key_stops": 8 * len(SAMPLES), "offset": 8 * head["num_members"]}
        for array, num_bytes in lengths.items():
            if array == name:
                break
            at += num_bytes
        struct.pack_into("<q", content, at + 8 * place, value)

    return change


def head(**changes: Any) -> Callable[[bytearray, int], object]:
    def change(content: bytearray, start: int) -> None:
        (head_bytes,) = struct.unpack_from("<Q", content, start)
        text = json.dumps(json.loads(content[start + 8 : start + 8 + head_bytes]) | changes).encode()
        content[start : start + 8 + head_bytes] = struct.pack("<Q", len(text)) + text

    return change


HOSTILE: dict[str, Callable[[bytearray, int], object]] = {
    **{f"offset {value}": number("offset", value) for value in (-1, 0, 511, 2**40, 2**63 - 1)},
    **{f"size {value}": number("size", value) for value in (-1, 2**40, 2**63 - 1)},
    **{f"first {value}": number("first", value) for value in (-1, 0, 2**40)},
    **{f"key stop {value}": number("key_stops", value) for value in (-1, 0, 2**40)},
    **{f"head of {size}": lambda content, at, size=size: struct.pack_into("<Q", content, at, size)  # type: ignore[misc]
       for size in (0, 2**31, 2**63)},
    "many members": head(num_members=2**60),
    "members of a text": head(num_members="x"),
    "other counts": head(counts=[5, 5]),
    "negative counts": head(counts=[10, -1]),
    "counts of one tar": head(counts=[9]),
    "no extensions": head(extensions=[]),
    "no counts": head(counts=None),
    "nothing": lambda content, at: content.__delitem__(slice(at, None)),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_index_is_built_again_and_takes_no_memory(
    change: Callable[[bytearray, int], object], tars: tuple[Path, Path], cache_home: Path, scanned: list[str]
) -> None:
    index_of(*tars)
    rewrite(index_file(cache_home), change)
    tracemalloc.start()
    try:
        assert read_samples(index_of(*tars), *tars) == SAMPLES
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert len(scanned) == 4


def test_the_tests_own_rewriting_is_right(tars: tuple[Path, Path], cache_home: Path, scanned: list[str]) -> None:
    index_of(*tars)
    rewrite(index_file(cache_home), lambda content, at: None)
    rewrite(index_file(cache_home), number("size", 3 * 3, 3 * 3 + 1))
    index_of(*tars)
    assert len(scanned) == 2
