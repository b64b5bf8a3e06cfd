"""The processes of torch's loader: what torch keeps to itself of them, and how they are ended at once."""

import os
import time
from multiprocessing.connection import wait
from typing import Any

import torch

_GRACE_S = 1.0


class LoaderProcesses:
    """The workers of an iterator of torch's loader.

    The only place that touches torch's private attributes, which have no public counterpart:
    - `_workers`, `_workers_status`: which process died before its work was done. Torch finds out after five seconds, or
      raises a RuntimeError wherever the main thread happens to be (`_remove_worker_pids` turns that off).
    - `_rcvd_idx`, `_task_info`: whose turn it is.
    - `_shutdown`, `_workers_done_event`, `_index_queues`, `_worker_result_queue`: ending them together. Torch waits for
      each of them, for five seconds when it is busy or stopped.

    Args:
        iterator: of a DataLoader with workers, which have been started.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._owner = os.getpid()
        self._suspects: set[int] = set()
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return [process.pid for process in self._iterator._workers]

    @property
    def next_worker(self) -> int | None:
        """The worker that has to deliver the next batch, if one has."""
        task = self._iterator._task_info.get(self._iterator._rcvd_idx)
        return task[0] if task else None

    def find_dead(self, error: BaseException | None = None) -> list[tuple[int, int, int]]:
        """Returns (worker, pid, exit code) of those that ended too early.

        One that ends in time does so a moment before torch notes it: without an error, only one that is found twice
        counts.

        Args:
            error: that torch's loader has raised, perhaps because of a dead worker, which it then counts as done.
        """
        iterator = self._iterator
        if iterator._shutdown and error is None:
            return []
        statuses, processes = list(iterator._workers_status), list(iterator._workers)
        ended = {number: process for number, process in enumerate(processes) if process.exitcode is not None}
        if error is None:
            early = {number for number in ended if statuses[number]}
            dead, self._suspects = early & self._suspects, early
        else:
            dead = {
                number
                for number, process in ended.items()
                if statuses[number] or process.exitcode or str(process.pid) in str(error)
            }
        return [(number, ended[number].pid, ended[number].exitcode) for number in sorted(dead)]

    def wait_for_death(self, timeout_s: float) -> None:
        """Returns as soon as one of them is dead, or after a while."""
        wait([process.sentinel for process in self._iterator._workers], timeout_s)

    def end(self) -> None:
        """Ends the workers: those that are idle by themselves, the others by SIGKILL after a second at most."""
        iterator = self._iterator
        if iterator is None or os.getpid() != self._owner:
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
        # A thread that waits for the rest of a batch whose sender is gone gets an end of file.
        iterator._worker_result_queue._writer.close()


def _wait_for(processes: list[Any], timeout_s: float) -> None:
    ends_at = time.monotonic() + timeout_s
    waiting = {process.sentinel for process in processes}
    while waiting and (left_s := ends_at - time.monotonic()) > 0:
        waiting -= set(wait(list(waiting), left_s))
