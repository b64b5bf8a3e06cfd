"""BatchSource: the batches of torch's loader, watched: a dead or a stuck worker is an error, and never a hang."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tfds_torch.errors import StallError, WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.reader_thread import DirectReader, ThreadReader
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.worker_watch import ask_for_stack, describe_exit, process_state
from tfds_torch.torch_data.loading.processes import LoaderProcesses
from tfds_torch.torch_data.loading.sending import Sent

_CHECK_S = 0.2
_DYING_S = 2.0
_SLOW_START_S = 5.0

_logger = logging.getLogger(__name__)
_IMPORT_HINT = (
    ' ("Can\'t get attribute": a worker that is spawned finds only what it can import; functions and classes of a '
    "notebook need multiprocessing_context='fork', or a module)"
)


@dataclass(frozen=True)
class SourceNames:
    """What messages tell of a source.

    Attributes:
        dataset: its name and split, or its type.
        parser: knows the ids of examples; None: there are none.
        next_step: what the user does after a worker's death.
    """

    dataset: str
    parser: Any
    next_step: str

    def example(self, index: int | None) -> str:
        """Returns where an example lies, as the rest of a sentence; empty where it is not known."""
        if index is None or self.parser is None:
            return ""
        try:
            (name,) = self.parser.ids(np.array([index], np.int64))
        except Exception:  # A message about a fault must not fail.
            return f", example {index}"
        shard, separator, record = name.rpartition("__")
        return f", shard {shard}, record {record} (example {index})" if separator else f", {name} (example {index})"


class BatchSource:
    """Reads the batches of a DataLoader over and over, an iteration at a time, for one thread.

    Args:
        loader: torch's, whose collation is a `SendingCollate`.
        metrics: what its processes report to.
        names: for messages.
        timeout_s: how long a batch may take, seconds; None: for ever.
    """

    def __init__(
        self, loader: "DataLoader[Any]", metrics: StageMetrics, names: SourceNames, timeout_s: float | None
    ) -> None:
        self.metrics = metrics
        self.examples: deque[int] = deque()  # Of the batches that were yielded, until the loader counts them.
        self._names = names
        self._timeout_s = timeout_s
        self._owner = os.getpid()
        # When the workers were started; None once the first batch is there, or its delay is told.
        self._started_at = time.monotonic() if loader.num_workers else None
        self._can_import_only = loader.num_workers > 0 and _start_method(loader) != "fork"
        self._processes: LoaderProcesses | None = None
        self._reader: ThreadReader | DirectReader | None = None
        if loader.num_workers:
            iterator = _start(loader)
            self._processes = LoaderProcesses(iterator)
            self._reader = ThreadReader(loader.__iter__, iterator)
        elif timeout_s is None:
            self._reader = DirectReader(loader.__iter__)
        else:
            self._reader = ThreadReader(loader.__iter__)
        self.num_begun = 0

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return self._processes.pids if self._processes is not None and self._reader is not None else []

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: nothing has failed or is under way, and this is no forked process."""
        return self._reader is not None and self._reader.is_idle and os.getpid() == self._owner

    def begin(self) -> None:
        """Begins an iteration; the first one of a source with workers began when they were started."""
        if self._reader is None:
            raise WorkerError("This loader's processes have ended.")
        self.examples.clear()
        if self.num_begun or self._processes is None:
            self._reader.ask_begin()
        self.num_begun += 1

    def batches(self) -> Iterator[Any]:
        """Returns the iterator of the iteration that has begun; dropping it ends nothing."""
        return _Batches(self)

    def next_batch(self) -> Any:
        """Returns the next batch of the iteration.

        Raises:
            StopIteration: there is none.
            WorkerError: a worker died.
            StallError: it did not come in time.
            Exception: what was raised in a worker, as `Failure.to_error`; or here, without workers.
        """
        if self._reader is None:
            raise StopIteration
        asked_at = time.monotonic()
        self._reader.ask_next()
        sent: Any = None
        while not self._reader.is_idle:  # The iteration may first have to begin.
            sent = self._wait(self._reader)
        return self._unpack(sent, asked_at)

    def _unpack(self, sent: Sent, asked_at: float) -> Any:
        if isinstance(sent.batch, Failure):
            raise sent.batch.to_error(f"worker {sent.worker} (pid {self.metrics.pid(sent.worker or 0)})")
        if sent.worker is not None:
            self.metrics.add_hand_over(sent.worker, max(0.0, sent.received_at - max(sent.sent_at, asked_at)))
        self.examples.append(sent.num_examples)
        return sent.batch

    def _wait(self, reader: ThreadReader | DirectReader) -> Any:
        """Returns the value of the next reply; raises what there is instead."""
        began_at = time.monotonic()
        while (reply := reader.reply(self._patience(began_at))) is None:
            self._check_alive()
            self._tell_slow_start()
            if self._timeout_s is not None and time.monotonic() - began_at >= self._timeout_s:
                raise StallError(self._describe_stall(reader.thread_id))
        if reply.error is None:
            self._started_at = None if reply.value is not None else self._started_at
            return reply.value
        if not isinstance(reply.error, StopIteration):
            if self._processes is not None and isinstance(reply.error, OSError | EOFError):
                # Of a connection that broke: its other end is about to die, but may not be dead yet.
                self._processes.wait_for_death(_DYING_S)
            self._check_alive(reply.error)
        try:
            raise reply.error
        finally:
            del reply  # It would keep this frame, and this frame it.

    def _tell_slow_start(self) -> None:
        if self._started_at is None or time.monotonic() - self._started_at < _SLOW_START_S:
            return
        self._started_at = None
        num_workers = self.metrics.num_workers
        begun = sum(self.metrics.num_begun(worker) > 0 for worker in range(num_workers))
        _logger.info(
            "%s: no batch after %g s yet: %d of %d workers have begun to read.",
            *(self._names.dataset, _SLOW_START_S, begun, num_workers),
        )

    def _patience(self, began_at: float) -> float:
        if self._timeout_s is None:
            return _CHECK_S
        return min(_CHECK_S, max(0.0, began_at + self._timeout_s - time.monotonic()))

    def _check_alive(self, cause: BaseException | None = None) -> None:
        dead = self._processes.find_dead(cause) if self._processes is not None else []
        if dead:
            said = [
                f"Worker {worker} (pid {pid}) {describe_exit(code)} {self._when(worker)}" for worker, pid, code in dead
            ]
            raise WorkerError(" ".join([*said, self._names.next_step])) from cause

    def _when(self, worker: int) -> str:
        if self.metrics.pid(worker) is None:
            hint = _IMPORT_HINT if self._can_import_only else ""
            return f"before it had begun: what it wrote to standard error says why{hint}."
        return f"while it read {self._place_of(worker)}."

    def _place_of(self, worker: int) -> str:
        return self._names.dataset + self._names.example(self.metrics.reading(worker))

    def _describe_stall(self, thread_id: int | None) -> str:
        came = f"No batch came within timeout_s={self._timeout_s:g} s."
        if self._processes is None:
            where = self._names.dataset + self._names.example(self.metrics.reading(0))
            return f"{came} The training process itself reads {where}. {_stack_of_thread(thread_id)}"
        worker = self._processes.next_worker
        if worker is None:
            worker = min(range(self.metrics.num_workers), key=self.metrics.num_begun)
        pid = self._processes.pids[worker]
        letter, state = process_state(pid)
        said = f"{came} Worker {worker} (pid {pid}), whose turn it is, is {state} ({letter}) and reads "
        said += f"{self._place_of(worker)}. {self._names.next_step} "
        if letter in "Tt":
            return f"{said}A stopped process cannot tell its stack; SIGCONT lets it go on."
        descriptor = self.metrics.stack_file(worker)
        stack = None if descriptor is None else ask_for_stack(pid, descriptor)
        return said + (f"Its stacks:\n{stack}" if stack else "It does not tell its stack.")

    def close(self) -> None:
        """Ends the workers and the reading thread; the source cannot be used any more."""
        reader, self._reader = self._reader, None
        if self._processes is not None:
            self._processes.end()
        if reader is not None:
            reader.close()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self.close()


class _Batches(Iterator[Any]):
    """The batches of one iteration; it cannot be closed, as its source may be used again."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __next__(self) -> Any:
        return self._source.next_batch()


def _start_method(loader: "DataLoader[Any]") -> str:
    method: str = (loader.multiprocessing_context or torch.multiprocessing).get_start_method()
    return method


def _start(loader: "DataLoader[Any]") -> Any:
    """Returns the iterator of a loader whose workers have just been started."""
    # Here rather than in the reader's thread: a process is forked with as few threads as possible. Ctrl-C waits until
    # the workers ignore it; they inherit that it is blocked. A fork server would hand that on to others for ever.
    method = _start_method(loader)
    can_block = hasattr(signal, "pthread_sigmask") and threading.current_thread() is threading.main_thread()
    blocked = None
    if can_block and method != "forkserver":
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return iter(loader)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(f"A worker ended while the others were started: {error}") from error
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _stack_of_thread(thread_id: int | None) -> str:
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    return "" if frame is None else "The stack of its reading thread:\n" + "".join(traceback.format_stack(frame))
