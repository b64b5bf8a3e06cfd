"""FeedQueue: what lies between the threads of a source and its training loops; every wait in it can be ended."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from tfds_torch.errors import ConfigError, StallError, TfdsTorchError
from tfds_torch.loaders.feed_consumer import MOST_READY, Consumer, Numbered
from tfds_torch.loaders.feed_options import FeedLimits, FeedOptions
from tfds_torch.loaders.feed_watch import FeedWatch
from tfds_torch.loaders.rebatching import Arrays, Chunk, RowQueue
from tfds_torch.runtime.feed_metrics import FeedMetrics, FetcherMetrics, SourceStats

_logger = logging.getLogger(__name__)


class FeedQueue:
    """Chunks of one run of a source, on their way from its fetchers to its training loops.

    One lock guards it. It is reentrant because a training loop, or a whole Feeder, may be dropped by the garbage
    collector at any moment, also in a thread that holds the lock: `close_consumer` only sets what others see.

    Args:
        options: of the source.
        limits: after how long is warned.
        workers: the metrics of the fetchers.
        clock: tells seconds.
    """

    def __init__(
        self, options: FeedOptions, limits: FeedLimits, workers: list[FetcherMetrics], clock: Callable[[], float]
    ) -> None:
        self.options = options
        self.batch_size = options.batch_size
        self.is_over = False  # Stopped or failed: nothing goes in or out any more.
        self._clock = clock
        self._rows = RowQueue(options.axes)
        self._given_back: list[Numbered] = []  # In the order of their numbers.
        self._consumers: set[Consumer] = set()
        self._error: tuple[type[TfdsTorchError], str, BaseException] | None = None
        self._num_fetching, self._num_taken = len(workers), 0
        self._watch = FeedWatch(limits, clock())
        self._metrics = FeedMetrics(options.name, workers, options.max_buffered_chunks, clock)
        self._lock = threading.RLock()
        self._can_put, self._can_take = threading.Condition(self._lock), threading.Condition(self._lock)

    # For fetchers.

    def put(self, chunk: Chunk, worker: FetcherMetrics) -> str | None:
        """Puts a chunk behind the others, waits for room first, and returns a warning that is to be logged, if any."""
        began, options = self._clock(), self.options
        with self._lock:
            self._watch.note_queue(len(self._rows), began)
            is_full = not (self.is_over or self._has_room())
        if is_full:  # Told without the lock: nobody knows what a handler does.
            _logger.debug("source %r: the queue is full, fetchers wait", options.name)
        with self._lock:
            while not (self.is_over or self._has_room()):
                self._can_put.wait()
            if self.is_over:
                return None
            self._rows.append(chunk)
            now = self._clock()
            worker.add_chunk(chunk.num_rows, now - began)
            self._metrics.note_queue(len(self._rows))
            if self._is_batch_there():
                self._can_take.notify()
            if self._has_room():
                self._can_put.notify()
            if not self._watch.is_lagging(now):
                return None
            return f"Data loading is lagging behind: queue size={len(self._rows)}, name={options.name}"

    def end_worker(self) -> bool:
        """Notes that a fetcher has ended; returns whether it was the last one."""
        with self._lock:
            self._num_fetching -= 1
            self._can_take.notify_all()
            return self._num_fetching == 0

    def fail(self, kind: type[TfdsTorchError], message: str, cause: BaseException) -> None:
        """Ends the queue with an error, which every training loop gets at once."""
        with self._lock:
            if not self.is_over:
                self._error = kind, message, cause
                self.end()

    def is_status_due(self) -> bool:
        """Returns whether a status line is due."""
        with self._lock:
            return self._watch.is_status_due(self._clock())

    # For the threads that make batches, one for each training loop.

    def take(self, consumer: Consumer) -> Numbered | None:
        """Returns the next batch for a training loop, in pieces or as it was given back; None: there are no more.

        It waits until the loop has room for it and its rows are there. What a loop that was closed has not taken is
        given back here, by its own thread.
        """
        with self._lock:
            while len(consumer.ready) >= MOST_READY and not self._has_left(consumer):
                consumer.has_room.wait()
            while not self._has_left(consumer):
                if not any(other.is_closed for other in self._consumers):  # What comes back comes first.
                    found = self._find_batch()
                    if found is not None:
                        consumer.is_making = True
                        return found
                    if not self._num_fetching:
                        break
                self._can_take.wait()
            consumer.is_complete = True
            consumer.has_ready.notify_all()
            while consumer.ready and not self._has_left(consumer):
                consumer.has_room.wait()
            self._consumers.discard(consumer)
            if not self.is_over:
                self._given_back = sorted([*self._given_back, *consumer.ready])
            consumer.ready.clear()
            self._can_take.notify_all()
            return None

    def offer(self, consumer: Consumer, batch: Numbered) -> None:
        """Hands over a batch that was made for a training loop."""
        with self._lock:
            consumer.is_making = False
            if not self.is_over:
                consumer.ready.append(batch)
                consumer.has_ready.notify()

    # For training loops.

    def open_consumer(self) -> Consumer:
        """Returns what a new training loop takes from."""
        with self._lock:
            consumer = Consumer(self._lock)
            self._consumers.add(consumer)
            return consumer

    def next_batch(self, consumer: Consumer) -> Any:
        """Returns the next batch of a training loop.

        Raises:
            StopIteration: the source has ended.
            StallError: it did not come within `timeout_s`.
            ConfigError: the source was stopped.
            TfdsTorchError: a fetcher failed.
        """
        asked_at = self._clock()
        while True:
            with self._lock:
                self._check_over()
                while not (consumer.ready or consumer.is_complete or consumer.is_closed):
                    slow = self._look_at_wait(asked_at)
                    if slow is not None:
                        break
                    consumer.has_ready.wait(self._wait_s(asked_at))
                    self._check_over()
                else:
                    return self._hand_over(consumer, self._clock() - asked_at)
            _logger.warning("%s", slow)  # Without the lock, as above.

    def close_consumer(self, consumer: Consumer) -> None:
        """Ends a training loop: what was made for it goes to others, or to the next one, in its old order."""
        with self._lock:
            consumer.is_closed = True
            consumer.has_ready.notify_all()
            consumer.has_room.notify_all()
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
            is_ready = any(consumer.ready or consumer.is_making for consumer in self._consumers)
            return not (self._num_fetching or self._given_back or self._can_find() or is_ready)

    def set_batch_size(self, batch_size: int) -> None:
        """Lets the batches that are not made yet be of another size."""
        with self._lock:
            self.batch_size = batch_size
            self._can_put.notify_all()
            self._can_take.notify_all()

    def end(self) -> None:
        """Ends all waiting, and drops what is in the queue."""
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._metrics.end()
            self._rows.clear()
            self._given_back.clear()
            for consumer in list(self._consumers):
                consumer.ready.clear()
                consumer.has_ready.notify_all()
                consumer.has_room.notify_all()
            self._can_put.notify_all()
            self._can_take.notify_all()

    def stats(self, *, begins_interval: bool = False) -> SourceStats:
        """Returns what was done so far; with `begins_interval` recent is from then on what comes after."""
        with self._lock:
            found = self._metrics.stats(sum(len(consumer.ready) for consumer in self._consumers))
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

    def _has_left(self, consumer: Consumer) -> bool:
        return self.is_over or consumer.is_closed

    def _find_batch(self) -> Numbered | None:
        """Returns the next batch; None: its rows are not there."""
        if self._given_back:
            return self._given_back.pop(0)
        if not self._can_find():
            return None
        self._num_taken += 1
        return Numbered(self._num_taken, self._take_pieces())

    def _take_pieces(self) -> list[Arrays]:
        num_before = len(self._rows)
        self._watch.note_queue(num_before, self._clock())
        if self.options.rebatch:
            pieces = self._rows.take(min(self.batch_size, self._rows.num_rows))
        else:
            pieces = self._rows.take_chunk()
        self._metrics.note_queue(len(self._rows))
        if self._has_room():  # Also where no chunk is used up, and the next batch needs more of them.
            self._can_put.notify(max(1, num_before - len(self._rows)))
        if self._can_find():
            self._can_take.notify()
        return pieces

    def _check_over(self) -> None:
        if self._error is not None:
            kind, message, cause = self._error
            raise kind(message) from cause
        if self.is_over:
            raise ConfigError(
                f"Source {self.options.name!r} was stopped: this iteration has ended. start() begins the source anew."
            )

    def _hand_over(self, consumer: Consumer, waited_s: float) -> Any:
        if not consumer.ready:
            self._metrics.add_waiting(waited_s)
            raise StopIteration
        batch = consumer.ready.popleft()
        self._metrics.add_batch(waited_s)
        consumer.has_room.notify()
        return batch.content

    def _look_at_wait(self, asked_at: float) -> str | None:
        """Returns what is to be said of a training loop that waits; None: nothing."""
        now, name, timeout_s = self._clock(), self.options.name, self.options.timeout_s
        if timeout_s is not None and now - asked_at >= timeout_s:
            self._metrics.add_waiting(now - asked_at)
            raise StallError(
                f"Source {name!r}: no batch came within timeout_s={timeout_s:g} s; "
                f"{self._describe_supply(now)}. Look at what fetch waits for, or give add_source more time."
            )
        if not self._watch.is_slow(asked_at, now):
            return None
        text = f"source {name!r}: data input is slow: (still) no data in {now - asked_at:.0f} s"
        return f"{text}; {self._describe_supply(now)}"

    def _wait_s(self, asked_at: float) -> float:
        """Returns how long a training loop may wait until it looks again."""
        now, timeout_s = self._clock(), self.options.timeout_s
        slow_in_s = self._watch.slow_in_s(asked_at, now)
        return slow_in_s if timeout_s is None else min(asked_at + timeout_s - now, slow_in_s)

    def _describe_supply(self, now: float) -> str:
        rows = f"{self._rows.num_rows} rows of {self.batch_size} are there"
        return f"{self._metrics.describe_fetchers(now)}; {rows}"
