"""find_records: many shards at once, with a progress bar where someone looks on."""

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from storage.made_shards import DATASET, write_shards
from storage.tfrecord_writer import boundaries

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime import progress
from tfds_torch.storage import shard_scans
from tfds_torch.storage.open_files import Stamp, stamp_of
from tfds_torch.storage.tfrecord import index as record_index
from tfds_torch.storage.tfrecord.framing import scan_offsets
from tfds_torch.storage.tfrecord.index import find_records


class Terminal(io.StringIO):
    """A terminal that tells when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "indexing" in text:
            self.written.set()
        return super().write(text)


def show(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Puts a terminal in the place of standard error; called in the test itself, as pytest replaces it before."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return terminal


def arguments(folder: Path, counts: list[int]) -> tuple[list[str], list[Stamp], list[int], str]:
    split = write_shards(folder, counts)
    return list(split.records), [stamp_of(Path(path).stat()) for path in split.records], counts, DATASET


def test_the_offsets_of_all_shards_come_in_their_order(tmp_path: Path) -> None:
    counts = [3, 0, *range(30), 200]
    found = find_records(*arguments(tmp_path, counts))
    records = write_shards(tmp_path, counts).records
    assert found.tolist() == [offset for shard in records.values() for offset in boundaries(shard)]


def test_no_shards_have_no_offsets() -> None:
    assert find_records([], [], [], DATASET).tolist() == []


def test_of_several_bad_shards_the_first_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _, counts, dataset = arguments(tmp_path, [5, 5, 5])
    started = threading.Barrier(2)

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        if path != paths[0]:
            started.wait()  # Both have begun before one fails.
        return scan_offsets(path, advance, stamp)

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    for path in paths[1:]:
        Path(path).write_bytes(b"nonsense" * 10)
    stamps = [stamp_of(Path(path).stat()) for path in paths]
    with pytest.raises(CorruptRecordError, match="00001-of-00003: the length of record 0 at offset 0"):
        find_records(paths, stamps, counts, dataset)


def test_a_shard_that_was_exchanged_before_its_scan_is_an_error(tmp_path: Path) -> None:
    paths, stamps, counts, dataset = arguments(tmp_path, [5, 5])
    os.utime(paths[1], ns=(1, 1))
    with pytest.raises(ShardError, match="00001-of-00002 changed while it was being indexed: it was written to"):
        find_records(paths, stamps, counts, dataset)


def test_a_shard_that_is_written_to_during_its_scan_is_an_error(tmp_path: Path) -> None:
    (path,), (stamp,), *_ = arguments(tmp_path, [5])
    with pytest.raises(ShardError, match="changed while it was being indexed: it was written to"):
        scan_offsets(path, lambda _: os.utime(path, ns=(1, 1)), stamp)


def test_an_error_in_one_shard_ends_the_scans_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, stamps, counts, dataset = arguments(tmp_path, [5, 5, 5])
    begun = threading.Barrier(3)

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        begun.wait()
        if path == paths[1]:
            raise ShardError("the second is bad")
        while True:
            advance(1)

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    with pytest.raises(ShardError, match="the second is bad"):
        find_records(paths, stamps, counts, dataset)


def test_ctrl_c_ends_all_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Semaphore(0)

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        begun.set()
        try:
            while True:
                advance(1)
        finally:
            ended.release()

    def interrupt(*arguments: object) -> None:
        assert begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    monkeypatch.setattr(shard_scans, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_records(*arguments(tmp_path, [1, 1]))
    assert ended.acquire(timeout=30)


def test_ctrl_c_does_not_wait_for_a_scan_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a shard that comes over a network does."""
    begun, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        begun.set()
        assert answered.wait(60)
        ended.set()
        raise ShardError("too late")

    def interrupt(*arguments: object) -> None:
        assert begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    monkeypatch.setattr(shard_scans, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_records(*arguments(tmp_path, [1]))
    assert not ended.is_set()
    answered.set()
    assert ended.wait(30)


# The progress bar.


def test_a_scan_that_takes_long_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show(monkeypatch)

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        offsets = scan_offsets(path, advance, stamp)
        assert terminal.written.wait(10)
        return offsets

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    find_records(*arguments(tmp_path, [50, 50]))
    assert f"indexing {DATASET}" in terminal.getvalue()
    assert "kB" in terminal.getvalue()


def test_a_shard_found_bad_behind_the_bar_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show(monkeypatch)

    def scan(path: str, advance: Callable[[int], object], stamp: Stamp) -> Int64Array:
        assert terminal.written.wait(10)
        raise ShardError("bad")

    monkeypatch.setattr(record_index, "scan_offsets", scan)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    with pytest.raises(ShardError, match="bad"):
        find_records(*arguments(tmp_path, [50, 50]))
