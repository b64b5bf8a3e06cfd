"""The blocks that lie in a cache folder, found by listing it; and their removal."""

import contextlib
import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from tfds_torch.errors import ConfigError
from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.layout import PART, TRAILER, block_name, block_of_name, is_at, objects_folder

_LARGEST_PAGE = 64 << 10  # Network file systems report the size of their transfers instead.


def page_bytes(folder: str) -> int:
    """Return the bytes to which the disk of a folder rounds up the sizes of files."""
    return max(4096, min(os.statvfs(folder).f_frsize, _LARGEST_PAGE))


def disk_bytes(start: int, stop: int, page: int) -> int:
    """Return the most bytes that the file of bytes start..stop-1 takes on disk, with its folder and description."""
    return -(-(stop - start + TRAILER.size) // page) * page + 2 * page


@dataclass(frozen=True)
class StoredBlock:
    """A block in a cache folder.

    Attributes:
        key: folder of the object, start and stop.
        num_bytes: bytes that its file takes, or will take when it is whole.
        fetched_at: time of its last change, in seconds.
        is_part: whether it is being fetched, or was by a process that died.
    """

    key: BlockKey
    num_bytes: int
    fetched_at: float
    is_part: bool

    @property
    def path(self) -> str:
        """Path of the block's file."""
        folder, start, stop = self.key
        return os.path.join(folder, block_name(start, stop) + (PART if self.is_part else ""))


def stored_blocks(cache: str) -> Iterator[StoredBlock]:
    """Yield the blocks of a cache folder; other files are ignored."""
    for folder in _scan(objects_folder(cache)):
        if not folder.is_dir(follow_symlinks=False):
            continue
        for entry in _scan(folder.path):
            found = block_of_name(entry.name)
            if found is None:
                continue
            start, stop, is_part = found
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                if not is_part:
                    continue
                try:
                    status = os.lstat(entry.path.removesuffix(PART))  # The block was finished meanwhile.
                except FileNotFoundError:
                    continue
                is_part = False
            if stat.S_ISREG(status.st_mode):
                size = stop - start + TRAILER.size
                yield StoredBlock((folder.path, start, stop), size, status.st_mtime, is_part)


def remove_block(block: StoredBlock, *, is_damaged: bool = False) -> bool:
    """Remove a block, and free its bytes even where readers have it open; return whether it was there.

    A block that a live process has locked stays: a part that it writes to, or a plain file that it reads. A damaged
    block loses its name even then.
    """
    try:
        descriptor = os.open(block.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    try:
        is_locked = _is_locked(descriptor)
        if is_locked and not is_damaged:
            return False
        if not is_at(descriptor, block.path):  # It was finished or removed since it was opened.
            return False
        os.unlink(block.path)
        if not is_locked:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # Readers that have it open see by its size that it is removed.
    except FileNotFoundError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_locked(descriptor: int) -> bool:
    """Return whether another process has locked a file; if not, lock it here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def unlink_block(block: StoredBlock) -> bool:
    """Remove the name of a block, so that readers that have it open continue; return whether it was there.

    Raises:
        ConfigError: the path is a folder.
    """
    try:
        os.unlink(block.path)
    except FileNotFoundError:
        return False
    except IsADirectoryError as error:
        raise ConfigError(
            f"{block.path} is a folder, not a block: the cache is not as it was written. Remove it: "
            f"rm -r {shlex.quote(block.path)}"
        ) from error
    return True


def remove_empty_folder(folder: str) -> None:
    """Remove the folder of an object that has no block left."""
    path, beside = os.path.join(folder, "object.json"), f"{folder}.{os.getpid()}.json"
    if [entry.name for entry in _scan(folder)] != ["object.json"]:
        return
    with contextlib.suppress(OSError):
        os.rename(path, beside)
        try:
            os.rmdir(folder)
        except OSError:  # Another process has started to fetch a block into it meanwhile.
            os.rename(beside, path)
        else:
            os.unlink(beside)


def _scan(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
