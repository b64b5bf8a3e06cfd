"""The blocks that lie in a cache folder, found by a look at it; and their removal."""

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

_LARGEST_PAGE = 64 << 10  # Network file systems name what they like to transfer instead.


def page_bytes(folder: str) -> int:
    """Returns what files of a folder are rounded up to on their disk, bytes."""
    return max(4096, min(os.statvfs(folder).f_frsize, _LARGEST_PAGE))


def disk_bytes(start: int, stop: int, page: int) -> int:
    """Returns the most that the file of bytes start..stop-1 takes on its disk, its folder and description included."""
    return -(-(stop - start + TRAILER.size) // page) * page + 2 * page


@dataclass(frozen=True)
class StoredBlock:
    """A block in a cache folder.

    Attributes:
        key: its object's folder, start and stop.
        num_bytes: that its file takes, or will take when it is whole.
        fetched_at: time of its last change, seconds.
        is_part: whether it is being fetched, or was by a process that died.
    """

    key: BlockKey
    num_bytes: int
    fetched_at: float
    is_part: bool

    @property
    def path(self) -> str:
        """Path of its file."""
        folder, start, stop = self.key
        return os.path.join(folder, block_name(start, stop) + (PART if self.is_part else ""))


def stored_blocks(cache: str) -> Iterator[StoredBlock]:
    """Yields the blocks of a cache folder; files that are not ours are left alone."""
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
                    status = os.lstat(entry.path.removesuffix(PART))  # It was finished meanwhile.
                except FileNotFoundError:
                    continue
                is_part = False
            if stat.S_ISREG(status.st_mode):
                size = stop - start + TRAILER.size
                yield StoredBlock((folder.path, start, stop), size, status.st_mtime, is_part)


def remove_block(block: StoredBlock, *, is_damaged: bool = False) -> bool:
    """Removes a block, also from the disk where readers have it open; returns whether it was there.

    What a live process has locked stays: a part that it writes to, a plain file that it reads at this moment. A damaged
    one loses its name all the same.
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
        if not is_at(descriptor, block.path):  # It was finished or removed, and another one begun, since it was opened.
            return False
        os.unlink(block.path)
        if not is_locked:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # A reader that has it open sees by its size that it is gone.
    except FileNotFoundError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_locked(descriptor: int) -> bool:
    """Returns whether another process has locked a file, which is locked here otherwise."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def unlink_block(block: StoredBlock) -> bool:
    """Removes the name of a block, so that readers that have it open read on; returns whether it was there.

    Raises:
        ConfigError: it is a folder.
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
    """Removes the folder of an object of which no block is left."""
    path, beside = os.path.join(folder, "object.json"), f"{folder}.{os.getpid()}.json"
    if [entry.name for entry in _scan(folder)] != ["object.json"]:
        return
    with contextlib.suppress(OSError):
        os.rename(path, beside)
        try:
            os.rmdir(folder)
        except OSError:  # Another process has begun to fetch a block into it meanwhile.
            os.rename(beside, path)
        else:
            os.unlink(beside)


def _scan(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
