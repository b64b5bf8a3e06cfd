"""WorkerProcesses: worker processes are started, watched and ended; and what a script leaves open is closed at exit."""

import atexit
import logging
import multiprocessing.util  # noqa: F401 (first: of the functions that run at exit, the latest registered runs first)
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context, process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol
from weakref import WeakSet

from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime.pickling import unpicklable
from tfds_torch.runtime.spawned_process import with_reports
from tfds_torch.runtime.worker_output import WorkerOutput


class WorkerProcesses:
    """The processes of one pool of workers, numbered from 0 in the order of their start.

    They belong to the process that starts them: another one that was forked from it neither watches nor ends them, not
    even by its exit. For one thread.
    """

    def __init__(self, start: str | BaseContext, output: WorkerOutput, num_workers: int) -> None:
        context = get_context(start) if isinstance(start, str) else start
        self.context = with_reports(context, output, num_workers)
        self.method: str = self.context.get_start_method()
        self._owner = os.getpid()
        self._processes: list[Any] = []

    def start(
        self, target: Callable[..., None], args: tuple[Any, ...], inputs: Mapping[str, Any], *, is_daemon: bool = True
    ) -> None:
        """Starts the next worker; an input (name -> value) that cannot be pickled is named in the error."""
        name = f"tfds_torch worker {len(self._processes)}"
        worker = self.context.Process(target=target, args=args, name=name, daemon=is_daemon)  # type: ignore[attr-defined]
        try:
            worker.start()
        except TfdsTorchError:
            raise
        except Exception as error:
            found = None if self.method == "fork" else unpicklable(inputs, error, repr(self.method))
            if found is None:
                raise
            raise found from error
        self._processes.append(worker)
        leave_to_parent([worker])

    @property
    def is_owner(self) -> bool:
        """Whether this process started the workers, and was not forked from the one that did."""
        return os.getpid() == self._owner

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return [worker.pid for worker in self._processes]

    @property
    def sentinels(self) -> list[int]:
        """What `multiprocessing.connection.wait` finds ready when a process has ended, by the worker's number."""
        return [worker.sentinel for worker in self._processes]

    def find_dead(self, workers: set[int], wait_s: float = 0.0) -> list[tuple[int, int, int]]:
        """Returns (worker, pid, exit code) of those that have ended; waits `wait_s` seconds for the first of them."""
        processes = [(worker, self._processes[worker]) for worker in sorted(workers)] if self.is_owner else []
        if wait_s:
            ending = wait([found.sentinel for _, found in processes], wait_s)
            for _, found in processes:
                if found.sentinel in ending:
                    found.join(wait_s)  # Its files are closed a moment before it has ended.
        return [(worker, found.pid, found.exitcode) for worker, found in processes if found.exitcode is not None]

    def end(self, grace_s: float) -> None:
        """Waits for the workers, and ends those that are left by SIGKILL; a second call does nothing."""
        if not self.is_owner:
            return
        ends_at, waiting = time.monotonic() + grace_s, set(self.sentinels)
        while waiting and (left_s := ends_at - time.monotonic()) > 0:
            waiting -= set(wait(list(waiting), left_s))
        for worker in self._processes:
            if worker.is_alive():
                worker.kill()  # A stopped process does not end by SIGTERM.
        for worker in self._processes:
            worker.join()


@contextmanager
def interrupts_held(method: str) -> Iterator[None]:
    """Lets Ctrl-C wait while workers are started, until they ignore it; they inherit that it is blocked."""
    can_block = hasattr(signal, "pthread_sigmask") and threading.current_thread() is threading.main_thread()
    blocked = None
    if can_block and method != "forkserver":
        if method == "spawn":
            resource_tracker.ensure_running()  # It unblocks the signal when it starts.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def leave_to_parent(processes: Iterable[BaseProcess]) -> None:
    """Keeps a process that is forked from this one later from ending some of this one's children.

    `os.fork` also copies multiprocessing's list of children. When the copy exits, multiprocessing sends SIGTERM to
    those that are daemons, and fails for the others, because they are not its own.
    """
    _left_to_parent.update(processes)


class Closable(Protocol):
    """What holds processes or threads until it is closed."""

    def close(self) -> None:
        """Ends them; does nothing a second time."""


def close_at_exit(closable: Closable) -> None:
    """Has something closed at the process's end, if it is still there then. It is not kept alive for that."""
    _open.add(closable)


_left_to_parent: "WeakSet[BaseProcess]" = WeakSet()
_open: "WeakSet[Closable]" = WeakSet()


def _forget_children_of_parent() -> None:
    getattr(process, "_children", set()).difference_update(list(_left_to_parent))
    _left_to_parent.clear()


def _close_all() -> None:
    for closable in list(_open):
        try:
            closable.close()
        except Exception:  # The others are still to be closed.
            logging.getLogger(__name__).exception("%r could not be closed", closable)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_children_of_parent)

# Multiprocessing's own exit would wait for a stopped worker for ever.
atexit.register(_close_all)
