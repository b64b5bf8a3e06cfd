"""Feeder: threads that fetch named sources, and batches of exact sizes out of them, without torch."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.feed_batches import FeedBatches, MixedBatches, Weights, find_weights, not_picklable
from tfds_torch.loaders.feed_options import FeedLimits, FeedOptions
from tfds_torch.loaders.feed_run import FeedRun, Logger
from tfds_torch.loaders.fetching import FetchSource
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.feed_metrics import FeederStats
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.processes import close_at_exit


@explain_keywords
class Feeder:
    """Named sources of arrays, fetched by threads, and taken as batches of exact sizes by any number of loops.

    Rows of different sources never mix. Each row of a source comes once. Its order is that of the source where one
    thread reads it: always of an iterable or a Parser, of a function with `num_threads=1`. Several threads that call a
    function keep each chunk together and each thread's chunks in order; chunks of different threads follow each
    other as they arrive. Several loops over one source share its batches: each goes to the loop that asks first.

    An error in a fetcher is raised at once in every loop over its source, and names source and worker. A batch that
    does not come within `timeout_s` is an error, too. Nothing waits for ever, unless you set `timeout_s=None`.

    Any thread may call any method. The threads end by `stop`, by `close` or the end of a `with` block, when the Feeder
    is dropped, and at exit. A forked process has none of them, and its copy of a Feeder is refused there.

    Args:
        limits: how long, in seconds, it waits before it warns, reports, and stops waiting for threads.
        clock: a function that returns the time, seconds.
    """

    def __init__(self, *, limits: FeedLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = FeedLimits() if limits is None else limits, clock
        self._lock = threading.RLock()
        self._sources: dict[str, FetchSource] = {}
        self._runs: dict[str, FeedRun] = {}
        self._loggers: list[Logger] = []
        self._is_closed = False
        # Threads cannot be waited for here: it may be one of them that collects garbage.
        weakref.finalize(self, _end_runs, self._runs).atexit = False
        close_at_exit(self)

    def add_source(
        self,
        name: str,
        fetch: Any,
        names: Sequence[str],
        batch_size: int,
        num_threads: int = 2,
        max_buffered_chunks: int = 800,
        batch_axes: int | Sequence[int] = 0,
        rebatch: bool = True,
        init: Callable[[], Any] | None = None,
        shutdown: Callable[[], Any] | None = None,
        timeout_s: float | None = 600.0,
        at_end: str = "stop",
        last: str = "keep",
    ) -> None:
        """Add a source, which the next `start` begins.

        Args:
            name: the source's name, like "train".
            fetch: where chunks come from. A function `fetch(worker_id, batch_size)`, called by several threads, whose
                ids no other thread of this process has; batch_size is a hint. Or an iterable of chunks, or a Parser,
                whose batches are the chunks (this rank's, by `RANK` and `WORLD_SIZE`), epoch by epoch in the parser's
                own order; one thread reads these. A chunk is a list or tuple of numpy arrays, one for each name, or a
                dictionary of them; it has any number >= 1 of rows, and belongs to the Feeder from then on. A function
                raises StopIteration where its thread has no more data.
            names: the arrays of a chunk, in their order; of a Parser: its fields.
            batch_size: rows of a batch.
            num_threads: how many threads call a function, 1 to 1024.
            max_buffered_chunks: how many chunks the queue may hold; more only where a batch needs them.
            batch_axes: the axis of the rows, one for all arrays or one for each name.
            rebatch: whether batches have exactly batch_size rows; else every chunk is a batch, as it is.
            init: called without arguments by `start`, before the threads (functools.partial binds some).
            shutdown: called once when the threads have ended.
            timeout_s: how long a loop waits for a batch, seconds; None: for ever. Warnings come all the same.
            at_end: "stop": iterations end with the data; "cycle": it begins again, without a border between passes.
            last: "keep": the last batch may be short; "drop": it is left out.

        Raises:
            ConfigError: an argument that cannot work, a name that is taken, or an environment that makes no sense.
        """
        options = FeedOptions(
            name,
            names,
            batch_size,
            num_threads=num_threads,
            max_buffered_chunks=max_buffered_chunks,
            batch_axes=batch_axes,
            rebatch=rebatch,
            init=init,
            shutdown=shutdown,
            timeout_s=timeout_s,
            at_end=at_end,
            last=last,
        )
        with self._lock:
            self._check_open()
            if name in self._sources:
                raise ConfigError(f"add_source: there is a source {name!r} already.")
            self._sources[name] = FetchSource(fetch, options)

    def start(self) -> None:
        """Start the threads of every source that does not run: added, stopped, failed, or ended and taken to its end.

        A source that runs is left alone. A source that begins anew drops the rest of its earlier run; a Parser then
        continues with its next epoch.

        Raises:
            ConfigError: there is no source, it is closed, or an iterator cannot be read again.
            WorkerError: an `init` failed; what this call started has been stopped.
        """
        with self._lock:
            self._check_open()
            if not self._sources:
                raise ConfigError("start: there is no source: call add_source first.")
            started: list[str] = []
            try:
                for name in self._sources:
                    if not self._is_running(name):
                        self._stop([name])
                        started.append(name)
                        self._start(name)
            except BaseException:
                self._stop(started)
                raise

    def batches(self, name: str) -> FeedBatches:
        """Return an iterable over the batches of a source: dictionaries name -> array.

        Each iteration is a separate loop; up to four batches are made ahead of all loops. It may begin once the source
        was started. `create_loader(feeder.batches("train"), device=...)` puts them on a device.

        Args:
            name: the source's name, as in `add_source`.

        Returns:
            An iterable of dictionaries, name -> array with the batch's rows along its batch axis.

        Raises:
            ConfigError: there is no such source; when it is iterated: it does not run.
        """
        return FeedBatches(name, tuple(self._find_source(name).options.names), partial(self._find_run, name))

    def set_batch_size(self, name: str, n: int) -> None:
        """Set the rows of the batches of a source from now on; batches that are already made keep their size.

        Args:
            name: the source's name.
            n: rows of a batch, >= 1.

        Raises:
            ConfigError: there is no such source, or n is not an integer >= 1.
        """
        source, number = self._find_source(name), check_integer("set_batch_size: n", n, 1)
        source.options = replace(source.options, batch_size=number)
        run = self._runs.get(name)
        if run is not None:
            run.queue.set_batch_size(number)

    def mix(self, weights: Weights, seed: int, stop: str = "first") -> MixedBatches:
        """Return an iterable over batches of several sources, each batch's source drawn by weight.

        Args:
            weights: one for each source, in the order in which they were added, or name -> weight for some; >= 0. A
                source of weight 0 is not read.
            seed: >= 0; the sequence of sources depends on nothing else while none has ended.
            stop: "first": the iteration ends when an ended source is drawn; "last": the others continue until all have
                ended.

        Raises:
            ConfigError: weights that are negative, sum to zero, or are more or fewer than the sources; sources whose
                arrays have different names; another value of `stop`.
        """
        found = find_weights(weights, list(self._sources))
        return MixedBatches({name: self.batches(name) for name in found}, found, seed, stop)

    def metrics(self) -> FeederStats:
        """Return the figures of each source that was started, from its start on.

        The result's `to_dict()` returns plain values, and `str` of it one line.
        """
        return FeederStats({name: run.queue.stats() for name, run in dict(self._runs).items()})

    def add_logger(self, logger: Logger) -> None:
        """Add a function that gets each status line's figures as a dictionary (`SourceStats.to_dict`).

        A thread that fetches calls it once a minute for each source; `stop` calls it, too. An error of the
        function is logged, and the feed continues.

        Args:
            logger: called with the dictionary, in any of these threads; its result is ignored.

        Raises:
            ConfigError: `logger` cannot be called.
        """
        if not callable(logger):
            raise ConfigError(f"add_logger: {logger!r} must be a function that takes a dictionary.")
        self._loggers.append(logger)

    def stop(self, name: str | None = None) -> bool:
        """End the threads of a source, or of all, and drop the chunks that they have fetched.

        It waits five seconds for all of them together. A thread that does not end by then is named in the log and left
        behind: chunks that it still fetches are dropped. Iterations under way end with a ConfigError.

        Args:
            name: the source's name, as in `add_source`; None: all sources.

        Returns:
            Whether all threads have ended, and no `shutdown` failed.

        Raises:
            ConfigError: there is no such source.
        """
        if name is not None:
            self._find_source(name)
        return self._stop(list(self._runs) if name is None else [name])

    def close(self) -> None:
        """Stop all sources, for good."""
        self._is_closed = True
        self.stop()

    def __enter__(self) -> "Feeder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise not_picklable("A Feeder")

    def __repr__(self) -> str:
        running = [name for name in self._sources if self._is_running(name)]
        return f"{type(self).__name__}(sources={list(self._sources)}, running={running})"

    def _start(self, name: str) -> None:
        source = self._sources[name]
        run = FeedRun(source.options, source.begin(), self._limits, self._clock, self._loggers)
        run.initialise()
        self._runs[name] = run
        run.queue.set_batch_size(source.options.batch_size)  # It may have been set meanwhile.
        run.start()
        self._check_open()  # It may have been closed meanwhile.

    # Without the lock: a fetcher that asks its Feeder for something must come back.

    def _stop(self, names: Sequence[str]) -> bool:
        runs = [self._runs[name] for name in names if name in self._runs and self._runs[name].is_of_this_process]
        deadline = time.monotonic() + self._limits.join_s
        for run in runs:
            run.end()  # All of them first: they end side by side.
        outcomes = [run.stop(deadline) for run in runs]
        return all(outcomes)

    def _is_running(self, name: str) -> bool:
        run = self._runs.get(name)
        return run is not None and run.is_of_this_process and not run.queue.is_over and not run.queue.is_drained

    def _find_run(self, name: str) -> FeedRun:
        run = self._runs.get(name)
        if run is None or (run.queue.is_over and not run.queue.is_failed):
            raise ConfigError(f"Source {name!r} does not run: call start() first.")
        run.check_process()
        return run

    def _find_source(self, name: str) -> FetchSource:
        if name not in self._sources:
            known = ", ".join(map(repr, self._sources)) or "none"
            raise ConfigError(
                f"There is no source {name!r}: the sources are {known}.{did_you_mean(name, self._sources)}"
            )
        return self._sources[name]

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("This Feeder is closed: make a new one.")


def _end_runs(runs: dict[str, FeedRun]) -> None:
    for run in list(runs.values()):
        if run.is_of_this_process:
            run.queue.end()
