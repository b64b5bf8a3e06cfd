"""BlockJob: one block while it is fetched, in segments, of which some are urgent."""

import asyncio
from bisect import insort
from itertools import pairwise

from tfds_torch.storage.remote.cache import Claim, RemoteObject

Span = tuple[int, int]
BlockKey = tuple[str, int, int]
"""Folder of an object, start and stop of one of its blocks."""

SEGMENT_BYTES = 8 << 20
_LONGEST_WAY_S = 1.0
_GAP_BYTES = 64 << 10  # Smaller gaps are fetched with a neighbour: another request costs more.


class Segment:
    """Bytes start..stop-1 while one request fetches them.

    Attributes:
        is_awaited: whether a reader waits for some of its bytes: then it does not give way.
        gives_way_s: seconds for which it may still wait for more urgent segments.
    """

    def __init__(self, start: int, stop: int, *, is_awaited: bool) -> None:
        self.start, self.stop, self.is_awaited = start, stop, is_awaited
        self.gives_way_s = _LONGEST_WAY_S


class BlockJob:
    """A block that is being fetched, or waits for it.

    Its bytes are in segments, each of which is one request: urgent ones, which readers wait for, and the others behind
    them. Each byte is in one segment, so that it is fetched once.

    Attributes:
        rank: blocks of smaller rank are fetched earlier.
        claim: claim to the file of the block; None: not claimed yet.
        urgent: waiting segments that are fetched first.
        pending: the other waiting segments.
        active: segments that are being fetched.
        error: the reason why the block could not be fetched.
    """

    def __init__(self, found: RemoteObject, start: int, stop: int, rank: tuple[int, ...]) -> None:
        self.object, self.start, self.stop, self.rank = found, start, stop, rank
        self.key: BlockKey = (found.folder, start, stop)
        self.claim: Claim | None = None
        self.urgent: list[Span] = []
        self.pending = _cut(start, stop)
        self.active: list[Segment] = []
        self.error: Exception | None = None
        self.is_over = False
        self._done: list[Span] = []
        self._waiters: list[tuple[int, int, asyncio.Future[bytes | None]]] = []

    @property
    def has_waiters(self) -> bool:
        """Whether a reader waits for it now."""
        return any(not waiter.done() for _, _, waiter in self._waiters)

    @property
    def is_whole(self) -> bool:
        """Whether every byte was fetched."""
        return self.start == self.stop or self._done == [(self.start, self.stop)]

    def wait_for(self, start: int, stop: int) -> "asyncio.Future[bytes | None]":
        """Return a future of bytes start..stop-1; its result is None when the whole block is in the cache."""
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        if self._is_done(start, stop) and self.claim is not None:
            waiter.set_result(self.claim.read(start, stop))
        else:
            self._waiters.append((start, stop, waiter))
        return waiter

    def make_urgent(self, start: int, stop: int) -> None:
        """Make the waiting part of bytes start..stop-1 urgent; active segments of these bytes stop giving way."""
        for segment in self.active:
            if segment.start < stop and start < segment.stop:
                segment.is_awaited = True
        pending: list[Span] = []
        for begin, end in self.pending:
            first, last = max(begin, start), min(end, stop)
            if first >= last:
                pending.append((begin, end))
                continue
            if first - begin < _GAP_BYTES:
                first = begin
            if end - last < _GAP_BYTES:
                last = end
            self.urgent.append((first, last))
            pending += [rest for rest in ((begin, first), (last, end)) if rest[0] < rest[1]]
        self.pending = pending

    def note_done(self, start: int, stop: int) -> None:
        """Note fetched bytes, and answer the readers whose bytes are all there now."""
        insort(self._done, (start, stop))
        merged = [self._done[0]]
        for _, (begin, end) in pairwise(self._done):
            if begin == merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        self._done = merged
        if self.is_whole or self.claim is None:
            return
        left = []
        for first, last, waiter in self._waiters:
            if not self._is_done(first, last):
                left.append((first, last, waiter))
            elif not waiter.done():
                waiter.set_result(self.claim.read(first, last))
        self._waiters = left

    def end(self, error: Exception | None = None) -> None:
        """Answer all waiting readers: the block is in the cache, or could not be fetched."""
        self.is_over, self.error = True, error
        for _, _, waiter in self._waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._waiters = []

    def _is_done(self, start: int, stop: int) -> bool:
        return any(begin <= start and stop <= end for begin, end in self._done)


def _cut(start: int, stop: int) -> list[Span]:
    """Return the segments of a block: each is one request, and several fetch a whole object at a time."""
    if stop - start <= 2 * SEGMENT_BYTES:
        return [(start, stop)]
    return [(at, min(at + SEGMENT_BYTES, stop)) for at in range(start, stop, SEGMENT_BYTES)]
