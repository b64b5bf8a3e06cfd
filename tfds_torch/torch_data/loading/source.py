"""BatchSource: the batches of torch's loader, watched: a dead or a stuck worker is an error, and never a hang."""

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tfds_torch.errors import ConfigError, StallError, WorkerError
from tfds_torch.loaders.worker_sources import WorkerBatch
from tfds_torch.plan.cursor import Start
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.processes import interrupts_held
from tfds_torch.runtime.watchdog import Watchdog
from tfds_torch.runtime.worker_faults import ReadingNames, WorkerFaults
from tfds_torch.torch_data.loading.processes import LoaderProcesses
from tfds_torch.torch_data.loading.sending import Sent
from tfds_torch.torch_data.loading.worker import WorkerContext

_SLOW_START_S = 5.0
_HALF_MESSAGE_S = 10.0

_logger = logging.getLogger(__name__)


class BatchSource:
    """Reads the batches of a DataLoader over and over, an iteration at a time, for one thread.

    Args:
        loader: torch's, whose collation is a `SendingCollate`.
        context: what its processes share.
        names: for messages.
        timeout_s: how long a batch may take, seconds; None: for ever.
    """

    def __init__(
        self, loader: "DataLoader[Any]", context: WorkerContext, names: ReadingNames, timeout_s: float | None
    ) -> None:
        self.num_begun = 0
        self._metrics = self.metrics = context.metrics
        self._loader: DataLoader[Any] | None = loader
        self._owner = os.getpid()
        self._timeout_s = timeout_s
        method = _start_method(loader) if loader.num_workers else "fork"
        self._faults = faults = WorkerFaults(names, context.metrics, context.output, timeout_s, method != "fork")
        self._asked_at = self._started_at = time.monotonic()
        self._is_slow_start_told = not loader.num_workers
        self._num_received = 0  # Of the iteration.
        self._iterator: Any = None
        self._processes: LoaderProcesses | None = None
        self._watchdog: Watchdog | None = None
        if loader.num_workers:
            self._iterator = _start(loader, method)
            this = weakref.ref(self)
            self._processes = LoaderProcesses(self._iterator, lambda: _look(this))
            # `look` is asked while nothing comes, not while the rest of a message does not.
            limit_s = None if timeout_s is None else timeout_s + _HALF_MESSAGE_S
            self._watchdog = Watchdog(limit_s, faults.describe_half_message, self._processes.has_crashed)
        elif timeout_s is not None:
            self._watchdog = Watchdog(timeout_s, faults.describe_own_stall)

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return self._processes.pids if self._processes is not None and self._loader is not None else []

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it is not closed, and this is no forked process."""
        return self._loader is not None and os.getpid() == self._owner

    def begin(self, start: Start | None = None) -> Iterator[WorkerBatch]:
        """Begins an iteration; the first one of a source with workers began when they were started.

        Raises:
            as `next_batch`, but for the end.
        """
        if self._loader is None:
            raise WorkerError("This loader's processes have ended.")
        self._num_received = 0
        if self.num_begun or self._processes is None:
            self._iterator = self._watched(self._loader.__iter__)
        self.num_begun += 1
        return _Batches(self)

    def next_batch(self) -> WorkerBatch:
        """Returns the next batch of the iteration.

        Raises:
            StopIteration: there is none.
            WorkerError: a worker died.
            StallError: it did not come in time.
            Exception: what was raised in a worker, as `Failure.to_error`; or here, without workers.
        """
        if self._loader is None:
            raise StopIteration
        sent: Sent = self._watched(self._iterator.__next__)
        self._is_slow_start_told = True
        self._num_received += 1
        if isinstance(sent.batch, Failure):
            raise sent.batch.to_error(f"worker {sent.worker} (pid {self._metrics.pid(sent.worker or 0)})")
        if sent.worker is not None:
            self._metrics.add_hand_over(sent.worker, max(0.0, sent.received_at - max(sent.sent_at, self._asked_at)))
        return WorkerBatch(sent.batch, sent.num_examples)

    def _watched(self, step: Callable[[], Any]) -> Any:
        """Returns what a step of torch's loader does, within `timeout_s`."""
        self._asked_at = time.monotonic()
        try:
            return step() if self._watchdog is None else self._watchdog.run(step)
        except StopIteration:
            raise
        except Exception as error:
            dead = self._processes.find_dead(error) if self._processes is not None else []
            if not dead:
                raise
            raise WorkerError(self._faults.describe_deaths(dead)) from error

    def look(self) -> None:
        """Looks how the workers are while no batch comes.

        Raises:
            ConfigError: the loader was closed meanwhile.
            StallError: it has been too long.
        """
        if self._loader is None:
            raise ConfigError("This Loader was closed while its batch was waited for.")
        now = time.monotonic()
        if not self._is_slow_start_told and now - self._started_at >= _SLOW_START_S:
            self._is_slow_start_told = True
            _logger.info("%s", self._faults.describe_slow_start(_SLOW_START_S))
        if self._timeout_s is not None and now - self._asked_at >= self._timeout_s:
            raise StallError(self._faults.describe_stall(self.pids, self._num_received))

    def close(self) -> None:
        """Ends the workers; the source cannot be used any more."""
        self._loader = self._iterator = None
        if self._watchdog is not None:
            self._watchdog.close()
        if self._processes is not None:
            self._processes.end()

    def __del__(self) -> None:
        if hasattr(self, "_watchdog"):
            self.close()


class _Batches(Iterator[WorkerBatch]):
    """The batches of one iteration; it cannot be closed, as its source may be used again."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __next__(self) -> WorkerBatch:
        return self._source.next_batch()


def _look(source: "weakref.ref[BatchSource]") -> None:
    if (found := source()) is not None:
        found.look()


def _start_method(loader: "DataLoader[Any]") -> str:
    method: str = (loader.multiprocessing_context or torch.multiprocessing).get_start_method()
    return method


def _start(loader: "DataLoader[Any]", method: str) -> Any:
    """Returns the iterator of a loader whose workers have just been started."""
    try:
        with interrupts_held(method):
            return iter(loader)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(f"A worker ended while the others were started: {error}") from error
