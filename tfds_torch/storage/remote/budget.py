"""Budget: the blocks of a cache never take more than `max_bytes`; blocks that nobody needs are removed for new ones.

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
"""Part of the free space that a cache may take by default."""

_COUNT = struct.Struct("<q")
_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRY_S = 0.25
_LOOKS_PART = 10  # A look that found no room is repeated after so many times the time that it took.
_SPARE_BESIDE = 64 << 10  # Bytes for files beside the blocks that appear or grow until the next look.
_FAR = 1 << 30
_MUCH_FARTHER = 2  # Windows of distance before a block is removed for one that nobody waits for yet.
_PART, _UNREAD, _DEALT, _KEPT, _NEEDED = range(5)
_SPARE_PART = 0.02  # Part of the budget that is freed at a time: looking costs more than removing.


def default_max_bytes(cache: str) -> int:
    """Return the most bytes that a cache takes by default: 0.8 of the free space, where its own files count as free."""
    found = os.statvfs(cache)
    own = sum(block.num_bytes for block in stored_blocks(cache))
    return int(DEFAULT_PART * (found.f_bavail * found.f_frsize + own))


class Budget:
    """Bytes that the blocks of a cache folder take on its disk; the files beside them count, too.

    Args:
        cache: the folder.
        max_bytes: most bytes of the files in the folder.
        readers: readers of this fetcher.
        published: readers of all fetchers that share the folder.
    """

    def __init__(self, cache: str, max_bytes: int, readers: Readers, published: PublishedReaders) -> None:
        self._cache, self.max_bytes = cache, max_bytes
        self._readers, self._published = readers, published
        self._page = page_bytes(cache)
        self._lock = os.open(os.path.join(cache, "lock"), _NEW, 0o600)
        self._usage = os.open(os.path.join(cache, "usage"), _NEW, 0o600)
        self._no_room: tuple[float, int] | None = None  # Until when, and the readers' version at that time.
        self._free: list[StoredBlock] = []  # Blocks that may be removed, by the last look; the last ones first.
        self._kept_bytes = 0  # Of kept blocks outside of windows, by the last look.
        self.num_removed = 0
        with self._locked():
            self._look()

    @property
    def most_bytes(self) -> int:
        """Most bytes of all blocks together."""
        return self.max_bytes - self._bytes_beside()

    def may_have_room(self, *, is_urgent: bool) -> bool:
        """Return False where there was no room for a block a moment ago, and nothing has changed since."""
        return is_urgent or not self._has_just_failed()

    def is_wanted(self, key: BlockKey) -> bool:
        """Return False where a cache that cannot hold everything needs no such block: readers have dealt its window."""
        needs = self._readers.needs()
        return needs.kept_part >= 1.0 or key in needs.distances or key[0] not in needs.objects

    def reserve(self, key: BlockKey, *, is_urgent: bool) -> bool:
        """Return whether there is room for a block that was claimed; if so, the block is counted from now on.

        Where no other block can be removed, blocks of windows after the block's own are. For a plain file that a
        reader waits for, which cannot be read past the cache, any block may be removed that is not locked. A block gets
        no room while blocks of earlier windows lack room.

        Args:
            key: the block.
            is_urgent: whether a reader waits for the block: then blocks that are kept between epochs are removed, too.
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
        """Stop counting a block. Its file must be removed after that: a count in between would subtract it twice."""
        with self._locked():
            self._add(-self._size_of(key))

    def discard(self, key: BlockKey, *, is_damaged: bool) -> bool:
        """Remove a block and stop counting it; return whether it was there.

        Args:
            key: the block.
            is_damaged: whether readers that have it open must not continue to read it.
        """
        block = StoredBlock(key, self._size_of(key), 0.0, is_part=False)
        with self._locked():
            try:
                is_there = remove_block(block, is_damaged=True) if is_damaged else unlink_block(block)
            except OSError:  # Not a file of ours, like a link: only its name is removed.
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
        """Remove blocks until at most `most` bytes are left, and some more blocks to make room for the next one."""
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
        # Looking costs more than removing: look again only when all blocks that the last look found are removed.
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
        """Return the bytes of all blocks of windows that come before those of a distance."""
        return sum(self._size_of(key) for key, nearer in needs.distances.items() if nearer < distance)

    def _remove(self, blocks: list[StoredBlock], wanted: int) -> None:
        """Remove blocks, the last ones first, until at most `wanted` bytes are left; take them off the list."""
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
        """Return the bytes of files beside the blocks, with room for files that may come soon."""
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
        """Return all blocks except a claimed one, and count their bytes again."""
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
    """Return a rank; smaller ranks are removed first: parts of dead fetchers, unread, dealt, kept, needed blocks."""
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
    """Copy the blocks of an object from its file as a whole; return False where there is no room for a block.

    Args:
        cache: cache folder in which the object lies.
        budget: budget of the cache.
        found: the object.
        cuts: offsets in bytes at which the blocks begin, 0 first, the size of the object last.
        fetching: blocks that are being fetched, which are left out.

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
        if cache.has_block(found, start, stop):  # Another process has just finished it.
            claim.drop()
        elif not _is_copied(cache, budget, found, claim):
            return False
    return True


def _is_copied(cache: Cache, budget: Budget, found: RemoteObject, claim: Claim) -> bool:
    """Copy a claimed block; return whether there was room for it, and the object was there as a whole."""
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
