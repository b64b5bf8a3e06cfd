"""MappedFile: a file as memory of this process, and errors instead of signals where the file was cut meanwhile."""

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError
from tfds_torch.storage.open_files import Stamp, changed_in_use, difference, read_on, stamp_of
from tfds_torch.storage.shard_errors import shard_status, unreadable

FileState = tuple[int, ...]
"""Device, number and size of a file, and the times of the last change of its content and of anything else. Whoever
writes to a file changes the last one, also where the modification time is restored."""


def state_of(status: os.stat_result) -> FileState:
    """Returns the state of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class MappedFile:
    """A mapped file. Threads may share it; a forked process goes on with it.

    The system kills a process that touches mapped memory behind the end of its file. `check` right before memory is
    copied finds a file that was cut before; one that is cut at the same moment still ends the process.

    Args:
        path: of the file.
        stamp: what the file must be.

    Attributes:
        memory: uint8 [size], the whole file; it keeps the mapping alive.

    Raises:
        ShardError: the file is missing, changed, or cannot be mapped.
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
        """Returns the state of the file; another one than before means that it was written to.

        Raises:
            ShardError: the file is shorter than it was.
        """
        state = state_of(os.fstat(self._descriptor))
        if state[2] < self._stamp[0]:
            raise changed_in_use(self._path, f"it had {self._stamp[0]} bytes and has {state[2]}")
        return state

    def read(self, start: int, size: int) -> bytes:
        """Returns bytes of the file, fewer where it was cut: no signal ends the process.

        Raises:
            ShardError: they cannot be read.
        """
        try:
            data = os.pread(self._descriptor, size, start)
            return data if len(data) == size else read_on(self._descriptor, data, start, size)
        except OSError as error:
            raise unreadable(self._path, error) from error

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Returns where content first begins among bytes start..stop-1; -1: nowhere."""
        return self._map.find(content, start, stop)

    def give_back(self) -> None:
        """Lets the system count what was read so far as this process's memory no more."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
