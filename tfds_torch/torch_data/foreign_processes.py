"""ForeignWorkers: the processes that torch's DataLoader starts, found, watched and ended by public names only."""

import copy
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from typing import Any

from tfds_torch.runtime.processes import leave_to_parent
from tfds_torch.runtime.worker_faults import WorkerFaults

_SLOW_START_S = 5.0
_GRACE_S = 1.0
_PID = re.compile(r"\bpid(?:\(s\))? (\d+)")

_logger = logging.getLogger(__name__)


class ForeignWorkers:
    """The workers of one iterator of torch's loader.

    `context` starts them and keeps their Process objects. `handles` holds torch's objects, and is the only place that
    does: torch ends its workers as soon as its iterator is dropped. In a forked process, nothing drops the copies of
    these objects: they would end the workers of the parent.

    Args:
        context: of multiprocessing, that starts the workers.
        faults: describes what is wrong with them.
    """

    def __init__(self, context: BaseContext, faults: WorkerFaults) -> None:
        self.faults = faults
        self.handles: list[Any] = []
        self.num_received = 0  # Batches of the iteration.
        self.owner = os.getpid()
        self._is_open = True
        self._processes: list[Any] = []
        self._queues: list[Any] = []
        self.context = _keeping(context, self._processes, self._queues)
        self._began_at, self._is_slow_start_logged = time.monotonic(), False
        _running.add(self)

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def are_alive(self) -> bool:
        """Whether none has ended."""
        return all(process.exitcode is None for process in self._processes)

    def has_crashed(self) -> bool:
        """Returns whether one has ended, and not as it should; from any thread, while a batch is waited for."""
        metrics = self.faults.metrics
        if not self._is_slow_start_logged and time.monotonic() - self._began_at >= _SLOW_START_S:
            self._is_slow_start_logged = True
            if not any(metrics.has_started(worker) for worker in range(metrics.num_workers)):
                _logger.info("%s", self.faults.describe_slow_start(_SLOW_START_S))
        return any(process.exitcode for process in list(self._processes))

    def describe_waiting(self, stack: str) -> str:
        """Returns the message for a batch that was waited for in vain.

        Args:
            stack: of the thread that waits, which shows torch's code only.
        """
        if self.has_crashed():
            return self.faults.describe_deaths(self.find_dead())
        return self.faults.describe_stall(self.pids, self.num_received)

    def find_dead(self, error: BaseException | None = None) -> list[tuple[int, int, int]]:
        """Returns (worker, pid, exit code) of those that ended too early.

        Args:
            error: that torch's loader has raised, perhaps because of a dead worker; None: it has not.
        """
        has_broken = isinstance(error, OSError | EOFError)
        if has_broken:  # The other end of a connection is about to die, but may not be dead yet.
            ending = wait([process.sentinel for process in self._processes], _GRACE_S)
            for process in self._processes:
                if process.sentinel in ending:
                    process.join(_GRACE_S)
        named = {int(pid) for pid in _PID.findall(str(error))}
        return [
            (number, process.pid, process.exitcode)
            for number, process in enumerate(self._processes)
            if process.exitcode or (process.exitcode == 0 and (has_broken or process.pid in named))
        ]

    def end(self) -> None:
        """Ends the workers: those that are idle end by themselves, the others by SIGKILL after a second at most."""
        if not self._is_open or os.getpid() != self.owner:
            return
        self._is_open = False
        started = [process for process in self._processes if process.pid is not None]
        if any(process.exitcode for process in started):
            _kill(started)  # torch could wait for ever for a lock that a killed worker has held.
        # In a thread: torch waits five seconds for each worker that does not end.
        dropping = _start_thread(self.handles.clear)
        if dropping is not None:
            _wait_for(started, _GRACE_S)
        _kill(started)
        for thread in (dropping, _start_thread(self._close_queues)):
            if thread is not None:
                thread.join(_GRACE_S)
        _running.discard(self)

    def _close_queues(self) -> None:
        """Closes torch's queues. It may wait for ever, in place of multiprocessing's exit.

        Python code cannot take a lock so that Ctrl-C never comes between taking it and what gives it back: a queue into
        which torch has just put something may be locked for good.
        """
        while self._queues:
            self._queues.pop().close()


def silence_torch() -> None:
    """Lets torch's SIGCHLD handler be silent about workers of a ForeignReader, where this is the main thread.

    It would raise wherever the main thread is: within a step of training, or while a checkpoint is written.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler) and not isinstance(handler, _SilentHandler):
        signal.signal(signal.SIGCHLD, _SilentHandler(handler))


class _SilentHandler:
    """Calls a handler of SIGCHLD, and drops a RuntimeError about a worker of ours: its reader looks for itself."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self._handler(number, frame)
        except RuntimeError as error:
            named = {int(pid) for pid in _PID.findall(str(error))}
            if not any(named & set(workers.pids) for workers in list(_running)):
                raise


_running: set[ForeignWorkers] = set()


def _start_thread(work: Callable[[], None]) -> threading.Thread | None:
    """Starts work that may never end; returns None where the interpreter ends and no thread can be started."""
    thread = threading.Thread(target=work, name="end of torch's workers", daemon=True)
    with suppress(RuntimeError):  # From Python 3.12 on.
        if not sys.is_finalizing():
            thread.start()
            return thread
    return None


def _keeping(context: BaseContext, processes: list[Any], queues: list[Any]) -> BaseContext:
    """Returns a context that makes processes and queues as another one does, and keeps them in lists."""
    make, make_queue = context.Process, context.Queue  # type: ignore[attr-defined]

    def make_and_keep(*arguments: Any, **options: Any) -> Any:
        processes.append(make(*arguments, **options))
        leave_to_parent(processes[-1:])
        return processes[-1]

    def make_and_keep_queue(*arguments: Any) -> Any:
        queues.append(make_queue(*arguments))
        return queues[-1]

    keeping = copy.copy(context)
    keeping.Process = make_and_keep  # type: ignore[attr-defined]
    keeping.Queue = make_and_keep_queue  # type: ignore[method-assign]
    return keeping


def _wait_for(processes: list[Any], timeout_s: float) -> None:
    """Waits until all processes have ended, for `timeout_s` at most."""
    ends_at = time.monotonic() + timeout_s
    waiting = {process.sentinel for process in processes}
    while waiting and (left_s := ends_at - time.monotonic()) > 0:
        waiting -= set(wait(list(waiting), left_s))


def _kill(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
