"""Budget: the blocks of a cache never take more than `max_bytes`; where there is no room, those go that nobody needs.

The processes that share a folder count together, in its file `usage` under the lock of its file `lock`. A process that
is killed may leave the count too high, never too low; it is counted anew where there seems to be no room.
"""

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator

from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.layout import TRAILER
from tfds_torch.storage.remote.published import Needs, PublishedReaders
from tfds_torch.storage.remote.readers import Readers, is_kept
from tfds_torch.storage.remote.stored_blocks import StoredBlock, remove_block, remove_empty_folder, stored_blocks

DEFAULT_PART = 0.8
"""Of what is free, that a cache may take where nobody says how much."""

_COUNT = struct.Struct("<q")
_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRY_S = 0.25
_SPARE_PART = 0.02  # Of the budget, that is made free at a time: looking costs more than removing.


def default_max_bytes(cache: str) -> int:
    """Returns the most bytes that a cache takes by default: 0.8 of what is free without it."""
    found = os.statvfs(cache)
    own = sum(block.num_bytes for block in stored_blocks(cache))
    return int(DEFAULT_PART * (found.f_bavail * found.f_frsize + own))


class Budget:
    """Bytes of the blocks of a cache folder.

    Args:
        cache: the folder.
        max_bytes: most bytes of its blocks.
        readers: of this fetcher.
        published: of all fetchers that share the folder.
    """

    def __init__(self, cache: str, max_bytes: int, readers: Readers, published: PublishedReaders) -> None:
        self._cache, self.max_bytes = cache, max_bytes
        self._readers, self._published = readers, published
        self._lock = os.open(os.path.join(cache, "lock"), _NEW, 0o600)
        self._usage = os.open(os.path.join(cache, "usage"), _NEW, 0o600)
        self._no_room: tuple[float, int] | None = None  # When there was none, and what readers needed then.
        self.num_removed = 0
        with self._locked():
            self._recount()

    def reserve(self, key: BlockKey, *, is_urgent: bool) -> bool:
        """Returns whether there is room for a block that was claimed, which is counted from now on.

        Args:
            key: the block.
            is_urgent: whether blocks that are kept between epochs go for it, where nothing else can.
        """
        size = key[2] - key[1] + TRAILER.size
        with self._locked():
            if self._count() + size <= self.max_bytes:
                self._add(size)
                return True
        if not is_urgent and self._has_just_failed():
            return False
        with self._locked():
            used = self._recount(without=key)
            if used + size > self.max_bytes:
                used -= self._make_room(used + size - self.max_bytes, is_urgent=is_urgent)
            if used + size <= self.max_bytes:
                self._add(size)
                return True
        self._no_room = time.monotonic(), self._readers.version
        return False

    def release(self, key: BlockKey) -> None:
        """Counts a block no longer: it was given up, or removed."""
        with self._locked():
            self._add(key[1] - key[2] - TRAILER.size)

    def _has_just_failed(self) -> bool:
        if self._no_room is None:
            return False
        at, version = self._no_room
        return version == self._readers.version and time.monotonic() - at < _RETRY_S

    def _make_room(self, missing: int, *, is_urgent: bool) -> int:
        """Removes blocks, and returns how many bytes they had."""
        self._readers.leave_dead()
        wanted = missing + int(_SPARE_PART * self.max_bytes)
        freed = 0
        folders = set()
        for block in self._candidates(self._published.all_needs(), is_urgent=is_urgent):
            if freed >= wanted:
                break
            if remove_block(block):
                freed += block.num_bytes
                self._add(-block.num_bytes)
                self.num_removed += 1
                folders.add(block.key[0])
        for folder in folders:
            remove_empty_folder(folder)
        return freed

    def _candidates(self, needs: Needs, *, is_urgent: bool) -> list[StoredBlock]:
        """Returns blocks that may go, the first ones first: parts of the dead, what nobody reads, what was dealt."""
        ranked = []
        for block in stored_blocks(self._cache):
            if block.is_part:
                rank = 0
            elif block.key in needs.blocks:
                continue
            elif block.key[0] not in needs.objects:
                rank = 1
            elif not is_kept(block.key, needs.kept_part):
                rank = 2
            elif is_urgent:
                rank = 3
            else:
                continue
            ranked.append((rank, block.fetched_at, block.path, block))
        return [block for *_, block in sorted(ranked, key=lambda one: one[:3])]

    def _count(self) -> int:
        content = os.pread(self._usage, _COUNT.size, 0)
        return int(_COUNT.unpack(content)[0]) if len(content) == _COUNT.size else self._recount()

    def _add(self, num_bytes: int) -> None:
        os.pwrite(self._usage, _COUNT.pack(max(0, self._count() + num_bytes)), 0)

    def _recount(self, without: BlockKey | None = None) -> int:
        found = stored_blocks(self._cache)
        used = sum(block.num_bytes for block in found if not (block.is_part and block.key == without))
        os.pwrite(self._usage, _COUNT.pack(used), 0)
        return used

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
