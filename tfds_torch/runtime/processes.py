"""WorkerProcesses: start, watch and end worker processes. Closable: objects that a script leaves open close at exit."""

import atexit
import logging
import mmap
import multiprocessing.util  # (First: of the functions that run at exit, the latest registered runs first)
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context, process, reduction
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol
from weakref import WeakSet

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.runtime.forking import run_forked, wait_for_imports
from tfds_torch.runtime.group_signals import do_nothing_for_group_signals, signals_held, start_servers
from tfds_torch.runtime.pickling import unpicklable
from tfds_torch.runtime.worker_output import WorkerOutput

_MOST_INLINE_BYTES = 1 << 15  # Less than a pipe takes at once.


class WorkerProcesses:
    """The processes of one pool of workers, numbered from 0 in the order of their start.

    They belong to the process that starts them: a process that was forked from it neither watches nor ends them, not
    even by its exit. It is for one thread.
    """

    def __init__(self, start: str | BaseContext, output: WorkerOutput) -> None:
        self.context = get_context(start) if isinstance(start, str) else start
        self.method: str = self.context.get_start_method()
        self._make_process: Any = self.context.Process  # type: ignore[attr-defined]
        self._output, self._owner = output, os.getpid()
        self._processes: list[Any] = []
        _close_before_join()

    def start(
        self, target: Callable[..., None], args: tuple[Any, ...], inputs: Mapping[str, Any], *, is_daemon: bool = True
    ) -> None:
        """Start the next worker; an input (name -> value) that cannot be pickled is named in the error."""
        worker = self.make(target, args, name=f"tfds_torch worker {len(self._processes)}", daemon=is_daemon)
        try:
            worker.start()
        except TfdsTorchError:
            raise
        except Exception as error:
            found = start_error(error, inputs, self.method)
            if found is None:
                raise
            raise found from error
        self._processes.append(worker)
        leave_to_parent([worker])

    def make(self, target: Callable[..., None], args: tuple[Any, ...], **options: Any) -> Any:
        """Return the process of the next worker, which has not started; the options are those of a Process."""
        if self.method == "fork":
            wait_for_imports()  # Right before the start.
            target, args = run_forked, (target, args)
        else:
            target, args = _Work(target, args, self._output.duplicate(len(self._processes))), ()
        return self._make_process(target=target, args=args, **options)

    @property
    def is_owner(self) -> bool:
        """Whether this process started the workers, and was not forked from the one that did."""
        return os.getpid() == self._owner

    @property
    def pids(self) -> list[int]:
        """The process ids, by the worker's number."""
        return [worker.pid for worker in self._processes]

    @property
    def sentinels(self) -> list[int]:
        """What `multiprocessing.connection.wait` finds ready when a process has ended, by the worker's number."""
        return [worker.sentinel for worker in self._processes]

    def find_dead(self, workers: set[int], wait_s: float = 0.0) -> list[tuple[int, int, int]]:
        """Return (worker, pid, exit code) of those that have ended; wait `wait_s` seconds for the first of them."""
        processes = [(worker, self._processes[worker]) for worker in sorted(workers)] if self.is_owner else []
        if wait_s:
            ending = wait([found.sentinel for _, found in processes], wait_s)
            for _, found in processes:
                if found.sentinel in ending:
                    found.join(wait_s)  # Its files are closed a moment before it has ended.
        return [(worker, found.pid, found.exitcode) for worker, found in processes if found.exitcode is not None]

    def end(self, grace_s: float) -> None:
        """Wait for the workers, and end those that are left by SIGKILL; a second call does nothing."""
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


class _Work:
    """The work of a worker that is not forked. Large work travels in a file; work that cannot be loaded is reported.

    A pipe takes some 64 KiB. Where a process ends while it imports the script, the rest of a longer message would keep
    its parent waiting for ever.
    """

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], report: int | None = None) -> None:
        self._target, self._args, self._report = target, args, report
        self._files = [] if report is None else [report]  # Must be open until the process has started.

    def __call__(self) -> None:
        self._target(*self._args)

    def __reduce__(self) -> tuple[Any, ...]:
        content = bytes(ForkingPickler.dumps((self._target, self._args)))
        report = None if self._report is None else reduction.DupFd(self._report)
        if len(content) <= _MOST_INLINE_BYTES or not hasattr(os, "memfd_create"):
            return _load_work, (content, report)
        self._files.append(os.memfd_create("work"))
        with open(self._files[-1], "wb", closefd=False) as file:
            file.write(content)
        return _load_work, (reduction.DupFd(self._files[-1]), report)

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


