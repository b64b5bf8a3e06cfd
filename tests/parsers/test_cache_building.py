"""A decoded cache is built once, or not at all: never twice, never in a worker, and never at the cost of a training."""

import errno
import logging
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from filelock import FileLock

from parsers.cached_pictures import (
    NUM_EXAMPLES,
    assert_reads_right,
    assert_same_batches,
    caches,
    lines_of,
    open_parser,
    phase_of,
    read,
    write_small,
)
from tfds_torch import DecodedCache, ImageDataset, ParserTfds, create_loader
from tfds_torch.errors import ExportError, ShardError
from tfds_torch.parsers import cache as opening
from tfds_torch.parsers import cache_building as building
from tfds_torch.parsers.cache import FAILED, READING, CacheStatus, lock_path, read_status, status_path, write_status
from tfds_torch.parsers.cache_building import build
from tfds_torch.storage.beton.verify import verify

NUM_PROCESSES = 8
FORK = multiprocessing.get_context("fork")


def left_in(folder: Path) -> list[str]:
    """Returns the endings of what lies in a folder."""
    return sorted(Path(name).suffix for name in os.listdir(folder))


# Once


class Outcome(NamedTuple):
    """What became of one process's parser: its pixels' sum, and what it logged."""

    pixels: int
    said: str


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _start(root: Path, cache: DecodedCache, barrier: Any, results: Any) -> None:
    said = _Lines()
    logging.getLogger("tfds_torch").addHandler(said)
    barrier.wait()
    parser = open_parser(root, cache)
    pixels = sum(int(batch.image.sum()) for batch in read(parser))
    results.put(Outcome(pixels, "\n".join(said.lines)))


def start_together(
    root: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, make: Callable[..., int] = build
) -> tuple[int, list[Outcome]]:
    """Returns how many builds began in processes that start together, and what became of each process.

    The first one does not build before all others wait for it.
    """
    num_builds, num_waiting = FORK.Value("i", 0), FORK.Value("i", 0)
    take_turn = opening._Building._take_turn

    def counted_turn(self: Any, lock: Any, progress: Any) -> Any:
        with num_waiting.get_lock():
            num_waiting.value += 1
        return take_turn(self, lock, progress)

    def counted_build(*arguments: Any, **options: Any) -> int:
        with num_builds.get_lock():
            num_builds.value += 1
        deadline_s = time.monotonic() + 60
        while num_waiting.value < NUM_PROCESSES and time.monotonic() < deadline_s:
            time.sleep(0.01)
        # Another look of theirs, so that they know of this build.
        threading.Event().wait(3 * opening._LOOK_EVERY_S)
        return make(*arguments, **options)

    monkeypatch.setattr(opening._Building, "_take_turn", counted_turn)
    monkeypatch.setattr(opening, "build", counted_build)
    monkeypatch.setattr(opening, "_LOOK_EVERY_S", 0.1)
    barrier, results = FORK.Barrier(NUM_PROCESSES), FORK.SimpleQueue()
    processes = [FORK.Process(target=_start, args=(root, cache, barrier, results)) for _ in range(NUM_PROCESSES)]
    for process in processes:
        process.start()
    outcomes = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return num_builds.value, outcomes


def test_processes_that_start_together_build_once(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_builds, outcomes = start_together(small, cache, monkeypatch)
    pixels = sum(int(batch.image.sum()) for batch in read(open_parser(small, None)))
    assert num_builds == 1
    assert outcomes == [Outcome(pixels, "")] * NUM_PROCESSES
    assert left_in(cache.path) == [".beton", ".json", ".lock"]


def test_processes_that_wait_for_a_failure_do_not_fail_themselves(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> int:
        raise ExportError("there is no more room.")

    num_builds, outcomes = start_together(small, cache, monkeypatch, fail)
    pixels = sum(int(batch.image.sum()) for batch in read(open_parser(small, None)))
    assert num_builds == 1
    words = (
        "There is no decoded cache of pictures:1.0.0 (train), and its images are decoded from the original files: "
        "there is no more room."
    )
    assert outcomes == [Outcome(pixels, words)] * NUM_PROCESSES
    (path,) = caches(cache)
    assert (phase_of(path), path.exists()) == (FAILED, False)


# Workers


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_build_nothing(method: str, small: Path, cache: DecodedCache, caplog: pytest.LogCaptureFixture) -> None:
    """The cache has gone before they start: they decode the original files."""
    parser = open_parser(small, cache)
    shutil.rmtree(cache.path)
    wanted = read(open_parser(small, None))
    with create_loader(ImageDataset(parser), num_workers=2, multiprocessing_context=method) as loader:
        for (images, labels), batch in zip(loader, wanted, strict=True):
            np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), batch.image)
            np.testing.assert_array_equal(labels.numpy(), batch.label)
    assert not cache.path.exists()


