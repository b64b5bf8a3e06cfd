"""Jobs: the work of an export's workers, here or on other machines; each worker gets the large parts of a job once.

A task is a few bytes: the reference of a job, and the job's argument. Forked workers inherit the job. Those of
another Executor load it from a file, `JobFile`, once for a process: its digest is the reference.
"""

import hashlib
import importlib.util
import os
import pickle
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tfds_torch import __version__
from tfds_torch.errors import ConfigError, ExportError, TfdsTorchError
from tfds_torch.export.folder import write_for_good
from tfds_torch.export.samples import SampleOrder, SampleSource
from tfds_torch.export.workers import LOOK_S, LocalExecutor
from tfds_torch.runtime.called_process import called_metrics
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_faults import ErrorContext

Choice = TypeVar("Choice")
Progress = Callable[[int, int], object]
"""Called with the samples that are done, and their number."""

Act = Callable[[Any, StageMetrics], Any]
"""Do a task in a worker; note in the metrics the sample that is read, and count samples."""


@dataclass(frozen=True)
class ExampleNames(ErrorContext):
    """Names of an export's samples, for messages."""

    def example(self, index: int | None) -> str:
        """Return a sample's name, as the rest of a sentence."""
        if index is None or self.find_id is None:
            return ""
        with suppress(Exception):  # A message about a fault must not fail.
            return f", {self.find_id(index)}"
        return f", sample {index}"


@dataclass(frozen=True)
class Job:
    """The work that workers do for each task, and the names of the samples for messages about it.

    Attributes:
        is_one_threaded: whether threads of one process have to take turns.
    """

    act: Act
    names: ExampleNames
    is_one_threaded: bool = False


class JobReference(NamedTuple):
    """How a worker finds its job. Plain texts: they travel between versions.

    Attributes:
        key: of the job where it is inherited; else the digest of the file's content.
        path: of the job's file; None: it is inherited.
        versions: versions that must be equal where the job was pickled and where it is loaded.
    """

    key: str
    path: str | None = None
    versions: str = ""


_inherited: dict[str, Job] = {}
_loaded: dict[str, Job] = {}  # One.
_loading, _one_thread = threading.Lock(), threading.Lock()


class Workers:
    """An Executor and the job that its workers do.

    Args:
        executor: of workers that inherit the job, or that can read its file.
        limit: tasks that are submitted before another one is done.
        names: of the samples.
        context: the beginning of every message.
    """

    def __init__(self, executor: Executor, job: JobReference, limit: int, names: ExampleNames, context: str) -> None:
        self.executor, self._job, self._limit, self._names, self._context = executor, job, limit, names, context

    def outcomes(
        self, tasks: Iterable[Any], report: Callable[[], object] = lambda: None
    ) -> "Iterator[tuple[Any, Future[Any]]]":
        """Yield tasks, picklable, with their futures as they are done; cancel those not begun where the loop is left.

        `report` is called now and then.
        """
        waiting: dict[Future[Any], Any] = {}
        left = iter(tasks)
        try:
            while True:
                while len(waiting) < self._limit and (task := next(left, None)) is not None:
                    waiting[self._submit(task)] = task
                if not waiting:
                    return
                done = wait(waiting, LOOK_S, FIRST_COMPLETED).done
                report()
                for future in done:
                    yield waiting.pop(future), future
        finally:
            for future in waiting:
                future.cancel()

    def results(self, tasks: Iterable[Any], report: Callable[[], object] = lambda: None) -> Iterator[Any]:
        """Yield the results of tasks as they come; the first error ends all, with the context before its message."""
        for _, future in self.outcomes(tasks, report):
            yield self._result(future)

    def of_each(self, task: Any) -> Iterator[Any]:
        """Yield the result of a task from each local worker; errors are as of `results`."""
        assert isinstance(self.executor, LocalExecutor)  # noqa: S101 (others do not know their workers)
        for future in self.executor.submit_to_each(do_task, *self._job, task):
            wait([future])
            yield self._result(future)

    def _result(self, future: "Future[Any]") -> Any:
        if (error := error_of(future)) is not None:
            raise in_context(self._context, error)
        return future.result()

    def _submit(self, task: Any) -> "Future[Any]":
        try:
            return self.executor.submit(do_task, *self._job, task)
        except TfdsTorchError:
            raise
        except (BrokenExecutor, RuntimeError) as error:
            raise ExportError(
                f"{self._context} The executor takes no tasks ({type(error).__name__}: {error}): give one that is not "
                f"shut down. {self._names.next_step}"
            ) from error
        except Exception as error:  # Of the user's own classes, any type.
            why = f"{type(error).__name__}: {error}"
            raise ExportError(
                f"{self._context} {self._names.dataset}: its samples cannot be sent to a worker: {why}. Yield arrays, "
                f"numbers, texts and bytes, or give a dataset with [], whose samples are made by the workers. "
                f"{self._names.next_step}"
            ) from error


@contextmanager
def local_workers(num_workers: int, job: Job, context: str, num_ahead: int = 1) -> Iterator[Workers]:
    """Fork workers for a job; `num_ahead` tasks of each are submitted at a time."""
    key = secrets.token_hex(8)
    _inherited[key] = job
    try:
        with LocalExecutor(num_workers, job.names) as executor:
            yield Workers(executor, JobReference(key), num_workers * num_ahead, job.names, context)
    finally:
        del _inherited[key]


