"""The processes of torch's loader: what torch keeps to itself of them, and how they are ended at once."""

import os
import queue
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch

_GRACE_S = 1.0
_LOOK_S = 0.2


class LoaderProcesses:
    """The workers of an iterator of torch's loader.

    The only place that touches torch's private attributes, which have no public counterpart:
    - `_workers`: pids and exit codes.
    - `_data_queue`: torch waits there without a limit; here, `look` is called meanwhile. What it raises comes out of
      torch's `__next__`, as does torch's RuntimeError for a worker that is dead, within `_LOOK_S`.
    - `_remove_worker_pids`: without it, torch raises that wherever the main thread happens to be.
    - `_shutdown`, `_workers_done_event`, `_index_queues`, `_worker_result_queue`: ending them together. Torch waits for
      each of them, for five seconds when it is busy or stopped.

    Args:
        iterator: of a DataLoader with workers, which have been started.
        look: called while nothing comes; whatever it raises ends the waiting.
    """

    def __init__(self, iterator: Any, look: Callable[[], None]) -> None:
        self._iterator = iterator
        self._owner = os.getpid()
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
        iterator._data_queue = _WatchedQueue(iterator._worker_result_queue, look)

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return [] if self._iterator is None else [process.pid for process in self._iterator._workers]

    def has_crashed(self) -> bool:
        """Returns whether one has ended, and not as it should; from any thread."""
        iterator = self._iterator
        return iterator is not None and any(process.exitcode for process in list(iterator._workers))

    def find_dead(self, error: BaseException) -> list[tuple[int, int, int]]:
        """Returns (worker, pid, exit code) of those that ended too early.

        Args:
            error: that torch's loader has raised, perhaps because of a dead worker.
        """
        processes = [] if self._iterator is None else self._iterator._workers
        if isinstance(error, OSError | EOFError):
            # Of a connection that broke: its other end is about to die, but may not be dead yet.
            ending = wait([process.sentinel for process in processes], _GRACE_S)
            for process in processes:
                if process.sentinel in ending:
                    process.join(_GRACE_S)
        return [
            (number, process.pid, process.exitcode)
            for number, process in enumerate(processes)
            if process.exitcode or (process.exitcode == 0 and _may_be_by(error, process.pid))
        ]

    def end(self) -> None:
        """Ends the workers: those that are idle by themselves, the others by SIGKILL after a second at most."""
        iterator = self._iterator
        if iterator is None:
            return
        if os.getpid() != self._owner:
            iterator._shutdown = True  # What a fork has copied: torch would end the parent's workers.
            return
        self._iterator = None
        processes, is_torchs_turn = iterator._workers, iterator._shutdown
        iterator._shutdown = True  # Torch has nothing left to do.
        # One that was killed may have held the event's lock.
        is_whole = all(process.exitcode in (None, 0) for process in processes)
        if is_whole and not is_torchs_turn:
            iterator._workers_done_event.set()
            for requests in iterator._index_queues:
                requests.put(None)
        if is_whole:
            _wait_for(processes, _GRACE_S)
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
        if is_torchs_turn:
            return
        for requests in iterator._index_queues:
            requests.cancel_join_thread()
            requests.close()


class _WatchedQueue:
    """Stands for the queue from which torch's loader takes what its workers made."""

    def __init__(self, results: Any, look: Callable[[], None]) -> None:
        self._results, self._look = results, look

    def get(self, timeout: float | None = None) -> Any:
        """Returns what comes next; raises queue.Empty after a while: torch then looks for dead workers."""
        try:
            return self._results.get(timeout=_LOOK_S)
        except queue.Empty:
            self._look()
            raise


def _may_be_by(error: BaseException, pid: int) -> bool:
    """Whether a process that has ended as it should may be behind an error: torch names it, or its connection broke."""
    return isinstance(error, OSError | EOFError) or str(pid) in str(error)


def _wait_for(processes: list[Any], timeout_s: float) -> None:
    ends_at = time.monotonic() + timeout_s
    waiting = {process.sentinel for process in processes}
    while waiting and (left_s := ends_at - time.monotonic()) > 0:
        waiting -= set(wait(list(waiting), left_s))
