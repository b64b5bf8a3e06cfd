"""CachedBlocks: blocks of the cache that are kept open between reads."""

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import google_crc32c

from tfds_torch.storage.open_files import most_open_files
from tfds_torch.storage.remote.layout import MAGIC, TRAILER, block_name

_Key = TypeVar("_Key", bound=Hashable)
_OPEN = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MOST_OPEN = 256
_CHECK_BYTES = 1 << 20


class DamagedBlockError(Exception):
    """A block of the cache does not hold the fetched bytes; never leaves this folder."""


class CachedBlocks(Generic[_Key]):
    """Reads blocks that lie in the cache; the caller handles missing ones. For one thread at a time.

    Args:
        verifies: whether a block's checksum is compared when it is first opened.
    """

    def __init__(self, *, verifies: bool) -> None:
        self._verifies = verifies
        self._most = max(1, min(_MOST_OPEN, most_open_files() // 2))
        self._open: OrderedDict[_Key, tuple[int, int]] = OrderedDict()  # Descriptor and size; the last used at the end.
        self._verified: dict[_Key, tuple[int, int]] = {}  # Inode number and time of each file with a right checksum.

    def read(self, key: _Key, folder: Callable[[], str], start: int, stop: int, first: int, last: int) -> bytes | None:
        """Return bytes first..last-1 of an object from its block start..stop-1; None: the block is not in the cache.

        Raises:
            DamagedBlockError: the block does not hold the fetched bytes; the message is a clause.
        """
        found = self._open.get(key)
        if found is None:
            found = self._open_block(key, folder(), start, stop)
            if found is None:
                return None
        else:
            self._open.move_to_end(key)
        descriptor, size = found
        content = os.pread(descriptor, last - first, first - start)
        if len(content) == last - first and os.fstat(descriptor).st_size == size:
            return content
        self.forget(key)  # The block was removed meanwhile: its file is cut first, so that its bytes are free.
        return None

    def advise(self, key: _Key, folder: str, start: int, stop: int, spans: Sequence[tuple[int, int]]) -> None:
        """Ask the system to read bytes of a block ahead; open the block first, unless that compares its checksum."""
        found = self._open.get(key)
        if found is None and not self._verifies:
            with suppress(DamagedBlockError):  # The next read reports the damage.
                found = self._open_block(key, folder, start, stop)
        if found is not None and hasattr(os, "posix_fadvise"):
            for first, last in spans:
                with suppress(OSError):  # A file system may refuse the request.
                    os.posix_fadvise(found[0], first - start, last - first, os.POSIX_FADV_WILLNEED)

    def is_there(self, key: _Key, folder: str, start: int, stop: int) -> bool:
        """Return whether a block lies in the cache."""
        return key in self._open or os.path.exists(os.path.join(folder, block_name(start, stop)))

    def forget(self, key: _Key) -> None:
        """Close a block."""
        found = self._open.pop(key, None)
        if found is not None:
            os.close(found[0])

    def close(self) -> None:
        """Close all blocks."""
        while self._open:
            os.close(self._open.popitem()[1][0])

    def _open_block(self, key: _Key, folder: str, start: int, stop: int) -> tuple[int, int] | None:
        while len(self._open) >= self._most:
            os.close(self._open.popitem(last=False)[1][0])
        path = os.path.join(folder, block_name(start, stop))
        try:
            descriptor = os.open(path, _OPEN)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedBlockError(f"it cannot be opened: {error.strerror}") from error
        try:
            self._check(key, descriptor, stop - start)
        except DamagedBlockError:
            was_removed = os.fstat(descriptor).st_nlink == 0  # Removed since it was opened; then its file is cut.
            os.close(descriptor)
            if was_removed:
                return None
            raise
        except BaseException:
            os.close(descriptor)
            raise
        found = self._open[key] = descriptor, stop - start + TRAILER.size
        return found

    def _check(self, key: _Key, descriptor: int, size: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
            raise DamagedBlockError("it is not a file of this user's own")
        if status.st_size != size + TRAILER.size:
            raise DamagedBlockError(f"it has {status.st_size} of {size + TRAILER.size} bytes")
        trailer = os.pread(descriptor, TRAILER.size, size)
        if len(trailer) != TRAILER.size:
            raise DamagedBlockError("it was cut")
        magic, crc, _ = TRAILER.unpack(trailer)
        if magic != MAGIC:
            raise DamagedBlockError("its last bytes are not those of a block")
        version = (status.st_ino, status.st_mtime_ns)
        if not self._verifies or self._verified.get(key) == version:
            return
        found, place = 0, 0
        while place < size:
            content = os.pread(descriptor, min(_CHECK_BYTES, size - place), place)
            if not content:
                raise DamagedBlockError("it was cut")
            found, place = google_crc32c.extend(found, content), place + len(content)
        if found != crc:
            raise DamagedBlockError("its checksum is wrong")
        self._verified[key] = version
