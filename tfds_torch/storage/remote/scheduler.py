"""Scheduler: decides which segment of which block is fetched next, over a limited number of connections."""

import asyncio
import errno
import heapq
import itertools
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.storage.open_files import most_open_files
from tfds_torch.storage.remote import hold
from tfds_torch.storage.remote.block_job import BlockJob, BlockKey, Segment, Span
from tfds_torch.storage.remote.budget import Budget, cut_object
from tfds_torch.storage.remote.cache import Cache, Claim, RemoteObject
from tfds_torch.storage.remote.hold import Hold
from tfds_torch.storage.remote.transfers import Transfers
from tfds_torch.storage.remote.urls import split, without_secrets

Rank = tuple[int, ...]
NOW: Rank = (0,)
"""Rank of blocks that a reader asks for; blocks of an order's windows have (1, window)."""

_logger = logging.getLogger(__name__)
_POLL_S = 0.02
_RARELY = 10  # One of so many looks includes blocks that nobody waits for.
_PATIENCE_S = 10.0  # Seconds without growth of another process's block, before its bytes are fetched past the cache.
_FIRST_CONNECTIONS = 8
_RESERVED = 4  # One of so many connections is for bytes that readers wait for: others are busy for seconds.


class _NoRoomError(Exception):
    """A block does not come into the cache: there is no room, or its fetcher stalls. Never leaves this module."""


