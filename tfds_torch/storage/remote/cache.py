"""The cache folder as the fetcher writes it: a block is either whole or not there, and one process at a time writes it.

A block is written to its `.part` file, which is locked meanwhile: the lock is the claim by which the processes of a
machine agree who fetches it. The system unlocks the file of a process that was killed; the next process starts again.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.own_folder import ForeignFolderError, own_folder
from tfds_torch.storage.remote.layout import (
    MAGIC,
    PART,
    TRAILER,
    block_name,
    is_at,
    is_plain,
    object_folder,
    objects_folder,
)
from tfds_torch.storage.remote.urls import without_secrets

_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_CHECK_BYTES = 1 << 20


@dataclass(frozen=True)
class RemoteObject:
    """One version of an object: URL, size in bytes, pin (a hash of ETag and time), and its folder in the cache."""

    url: str
    size: int
    pin: int
    folder: str


class Cache:
    """The folder in which blocks lie.

    Args:
        folder: path of the folder, which is made where it does not exist.

    Raises:
        ConfigError: the folder cannot be written to, belongs to another user, or its file system has no locks.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            own_folder(Path(folder))
            own_folder(Path(objects_folder(folder)))
            self._try_writing()
        except ForeignFolderError as error:
            raise ConfigError(
                f"The cache folder {error.filename} cannot be used: {error.strerror}. Or give another one: "
                f"RemoteOptions(cache_dir=...)."
            ) from error
        except OSError as error:
            raise ConfigError(
                f"The cache folder {folder} cannot be written to: {error.strerror}. Give another one: "
                f"RemoteOptions(cache_dir=...)."
            ) from error

    def object_at(self, url: str, size: int, pin: int, *, is_plain: bool = False) -> RemoteObject:
        """Return an object with its folder; a plain object is kept as a file that other code can open."""
        return RemoteObject(url, size, pin, object_folder(self.folder, url, size, pin, is_plain=is_plain))

    def has(self, found: RemoteObject, start: int, stop: int) -> bool:
        """Return whether the file of a block, or of the object as a whole, is in the cache and has the right length."""
        return self.has_block(found, start, stop) or self.has_block(found, 0, found.size)

    def has_block(self, found: RemoteObject, start: int, stop: int) -> bool:
        """Return whether the file of a block is in the cache and has the right length."""
        try:
            status = os.lstat(os.path.join(found.folder, block_name(start, stop)))
        except OSError:
            return False
        num_beside = 0 if is_plain(found.folder) else TRAILER.size
        return stat.S_ISREG(status.st_mode) and status.st_size == stop - start + num_beside

    def has_grown(self, found: RemoteObject, start: int, stop: int, within_s: float) -> bool:
        """Return whether a process has written to a block that it fetches within the last `within_s` seconds."""
        try:
            written_at = os.lstat(os.path.join(found.folder, block_name(start, stop) + PART)).st_mtime
        except OSError:
            return False
        return time.time() - written_at < within_s

    def claim(self, found: RemoteObject, start: int, stop: int) -> "Claim | None":
        """Return the claim to a block that must be fetched; None: another process fetches it.

        Raises:
            OSError: the folder cannot be written to.
        """
        path = os.path.join(found.folder, block_name(start, stop))
        while True:
            try:
                descriptor = os.open(path + PART, _NEW, 0o600)
            except FileNotFoundError:
                self._make_object_folder(found)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(descriptor, path + PART):
                    os.ftruncate(descriptor, 0)  # The content that a killed process left may be wrong.
                    return Claim(path, descriptor, start, stop, has_trailer=not is_plain(found.folder))
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # The file was put in its place or removed since it was opened.

    def copy(self, found: RemoteObject, claim: "Claim") -> bool:
        """Copy a claimed block from the file of the whole object; return whether that file was there."""
        try:
            source = os.open(os.path.join(found.folder, block_name(0, found.size)), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            for start in range(claim.start, claim.stop, _CHECK_BYTES):
                size = min(_CHECK_BYTES, claim.stop - start)
                content = os.pread(source, size, start)
                if len(content) != size:
                    return False
                claim.write(content, start)
        finally:
            os.close(source)
        return True

    def _make_object_folder(self, found: RemoteObject) -> None:
        with contextlib.suppress(FileExistsError):
            os.makedirs(os.path.dirname(found.folder), 0o700, exist_ok=True)  # It may be removed at any time.
            os.mkdir(found.folder, 0o700)
        description = {"url": without_secrets(found.url), "size": found.size, "pin": found.pin}
        path = os.path.join(found.folder, "object.json")
        beside = f"{path}.{os.getpid()}.part"
        with open(os.open(beside, _NEW | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(description, file)
        os.replace(beside, path)

    def _try_writing(self) -> None:
        """Check that the folder allows all that claims need."""
        path = os.path.join(self.folder, "lock")
        descriptor = os.open(path, _NEW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            raise OSError(error.errno, f"its file system has no locks ({error.strerror})") from error
        finally:
            os.close(descriptor)


class Claim:
    """A block that this process fetches: no other process does, until the block is put in its place or dropped."""

    def __init__(self, path: str, descriptor: int, start: int, stop: int, *, has_trailer: bool = True) -> None:
        self._path, self._descriptor, self._has_trailer = path, descriptor, has_trailer
        self.start, self.stop = start, stop
        self._crc, self._num_summed = 0, 0

    def write(self, content: bytes, offset: int) -> None:
        """Write bytes of the object at their offset in the object."""
        place = offset - self.start
        # Most bytes arrive in order: then the checksum needs no second reading.
        if self._has_trailer and place == self._num_summed:
            self._crc, self._num_summed = google_crc32c.extend(self._crc, content), place + len(content)
        view = memoryview(content)
        while view:
            num_written = os.pwrite(self._descriptor, view, place)
            view, place = view[num_written:], place + num_written

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the object that were written before."""
        return os.pread(self._descriptor, stop - start, start - self.start)

    def finish(self) -> None:
        """Put the whole block in its place. It is not synced: a later reader compares it with checksums.

        A plain file has only the checksums of its format.
        """
        if self._has_trailer:
            self._write_trailer()
        os.rename(self._path + PART, self._path)
        self._close()

    def drop(self) -> None:
        """Drop the block, and remove its file."""
        with contextlib.suppress(OSError):
            os.unlink(self._path + PART)
        self._close()

    def _write_trailer(self) -> None:
        size = self.stop - self.start
        while self._num_summed < size:
            content = os.pread(self._descriptor, min(_CHECK_BYTES, size - self._num_summed), self._num_summed)
            if not content:
                raise OSError(errno.EIO, "a block that was written is short")
            self._crc, self._num_summed = google_crc32c.extend(self._crc, content), self._num_summed + len(content)
        os.pwrite(self._descriptor, TRAILER.pack(MAGIC, self._crc, 0), size)

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # A network file system may report failed writes here: checksums show them.
            os.close(self._descriptor)