def test_a_cache_that_is_deleted_while_it_is_open_is_read_on(small: Path, cache: DecodedCache) -> None:
    parser = open_parser(small, cache)
    wanted, batches = read(open_parser(small, None)), parser.batches()
    first = next(batches)
    shutil.rmtree(cache.path)
    assert_same_batches([first, *batches], wanted)


# No room


def test_a_cache_larger_than_what_is_free_is_a_warning_and_nothing_is_written(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9**9, 9, 4_000_000))
    parser = open_parser(small, cache)
    (line,) = lines_of(caplog)
    assert line == (
        "There is no decoded cache of pictures:1.0.0 (train), and its images are decoded from the original files: it "
        f"needs about 4,195,744 bytes in {cache.path}, and 4,000,000 are free. Make room, give DecodedCache another "
        "folder, or a max_resolution."
    )
    assert left_in(cache.path) == [".json", ".lock"]
    assert_reads_right(parser, small)


@pytest.mark.parametrize("max_resolution", [None, 11])
def test_a_disk_that_gets_full_leaves_the_same_pixels_from_the_original_files(
    max_resolution: int | None,
    small: Path,
    cache: DecodedCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make(folder: Path) -> ParserTfds:
        return ParserTfds(small, "pictures", batch_size=16, cache=DecodedCache(folder, max_resolution))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        parser = make(cache.path)
    (line,) = lines_of(caplog)
    assert "its images are decoded from the original files" in line
    assert "No space left on device. About 4,194,304 bytes are needed" in line
    assert "are free: make room, or write elsewhere" in line
    assert left_in(cache.path) == [".json", ".lock"]
    cached = make(cache.path)
    assert cached.fingerprint == parser.fingerprint
    assert left_in(cache.path) == [".beton", ".json", ".lock"]
    assert_same_batches(read(parser), read(cached))
    if max_resolution is not None:
        assert {image.shape for batch in read(parser) for image in batch.image} == {(11, 11, 3)}


@pytest.mark.parametrize("what", ["file", "denied", "no locks"])
def test_a_folder_that_cannot_be_written_to_is_a_warning(
    what: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "caches"

    def refuse(*arguments: Any, **options: Any) -> None:
        raise (
            PermissionError(errno.EACCES, "Permission denied") if what == "denied" else NotImplementedError("no flock")
        )

    if what == "file":
        folder.write_text("mine")
    else:
        monkeypatch.setattr(FileLock, "acquire", refuse)
    parser = open_parser(small, DecodedCache(folder))
    (line,) = lines_of(caplog)
    assert f"are decoded from the original files: {folder} cannot be written to: " in line
    assert_reads_right(parser, small)


def test_a_folder_of_somebody_elses_needs_no_lock_where_the_cache_is_complete(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_parser(small, cache)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert_reads_right(open_parser(small, cache), small)
    assert ".beton" in left_in(cache.path)


# Damage and death


@pytest.mark.parametrize("harm", ["cut", "empty", "header", "metadata", "of another dataset", "of as many others"])
def test_a_damaged_cache_is_built_again_with_a_warning(
    harm: str, small: Path, cache: DecodedCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_parser(small, cache)
    (path,) = caches(cache)
    if harm.startswith("of "):
        other = write_small(tmp_path / "other", 61 if harm == "of another dataset" else NUM_EXAMPLES, first=100)
        open_parser(other, DecodedCache(tmp_path / "others"))
        (theirs,) = caches(tmp_path / "others")
        shutil.copy(theirs, path)
    else:
        content = bytearray(path.read_bytes())
        at = {"header": 3, "metadata": 24 + 3 * 1041 + 40}.get(harm)
        if at is not None:
            content[at] ^= 1
        path.write_bytes(content[: {"cut": 100_000, "empty": 0}.get(harm, len(content))])
    caplog.clear()
    parser = open_parser(small, cache)
    (line,) = lines_of(caplog)
    assert line.startswith(f"The decoded cache of pictures:1.0.0 is damaged, and is built again: {path}")
    assert verify(path).num_samples == NUM_EXAMPLES
    assert_reads_right(parser, small)


def _die_while_building(root: Path, cache: DecodedCache) -> None:
    def add_and_die(self: Any, sample: Any, number: int) -> None:
        if number == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, sample, number)

    add = building.BetonWriter.add
    building.BetonWriter.add = add_and_die  # type: ignore[assignment,method-assign]
    open_parser(root, cache)


def test_a_builder_that_was_killed_leaves_no_cache_and_the_next_start_builds_one(
    small: Path, cache: DecodedCache
) -> None:
    process = FORK.Process(target=_die_while_building, args=(small, cache))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert left_in(cache.path) == [".json", ".lock", ".tmp"]
    parser = open_parser(small, cache)
    assert_reads_right(parser, small)
    assert left_in(cache.path) == [".beton", ".json", ".lock"]


def test_an_interrupted_build_leaves_nothing_but_a_free_lock(
    small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Any, sample: Any, number: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building.BetonWriter, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_parser(small, cache)
    assert left_in(cache.path) == [".lock"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tfds_torch-cache")]
    assert_reads_right(open_parser(small, cache), small)
    assert ".beton" in left_in(cache.path)


def test_a_shard_that_is_missing_is_an_error_and_no_warning(
    small: Path, cache: DecodedCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = shutil.copytree(small, tmp_path / "data")
    next((root / "pictures" / "1.0.0").glob("*.tfrecord-00001*")).unlink()
    with pytest.raises(ShardError, match="00001-of-00002 is missing"):
        open_parser(root, cache)
    assert caplog.records == []


# Waiting


@pytest.fixture
def held(small: Path, cache: DecodedCache) -> Iterator[tuple[Path, CacheStatus, FileLock]]:
    """The place of a cache, what its builder said last, and the lock that it holds."""
    open_parser(small, cache)
    (path,) = caches(cache)
    path.unlink()
    status = CacheStatus("pictures:1.0.0", "train", None, READING, 20, 60, silence_s=0.3, pid=4321, host="elsewhere")
    write_status(status_path(path), status)
    with FileLock(lock_path(path)) as lock:
        yield path, status, lock


def test_a_stuck_builder_is_not_waited_for(
    held: Any, small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, status, _ = held
    monkeypatch.setattr(opening, "_LOOK_EVERY_S", 0.05)
    parser = open_parser(small, cache)
    (line,) = lines_of(caplog)
    assert (
        f"process 4321 on elsewhere that builds {path} has reported nothing for 0 s: it is stuck. End it, and" in line
    )
    assert_reads_right(parser, small)
    assert read_status(status_path(path)) == status


def test_a_builder_that_goes_on_is_waited_for_and_shown(
    held: Any, small: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says something at every look, for more looks than a silence would last, and then is gone."""
    _, status, lock = held
    looks = 0

    def look(asked: Path) -> CacheStatus:
        nonlocal looks
        looks += 1
        if looks == 20:
            lock.release()
        return replace(status, beat=looks, num_done=looks)

    monkeypatch.setattr(opening, "read_status", look)
    monkeypatch.setattr(opening, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(opening, "_LINE_AFTER_S", 0.1)
    parser = open_parser(small, cache)
    assert_reads_right(parser, small)
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        r"Process 4321 builds the decoded cache of pictures:1.0.0 \(train\): \d+ of 60 examples\.", line
    )