def _load_work(work: Any, report: Any) -> _Work:
    """Load the work that our own parent pickled, into bytes or a file; where it fails, `report` gets the traceback."""
    do_nothing_for_group_signals()  # The following may take seconds.
    try:
        if isinstance(work, bytes):
            target, args = pickle.loads(work)  # noqa: S301
        else:
            with open(work.detach(), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                target, args = pickle.loads(content)  # noqa: S301
    except Exception:
        if report is not None:
            os.write(report.detach(), traceback.format_exc().encode(errors="replace"))
        raise
    return _Work(target, args, None if report is None else report.detach())


def start_error(error: Exception, inputs: Mapping[str, Any], method: str) -> TfdsTorchError | None:
    """Return the error that says why a worker cannot be started; None: `error` itself says so.

    Args:
        error: the error that its start has raised.
        inputs: name -> value from the user that the worker gets.
        method: start method of multiprocessing.
    """
    if process.current_process().daemon and isinstance(error, AssertionError):
        return ConfigError(
            f"Workers cannot be started: this process, {process.current_process().name}, is a daemon, and daemons of "
            f"multiprocessing must not have processes of their own (those of a multiprocessing.Pool are daemons). Read "
            f"without workers here (num_workers=0), or start it with Process(..., daemon=False)."
        )
    if method == "fork":
        return None
    if isinstance(error, ChildProcessError):
        return ConfigError(
            f"A worker cannot be started by {method!r}: this process (pid {os.getpid()}) was forked from one that has "
            f"a fork server, which Python lets only that one use. Use multiprocessing_context='spawn' here."
        )
    if isinstance(error, EOFError | ConnectionError):
        return WorkerError(
            f"A worker cannot be started: the process that starts workers ended ({type(error).__name__}), most likely "
            f"while it imported this script, or by a signal before it had begun. {describe_guard()}"
        )
    return unpicklable(inputs, error, repr(method))


def describe_guard(argument: str | None = None) -> str:
    """Return the advice for a script that workers cannot import."""
    other = "" if argument is None else f" Or start workers with {argument}='fork'."
    return (
        f"A worker that is not forked imports the script anew, and finds nothing of a notebook or of standard input: "
        f"put the lines of the script that make and read loaders below the line\n\n"
        f'    if __name__ == "__main__":\n\n'
        f"and leave imports, functions and classes above it, or in a module.{other}"
    )


@contextmanager
def interrupts_held(method: str) -> Iterator[None]:
    """Hold Ctrl-C, and signals to the process group, while workers are started, until these leave them alone.

    Raises:
        ConfigError: the start method needs a server that is another process's.
    """
    try:
        start_servers(method)
    except ChildProcessError as error:
        raise start_error(error, {}, method) or error from None
    with nullcontext() if method == "forkserver" else signals_held():  # Those of the server inherit nothing.
        yield


def leave_to_parent(processes: Iterable[BaseProcess]) -> None:
    """Keep a process that is forked from this one later from ending some of this one's children.

    `os.fork` also copies multiprocessing's list of children. When the copy exits, multiprocessing sends SIGTERM to
    those that are daemons, and fails for the others, because they are not its own.
    """
    _left_to_parent.update(processes)


class Closable(Protocol):
    """Something that holds processes or threads until it is closed."""

    def close(self) -> None:
        """End them; do nothing a second time."""


def close_at_exit(closable: Closable) -> None:
    """Close something at the process's end, if it still exists then. It is not kept alive for that."""
    _open.add(closable)


_left_to_parent: "WeakSet[BaseProcess]" = WeakSet()
_open: "WeakSet[Closable]" = WeakSet()
_closing_in: int | None = None  # The process at whose end they are closed.


def _forget_children_of_parent() -> None:
    getattr(process, "_children", set()).difference_update(list(_left_to_parent))
    _left_to_parent.clear()


def _close_before_join() -> None:
    """Let everything be closed at the end of this process, also if it is one of multiprocessing.

    Such a process runs no functions of `atexit`, and waits for its children, which do not end by SIGTERM.
    """
    global _closing_in
    if _closing_in != os.getpid():
        _closing_in = os.getpid()
        multiprocessing.util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    closables = list(_open)
    _open.clear()
    for closable in closables:
        try:
            closable.close()
        except Exception:  # The others are still to be closed.
            logging.getLogger(__name__).exception("%r could not be closed", closable)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_children_of_parent)

# Multiprocessing's own exit would wait for a stopped worker for ever.
atexit.register(_close_all)