@contextmanager
def job_file(beside: str, job: Job) -> Iterator[JobReference]:
    """Write a job to a file as long as the block takes, for workers on any machine; its name begins as told.

    Raises:
        ConfigError: it cannot be pickled.
    """
    content = _pickle(job)
    digest = _digest(content)
    path = Path(f"{beside}-{digest[:16]}.job")
    write_for_good(path, content, f"{path.name}.")
    try:
        yield JobReference(digest, str(path), _versions())
    finally:
        path.unlink(missing_ok=True)  # Workers that are left begin no task any more.


def error_of(future: "Future[Any]") -> BaseException | None:
    """Return the error of a future that is done; an ExportError where somebody has cancelled it."""
    return ExportError("The executor has cancelled the task.") if future.cancelled() else future.exception()


def reporter(progress: Progress | None, count: Callable[[], int], total: int) -> Callable[[], None]:
    """Return a function that calls `progress` where more samples are done than at its call before."""
    reported = -1

    def report() -> None:
        nonlocal reported
        if progress is not None and (now := count()) > reported:
            reported = now
            progress(now, total)

    return report


def in_context(context: str, error: BaseException) -> TfdsTorchError:
    """Return a task's error with the beginning of its message."""
    text = str(error) if isinstance(error, TfdsTorchError) else f"{type(error).__name__}: {error}"
    found = (ConfigError if isinstance(error, ConfigError) else ExportError)(f"{context} {text}")
    found.__cause__ = error
    return found


def choose_by_first(
    samples: SampleSource,
    order: SampleOrder,
    fields: Sequence[str] | None,
    choose: Callable[[Any], Choice],
    names: ExampleNames,
    context: str,
) -> Choice:
    """Return the result of `choose` for the first sample's value (None: there is none), from a worker.

    Files and threads that the sample needs are then inherited by no other worker. `fields` are read, or all (None).
    """

    def act(number: int, metrics: StageMetrics) -> Choice | ConfigError:
        value = None
        if len(order):
            metrics.note_reading(number)
            first = samples.first(number, fields)
            value = None if first is None else first.value
        try:
            return choose(value)
        except ConfigError as error:  # It is about all samples, and not about this one.
            return ConfigError(str(error))

    with local_workers(1, Job(act, names), context) as workers:
        (choice,) = workers.results([order.number_at(0) if len(order) else 0])
    if isinstance(choice, ConfigError):
        raise choice
    return choice  # type: ignore[no-any-return]


# The workers' side


def do_task(key: str, path: str | None, versions: str, task: Any) -> Any:
    """Do a task of a job in a worker; the first arguments are a JobReference's.

    Raises:
        ConfigError: as raised by the job, with the sample.
        ExportError: any other error of the job, with the sample and the traceback; or the job is not for this process.
    """
    job = _inherited[key] if path is None else _load(key, path, versions)
    metrics = (called_metrics() if path is None else None) or StageMetrics(0)
    try:
        with _one_thread if job.is_one_threaded else nullcontext():
            return job.act(task, metrics)
    except Exception as error:
        raise _with_sample(error, job.names, metrics, path is None) from error


def _with_sample(error: Exception, names: ExampleNames, metrics: StageMetrics, is_here: bool) -> TfdsTorchError:
    where = f"{names.dataset}{names.example(metrics.reading())}"
    if isinstance(error, TfdsTorchError):
        kind = ConfigError if isinstance(error, ConfigError) else ExportError
        return kind(f"{where}: {error} {names.next_step}")
    failure = Failure.of(error)
    reason = ": ".join(filter(None, (failure.name, failure.message.rstrip())))
    reason += "" if reason.endswith((".", "!", "?")) else "."
    process = f"pid {os.getpid()}" if is_here else f"pid {os.getpid()} on {socket.gethostname()}"
    return ExportError(f"{where}: {reason} {names.next_step}\n\nRaised in a worker ({process}):\n{failure.trace}")


def _load(key: str, path: str, versions: str) -> Job:
    """Return the job in a file, loaded by this process's first task of it."""
    host = socket.gethostname()
    if versions != _versions():
        raise ExportError(f"{host} has {_versions()}, and this export is of {versions}: install the same everywhere.")
    with _loading:
        try:
            content = b"" if key in _loaded and Path(path).exists() else Path(path).read_bytes()
        except OSError as error:
            raise ExportError(
                f"{path} cannot be read on {host} ({error.strerror}): mount the folder of the export on every worker, "
                f"at the same path. Or the export was ended meanwhile."
            ) from error
        if key not in _loaded:
            if _digest(content) != key:
                raise ExportError(f"{path} is not what this export wrote there, and is not loaded on {host}.")
            _loaded.clear()
            _loaded[key] = pickle.loads(content)  # noqa: S301 (its digest came with the task)
        return _loaded[key]


def _versions() -> str:
    return f"tfds_torch {__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _pickle(job: Job) -> bytes:
    # Dask and Ray bring it: it also pickles what the user's script defines.
    found = importlib.util.find_spec("cloudpickle")
    package: Any = pickle if found is None else importlib.import_module("cloudpickle")
    try:
        return bytes(package.dumps(job))
    except Exception as error:  # Of the user's own classes, any type.
        raise ConfigError(
            f"The dataset cannot be sent to the executor's workers ({type(error).__name__}: {error}): keep open files, "
            f"locks and connections out of it, or leave executor out."
        ) from error
