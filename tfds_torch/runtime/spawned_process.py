"""Worker processes that are spawned or come from a fork server, and report why they could not begin.

Such a process imports the script that starts it, and then unpickles its work. Both may fail before any code of the
worker runs: the script may start workers itself whenever it is imported, and the work may name what the process does
not find. multiprocessing's own processes leave a traceback on standard error then, and a parent that sends more than a
pipe takes waits for ever (spawn), or gets a BrokenPipeError (forkserver).
"""

import copy
import mmap
import os
import pickle
import sys
import traceback
from contextlib import suppress
from itertools import cycle
from multiprocessing import context as contexts
from multiprocessing import process, reduction, spawn, util
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime.worker_output import WorkerOutput

MISSING_GUARD, NOT_LOADED = 94, 95
"""Exit codes: the main module starts workers whenever it is imported; the work cannot be unpickled."""

GUARD = 'if __name__ == "__main__":'
"""The line below which a script starts workers."""

_MOST_INLINE_BYTES = 1 << 15  # Less than a pipe takes at once.


def with_reports(context: contexts.BaseContext, output: WorkerOutput, num_workers: int) -> contexts.BaseContext:
    """Returns a context of multiprocessing whose processes report why they could not begin.

    Its processes are the workers 0, 1, ... of a loader, in the order in which they are made. A context that forks, or
    that has processes of its own, is returned as it is.
    """
    if isinstance(context, contexts.DefaultContext):
        context = context.get_context(context.get_start_method())
    kind = _REPORTING.get(context.Process)  # type: ignore[attr-defined]
    if kind is None:
        return context
    workers = cycle(range(num_workers))

    def make(*args: Any, **kwargs: Any) -> _Reporting:
        made = kind(*args, **kwargs)
        made.report_to(output, next(workers))
        return made

    reporting = copy.copy(context)
    reporting.Process = make  # type: ignore[attr-defined]
    return reporting


class _Reporting(process.BaseProcess):
    """A process whose work travels apart from itself, so that what is wrong with the work is reported."""

    _output: WorkerOutput
    _worker: int
    _files: tuple[int, ...] = ()  # Must be open until the process has started.

    def report_to(self, output: WorkerOutput, worker: int) -> None:
        """Lets it report as a worker of that number."""
        self._output, self._worker = output, worker

    def start(self) -> None:
        """Starts the process, or raises what to do where it could not import the script."""
        if getattr(process.current_process(), "_inheriting", False):
            _end_unguarded()
        script = spawn.get_preparation_data("worker").get("init_main_from_path")
        if script is not None and not os.path.exists(script):
            raise ConfigError(
                f"Workers cannot be started: a worker that is not forked imports the script anew, and "
                f"{os.path.basename(script)!r} is not a file. Save the script as a file, with the lines that make and "
                f"read loaders below `{GUARD}`; or start workers by fork."
            )
        try:
            super().start()
        except (EOFError, ConnectionError) as error:
            raise WorkerError(
                f"A worker cannot be started: the process that starts workers ended ({type(error).__name__}), most "
                f"likely while it imported this script. {describe_guard()}"
            ) from error
        finally:
            for file in self._files:
                os.close(file)
            self._files = ()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        content = ForkingPickler.dumps([state.pop(name) for name in ("_target", "_args", "_kwargs")])
        report = state.pop("_output").duplicate(state.pop("_worker"))
        is_large = len(content) > _MOST_INLINE_BYTES and hasattr(os, "memfd_create")
        work = os.memfd_create("work") if is_large else None
        self._files = tuple(file for file in (report, work) if file is not None)
        if work is not None:
            with open(work, "wb", closefd=False) as file:
                file.write(content)
        state["_work"] = bytes(content) if work is None else reduction.DupFd(work)
        state["_report"] = None if report is None else reduction.DupFd(report)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        work, report = state.pop("_work"), state.pop("_report")
        self.__dict__.update(state)
        file = None if report is None else report.detach()
        try:
            self._target, self._args, self._kwargs = _load(work)
        except Exception:
            self._target, self._args, self._kwargs = _report_not_loaded, (file, traceback.format_exc()), {}
        else:
            if file is not None:
                os.close(file)


def _load(work: Any) -> Any:
    """Returns the object that our own parent pickled, from bytes or from a file that it passed on."""
    if isinstance(work, bytes):
        return pickle.loads(work)  # noqa: S301
    with open(work.detach(), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return pickle.loads(content)  # noqa: S301


class _SpawnProcess(_Reporting, contexts.SpawnProcess):
    """As multiprocessing's, with reports."""


_REPORTING: dict[Any, type[_Reporting]] = {contexts.SpawnProcess: _SpawnProcess}

with suppress(AttributeError):  # Not on Windows.

    class _ForkServerProcess(_Reporting, contexts.ForkServerProcess):
        """As multiprocessing's, with reports."""

    _REPORTING[contexts.ForkServerProcess] = _ForkServerProcess


def describe_guard(argument: str | None = None) -> str:
    """Returns the advice for a script that starts workers whenever it is imported."""
    other = "" if argument is None else f" Or start workers with {argument}='fork'."
    return (
        f"A worker that is not forked imports the script anew: put the lines of the script that make and read loaders "
        f"below the line\n\n    {GUARD}\n\nand leave imports, functions and classes above it.{other}"
    )


def _end_unguarded() -> None:
    """Ends this process, which imports the main module of its parent, and was about to start workers itself."""
    main = sys.modules.get("__mp_main__") or sys.modules["__main__"]
    script = getattr(main, "__file__", None) or "the script"
    sys.stderr.write(f"{script} starts workers whenever it is imported. {describe_guard()}\n")
    with suppress(Exception):
        sys.stderr.flush()
        sys.stdout.flush()
        util._run_finalizers(0)  # type: ignore[attr-defined] # Semaphores that were made for the workers.
    os._exit(MISSING_GUARD)  # Neither the script may go on, nor may a fork server turn this into another exit code.


def _report_not_loaded(file: int | None, trace: str) -> None:
    """What a process does whose work cannot be unpickled."""
    if file is not None:
        os.write(file, trace.encode(errors="replace"))
    sys.stderr.write(trace)
    sys.exit(NOT_LOADED)
