"""PlainFiles: objects that lie in the cache as whole files, for readers that can only open files."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import ReadRanges, Stamp
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.layout import block_name, object_folder
from tfds_torch.storage.remote.protocol import Message
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.shard_errors import unreadable

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PAUSE_S = 0.1  # Seconds before room is asked for again.
_held: set[int] = set()
"""Descriptors of files that threads of this process hold."""


class HeldFile(NamedTuple):
    """A file that is not removed to make room: its path; and device, inode and time, which change with the file."""

    path: str
    version: tuple[int, ...]


class PlainFiles(RemoteFiles):
    """Objects that are fetched as wholes, and opened by other code.

    A file in the cache is whole: it gets its name when all its bytes are there. It may be removed to make room whenever
    nobody holds it, even while it is open: its bytes are then cut off, which frees the disk. This class does not
    compare its bytes with a checksum: the reader does.

    Threads and forks: see RemoteFiles.

    Args:
        store: the store that is asked for the objects.
        urls: URLs of the objects.
        stamps: size in bytes and pin (a hash of ETag and time) that each object must have.
    """

    def __init__(self, store: ObjectStore, urls: Sequence[str], stamps: Sequence[Stamp]) -> None:
        super().__init__(store, urls, stamps, lambda file: np.array([0, stamps[file][0]], np.int64))

    @contextmanager
    def held(self, file: int) -> Iterator[HeldFile]:
        """Fetch an object, where it is not in the cache, and keep it there within the `with` statement.

        The statement should be short: others may wait for the room.

        Args:
            file: position of the object.

        Raises:
            ShardError: the object is missing, changed, or cannot be read.
            ConfigError: the cache has no room for it; the reader is closed, or options are wrong.
        """
        ahead = self._ahead
        if ahead is not None:
            ahead.note_read((file, 0))
        path = os.path.join(self._folder(file), block_name(*self._span((file, 0))))
        descriptor = self._opened(file, path)
        try:
            status = os.fstat(descriptor)
            yield HeldFile(path, (status.st_dev, status.st_ino, status.st_mtime_ns))
        finally:
            _close(descriptor)

    def ask_for(self, files: Iterable[int]) -> None:
        """Start to fetch objects that are held next, side by side and before all else; return at once."""
        missing = {(file, 0): [self._span((file, 0))] for file in files if not self._is_cached((file, 0))}
        if len(missing) > 1:
            self._store.tell({"op": "advise", "files": self._described(missing), "is_beginning": False})

    def discard_file(self, file: int) -> bool:
        """Remove a damaged object from the cache, so that it is fetched again; see `RemoteFiles.discard`."""
        if (file, 0) in self._damaged:
            return False
        self._drop((file, 0))
        return True

    def count(self, num_bytes: int) -> None:
        """Count bytes that were read from files."""
        self._store.count(num_bytes)

    def advise_files(self, files: Int64Array) -> None:
        """Start to fetch objects, int64 [n], that will be held soon; return at once."""
        sizes = np.array([self._stamps[file][0] for file in files.tolist()], np.int64)
        self.advise_ranges(lambda: ReadRanges(files, np.zeros_like(sizes), sizes))

    def _opened(self, file: int, path: str) -> int:
        """Return the descriptor of an object's file, which is locked."""
        ends_at: float | None = None
        while True:
            if not self._finalizer.alive:
                raise ConfigError("The reader was closed: open another one to read on.")
            descriptor = _locked(path, self._stamps[file][0])
            if descriptor is not None:
                return descriptor
            began_at = time.monotonic()
            reply, _ = self._store.ask(self._object(file) | {"op": "fetch", "block": self._span((file, 0))})
            now = time.monotonic()
            self._store.count(0, now - began_at)
            if self._stamps[file][0] > reply["most_bytes"] or (ends_at is not None and now >= ends_at):
                raise self._no_room(file, reply["most_bytes"])
            if ends_at is not None or not reply["is_there"]:  # Others need the room now.
                time.sleep(_PAUSE_S)
            ends_at = ends_at or now + self._store.options.timeout_s

    def _no_room(self, file: int, most_bytes: int) -> ConfigError:
        size = self._stamps[file][0]
        return ConfigError(
            f"{self._name(file)} has no room in the cache, where it must lie as a whole: it has {size} bytes "
            f"({-(-size >> 20)} MiB), and all files may take {most_bytes} ({most_bytes >> 20} MiB). Raise max_bytes of "
            f"RemoteOptions."
        )

    def _object(self, file: int) -> Message:
        return super()._object(file) | {"is_plain": True}

    def _find_folder(self, file: int) -> str:
        return object_folder(self._store.cache, self._urls[file], *self._stamps[file], is_plain=True)


def _locked(path: str, size: int) -> int | None:
    """Return the descriptor of a file of a size, locked; None: there is none, or it was removed meanwhile."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # A link is replaced by the fetched file.
            return None
        raise unreadable(path, error) from error
    _held.add(descriptor)
    is_right = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        status = os.fstat(descriptor)
        is_right = stat.S_ISREG(status.st_mode) and status.st_size == size and status.st_nlink > 0
    finally:
        if not is_right:
            _close(descriptor)
    return descriptor if is_right else None


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _let_go() -> None:
    """Close, in a forked process, files that threads of its parent hold: it would keep them as long as it lives."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
