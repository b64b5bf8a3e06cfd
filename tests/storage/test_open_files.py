"""OpenFiles: any part of any file, with few files open. MappedFile. ProcessLock: open in a forked process."""

import os
import pickle
import textwrap
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from conftest import RunPython

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage import open_files
from tfds_torch.storage.object_files import MappedObject
from tfds_torch.storage.open_files import MappedFile, OpenFiles, ProcessLock, stamp_of
from tfds_torch.storage.shard_files import RangeReader


def write_files(folder: Path, count: int) -> list[str]:
    paths = [str(folder / f"file-{number}") for number in range(count)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(bytes([number]) * 10)
    return paths


def opened(paths: list[str], most: int | None = None) -> OpenFiles:
    return OpenFiles(paths, [stamp_of(os.stat(path)) for path in paths], most)


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The descriptors that are open, as they are opened and closed."""
    found: set[int] = set()
    really_open, really_close = os.open, os.close

    def note_open(path: str, flags: int) -> int:
        descriptor = really_open(path, flags)
        found.add(descriptor)
        return descriptor

    def note_close(descriptor: int) -> None:
        found.discard(descriptor)
        really_close(descriptor)

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "close", note_close)
    return found


def test_no_file_is_open_before_it_is_read_and_none_after_closing(tmp_path: Path, descriptors: set[int]) -> None:
    files = opened(write_files(tmp_path, 3))
    assert len(descriptors) == 0
    assert files.read(1, 3, 4) == bytes([1]) * 4
    assert len(descriptors) == 1
    files.close()
    files.close()
    assert len(descriptors) == 0


def test_the_least_used_file_is_closed_first(tmp_path: Path, descriptors: set[int]) -> None:
    files = opened(write_files(tmp_path, 5), most=2)
    for number in (0, 1, 0, 2, 0, 3, 0):
        assert files.read(number, 0, 10) == bytes([number]) * 10
        assert len(descriptors) <= 2
    assert list(files._descriptors) == [3, 0]
    files.close()


def test_files_that_nobody_closed_are_closed_with_their_owner(tmp_path: Path, descriptors: set[int]) -> None:
    files = opened(write_files(tmp_path, 2))
    files.read(0, 0, 1)
    del files
    assert len(descriptors) == 0


def test_a_read_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    files = opened([str(tmp_path / "file")])
    really_read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: really_read(file, min(size, 7), offset))
    assert files.read(0, 10, 100) == bytes(range(10, 110))
    assert files.read(0, 150, 100) == bytes(range(150, 200))
    assert files.read(0, 300, 100) == b""
    files.close()


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    files = opened(write_files(tmp_path, 1))
    files.close()
    for use in (files.read, files.advise):
        with pytest.raises(ConfigError, match="The reader was closed: open another one to read on"):
            use(0, 0, 1)


def test_advice_reads_nothing_and_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(write_files(tmp_path, 1))
    files.advise(0, 0, 10)
    files.advise(0, 100, 10)

    def refuse(*arguments: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    files.advise(0, 0, 10)
    files.close()


# Files that changed.


def test_a_file_that_vanished_is_a_shard_error(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 1)
    files = opened(paths)
    os.remove(paths[0])
    with pytest.raises(ShardError, match=r"The shard file .*file-0 is missing\. Prepare the dataset again\."):
        files.read(0, 0, 1)
    assert files.changed(0) == "No such file or directory"


def test_an_open_file_that_vanished_is_still_read(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 1)
    files = opened(paths)
    files.read(0, 0, 1)
    os.remove(paths[0])
    assert files.read(0, 0, 2) == bytes(2)
    files.close()


def test_a_file_of_another_size_is_a_shard_error(tmp_path: Path, descriptors: set[int]) -> None:
    paths = write_files(tmp_path, 1)
    files = opened(paths)
    Path(paths[0]).write_bytes(bytes(11))
    with pytest.raises(ShardError) as caught:
        files.read(0, 0, 1)
    assert str(caught.value) == (
        f"The shard file {paths[0]} changed while it was in use: it had 10 bytes and has 11. Start again with files "
        f"that no process writes to."
    )
    assert len(descriptors) == 0


def test_a_file_that_was_written_to_is_a_shard_error(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 1)
    files = opened(paths)
    assert files.changed(0) is None
    os.utime(paths[0], ns=(5, 5))
    with pytest.raises(ShardError, match="changed while it was in use: it was written to"):
        files.read(0, 0, 1)
    assert files.changed(0) == "it was written to"


def test_a_read_that_fails_is_a_shard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(write_files(tmp_path, 1))

    def fail(*arguments: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(ShardError, match=r"file-0 cannot be read: Input/output error\.$"):
        files.read(0, 0, 1)
    files.close()


# The limits of the system, in a process of its own.

LIMITED = """
import os, resource
from tfds_torch.errors import ShardError
from tfds_torch.storage.open_files import MappedFile, OpenFiles, ProcessLock, stamp_of

paths = [f"file-{{number}}" for number in range(100)]
for path in paths:
    with open(path, "wb") as file:
        file.write(path.encode())
stamps = [stamp_of(os.stat(path)) for path in paths]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

def num_open():
    return len(os.listdir("/dev/fd")) - 1

before = num_open()
files = OpenFiles(paths, stamps)

def read_all():
    most = 0
    for turn in range(3):
        for number, path in enumerate(paths):
            assert files.read(number, 0, len(path)) == path.encode()
            most = max(most, num_open() - before)
    return most

others = []

def take_all():
    try:
        while True:
            others.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass

{body}
"""


def run_limited(run_python: RunPython, body: str) -> str:
    done = run_python("-c", LIMITED.format(body=textwrap.dedent(body)))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_half_of_the_allowed_files_are_used(run_python: RunPython) -> None:
    assert run_limited(run_python, "print(read_all())") == "32"


def test_readers_share_what_the_process_may_open(run_python: RunPython) -> None:
    body = """
    readers = [OpenFiles(paths, stamps) for _ in range(3)]
    for _ in range(3):
        for number, path in enumerate(paths):
            for reader in (files, *readers):
                assert reader.read(number, 0, len(path)) == path.encode()
    print(num_open() - before <= 32 + 3)
    for reader in readers:
        reader.close()
    print(read_all())
    """
    assert run_limited(run_python, body).split() == ["True", "32"]


def test_when_others_need_the_files_fewer_are_used(run_python: RunPython) -> None:
    body = """
    for number in range(6):
        files.read(number, 0, 1)
    take_all()
    for number, path in enumerate(paths):
        assert files.read(number, 0, len(path)) == path.encode()
    print(files._most)
    """
    assert run_limited(run_python, body) == "3"


def test_when_no_file_can_be_opened_the_advice_is_given(run_python: RunPython) -> None:
    body = """
    take_all()
    try:
        files.read(7, 0, 1)
    except ShardError as error:
        print(error)
    os.close(others.pop())
    assert files.read(7, 0, 4) == b"file"
    """
    assert run_limited(run_python, body) == (
        "The shard file file-7 cannot be opened: Too many open files. Let the process open more files (`ulimit -n`, "
        "now 64), or use fewer loaders at a time."
    )


def test_without_a_limit_many_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "allowed_files", lambda: None)
    assert OpenFiles([], [])._most == 512


# A fork.


def test_a_fork_while_another_thread_reads_leaves_the_child_free_to_read(run_python: RunPython) -> None:
    body = """
    import signal
    files.read(0, 0, 1)
    held = files._lock._lock
    held.acquire()  # As a thread that is in the middle of a read.
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if files.read(0, 0, 4) == b"file" and files.read(1, 0, 4) == b"file" else 1)
    held.release()
    print(os.waitpid(child, 0)[1], files.read(0, 0, 6))
    """
    assert run_limited(run_python, body) == "0 b'file-0'"


# The lock


def test_a_pickled_copy_of_a_lock_is_open() -> None:
    lock = ProcessLock()
    with lock:
        copy = pickle.loads(pickle.dumps(lock))
        assert not copy._lock.locked()


def test_a_lock_is_open_in_a_forked_process_although_a_thread_of_the_parent_held_it(run_python: RunPython) -> None:
    code = """
    import os, signal, threading
    from tfds_torch.storage.open_files import ProcessLock
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()
    def hold():
        with lock:
            held.set()
            done.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with lock:
            os._exit(0)
    print(os.waitpid(child, 0)[1])
    done.set()
    thread.join()
    """
    done = run_python("-W", "ignore", "-c", textwrap.dedent(code))
    assert done.stdout == "0\n", done.stderr


# Mapped files

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFile:
    (tmp_path / "a.beton").write_bytes(CONTENT)
    return MappedFile(str(tmp_path / "a.beton"), stamp_of(os.stat(tmp_path / "a.beton")))


def test_of_a_file_that_was_cut_fewer_bytes_are_read_and_no_signal_comes(mapped: MappedFile, tmp_path: Path) -> None:
    os.truncate(tmp_path / "a.beton", 10)
    assert mapped.read(5, 1000) == CONTENT[5:10]
    with pytest.raises(ShardError, match=r"a\.beton changed while it was in use: it had 16384 bytes and has 10"):
        mapped.check()


def test_a_disk_that_cannot_be_read_is_an_error_with_the_files_name(mapped: MappedFile) -> None:
    with (
        mock.patch("os.pread", side_effect=OSError(5, "Input/output error")),
        pytest.raises(ShardError, match=r"a\.beton cannot be read: Input/output error"),
    ):
        mapped.read(0, 1)


class FarBytes:
    """Reads bytes of one object, as a RangeReader does."""

    def __init__(self, content: bytes) -> None:
        self.content, self.num_reads = content, 0

    def advise_ranges(self, ranges: Any) -> None:
        pass

    def read(self, file: int, start: int, size: int) -> bytes:
        self.num_reads += 1
        return self.content[start : start + size]


def test_bytes_are_looked_for_in_the_part_that_holds_them() -> None:
    reader = FarBytes(b"a--a--a--a--")
    mapped = MappedObject(cast(RangeReader, reader), (12, 0))
    for start, stop in ((0, 4), (4, 12)):
        assert mapped.part(start, stop).tobytes() == reader.content[start:stop]
    reads = reader.num_reads
    assert (mapped.find(b"a", 1, 4), mapped.find(b"a", 5, 9), mapped.find(b"a", 7, 9)) == (3, 6, -1)
    assert reader.num_reads == reads
    assert (mapped.find(b"a", 2, 6), reader.num_reads) == (3, reads + 1)  # No part holds all of it.