class Scheduler:
    """Fetches blocks into the cache: first those that readers wait for, then the rest in the order of their ranks.

    Each block is fetched by one process of the machine, which holds its claim; the others wait for its file.

    Args:
        cache: the cache folder for the blocks.
        budget: limits the bytes of the blocks.
        transfers: fetches bytes.
        connections: number of requests at a time; as many again to each store past the cache.
    """

    def __init__(self, cache: Cache, budget: Budget, transfers: Transfers, connections: int) -> None:
        self._cache, self._budget, self._transfers = cache, budget, transfers
        self._connections = connections
        self._jobs: dict[BlockKey, BlockJob] = {}
        self._urgent: deque[BlockJob] = deque()
        self._heap: list[tuple[Rank, int, BlockJob]] = []
        self._push_number = itertools.count()  # Blocks of one rank keep the order in which they were queued.
        self._elsewhere: dict[BlockKey, BlockJob] = {}  # Claimed by other processes, or without room.
        self._active: dict[Segment, asyncio.Task[None]] = {}
        self._past_cache = defaultdict[tuple[str, str], asyncio.Semaphore](lambda: asyncio.Semaphore(connections))
        self._num_claims, self._most_claims = 0, most_open_files()
        self._ramp = min(_FIRST_CONNECTIONS, connections)  # Connections for bytes that nobody waits for; it grows.
        self._hold = Hold(self._active)
        self._poll: asyncio.Task[None] | None = None
        self.num_cached = 0
        self.is_followed: Callable[[BlockKey], bool] = lambda key: False
        """Function that says whether a window of a current order has a block."""

    async def get(self, found: RemoteObject, start: int, stop: int, first: int, last: int) -> bytes | None:
        """Return bytes first..last-1 of a block start..stop-1; None: the whole block lies in the cache.

        Raises:
            ShardError: the object cannot be read.
            ConfigError: the cache folder is full, or options are wrong.
        """
        if self._cache.has(found, start, stop):
            return None
        try:
            return await self._wait_for(found, start, stop, first, last)
        except _NoRoomError:
            return await self.read_past(found, first, last)

    async def fetch(self, found: RemoteObject, start: int, stop: int) -> bool:
        """Fetch a block that readers wait for; return False where there is no room, or another process stalls.

        Raises:
            ShardError: the object cannot be read.
            ConfigError: the cache folder is full, or options are wrong.
        """
        if not self._cache.has(found, start, stop):
            try:
                await self._wait_for(found, start, stop, start, stop)
            except _NoRoomError:
                return False
        return True

    def want(self, found: RemoteObject, start: int, stop: int, rank: Rank, ranges: Iterable[Span] = ()) -> None:
        """Queue a block that will be read soon, some ranges of it first; do nothing where it is in the cache."""
        if self._cache.has(found, start, stop):
            return
        job = self._job(found, start, stop, rank)
        for first, last in ranges:
            self._make_urgent(job, first, last)
        self._queue(job)

    async def read_past(self, found: RemoteObject, first: int, last: int) -> bytes:
        """Return bytes past the cache, where there is no room, or another process has been fetching them for long."""
        parts: list[bytes] = []
        async with self._past_cache[split(found.url)[:2]]:
            await self._transfers.fetch(found, first, last, lambda content, _: parts.append(content))
        return b"".join(parts)

    def hold(self) -> None:
        """Fetch only bytes that readers wait for, until a new reader has its first batch and follows its order."""
        self._hold.begin()
        asyncio.get_running_loop().call_later(hold.LONGEST_S, self.pump)

    def release(self) -> None:
        """End a hold."""
        self._hold.end()

    def discard(self, found: RemoteObject, start: int, stop: int) -> None:
        """Remove a damaged block, or else the object as a whole, which holds it: the next read fetches it again."""
        for first, last in ((start, stop), (0, found.size)):
            if self._budget.discard((found.folder, first, last), is_damaged=True):
                return

    async def cut(self, found: RemoteObject, cuts: Sequence[int], total: int | None) -> None:
        """Cut an object that lies in the cache as a whole into blocks; its file is removed, and nothing is fetched.

        Where the cache has room for all objects that are read together, the object stays a whole.

        Args:
            found: the object.
            cuts: offsets in bytes at which the blocks begin, 0 first, the size of the object last.
            total: bytes of all objects that are read together; None: the object is cut in any case.

        Raises:
            ConfigError: the cache cannot be written to.
        """
        holds_all = total is not None and total <= self._budget.max_bytes
        if holds_all or len(cuts) < 3 or not self._cache.has_block(found, 0, found.size):
            return
        try:
            if await cut_object(self._cache, self._budget, found, cuts, self._jobs):
                self._budget.discard((found.folder, 0, found.size), is_damaged=False)
        except OSError as error:
            raise self._as_own_error(found, error) from error

    @property
    def num_removed(self) -> int:
        """Number of blocks that were removed to make room."""
        return self._budget.num_removed

    @property
    def most_bytes(self) -> int:
        """Most bytes of all blocks together."""
        return self._budget.most_bytes

    def pump(self) -> None:
        """Start as many requests as may run at a time."""
        while len(self._active) < self._connections:
            job, is_urgent = self._next_job()
            if job is None:
                break
            if not self._ensure_claim(job, is_urgent=is_urgent):
                continue
            waiting = job.urgent if is_urgent else job.pending
            start, stop = waiting.pop(0)
            segment = Segment(start, stop, is_awaited=is_urgent)
            job.active.append(segment)
            self._active[segment] = asyncio.get_running_loop().create_task(self._fetch(job, segment))
            self._queue(job)

    def close(self) -> None:
        """Drop all blocks that are being fetched."""
        for task in self._active.values():
            task.cancel()
        for job in self._jobs.values():
            self._give_up(job)

    async def _wait_for(self, found: RemoteObject, start: int, stop: int, first: int, last: int) -> bytes | None:
        """Return as `get` does, for a block that is not in the cache; raise _NoRoomError where it does not come."""
        job = self._job(found, start, stop, NOW)
        waiter = job.wait_for(first, last)
        self._make_urgent(job, first, last)
        self._queue(job)
        self.pump()
        while not waiter.done():
            await asyncio.wait([waiter], timeout=_PATIENCE_S)
            is_stalled = job.key in self._elsewhere and not self._cache.has_grown(found, start, stop, _PATIENCE_S)
            if is_stalled and not waiter.done():
                waiter.cancel()
                raise _NoRoomError
        return waiter.result()

    def _job(self, found: RemoteObject, start: int, stop: int, rank: Rank) -> BlockJob:
        """Return the job of a block, a new one if there is none; the smaller rank holds."""
        key = (found.folder, start, stop)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = BlockJob(found, start, stop, rank)
        elif rank < job.rank:
            job.rank = rank
        return job

    def _make_urgent(self, job: BlockJob, first: int, last: int) -> None:
        """Fetch bytes first..last-1 of a block before all else, or the whole block where a followed window has it."""
        if self.is_followed(job.key):
            # Else readers that outrun fetching ahead would continue with small requests.
            first, last = job.start, job.stop
        job.make_urgent(first, last)

    def _queue(self, job: BlockJob) -> None:
        """Queue a job, which is handled when its turn comes."""
        if job.key in self._elsewhere:
            return
        if job.urgent:
            self._urgent.append(job)
        if job.pending:
            heapq.heappush(self._heap, (job.rank, next(self._push_number), job))

    def _next_job(self) -> tuple[BlockJob | None, bool]:
        """Return the job whose next segment is fetched, None if there is none, and whether it is an urgent segment."""
        while self._urgent:
            job = self._urgent.popleft()
            if job.urgent and not job.is_over and job.key not in self._elsewhere:
                return job, True
        if len(self._active) >= self._ramp or self._hold.is_on():
            return None, False
        while self._heap:
            rank, _, job = heapq.heappop(self._heap)
            if not job.pending or job.is_over or job.key in self._elsewhere:
                continue
            if rank != NOW and job.claim is None and not job.has_waiters and not self.is_followed(job.key):
                self._forget(job)
                continue
            return job, False
        return None, False

    def _ensure_claim(self, job: BlockJob, *, is_urgent: bool) -> bool:
        """Claim a block for this process; return False where it must not write it now: the job has ended, or waits."""
        if job.claim is not None:
            return True
        is_awaited = is_urgent or job.has_waiters
        try:
            if self._cache.has(job.object, job.start, job.stop):
                self._end(job)
                return False
            if not is_awaited and not self._budget.is_wanted(job.key):  # Another process fetched it before.
                self._forget(job)
                return False
            job.claim = self._take_claim(job, is_awaited=is_awaited)
        except _NoRoomError as error:
            self._end(job, error)
            return False
        except Exception as error:
            self._end(job, self._as_own_error(job.object, error))
            return False
        if job.claim is None:
            self._elsewhere[job.key] = job
            if self._poll is None or self._poll.done():
                self._poll = asyncio.get_running_loop().create_task(self._look_again())
            return False
        self._num_claims += 1
        return True

    def _take_claim(self, job: BlockJob, *, is_awaited: bool) -> Claim | None:
        """Return the claim to a block for which there is room; None: another process has it, or it must wait for room.

        Raises:
            _NoRoomError: there is no room for a block that a reader waits for.
        """
        if self._num_claims >= self._most_claims:
            if is_awaited:
                raise _NoRoomError
            return None
        if not self._budget.may_have_room(is_urgent=is_awaited):
            return None
        claim = self._cache.claim(job.object, job.start, job.stop)
        if claim is None:
            return None
        is_there = has_room = False
        try:
            is_there = self._cache.has(job.object, job.start, job.stop)  # Another process may have just finished it.
            has_room = not is_there and self._budget.reserve(job.key, is_urgent=is_awaited)
        finally:
            if not has_room:
                claim.drop()
        if has_room:
            return claim
        if is_awaited and not is_there:
            raise _NoRoomError
        return None

    async def _look_again(self) -> None:
        """Look regularly whether blocks of other processes are there, or can be claimed; often where readers wait."""
        for number in itertools.count(1):
            await asyncio.sleep(_POLL_S)
            is_due = number % _RARELY == 0
            waiting = [job for job in self._elsewhere.values() if is_due or job.has_waiters]
            for job in waiting:
                del self._elsewhere[job.key]
                if not job.is_over:
                    self._queue(job)
            self.pump()
            if not self._elsewhere:
                return

    async def _fetch(self, job: BlockJob, segment: Segment) -> None:
        """Fetch a segment into the file of its block, then start other requests; readers get the error if it fails."""
        claim = job.claim
        assert claim is not None  # noqa: S101 (only blocks that this process has claimed are fetched)
        error: Exception | None = None

        def write(content: bytes, offset: int) -> None:
            claim.write(content, offset)
            if not job.is_over:
                job.note_done(offset, offset + len(content))

        try:
            if not job.is_over:
                await self._transfers.fetch(
                    job.object, segment.start, segment.stop, write, lambda: self._hold.give_way(segment)
                )
        except asyncio.CancelledError:
            raise
        except BaseException as found:  # A panic of the client is not an Exception; readers wait for an answer.
            error = self._as_own_error(job.object, found)
        finally:
            job.active.remove(segment)
            del self._active[segment]
        self._ramp = min(self._connections - self._connections // _RESERVED, self._ramp + 1)
        if error is not None:
            self._end(job, error)
        elif not job.is_over and job.is_whole:
            self._finish(job)
        if job.is_over and not job.active:
            self._give_up(job)
        self.pump()
        if self._hold.is_on():
            asyncio.get_running_loop().call_later(hold.SHORTEST_S, self.pump)

    def _finish(self, job: BlockJob) -> None:
        """Put the file of a whole block into the cache, and answer its readers."""
        claim, job.claim = job.claim, None
        if claim is None:
            return
        try:
            claim.finish()
        except Exception as error:
            job.claim = claim
            self._end(job, self._as_own_error(job.object, error))
            self._give_up(job)
            return
        self._num_claims -= 1
        self.num_cached += 1
        self._end(job)

    def _give_up(self, job: BlockJob) -> None:
        """Drop the claim to a block that is not whole, and its room in the budget; do nothing without a claim."""
        claim, job.claim = job.claim, None
        if claim is not None:
            self._num_claims -= 1
            try:
                self._budget.release(job.key)
            except OSError as error:  # The count is too high until the next look.
                _logger.debug("%s", error)
            finally:
                claim.drop()

    def _end(self, job: BlockJob, error: Exception | None = None) -> None:
        """Answer the readers of a block, with an error if there is one, and forget the job."""
        if error is not None and not job.has_waiters:
            _logger.debug("%s", error)
        job.end(error)
        self._forget(job)

    def _forget(self, job: BlockJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _as_own_error(self, found: RemoteObject, error: BaseException) -> TfdsTorchError:
        """Return the library's own error for one that came while an object was fetched or cached."""
        if isinstance(error, TfdsTorchError):
            return error
        url = without_secrets(found.url)
        if not isinstance(error, OSError):
            _logger.error("%s: the fetcher failed", url, exc_info=error)
            return WorkerError(f"The fetcher of remote files failed at {url}: {error!r}.")
        remedy = "Make room there, set RemoteOptions(max_bytes=...), or give another folder (cache_dir)."
        if error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "Let processes open more files (ulimit -n)."
        return ConfigError(f"{url} cannot be written to the cache {self._cache.folder}: {error.strerror}. {remedy}")
