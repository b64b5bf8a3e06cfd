"""Budget: the blocks of a cache never take more than `max_bytes`; where there is no room, those go that nobody needs.

The processes that share a folder count together, in its file `usage` under the lock of its file `lock`. A process that
is killed may leave the count too high, never too low; it is counted anew where there seems to be no room.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise

from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.cache import Cache, Claim, RemoteObject
from tfds_torch.storage.remote.layout import is_plain
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Needs, Readers, is_kept
from tfds_torch.storage.remote.stored_blocks import (
    StoredBlock,
    disk_bytes,
    page_bytes,
    remove_block,
    remove_empty_folder,
    stored_blocks,
    unlink_block,
)

DEFAULT_PART = 0.8
"""Of what is free, that a cache may take where nobody says how much."""

_COUNT = struct.Struct("<q")
_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRY_S = 0.25
_LOOKS_PART = 10  # A look that was in vain is repeated after so many times as long as it took.
_SPARE_BESIDE = 64 << 10  # Bytes, for files beside the blocks that come or grow until the next look.
_FAR = 1 << 30
_MUCH_FARTHER = 2  # Windows, before blocks give way to one that nobody waits for yet.
_PART, _UNREAD, _DEALT, _KEPT, _NEEDED = range(5)
_SPARE_PART = 0.02  # Of the budget, that is made free at a time: looking costs more than removing.


def default_max_bytes(cache: str) -> int:
    """Returns the most bytes that a cache takes by default: 0.8 of what is free without it."""
    found = os.statvfs(cache)
    own = sum(block.num_bytes for block in stored_blocks(cache))
    return int(DEFAULT_PART * (found.f_bavail * found.f_frsize + own))


class Budget:
    """Bytes of the blocks of a cache folder, as they take room on its disk; what lies beside them counts, too.

    Args:
        cache: the folder.
        max_bytes: most bytes of its files.
        readers: of this fetcher.
        published: of all fetchers that share the folder.
    """

    def __init__(self, cache: str, max_bytes: int, readers: Readers, published: PublishedReaders) -> None:
        self._cache, self.max_bytes = cache, max_bytes
        self._readers, self._published = readers, published
        self._page = page_bytes(cache)
        self._lock = os.open(os.path.join(cache, "lock"), _NEW, 0o600)
        self._usage = os.open(os.path.join(cache, "usage"), _NEW, 0o600)
        self._no_room: tuple[float, int] | None = None  # Until when, and what readers needed then.
        self._free: list[StoredBlock] = []  # What may go, by the last look; the last ones first.
        self._kept_bytes = 0  # Of blocks that stay between epochs and are in no window, by the last look.
        self.num_removed = 0
        with self._locked():
            self._look()

    @property
    def most_bytes(self) -> int:
        """Most bytes of all blocks together."""
        return self.max_bytes - self._bytes_beside()

    def may_have_room(self, *, is_urgent: bool) -> bool:
        """Returns False where there was no room for a block a moment ago, and nothing has changed since."""
        return is_urgent or not self._has_just_failed()

    def is_wanted(self, key: BlockKey) -> bool:
        """Returns False where a cache that does not hold all has no use for a block: readers have dealt its window."""
        needs = self._readers.needs()
        return needs.kept_part >= 1.0 or key in needs.distances or key[0] not in needs.objects

    def reserve(self, key: BlockKey, *, is_urgent: bool) -> bool:
        """Returns whether there is room for a block that was claimed, which is counted from now on.

        Blocks of windows that come after the block's own go for it, where nothing else can; for a plain file that a
        reader waits for, which cannot be read past the cache, any that is not locked. A block of a window before which
        others lack room gets none.

        Args:
            key: the block.
            is_urgent: whether a reader waits for it: blocks that are kept between epochs go for it, too.
        """
        if not self.may_have_room(is_urgent=is_urgent):
            return False
        began_at = time.monotonic()
        size = self._size_of(key)
        with self._locked():
            most = self.most_bytes
            if self._count() + size > most:
                self._make_room(key, most - size, is_urgent=is_urgent)
            if self._count() + size <= most:
                self._add(size)
                return True
        now = time.monotonic()
        self._no_room = now + max(_RETRY_S, _LOOKS_PART * (now - began_at)), self._readers.version
        return False

    def release(self, key: BlockKey) -> None:
        """Counts a block no longer. Its file is removed after that: a count in between would leave it out twice."""
        with self._locked():
            self._add(-self._size_of(key))

    def discard(self, key: BlockKey, *, is_damaged: bool) -> bool:
        """Removes a block and counts it no longer; returns whether it was there.

        Args:
            key: the block.
            is_damaged: whether those who have it open must not read on.
        """
        block = StoredBlock(key, self._size_of(key), 0.0, is_part=False)
        with self._locked():
            try:
                is_there = remove_block(block, is_damaged=True) if is_damaged else unlink_block(block)
            except OSError:  # Not a file of ours, such as a link: its name is all that goes.
                is_there = unlink_block(block)
            if is_there:
                self._add(-self._size_of(key))
        return is_there

    def _has_just_failed(self) -> bool:
        if self._no_room is None:
            return False
        until, version = self._no_room
        return version == self._readers.version and time.monotonic() < until

    def _make_room(self, key: BlockKey, most: int, *, is_urgent: bool) -> None:
        """Removes blocks until no more than `most` bytes are left, and some more for the next one."""
        self._readers.leave_dead()
        needs = self._published.all_needs()
        distance = needs.distances.get(key, 0 if is_urgent else _FAR)
        if not is_urgent and self._nearer_bytes(needs, distance) + self._kept_bytes > most:
            return
        wanted = most - int(_SPARE_PART * self.max_bytes)
        self._free = [block for block in self._free if _rank(block, needs) <= _DEALT]
        self._remove(self._free, wanted)
        if self._count() <= most:
            return
        # Looking costs more than removing: only when all is gone that the last look has found.
        blocks = self._look(without=key)
        by_age = sorted(blocks, key=lambda block: (_rank(block, needs), block.fetched_at, block.path), reverse=True)
        self._free = [block for block in by_age if _rank(block, needs) <= _DEALT]
        self._remove(self._free, wanted)
        self._kept_bytes = sum(self._size_of(block.key) for block in blocks if _rank(block, needs) == _KEPT)
        last = _KEPT if is_urgent else _DEALT
        if self._count() > most:
            others = [block for block in by_age if _DEALT < _rank(block, needs) <= last]
            nearest = distance + (1 if is_urgent else _MUCH_FARTHER)
            if is_urgent and is_plain(key[0]):
                nearest = 0
            farther = [block for block in blocks if needs.distances.get(block.key, -1) >= nearest and not block.is_part]
            farther.sort(key=lambda block: needs.distances[block.key])
            self._remove(farther + others, most)

    def _nearer_bytes(self, needs: Needs, distance: int) -> int:
        """Returns the bytes of all blocks of windows that come before those of a distance."""
        return sum(self._size_of(key) for key, nearer in needs.distances.items() if nearer < distance)

    def _remove(self, blocks: list[StoredBlock], wanted: int) -> None:
        """Removes blocks, the last ones first, until no more than `wanted` bytes are left; takes them off the list."""
        folders = set()
        while blocks and self._count() > wanted:
            block = blocks.pop()
            if remove_block(block):
                self._add(-self._size_of(block.key))
                self.num_removed += 1
                folders.add(block.key[0])
        for folder in folders:
            remove_empty_folder(folder)

    def _size_of(self, key: BlockKey) -> int:
        return disk_bytes(key[1], key[2], self._page)

    def _bytes_beside(self) -> int:
        """Returns what lies beside the blocks, and may soon."""
        return self._published.disk_bytes() + min(_SPARE_BESIDE, self.max_bytes // 32)

    def _count(self) -> int:
        content = os.pread(self._usage, _COUNT.size, 0)
        if len(content) != _COUNT.size:
            self._look()
            content = os.pread(self._usage, _COUNT.size, 0)
        return int(_COUNT.unpack(content)[0])

    def _add(self, num_bytes: int) -> None:
        os.pwrite(self._usage, _COUNT.pack(max(0, self._count() + num_bytes)), 0)

    def _look(self, without: BlockKey | None = None) -> list[StoredBlock]:
        """Returns all blocks but a claimed one, and counts them anew."""
        found = [block for block in stored_blocks(self._cache) if not (block.is_part and block.key == without)]
        os.pwrite(self._usage, _COUNT.pack(sum(self._size_of(block.key) for block in found)), 0)
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def _rank(block: StoredBlock, needs: Needs) -> int:
    """Returns which blocks go first: parts of the dead, what nobody reads, what was dealt, what is kept for later."""
    if block.is_part:
        return _PART
    if block.key in needs.distances:
        return _NEEDED
    if block.key[0] not in needs.objects:
        return _UNREAD
    return _KEPT if is_kept(block.key, needs.kept_part) else _DEALT


async def cut_object(
    cache: Cache, budget: Budget, found: RemoteObject, cuts: Sequence[int], fetching: Container[BlockKey]
) -> bool:
    """Copies the blocks of an object from its file as a whole; returns False where there is no room for one.

    Args:
        cache: where the object lies.
        budget: of the cache.
        found: the object.
        cuts: offsets at which the blocks begin, 0 first, its size last.
        fetching: blocks that are being fetched: they are left out.

    Raises:
        OSError: the cache cannot be written to.
    """
    for start, stop in pairwise(cuts):
        await asyncio.sleep(0)  # Others are served meanwhile.
        if (found.folder, start, stop) in fetching or cache.has_block(found, start, stop):
            continue
        claim = cache.claim(found, start, stop)
        if claim is None:
            continue
        if cache.has_block(found, start, stop):  # Another process has finished it a moment ago.
            claim.drop()
        elif not _is_copied(cache, budget, found, claim):
            return False
    return True


def _is_copied(cache: Cache, budget: Budget, found: RemoteObject, claim: Claim) -> bool:
    """Copies a claimed block; returns whether there was room, and the object as a whole."""
    key = (found.folder, claim.start, claim.stop)
    has_room = is_copied = False
    try:
        has_room = budget.reserve(key, is_urgent=False)
        if has_room and cache.copy(found, claim):
            claim.finish()
            is_copied = True
    finally:
        if not is_copied:
            try:
                if has_room:
                    budget.release(key)
            finally:
                claim.drop()
    return is_copied
