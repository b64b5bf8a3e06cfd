"""FeedQueue: the queue between the threads of a source and its training loops; every wait in it can be ended."""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tfds_torch.errors import ConfigError, StallError, TfdsTorchError
from tfds_torch.loaders.feed_options import FeedLimits, FeedOptions
from tfds_torch.loaders.rebatching import Arrays, Chunk, RowQueue
from tfds_torch.runtime.feed_metrics import FeedMetrics, FetcherMetrics, SourceStats

_MOST_READY = 4  # Batches that are made ahead.
_FEW_CHUNKS = 2

_logger = logging.getLogger(__name__)


class Timer:
    """Decides by given times, in seconds, whether a period is over, and then begins the next one."""

    def __init__(self, period_s: float, now: float) -> None:
        self._period_s, self.began_at = period_s, now

    def left_s(self, now: float, since: float = -math.inf) -> float:
        """Return the seconds left of a period that begins no earlier than `since`."""
        return max(self.began_at, since) + self._period_s - now

    def is_over(self, now: float, since: float = -math.inf) -> bool:
        """Return whether the period is over; if so, begin the next one."""
        is_over = self.left_s(now, since) <= 0
        if is_over:
            self.began_at = now
        return is_over


class FeedQueue:
    """Chunks of one run of a source, on their way from its fetchers, through a thread that makes batches, to loops.

    One lock guards it. It is reentrant because the garbage collector may drop an iteration, or a whole Feeder, at any
    moment, also in a thread that holds the lock: `wake` and `end` never wait.
    """

    def __init__(
        self, options: FeedOptions, limits: FeedLimits, workers: list[FetcherMetrics], clock: Callable[[], float]
    ) -> None:
        self.options = options
        self.batch_size = options.batch_size
        self.is_over = False  # Stopped or failed: nothing goes in or out any more.
        self._clock, now = clock, clock()
        self._rows = RowQueue(options.axes)
        self._ready: deque[Any] = deque()
        self._is_making = self._is_complete = False
        self._error: tuple[type[TfdsTorchError], str, BaseException] | None = None
        self._num_fetching = len(workers)
        self._slow, self._lagging = Timer(limits.slow_s, now), Timer(limits.lagging_s, now)
        self._status = Timer(limits.status_s, now)
        self._metrics = FeedMetrics(options.name, workers, options.max_buffered_chunks, clock)
        self._lock = threading.RLock()
        self._can_put, self._can_make = threading.Condition(self._lock), threading.Condition(self._lock)
        self._can_take = threading.Condition(self._lock)

    # For fetchers.

    def put(self, chunk: Chunk, worker: FetcherMetrics) -> None:
        """Wait for room, then put a chunk behind the others."""
        began, options = self._clock(), self.options
        with self._lock:
            self._note_filled(began)
            is_full = not (self.is_over or self._has_room())
        if is_full:  # Without the lock: a logging handler may do anything.
            _logger.debug("source %r: the queue is full, fetchers wait", options.name)
        with self._lock:
            while not (self.is_over or self._has_room()):
                self._can_put.wait()
            if self.is_over:
                return
            self._rows.append(chunk)
            now = self._clock()
            worker.add_chunk(chunk.num_rows, now - began)
            self._metrics.note_queue(len(self._rows))
            if self._is_batch_there():
                self._can_make.notify()
            if self._has_room():
                self._can_put.notify()
            num_chunks, is_lagging = len(self._rows), self._lagging.is_over(now)
        if is_lagging:
            _logger.warning("Data loading is lagging behind: queue size=%d, name=%s", num_chunks, options.name)

    def end_worker(self) -> bool:
        """Note that a fetcher has ended; return whether it was the last one."""
        with self._lock:
            self._num_fetching -= 1
            self._can_make.notify()
            return self._num_fetching == 0

    def fail(self, kind: type[TfdsTorchError], message: str, cause: BaseException) -> None:
        """End the queue with an error, which every training loop gets at once."""
        with self._lock:
            if not self.is_over:
                self._error = kind, message, cause
                self.end()

    def is_status_due(self) -> bool:
        """Return whether a status line is due."""
        with self._lock:
            return self._status.is_over(self._clock())

    # For the thread that makes batches.

    def take(self) -> list[Arrays] | None:
        """Wait for the next batch's rows, and until few batches are ready; None: there are no more."""
        with self._lock:
            while not self.is_over and (self._num_fetching or self._can_find()):
                if len(self._ready) < _MOST_READY and self._can_find():
                    self._is_making = True
                    return self._take_pieces()
                self._can_make.wait()
            self._is_complete = True
            self._can_take.notify_all()
            return None

    def offer(self, batch: Any) -> None:
        """Put a batch that was made behind the others."""
        with self._lock:
            self._is_making = False
            if not self.is_over:
                self._ready.append(batch)
                self._can_take.notify_all()

    # For training loops.

    def next_batch(self, is_closed: Callable[[], bool]) -> Any:
        """Return the next batch; stop when `is_closed` returns True, which is asked again after each `wake`."""
        asked_at = self._clock()
        while True:
            with self._lock:
                self._check_over()
                while not (self._ready or self._is_complete or is_closed()):
                    slow = self._look_at_wait(asked_at)
                    if slow is not None:
                        break
                    self._can_take.wait(self._wait_s(asked_at))
                    self._check_over()
                else:
                    return self._hand_over(self._clock() - asked_at, is_closed())
            _logger.warning("%s", slow)  # Without the lock, as above.

    def wake(self) -> None:
        """Let waiting loops check whether they were closed."""
        with self._lock:
            self._can_take.notify_all()

    # For the Feeder.

    @property
    def is_failed(self) -> bool:
        """Whether a fetcher has failed."""
        return self._error is not None

    @property
    def is_drained(self) -> bool:
        """Whether the source has ended, and all of its batches were taken."""
        with self._lock:
            return not (self._num_fetching or self._can_find() or self._is_making or self._ready)

    def set_batch_size(self, batch_size: int) -> None:
        """Set the size of the batches that are not made yet."""
        with self._lock:
            self.batch_size = batch_size
            self._can_put.notify_all()
            self._can_make.notify()

    def end(self) -> None:
        """End all waiting, and drop all chunks and batches in the queue."""
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._metrics.end()
            self._rows.clear()
            self._ready.clear()
            for condition in (self._can_put, self._can_make, self._can_take):
                condition.notify_all()

    def stats(self, *, begins_interval: bool = False) -> SourceStats:
        """Return the figures so far; with `begins_interval`, the recent ones count from now on."""
        with self._lock:
            found = self._metrics.stats(len(self._ready))
            if begins_interval:
                self._metrics.begin_interval()
            return found

    # With the lock held.

    def _has_room(self) -> bool:
        # A batch of more chunks than the queue may hold would never be there.
        return len(self._rows) < self.options.max_buffered_chunks or not self._is_batch_there()

    def _is_batch_there(self) -> bool:
        return self._rows.num_rows >= (self.batch_size if self.options.rebatch else 1)

    def _can_find(self) -> bool:
        is_short_wanted = self.options.last == "keep" and not self._num_fetching and len(self._rows) > 0
        return self._is_batch_there() or is_short_wanted

    def _note_filled(self, now: float) -> None:
        if len(self._rows) >= _FEW_CHUNKS:
            self._lagging.began_at = now

    def _take_pieces(self) -> list[Arrays]:
        num_before = len(self._rows)
        self._note_filled(self._clock())
        if self.options.rebatch:
            pieces = self._rows.take(min(self.batch_size, self._rows.num_rows))
        else:
            pieces = self._rows.take_chunk()
        self._metrics.note_queue(len(self._rows))
        if self._has_room():  # Also where no chunk is used up, and the next batch needs more of them.
            self._can_put.notify(max(1, num_before - len(self._rows)))
        return pieces

    def _check_over(self) -> None:
        if self._error is not None:
            kind, message, cause = self._error
            raise kind(message) from cause
        if self.is_over:
            raise ConfigError(
                f"Source {self.options.name!r} was stopped: this iteration has ended. start() begins the source anew."
            )

    def _hand_over(self, waited_s: float, is_closed: bool) -> Any:
        if is_closed or not self._ready:
            self._metrics.add_waiting(waited_s)
            raise StopIteration
        self._metrics.add_batch(waited_s)
        self._can_make.notify()
        return self._ready.popleft()

    def _look_at_wait(self, asked_at: float) -> str | None:
        """Return the warning for a training loop that waits; None: it has not waited for long."""
        now, name, timeout_s = self._clock(), self.options.name, self.options.timeout_s
        is_late = timeout_s is not None and now - asked_at >= timeout_s
        if not is_late and not self._slow.is_over(now, asked_at):
            return None
        supply = f"{self._metrics.describe_fetchers(now)}; {self._rows.num_rows} rows of {self.batch_size} are there"
        if not is_late:
            return f"source {name!r}: data input is slow: (still) no data in {now - asked_at:.0f} s; {supply}"
        self._metrics.add_waiting(now - asked_at)
        raise StallError(
            f"Source {name!r}: no batch came within timeout_s={timeout_s:g} s; {supply}. Look at what fetch waits for, "
            f"or give add_source more time."
        )

    def _wait_s(self, asked_at: float) -> float:
        """Return how many seconds a training loop may wait until it looks again."""
        now, timeout_s = self._clock(), self.options.timeout_s
        slow_in_s = max(0.0, self._slow.left_s(now, asked_at))
        return slow_in_s if timeout_s is None else min(asked_at + timeout_s - now, slow_in_s)
