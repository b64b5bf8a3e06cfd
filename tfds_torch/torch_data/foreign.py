"""ForeignReader: reads datasets other than ours by torch's DataLoader, over its public interface, and watches it."""

import copy
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import get_start_method
from multiprocessing.context import BaseContext
from typing import Any

import torch

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.loaders.receiver import RepeatedItems
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.plan.cursor import Start
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.processes import WorkerProcesses, interrupts_held, leave_to_parent, start_error
from tfds_torch.runtime.watchdog import Watchdog
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.torch_data.foreign_worker import (
    Delivery,
    WorkerContext,
    is_collated,
    make_torch_loader,
    reported_length,
)
from tfds_torch.torch_data.loader_options import LoaderOptions, is_iterable

_SLOW_START_S = 5.0
_GRACE_S = 1.0
_TO_DEAL_OUT = (
    "Let its __iter__ ask torch.utils.data.get_worker_info() for its share, or divide it in a worker_init_fn; or use "
    "one worker."
)

_logger = logging.getLogger(__name__)


class ForeignReader:
    """Reads the batches of a dataset that is not an ImageDataset, by torch's own loader.

    torch's loader waits for a batch without a limit, looks for dead workers every five seconds, raises RuntimeError for
    them wherever the main thread is, and waits five seconds for each worker that does not end. Here, a watchdog limits
    the waiting and looks every second, torch's signal handler is silent about these workers, and those that do not end
    within a second are killed.

    The generator draws torch's seeds and orders, over all iterations; None: torch's own.
    """

    def __init__(self, options: LoaderOptions, num_workers: int, generator: torch.Generator | None = None) -> None:
        context = WorkerContext.of(num_workers, options.prefetch_batches)
        self.metrics = context.metrics
        self._dataset, self._options, self._owner = options.dataset, options, os.getpid()
        self._is_closed = False
        self._num_begun = 0  # Iterations.
        self._asked_at = 0.0  # When the latest batch was asked for, by the machine's monotonic clock, seconds.
        names = ErrorContext(type(self._dataset).__name__)
        self._length: int | None = None  # Reported by an IterableDataset; None: unknown, or warned of already.
        self._num_items = 0  # Fetched in this iteration.
        # Indices of a map-style dataset are dealt out by torch.
        self._repeated = RepeatedItems(names.dataset, _TO_DEAL_OUT) if is_iterable(options.dataset) else None
        self._processes: ForeignWorkers | None = None
        self._watchdog: Watchdog | None = None
        self._torch: list[Any]  # torch's loader, and its iterator as soon as there is one.
        if num_workers:
            start_method = options.multiprocessing_context or get_start_method()
            self._processes = workers = ForeignWorkers(start_method, names, context, options.timeout_s)
            self._torch = workers.handles
            self._watchdog = Watchdog(options.timeout_s, workers.describe_waiting, workers.has_crashed)
            self._start(make_torch_loader(options, context, generator, workers.context), workers.method)
            return
        self._torch = [make_torch_loader(options, context, generator)]
        if options.timeout_s is not None:
            faults = WorkerFaults(names, self.metrics, context.output, options.timeout_s, can_import_only=False)
            self._watchdog = Watchdog(options.timeout_s, faults.describe_own_stall)

    def _start(self, loader: "torch.utils.data.DataLoader[Any]", method: str) -> None:
        """Start the workers, by a method of multiprocessing."""
        try:
            with warnings.catch_warnings(), interrupts_held(method):
                # torch's warning does not name the argument.
                warnings.filterwarnings("ignore", "Got pickle error when attempting to start", UserWarning)
                self._torch[:] = [loader, iter(loader)]
        except BaseException as error:
            _forget_frames(error)
            self.close()
            if isinstance(error, TfdsTorchError) or not isinstance(error, Exception):
                raise
            if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
                raise WorkerError(f"A worker ended while the others were started: {error}") from error
            inputs = {
                "create_loader: collate_fn": self._options.collate_fn,
                "create_loader: worker_init_fn": self._options.worker_init_fn,
                "create_loader: dataset": self._dataset,
            }
            found = start_error(error, inputs, method)
            if found is None:
                raise
            raise found from error
        silence_torch()

    @property
    def pids(self) -> list[int]:  # noqa: D102
        return [] if self._processes is None or self._is_closed else self._processes.pids

    @property
    def is_usable(self) -> bool:  # noqa: D102
        if self._is_closed or os.getpid() != self._owner:
            return False
        if self._processes is None:
            return True
        return self._options.persistent_workers and not self._processes.find_dead(set(range(self.metrics.num_workers)))

    def begin(self, start: Start | None = None) -> Iterator[WorkerBatch]:
        """Begin an iteration, always at the start of an epoch; the one before is over."""
        if self._is_closed:
            raise WorkerError("This loader's processes have ended.")
        if self._num_begun or self._processes is None:  # New workers began when they were started.
            self._torch[1:] = [self._watched(lambda: iter(self._torch[0]))]
        if self._processes is not None:
            self._processes.num_received = 0
        self._num_begun += 1
        self._length, self._num_items = reported_length(self._dataset), 0
        return iter(self.next_batch, None)  # It has no `close`: the reader may be used again.

    def next_batch(self) -> WorkerBatch:
        """Return the next batch of the iteration, or raise the error of the dataset, its worker or the watchdog."""
        if self._is_closed:
            raise StopIteration
        found: Delivery = self._watched(lambda: next(self._torch[1]))
        if self._processes is not None:
            self._processes.num_received += 1
            worker = found.worker or 0
            if isinstance(found.batch, Failure):
                raise found.batch.to_error(f"worker {worker} (pid {self.metrics.pid(worker)})")
            self.metrics.add_hand_over(worker, max(found.ready_at, self._asked_at), found.received_at)
            if self._repeated is not None:
                self._repeated.add(worker, found.batch)
        if self._length is not None:
            self._num_items += found.num_examples if is_collated(self._options) else 1
            if self._num_items > self._length:
                self._warn_of_length(self._length)
        return WorkerBatch(found.batch, found.num_examples)

    def close(self) -> None:  # noqa: D102
        self._is_closed = True
        if self._watchdog is not None:
            self._watchdog.close()
        if self._processes is None:
            self._torch.clear()
        else:
            self._processes.end()

    def _watched(self, step: Callable[[], Any]) -> Any:
        """Run a step of torch's loader within `timeout_s` seconds, and return its result."""
        self._asked_at = time.monotonic()
        try:
            return step() if self._watchdog is None else self._watchdog.run(step)
        except StopIteration:
            raise
        except BaseException as error:
            workers = self._processes
            if workers is None:
                raise
            _forget_frames(error)
            if not isinstance(error, Exception):  # Like Ctrl-C.
                raise
            if self._is_closed:
                raise ConfigError("This Loader was closed while its batch was waited for.") from None
            dead = workers.find_failed(error)
            if not dead:
                raise
            raise WorkerError(workers.faults.describe_deaths(dead)) from error.with_traceback(None)

    def _warn_of_length(self, length: int) -> None:
        """Warn once of an IterableDataset that yields more items than it has reported."""
        self._length, num_workers = None, self.metrics.num_workers
        warning = (
            f"Length of IterableDataset {type(self._dataset).__name__} was reported to be {length} (by its __len__), "
            f"but {self._num_items} items have been fetched, and more may come. len(loader), and what counts with it, "
            f"such as progress bars and schedules, are too small."
        )
        if num_workers > 1:
            warning += (
                f" Each of the {num_workers} workers may read more than its share: the dataset's __iter__ must ask "
                f"torch.utils.data.get_worker_info() for it."
            )
        warnings.warn(warning, UserWarning, stacklevel=4)


