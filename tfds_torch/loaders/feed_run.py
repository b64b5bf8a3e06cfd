"""FeedRun: the threads of one source, from `start` to its end."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfds_torch import errors
from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.loaders.feed_options import FeedLimits, FeedOptions
from tfds_torch.loaders.feed_queue import FeedQueue
from tfds_torch.loaders.fetching import Fetch, IterableReader
from tfds_torch.loaders.rebatching import ChunkCheck, join_pieces
from tfds_torch.runtime.feed_metrics import FetcherMetrics, SourceStats

Logger = Callable[[dict[str, Any]], Any]

_worker_ids = itertools.count()
"""No two threads of a process have the same."""

_logger = logging.getLogger(__name__)


class FeedRun:
    """Fetches a source from its start to its end, in its own threads; one more makes batches, once a loop asks.

    The threads refer to the run, and the run does not refer to its Feeder: a Feeder that is dropped can end the
    threads. They are daemons: a stuck thread does not keep the process alive.
    """

    def __init__(
        self,
        options: FeedOptions,
        fetch: Fetch,
        limits: FeedLimits,
        clock: Callable[[], float],
        loggers: Sequence[Logger],
    ) -> None:
        self._options, self._fetch_chunk, self._clock, self._loggers = options, fetch, clock, loggers
        self._check = ChunkCheck(options)
        self._owner = os.getpid()
        num_threads = 1 if isinstance(fetch, IterableReader) else options.num_threads
        self._fetchers = [FetcherMetrics(next(_worker_ids)) for _ in range(num_threads)]
        self._lock = threading.Lock()  # Guards the attributes below.
        self._threads: list[threading.Thread] = []
        self._has_maker = False
        self._shutdown, self._shutdown_failed = options.shutdown, False
        self._last_stats: SourceStats | None = None  # When it was ended by hand.
        self._is_last_logged = False
        self.queue = FeedQueue(options, limits, self._fetchers, clock)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the threads are here; a forked process has none of them."""
        return os.getpid() == self._owner

    def check_process(self) -> None:
        """Raise ConfigError where the threads are in another process."""
        if not self.is_of_this_process:
            raise ConfigError(
                f"Source {self._options.name!r} runs in another process, whose threads this one does not have. Make a "
                f"Feeder here; with create_loader, use num_workers=0."
            )

    def initialise(self) -> None:
        """Call the user's `init`; raise an error that names the source where it fails."""
        try:
            if self._options.init is not None:
                self._options.init()
        except Exception as error:
            kind, message, cause = _typed(error, f"Source {self._options.name!r}: init")
            raise kind(message) from cause

    def start(self) -> None:
        """Start the threads that fetch."""
        for worker in self._fetchers:
            self._start_thread(f"worker {worker.worker}", self._fetch_all, worker)

    def start_maker(self) -> None:
        """Start the thread that makes batches, where it is not there yet."""
        with self._lock:
            has_maker, self._has_maker = self._has_maker, True
        if not has_maker:
            self._start_thread("the maker of batches", self._make_batches)

    def end(self) -> None:
        """Let the run end, without waiting."""
        if self._last_stats is None:
            self._last_stats = self.queue.stats()
        self.queue.end()

    def stop(self, deadline: float) -> bool:
        """End the run, and wait for its threads; return whether all have ended, and `shutdown` has not failed."""
        self.end()
        with self._lock:
            threads, is_logged, self._is_last_logged = list(self._threads), self._is_last_logged, True
        if not is_logged and self._last_stats is not None:
            self._log_stats(self._last_stats)
        others = [thread for thread in threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name.removeprefix(self._thread_name("")) for thread in others if thread.is_alive()]
        if alive:
            _logger.error(
                "source %r: %s did not end and is left behind: fetch, or what is iterated, has not come back",
                self._options.name,
                ", ".join(alive),
            )
        else:  # Else the last of them does, should it come back.
            self._shut_down()
        return not (alive or self._shutdown_failed)

    def _thread_name(self, name: str) -> str:
        return f"feeder {self._options.name}: {name}"

    def _start_thread(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name=self._thread_name(name), daemon=True)
        thread.start()
        with self._lock:
            self._threads.append(thread)

    # In the threads that fetch.

    def _fetch_all(self, worker: FetcherMetrics) -> None:
        try:
            self._fetch_passes(worker)
        except BaseException as error:  # Also SystemExit: a thread that ended without a word would be a hang.
            self.queue.fail(*_typed(error, f"Source {self._options.name!r}, worker {worker.worker}"))
        finally:
            if self.queue.end_worker():
                self._close_iterable()
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
            self.queue.put(chunk, worker)
            if self.queue.is_status_due():
                self._log_stats(self.queue.stats(begins_interval=True))

    def _fetch(self, worker: FetcherMetrics) -> Any:
        worker.fetching_since = began = self._clock()
        try:
            return self._fetch_chunk(worker.worker, self.queue.batch_size)
        finally:
            worker.fetching_since = None
            worker.add_fetch(self._clock() - began)

    def _close_iterable(self) -> None:
        """Close a generator in the thread that read it: only one thread reads a generator."""
        if isinstance(self._fetch_chunk, IterableReader):
            try:
                self._fetch_chunk.close()
            except Exception:
                _logger.exception("source %r: what it read could not be closed", self._options.name)

    def _log_stats(self, stats: SourceStats) -> None:
        _logger.info("%s", stats)
        for log in list(self._loggers):
            try:
                log(stats.to_dict())
            except Exception:
                _logger.exception("source %r: the logger %r failed; the feed goes on", self._options.name, log)

    def _shut_down(self) -> None:
        """Call the user's `shutdown` once."""
        with self._lock:
            shutdown, self._shutdown = self._shutdown, None
        try:
            if shutdown is not None:
                shutdown()
        except Exception:
            self._shutdown_failed = True
            _logger.exception("source %r: shutdown failed", self._options.name)

    # In the thread that makes batches.

    def _make_batches(self) -> None:
        options = self._options
        try:
            while (pieces := self.queue.take()) is not None:
                self.queue.offer(join_pieces(pieces, options.names, options.axes))
        except BaseException as error:
            self.queue.fail(*_typed(error, f"Source {options.name!r}: joining the rows of a batch"))


def _typed(error: BaseException, where: str) -> tuple[type[TfdsTorchError], str, BaseException]:
    """Return type, message and cause of the error that training loops raise for an exception of a thread."""
    try:
        message = str(error)
    except Exception:
        message = "(its __str__ failed)"
    if isinstance(error, TfdsTorchError) and type(error).__module__ == errors.__name__:  # Made of a message alone.
        return type(error), f"{where}: {message}", error
    return WorkerError, f"{where} failed: {type(error).__qualname__}: {message}", error
