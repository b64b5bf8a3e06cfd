"""Scheduler: which segment of which block is fetched next, over so many connections."""

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from tfds_torch.errors import ConfigError, ShardError, TfdsTorchError
from tfds_torch.storage.remote.block_job import BlockJob, BlockKey, Segment, Span
from tfds_torch.storage.remote.budget import Budget
from tfds_torch.storage.remote.cache import Cache, RemoteObject
from tfds_torch.storage.remote.transfers import Transfers
from tfds_torch.storage.remote.urls import without_secrets

Rank = tuple[int, ...]
NOW: Rank = (0,)
"""Rank of what a reader asks for; windows of an order have (1, window)."""

_logger = logging.getLogger(__name__)
_POLL_S = 0.02
_PATIENCE_S = 10.0  # For another process's block, before its bytes are fetched past the cache.
_FIRST_CONNECTIONS = 4
_RESERVED = 4  # One of so many connections is for what readers wait for: others are busy for seconds.
_LONGEST_HOLD_S = 1.0
_WAY_S = 0.01


class _NoRoomError(Exception):
    """A block for which there is no room in the cache; never leaves this module."""


class Scheduler:
    """Fetches blocks into the cache: what readers wait for first, the rest in the order of their ranks.

    Each block is fetched by one process of the machine, which holds its claim; the others wait for its file.

    Args:
        cache: where blocks go.
        budget: how many bytes of them.
        transfers: how bytes are fetched.
        connections: requests at a time.
    """

    def __init__(self, cache: Cache, budget: Budget, transfers: Transfers, connections: int) -> None:
        self._cache, self._budget, self._transfers, self._most = cache, budget, transfers, connections
        self._jobs: dict[BlockKey, BlockJob] = {}
        self._urgent: deque[BlockJob] = deque()
        self._heap: list[tuple[Rank, int, BlockJob]] = []
        self._number = itertools.count()
        self._elsewhere: dict[BlockKey, BlockJob] = {}  # Claimed by other processes, or without room.
        self._active: dict[Segment, asyncio.Task[None]] = {}
        self._ramp = min(_FIRST_CONNECTIONS, connections)
        self._held_until = 0.0
        self._poll: asyncio.Task[None] | None = None
        self.num_cached = 0
        self.is_needed: Callable[[BlockKey], bool] = lambda key: True

    async def get(self, found: RemoteObject, start: int, stop: int, first: int, last: int) -> bytes | None:
        """Returns bytes first..last-1 of a block start..stop-1; None: the whole block lies in the cache.

        Raises:
            ShardError: the object cannot be read.
            ConfigError: the cache folder is full, or options are wrong.
        """
        if self._cache.has(found, start, stop):
            return None
        job = self._job(found, start, stop, NOW)
        waiter = job.wait_for(first, last)
        job.make_urgent(first, last)
        self._queue(job)
        self.pump()
        while not waiter.done():
            await asyncio.wait([waiter], timeout=_PATIENCE_S)
            if not waiter.done() and job.key in self._elsewhere:
                waiter.cancel()
                return await self.read_past(found, first, last)
        try:
            return waiter.result()
        except _NoRoomError:
            return await self.read_past(found, first, last)

    def want(self, found: RemoteObject, start: int, stop: int, rank: Rank, ranges: Iterable[Span] = ()) -> None:
        """Has a block fetched that will be read soon, some ranges of it first; does nothing where it is there."""
        if self._cache.has(found, start, stop):
            return
        job = self._job(found, start, stop, rank)
        for first, last in ranges:
            job.make_urgent(first, last)
        self._queue(job)

    async def read_past(self, found: RemoteObject, first: int, last: int) -> bytes:
        """Returns bytes past the cache: there is no room, or another process has been fetching them for long."""
        parts: list[bytes] = []
        await self._transfers.fetch(found, first, last, lambda content, _: parts.append(content))
        return b"".join(parts)

    def hold(self) -> None:
        """Begins only what readers wait for, until one that begins has its first batch and follows its order."""
        self._held_until = time.monotonic() + _LONGEST_HOLD_S
        asyncio.get_running_loop().call_later(_LONGEST_HOLD_S, self.pump)

    def release(self) -> None:
        """Ends a hold."""
        self._held_until = 0.0

    def discard(self, found: RemoteObject, start: int, stop: int) -> None:
        """Removes a block that is damaged: the next reader has it fetched again."""
        if self._cache.discard(found, start, stop):
            self._budget.release((found.folder, start, stop))

    async def cut(self, found: RemoteObject, cuts: Sequence[int]) -> None:
        """Makes blocks of an object that lies in the cache as a whole, which is removed; nothing is fetched.

        Args:
            found: the object.
            cuts: offsets at which the blocks begin, 0 first, its size last.
        """
        if len(cuts) < 3 or not self._cache.has(found, 0, found.size):
            return
        for start, stop in pairwise(cuts):
            await asyncio.sleep(0)  # Others are served meanwhile.
            if (found.folder, start, stop) in self._jobs or self._cache.has(found, start, stop):
                continue
            claim = self._cache.claim(found, start, stop)
            if claim is None:
                continue
            is_room = self._budget.reserve((found.folder, start, stop), is_urgent=False)
            if not (is_room and self._cache.copy(found, claim)):
                if is_room:
                    self._budget.release((found.folder, start, stop))
                claim.drop()
                return
            claim.finish()
        self.discard(found, 0, found.size)

    @property
    def num_removed(self) -> int:
        """Blocks that were removed to make room."""
        return self._budget.num_removed

    def pump(self) -> None:
        """Starts as many requests as may run."""
        while len(self._active) < self._most:
            job, is_urgent = self._next()
            if job is None:
                break
            if not self._is_claimed(job, is_urgent=is_urgent):
                continue
            segment = Segment(*(job.urgent if is_urgent else job.pending).pop(0), is_first=is_urgent)
            job.active.append(segment)
            self._active[segment] = asyncio.get_running_loop().create_task(self._fetch(job, segment))
            self._queue(job)

    def close(self) -> None:
        """Gives up what is being fetched."""
        for task in self._active.values():
            task.cancel()
        for job in self._jobs.values():
            self._give_up(job)

    def _job(self, found: RemoteObject, start: int, stop: int, rank: Rank) -> BlockJob:
        key = (found.folder, start, stop)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = BlockJob(found, start, stop, rank)
        elif rank < job.rank:
            job.rank = rank
        return job

    def _queue(self, job: BlockJob) -> None:
        """Has a job looked at when its turn comes."""
        if job.key in self._elsewhere:
            return
        if job.urgent:
            self._urgent.append(job)
        if job.pending:
            heapq.heappush(self._heap, (job.rank, next(self._number), job))

    def _next(self) -> tuple[BlockJob | None, bool]:
        while self._urgent:
            job = self._urgent.popleft()
            if job.urgent and not job.is_over and job.key not in self._elsewhere:
                return job, True
        if self._is_urgent_active() or len(self._active) >= self._ramp or time.monotonic() < self._held_until:
            return None, False  # What readers wait for has the link for itself.
        while self._heap:
            rank, _, job = heapq.heappop(self._heap)
            if not job.pending or job.is_over or job.key in self._elsewhere:
                continue
            if rank != NOW and job.claim is None and not job.has_waiters and not self.is_needed(job.key):
                self._forget(job)
                continue
            return job, False
        return None, False

    def _is_claimed(self, job: BlockJob, *, is_urgent: bool) -> bool:
        """Returns whether this process may write the block now; else the job has ended, or waits."""
        if job.claim is not None:
            return True
        found = job.object
        try:
            if self._cache.has(found, job.start, job.stop):
                self._end(job)
                return False
            is_awaited = is_urgent or job.has_waiters
            if not is_awaited and not self._budget.is_wanted(job.key):  # Another process had fetched it meanwhile.
                self._forget(job)
                return False
            claim = None
            if self._budget.may_have_room(is_urgent=is_awaited):
                claim = self._cache.claim(found, job.start, job.stop)
            if claim is not None and self._cache.has(found, job.start, job.stop):  # Finished a moment ago.
                claim.drop()
                self._end(job)
                return False
            if claim is not None and not self._budget.reserve(job.key, is_urgent=is_awaited):
                claim.drop()
                claim = None
                if is_awaited:
                    self._end(job, _NoRoomError())
                    return False
        except (OSError, TfdsTorchError) as error:
            self._end(job, self._as_ours(job, error))
            return False
        if claim is None:
            self._elsewhere[job.key] = job
            if self._poll is None or self._poll.done():
                self._poll = asyncio.get_running_loop().create_task(self._look_again())
            return False
        job.claim = claim
        return True

    async def _look_again(self) -> None:
        """Looks now and then whether blocks of other processes are there, or can be claimed."""
        while self._elsewhere:
            await asyncio.sleep(_POLL_S)
            waiting, self._elsewhere = self._elsewhere, {}
            for job in waiting.values():
                if not job.is_over:
                    self._queue(job)
            self.pump()

    async def _fetch(self, job: BlockJob, segment: Segment) -> None:
        claim = job.claim
        if claim is None:
            raise AssertionError("A segment is fetched by the holder of the claim.")
        error: Exception | None = None

        def write(content: bytes, offset: int) -> None:
            claim.write(content, offset)
            if not job.is_over:
                job.note_done(offset, offset + len(content))

        try:
            if not job.is_over:
                await self._transfers.fetch(
                    job.object, segment.start, segment.stop, write, lambda: self._give_way(segment)
                )
        except (TfdsTorchError, OSError) as found:
            error = self._as_ours(job, found)
        finally:
            job.active.remove(segment)
            del self._active[segment]
        self._ramp = min(self._most - self._most // _RESERVED, self._ramp + 1)
        if error is not None:
            self._end(job, error)
        elif not job.is_over and job.is_whole:
            self._finish(job)
        if job.is_over and not job.active:
            self._give_up(job)
        asyncio.get_running_loop().call_soon(self.pump)

    def _is_urgent_active(self) -> bool:
        return any(segment.is_first for segment in self._active)

    async def _give_way(self, segment: Segment) -> None:
        """Reads no more of what nobody waits for, as long as readers wait for other ranges, and not for long."""
        while not segment.is_awaited and self._is_urgent_active() and segment.gives_way_s > 0:
            segment.gives_way_s -= _WAY_S
            await asyncio.sleep(_WAY_S)

    def _finish(self, job: BlockJob) -> None:
        claim, job.claim = job.claim, None
        if claim is None:
            return
        try:
            claim.finish()
        except OSError as error:
            job.claim = claim
            self._give_up(job)
            self._end(job, self._as_ours(job, error))
            return
        self.num_cached += 1
        self._end(job)

    def _give_up(self, job: BlockJob) -> None:
        claim, job.claim = job.claim, None
        if claim is not None:
            self._budget.release(job.key)
            claim.drop()

    def _end(self, job: BlockJob, error: Exception | None = None) -> None:
        if error is not None and not job.has_waiters:
            _logger.debug("%s", error)
        job.end(error)
        self._forget(job)

    def _forget(self, job: BlockJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _as_ours(self, job: BlockJob, error: Exception) -> TfdsTorchError:
        if isinstance(error, TfdsTorchError):
            return error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        kind = ConfigError if isinstance(error, OSError) else ShardError
        return kind(
            f"{without_secrets(job.object.url)} cannot be written to the cache {self._cache.folder}: {reason}. Make "
            f"room there, set RemoteOptions(max_bytes=...), or give another folder (cache_dir)."
        )