def count_batches(options: LoaderOptions) -> int:
    """Return the batches of an epoch, as torch's DataLoader counts them; raise TypeError without a length."""
    return len(make_torch_loader(options, WorkerContext.of(0)))


class ForeignWorkers(WorkerProcesses):
    """The workers of one iterator of torch's loader, which starts them in our `context`.

    `handles` holds torch's objects, and is the only place that does: torch ends its workers as soon as its iterator is
    dropped. In a forked process, nothing drops the copies of these objects: they would end the workers of the parent.
    """

    def __init__(
        self, start: str | BaseContext, names: ErrorContext, shared: WorkerContext, timeout_s: float | None
    ) -> None:
        super().__init__(start, shared.output)
        self.faults = WorkerFaults(names, shared.metrics, shared.output, timeout_s, self.method != "fork")
        self.handles: list[Any] = []
        self.num_received = 0  # Batches of the iteration.
        self._is_open = True
        self._queues: list[Any] = []
        self._began_at, self._is_slow_start_logged = time.monotonic(), False
        self.context = self._tracking(self.context)
        _running.add(self)

    def _tracking(self, context: BaseContext) -> BaseContext:
        """Return a context that makes processes and queues as another one does, and keeps them here."""

        def make_process(target: Callable[..., None], args: tuple[Any, ...]) -> Any:
            process = self.make(target, args)
            self._processes.append(process)
            leave_to_parent([process])
            return process

        def make_queue() -> Any:
            queue = context.Queue()
            self._queues.append(queue)
            return queue

        tracking = copy.copy(context)
        vars(tracking).update(Process=make_process, Queue=make_queue)
        return tracking

    def find_failed(self, error: BaseException | None = None) -> list[tuple[int, int, int]]:
        """Return (worker, pid, exit code) of those that ended too early.

        Args:
            error: the error of torch's loader, which a dead worker may have caused; None: there was none.
        """
        # The other end of a connection is about to die, but may not be dead yet.
        has_broken = isinstance(error, OSError | EOFError)
        ended = self.find_dead(set(range(len(self._processes))), _GRACE_S if has_broken else 0.0)
        return [(worker, pid, code) for worker, pid, code in ended if code or has_broken or pid in _pids_in(error)]

    def has_crashed(self) -> bool:
        """Return whether a worker has crashed; any thread may ask, while a batch is waited for."""
        self._log_slow_start()
        return bool(self.find_failed())

    def _log_slow_start(self) -> None:
        """Log once that no worker has started after some seconds."""
        metrics = self.faults.metrics
        if not self._is_slow_start_logged and time.monotonic() - self._began_at >= _SLOW_START_S:
            self._is_slow_start_logged = True
            if not any(metrics.has_started(worker) for worker in range(metrics.num_workers)):
                _logger.info("%s", self.faults.describe_slow_start(_SLOW_START_S))

    def describe_waiting(self, stack: str) -> str:
        """Return the message for a batch that did not come; the stack would show torch's code only."""
        dead = self.find_failed()
        return self.faults.describe_deaths(dead) if dead else self.faults.describe_stall(self.pids, self.num_received)

    def end(self, grace_s: float = _GRACE_S) -> None:
        """End the workers: those that are idle end by themselves, the others by SIGKILL after a second at most."""
        if not self._is_open or not self.is_owner:
            return
        self._is_open = False
        self._processes[:] = [process for process in self._processes if process.pid is not None]
        if self.find_failed():
            super().end(0)  # torch could wait without end for a lock that a killed worker has held.
        # In threads: torch waits five seconds for each worker that does not end, and both may wait without end.
        dropping = threading.Thread(target=self.handles.clear, name="end of torch's workers", daemon=True)
        closing = threading.Thread(target=self._close_queues, name="end of torch's queues", daemon=True)
        with suppress(RuntimeError):  # From Python 3.12 on, no thread is started when the interpreter ends.
            if not sys.is_finalizing():
                dropping.start()
                super().end(grace_s)
                dropping.join(grace_s)
                if dropping.is_alive():
                    closing.start()
                    closing.join(grace_s)
        super().end(0)
        _running.discard(self)

    def _close_queues(self) -> None:
        """Close torch's queues where its iterator does not end, so that multiprocessing does not do it at exit.

        Both wait without end for a lock that is never released: Ctrl-C may come just after the line of Python that
        takes it, where torch puts something into a queue.
        """
        while self._queues:
            self._queues.pop().close()


_running: set[ForeignWorkers] = set()


def silence_torch() -> None:
    """Let torch's SIGCHLD handler be silent about workers of a ForeignReader, where this is the main thread.

    It would raise wherever the main thread is: within a step of training, or while a checkpoint is written.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGCHLD)
        if callable(handler) and getattr(handler, "func", None) is not _call_silently:
            signal.signal(signal.SIGCHLD, partial(_call_silently, handler))


def _call_silently(handler: Any, number: int, frame: Any) -> None:
    """Call a handler, and drop a RuntimeError about a worker of ours: its reader looks for itself."""
    try:
        handler(number, frame)
    except RuntimeError as error:
        if not any(_pids_in(error) & set(workers.pids) for workers in list(_running)):
            raise


def _pids_in(error: BaseException | None) -> set[int]:
    """Return the processes that a message of torch names."""
    return {int(pid) for pid in re.findall(r"\bpid(?:\(s\))? (\d+)", str(error))}


def _forget_frames(error: BaseException | None) -> None:
    """Empty torch's frames of an error and of those behind it: they hold its iterator."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("torch.utils.data"):
                with suppress(RuntimeError):  # It still runs: an iteration within another one.
                    frame.clear()
        error = error.__cause__ or error.__context__
