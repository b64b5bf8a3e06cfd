"""FeedRun: the threads of one source, from `start` to its end."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfds_torch import errors
from tfds_torch.errors import TfdsTorchError, WorkerError
from tfds_torch.loaders.chunk_check import ChunkCheck
from tfds_torch.loaders.feed_consumer import Consumer, Numbered
from tfds_torch.loaders.feed_options import FeedLimits, FeedOptions
from tfds_torch.loaders.feed_queue import FeedQueue
from tfds_torch.loaders.fetching import ChunkReader
from tfds_torch.loaders.rebatching import join_pieces
from tfds_torch.runtime.feed_metrics import FetcherMetrics, SourceStats

Logger = Callable[[dict[str, Any]], Any]

_worker_ids = itertools.count()
"""No two threads of a process have the same."""

_logger = logging.getLogger(__name__)


class FeedRun:
    """Fetches a source from its start to its end, in threads of its own.

    The threads know the run, and the run knows nothing of its Feeder: one that is dropped can end them. They are
    daemons, so that one that is stuck does not keep the process alive.

    Args:
        options: of the source.
        reader: what is read.
        limits: after how long is warned.
        clock: tells seconds.
        loggers: get the figures as a dictionary; those that are added later, too.
    """

    def __init__(
        self,
        options: FeedOptions,
        reader: ChunkReader,
        limits: FeedLimits,
        clock: Callable[[], float],
        loggers: Sequence[Logger],
    ) -> None:
        self._options, self._reader, self._clock, self._loggers = options, reader, clock, loggers
        self._check = ChunkCheck(options)
        self._owner = os.getpid()
        self._fetchers = [FetcherMetrics(next(_worker_ids)) for _ in range(reader.num_threads)]
        self._shutdown_lock = threading.Lock()
        self._must_shut_down = options.shutdown is not None
        self._shutdown_failed = False
        self._threads: list[tuple[threading.Thread, str]] = []
        self._threads_lock = threading.Lock()
        self._last_stats: SourceStats | None = None  # When it was ended by hand.
        self._is_last_told = False
        self.queue = FeedQueue(options, limits, self._fetchers, clock)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the threads are here; a forked process has none of them."""
        return os.getpid() == self._owner

    def initialise(self) -> None:
        """Calls the user's `init`.

        Raises:
            WorkerError: it failed; an error of ours keeps its type.
        """
        try:
            if self._options.init is not None:
                self._options.init()
        except Exception as error:
            kind, message, cause = _typed(error, f"Source {self._options.name!r}: init")
            raise kind(message) from cause

    def start(self) -> None:
        """Starts the threads that fetch."""
        for worker in self._fetchers:
            self._start_thread(self._fetch_all, worker, f"worker {worker.worker}")

    def open_consumer(self) -> Consumer:
        """Returns what a new training loop takes from, with a thread that makes batches for it."""
        consumer = self.queue.open_consumer()
        self._start_thread(self._make_batches, consumer, "a maker of batches")
        return consumer

    def end(self) -> None:
        """Lets the run end, and waits for nothing."""
        if self._last_stats is None:
            self._last_stats = self.queue.stats()
        self.queue.end()

    def stop(self, deadline: float) -> bool:
        """Ends the run and returns whether all of its threads have ended, and `shutdown` has not failed.

        Args:
            deadline: on the machine's monotonic clock, until which threads are waited for.
        """
        self.end()
        with self._threads_lock:
            threads, is_told, self._is_last_told = list(self._threads), self._is_last_told, True
        if not is_told and self._last_stats is not None:
            self._tell(self._last_stats)
        alive = []
        for thread, name in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    alive.append(name)
        if alive:
            _logger.error(
                "source %r: %s did not end and is left behind: fetch, or what is iterated, has not come back",
                self._options.name,
                ", ".join(alive),
            )
        if not alive:  # Else the last of them does, should it come back.
            self._shut_down()
        return not (alive or self._shutdown_failed)

    def _start_thread(self, work: Callable[[Any], None], argument: Any, name: str) -> None:
        full_name = f"feeder {self._options.name}: {name}"
        thread = threading.Thread(target=work, args=(argument,), name=full_name, daemon=True)
        thread.start()
        with self._threads_lock:
            self._threads = [(other, its) for other, its in self._threads if other.is_alive()]
            self._threads.append((thread, name))

    # In the threads that fetch.

    def _fetch_all(self, worker: FetcherMetrics) -> None:
        try:
            self._fetch_passes(worker)
        except BaseException as error:  # Also SystemExit: a thread that ended without a word would be a hang.
            self.queue.fail(*_typed(error, f"Source {self._options.name!r}, worker {worker.worker}"))
        finally:
            if self.queue.end_worker():
                self._close_reader()
                self._shut_down()

    def _fetch_passes(self, worker: FetcherMetrics) -> None:
        num_rows = 0  # Of this pass.
        while not self.queue.is_over:
            try:
                fetched = self._fetch(worker)
            except StopIteration:
                if self._options.at_end == "stop":
                    return
                if not num_rows:
                    raise WorkerError("fetched nothing in a whole pass: at_end='cycle' would go on for ever.") from None
                num_rows = 0
                continue
            chunk = self._check(fetched)
            num_rows += chunk.num_rows
            if (warning := self.queue.put(chunk, worker)) is not None:
                _logger.warning("%s", warning)
            if self.queue.is_status_due():
                self._tell(self.queue.stats(begins_interval=True))

    def _fetch(self, worker: FetcherMetrics) -> Any:
        worker.fetching_since = began = self._clock()
        try:
            return self._reader(worker.worker, self.queue.batch_size)
        finally:
            worker.fetching_since = None
            worker.add_fetch(self._clock() - began)

    def _close_reader(self) -> None:
        """Lets a generator end in the thread that read it, as one thread alone does."""
        try:
            self._reader.close()
        except Exception:
            _logger.exception("source %r: what it read could not be closed", self._options.name)

    # In the threads that make batches.

    def _make_batches(self, consumer: Consumer) -> None:
        options = self._options
        try:
            while (taken := self.queue.take(consumer)) is not None:
                if isinstance(taken.content, list):  # Else it was made, and given back.
                    batch = join_pieces(taken.content, options.names, options.axes)
                    taken = Numbered(taken.number, batch)
                self.queue.offer(consumer, taken)
        except BaseException as error:
            self.queue.fail(*_typed(error, f"Source {options.name!r}: joining the rows of a batch"))

    def _tell(self, stats: SourceStats) -> None:
        _logger.info("%s", stats)
        for log in list(self._loggers):
            try:
                log(stats.to_dict())
            except Exception:
                _logger.exception("source %r: the logger %r failed; the feed goes on", self._options.name, log)

    def _shut_down(self) -> None:
        """Calls the user's `shutdown` once."""
        with self._shutdown_lock:
            must, self._must_shut_down = self._must_shut_down, False
        if not must or self._options.shutdown is None:
            return
        try:
            self._options.shutdown()
        except Exception:
            self._shutdown_failed = True
            _logger.exception("source %r: shutdown failed", self._options.name)


def _typed(error: BaseException, where: str) -> tuple[type[TfdsTorchError], str, BaseException]:
    """Returns type, message and cause of what training loops get for an exception of a thread.

    Args:
        error: what was raised.
        where: in which source and worker.
    """
    try:
        message = str(error)
    except Exception:
        message = "(its __str__ failed)"
    if isinstance(error, TfdsTorchError) and type(error).__module__ == errors.__name__:  # Made of a message alone.
        return type(error), f"{where}: {message}", error
    return WorkerError, f"{where} failed: {type(error).__qualname__}: {message}", error
