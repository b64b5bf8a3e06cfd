"""Files that are kept open between reads, or mapped; and the lock by which the threads of a process take turns."""

import contextlib
import errno
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage.shard_errors import PREPARE_AGAIN, allowed_files, shard_status, unreadable

Stamp = tuple[int, int]  # Size in bytes and modification time in ns.
FileState = tuple[int, ...]
"""Device, number and size of a file, and the times of the last change of its content and of anything else. A write
changes the last one, even where the modification time is restored."""

_MANY_FILES = 512  # Used where the system has no limit.
_READ_AS_WHOLE_BYTES = 256 << 20
_RANGE_BYTES = 4 << 20  # Most bytes that are read at once, so that no batch is in memory twice.


class ProcessLock:
    """A `threading.Lock` that is unlocked in a forked child and in a pickled copy, whatever the parent's threads do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _alive.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *details: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessLock, ()

    def renew(self) -> None:
        """Unlock the lock in a forked child: another thread of the parent may have held it at that moment."""
        self._lock = threading.Lock()


_alive: "weakref.WeakSet[ProcessLock]" = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _alive:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

Span = tuple[int, int, int]
"""Position of a file, offset and number of bytes."""


class ReadRanges:
    """Pieces of files in the order of the disk, in ranges of neighbours that are read at once.

    Args:
        file: int64 [n], position of each piece's file.
        start: int64 [n], where each piece begins, in bytes.
        end: int64 [n], where each piece ends, in bytes.
        gap: bytes between neighbours that are read as well.

    Attributes:
        bounds: first piece of each range, and the one after its last.
    """

    def __init__(self, file: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64], gap: int = 0) -> None:
        apart = (np.diff(file) != 0) | (start[1:] - end[:-1] > gap) | (np.diff(start // _RANGE_BYTES) != 0)
        starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
        self.file: list[int] = file.tolist()
        self.start: list[int] = start.tolist()
        self.end: list[int] = end.tolist()
        self.bounds = list(zip(starts, [*starts[1:], len(file)], strict=True)) if len(file) else []

    @property
    def spans(self) -> list[Span]:
        """Where each range lies."""
        starts = ((self.file[first], self.start[first], max(self.end[first:stop])) for first, stop in self.bounds)
        return [(file, start, end - start) for file, start, end in starts]


class OpenFiles:
    """Reads any part of any of these files. Files are opened when first needed; the least used are closed again.

    Threads: reads are served one after another. Forks: the child continues to use the open files (a read names its
    offset, so that parent and child do not disturb each other).

    Args:
        paths: local files.
        stamps: size and time that each file must have when it is opened.
        most: number of files open at a time; default: half of the files that the process may open, which all readers
            share.
        remedy: advice for a missing file, a sentence.
    """

    def __init__(
        self, paths: Sequence[str], stamps: Sequence[Stamp], most: int | None = None, remedy: str = PREPARE_AGAIN
    ) -> None:
        self._paths, self._stamps, self._remedy = paths, stamps, remedy
        self._most, self._is_sharing = most or most_open_files(), most is None
        self._descriptors: OrderedDict[int, int] = OrderedDict()  # File -> descriptor, the last used at the end.
        self._lock = ProcessLock()
        self._is_advised = False
        self._finalizer = weakref.finalize(self, _close, self._descriptors)
        if self._is_sharing:
            with _sharing_lock:
                _sharing.add(self)

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return these bytes of a file; fewer only where the file ends.

        Raises:
            ShardError: the file is missing, changed, or cannot be opened or read.
        """
        with self._lock:
            descriptor = self._descriptor(file)
            try:
                return _read_at(descriptor, offset, size)
            except OSError as error:
                raise unreadable(self._paths[file], error, self._remedy) from error

    def read_all(self, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yield the bytes of several spans, as `read` returns them."""
        return (self.read(*span) for span in spans)

    def advise(self, file: int, offset: int, size: int) -> None:
        """Ask the system to read these bytes ahead, without waiting for them."""
        with self._lock:
            _advise(self._descriptor(file), offset, size)

    def advise_ranges(self, find: Callable[[], ReadRanges]) -> None:
        """Ask the system to read ranges ahead; small files as wholes, once: more requests cost more than they save."""
        if sum(size for size, _ in self._stamps) <= _READ_AS_WHOLE_BYTES:
            if not self._is_advised:
                self._is_advised = True
                for file, (size, _) in enumerate(self._stamps):
                    self.advise(file, 0, size)
            return
        ranges = find()
        for first, stop in ranges.bounds:
            begin = ranges.start[first]
            self.advise(ranges.file[first], begin, ranges.end[stop - 1] - begin)

    def changed(self, file: int) -> str | None:
        """Return how a file differs from its stamp, as a clause, or None."""
        try:
            return difference(self._stamps[file], stamp_of(os.stat(self._paths[file])))
        except OSError as error:
            return str(error.strerror)

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Do nothing: local files need not be fetched."""

    def discard(self, file: int, offset: int) -> bool:
        """Return False: a local file cannot be fetched again."""
        return False

    def close(self) -> None:
        """Close every file; reading afterwards is an error."""
        with self._lock:
            self._finalizer()

    def _descriptor(self, file: int) -> int:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            return self._open(file)
        self._descriptors.move_to_end(file)
        return descriptor

    def _open(self, file: int) -> int:
        if not self._finalizer.alive:
            raise ConfigError("The reader was closed: open another one to read on.")
        while len(self._descriptors) >= self._most or (self._descriptors and self._is_share_used_up()):
            os.close(self._descriptors.popitem(last=False)[1])
        path = self._paths[file]
        shard_status(path, self._remedy)
        try:
            descriptor = self._open_or_make_room(path)
        except OSError as error:
            raise unreadable(path, error, self._remedy) from error
        changed = difference(self._stamps[file], stamp_of(os.fstat(descriptor)))
        if changed is not None:
            os.close(descriptor)
            raise changed_in_use(path, changed)
        self._descriptors[file] = descriptor
        return descriptor

    def _is_share_used_up(self) -> bool:
        """Return whether all readers together have as many files open as `most_open_files` allows."""
        if not self._is_sharing:
            return False
        with _sharing_lock:
            return sum(len(reader._descriptors) for reader in _sharing) >= most_open_files()

    def _open_or_make_room(self, path: str) -> int:
        flags = os.O_RDONLY
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._descriptors:
                raise
        # Other code uses up the process's files: keep fewer files open from now on.
        self._most = max(1, len(self._descriptors) // 2)
        while len(self._descriptors) >= self._most:
            os.close(self._descriptors.popitem(last=False)[1])
        return os.open(path, flags)


_sharing: "weakref.WeakSet[OpenFiles]" = weakref.WeakSet()
"""The readers that share the process's limit of files: a mixture has many. Each may open one file beyond the limit."""
_sharing_lock = ProcessLock()


class MappedFile:
    """A mapped file. Threads may share it; a forked process continues to use it.

    The system kills a process that touches mapped memory behind the end of its file. `check` right before memory is
    copied finds a file that was cut before; a file that is cut at the same moment still ends the process.

    Attributes:
        memory: uint8 [size], the whole file; it keeps the mapping alive.
    """

    def __init__(self, path: str, stamp: Stamp) -> None:
        self._path, self._stamp = path, stamp
        shard_status(path)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, error) from error
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False  # Threads may still copy then.
        changed = difference(stamp, stamp_of(os.fstat(descriptor)))
        if changed is not None:
            raise changed_in_use(path, changed)
        try:
            self._map = mmap.mmap(descriptor, stamp[0], access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ShardError(f"{path} cannot be mapped into memory: {error}.") from error
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def check(self) -> FileState:
        """Return the state of the file; a state that differs from the last one means that the file was written to."""
        state = state_of(os.fstat(self._descriptor))
        if state[2] < self._stamp[0]:
            raise changed_in_use(self._path, f"it had {self._stamp[0]} bytes and has {state[2]}")
        return state

    def part(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return bytes start..stop-1, in mapped memory."""
        return self.memory[start:stop]

    def gathered(self, starts: NDArray[np.int64], num_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return memory that holds pieces of one size, and where each begins in it: the memory is the mapped file."""
        return self.memory, starts

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file, fewer where it was cut: no signal ends the process."""
        try:
            return _read_at(self._descriptor, start, size)
        except OSError as error:
            raise unreadable(self._path, error) from error

    def advise(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Ask the system to read pieces of the file ahead, int64 [n] both, without waiting for them."""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            _advise(self._descriptor, start, size)

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Do nothing: a local file need not be fetched."""

    def discard(self, start: int, stop: int) -> bool:
        """Return False: a local file cannot be fetched again."""
        return False

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Return where content first begins among bytes start..stop-1; -1: nowhere."""
        return self._map.find(content, start, stop)

    def give_back(self) -> None:
        """Let the system take back the memory of all bytes that were read so far."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return size and modification time of a file."""
    return status.st_size, status.st_mtime_ns


def state_of(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def difference(expected: Stamp, found: Stamp) -> str | None:
    """Return how a file differs from its stamp, as a clause; None where it does not differ."""
    if expected[0] != found[0]:
        return f"it had {expected[0]} bytes and has {found[0]}"
    return "it was written to" if expected[1] != found[1] else None


def changed_in_use(path: str, changed: str) -> ShardError:
    """Return the error for a file that changed after it was opened; `changed` is a clause."""
    return ShardError(
        f"The shard file {path} changed while it was in use: {changed}. Start again with files that no process writes "
        f"to."
    )


def _read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Return these bytes, fewer only where the file ends; the system may stop a read in the middle."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    while data and (left := size - sum(map(len, parts))):
        data = os.pread(descriptor, left, offset + size - left)
        parts.append(data)
    return b"".join(parts)


def _advise(descriptor: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # A file system may refuse the request.
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)


def _close(descriptors: OrderedDict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def most_open_files() -> int:
    """Return how many files readers may keep open: half of the files that the process may open."""
    allowed = allowed_files()
    return _MANY_FILES if allowed is None else max(1, allowed // 2)
