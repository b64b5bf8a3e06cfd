"""Workers: forked processes that do a job's tasks, watched: one that fails, dies or hangs is an error in seconds."""

import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

from tfds_torch.errors import ConfigError, ExportError, TfdsTorchError
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.samples import SampleSource
from tfds_torch.runtime.failure import Failure, RemoteTraceback
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.process_tree import process_state
from tfds_torch.runtime.processes import WorkerProcesses, interrupts_held
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, use_one_thread_of_torch

Choice = TypeVar("Choice")
LOOK_S = 0.2
STUCK_S = 300.0
"""How long a worker may take for one sample."""
_GRACE_S = 2.0

Progress = Callable[[int, int], object]
"""Called with the samples that are done, and their number."""

Job = Callable[[Any, StageMetrics], Any]
"""Does a task in a worker; notes in the metrics what it reads, and counts samples. A picklable answer, or None."""


class Workers(AbstractContextManager["Workers"]):
    """Processes for a job. They are forked, and end with the block, with an error, and with this process.

    Ctrl-C is left to this process. One thread may use it; no other thread should hold locks while they are forked.

    Args:
        num_workers: >= 1.
        job: of each worker.
        names: for messages about samples.
        context: the beginning of every message.
        finish: called by each worker when there are no more tasks; returns its last answer, or None.
    """

    def __init__(
        self,
        num_workers: int,
        job: Job,
        names: ErrorContext,
        context: str,
        finish: Callable[[], Any] = lambda: None,
    ) -> None:
        self.metrics, self._output = StageMetrics(num_workers), WorkerOutput(num_workers)
        self._context, self._names = context, names
        self._faults = WorkerFaults(names, self.metrics, self._output, None, False)
        self._processes = WorkerProcesses("fork", self._output)
        self._workers: list[_Worker] = []
        try:
            with interrupts_held("fork"):
                for _ in range(num_workers):
                    self._start(job, finish)
        except BaseException:
            self.end()
            raise

    def run(
        self, tasks: Iterable[Any], num_ahead: int = 1, progress: Progress | None = None, num_samples: int = 0
    ) -> Iterator[Any]:
        """Yields the answers to all tasks, as they come, and then the last one of each worker; no answer is None.

        Args:
            tasks: picklable; each goes to the next worker that is free.
            num_ahead: tasks that a worker is given at a time: 2 where they are small, 1 else.
            progress: called with the samples that are done and their number, when more are done.
            num_samples: of all tasks, for `progress`.

        Raises:
            ConfigError: as raised by the job.
            ExportError: another error of the job, with its traceback; or a worker died, or is stuck.
        """
        left, num_reported = iter(tasks), -1

        def report() -> None:
            nonlocal num_reported
            if progress is not None and self.num_done != num_reported:
                num_reported = self.num_done
                progress(num_reported, num_samples)

        for _ in range(num_ahead):
            for worker in self._workers:
                self._give(worker, left)
        while waiting := [worker for worker in self._workers if not worker.has_finished]:
            sentinels = self._processes.sentinels
            ready = wait([one for worker in waiting for one in (worker.link, sentinels[worker.number])], LOOK_S)
            report()
            for worker in waiting:
                if worker.link in ready:
                    answer = self._receive(worker)
                    if not worker.has_finished:
                        self._give(worker, left)
                    if answer is not None:
                        yield answer
                elif sentinels[worker.number] in ready:
                    raise self._death(worker)
                self._check_is_alive(worker)
        report()

    @property
    def num_done(self) -> int:
        """Samples that all workers have done."""
        return sum(self.metrics.counts(worker.number)[1] for worker in self._workers)

    def end(self) -> None:
        """Ends all of them, at once; may be called twice."""
        for worker in self._workers:
            worker.link.close()
        self._processes.end(0.0)
        self._workers = []
        self._output.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _start(self, job: Job, finish: Callable[[], Any]) -> None:
        ours, theirs = _link()
        number = len(self._workers)
        # The ends of the others, which a forked process inherits, would keep their pipes open.
        inherited = [worker.link for worker in self._workers] + [ours]
        arguments = number, theirs, inherited, job, finish, self.metrics, self._output
        self._processes.start(_serve, arguments, {}, is_daemon=False)
        theirs.close()
        self._workers.append(_Worker(number, ours, time.monotonic()))

    def _give(self, worker: "_Worker", tasks: Iterator[Any]) -> None:
        if worker.has_all_tasks:
            return
        task = next(tasks, None)
        worker.has_all_tasks = task is None
        worker.last_sign_at = time.monotonic()  # Making the task may have taken long.
        try:
            # Not `send`, by which torch's tensors would travel as a file each, and there may be 1,024 files.
            message = pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # Of the user's own classes, any type.
            why = f"{type(error).__name__}: {error}"
            raise ExportError(
                f"{self._context} {self._names.dataset}: its samples cannot be sent to a worker: {why}. Yield arrays, "
                f"numbers, texts and bytes, or give a dataset with [], whose samples are made by the workers. "
                f"{self._names.next_step}"
            ) from error
        try:
            worker.link.send_bytes(message)
        except BlockingIOError:
            raise self._stuck(worker, "has taken no task") from None
        except OSError:
            while True:  # It has ended; before that it may have sent why.
                self._receive(worker)

    def _receive(self, worker: "_Worker") -> Any:
        try:
            what, value = worker.link.recv()
        except BlockingIOError:
            raise self._stuck(worker, "has not ended its answer") from None
        except (EOFError, OSError):
            raise self._death(worker) from None
        if what == "failed":
            raise self._failure(worker, value)
        worker.has_finished = what == "finished"
        return value

    def _failure(self, worker: "_Worker", failure: Failure) -> TfdsTorchError:
        where = f"{self._names.dataset}{self._names.example(self.metrics.reading(worker.number))}"
        raised_in = f"Raised in worker {worker.number} (pid {self._processes.pids[worker.number]}):\n{failure.trace}"
        error = failure.to_error("a worker")
        if isinstance(error, ConfigError):
            error = ConfigError(f"{self._context} {where}: {failure.message} {self._names.next_step}")
        elif isinstance(error, TfdsTorchError) and failure.module == TfdsTorchError.__module__:
            error = ExportError(f"{self._context} {where}: {failure.message} {self._names.next_step}")
        else:
            reason = ": ".join(filter(None, (failure.name, failure.message.rstrip())))
            reason += "" if reason.endswith((".", "!", "?")) else "."
            return ExportError(f"{self._context} {where}: {reason} {self._names.next_step}\n\n{raised_in}")
        error.__cause__ = RemoteTraceback(raised_in)
        return error

    def _death(self, worker: "_Worker") -> ExportError:
        dead = self._processes.find_dead({worker.number}, _GRACE_S)
        if not dead:  # It has closed its link, and lives on.
            self._processes.end(0.0)
            dead = self._processes.find_dead({worker.number})
        return ExportError(f"{self._context} {self._faults.describe_deaths(dead)}")

    def _check_is_alive(self, worker: "_Worker") -> None:
        """Raises the error of a worker that neither finishes samples nor reads shards again."""
        metrics, number = self.metrics, worker.number
        signs = (metrics.reading(number), metrics.counts(number), metrics.seconds(number)["read"])
        now = time.monotonic()
        if signs != worker.last_signs or worker.has_finished:
            worker.last_signs, worker.last_sign_at = signs, now
        if now - worker.last_sign_at >= STUCK_S:
            reading = f"{self._names.dataset}{self._names.example(self.metrics.reading(worker.number))}"
            raise self._stuck(worker, f"has been at {reading}")

    def _stuck(self, worker: "_Worker", what: str) -> ExportError:
        pid = self._processes.pids[worker.number]
        letter, state = process_state(pid)
        stack = None if letter in "Tt" else self._output.ask_for_stack(worker.number, pid)
        return ExportError(
            f"{self._context} Worker {worker.number} (pid {pid}) is {state} ({letter}), and {what} for {STUCK_S:g} s. "
            f"{self._names.next_step}" + (f" Its stacks:\n{stack}" if stack else "")
        )


def choose_by_first(
    samples: SampleSource,
    order: SampleOrder,
    fields: Sequence[str] | None,
    choose: Callable[[Any], Choice],
    names: ErrorContext,
    context: str,
) -> Choice:
    """Returns what `choose` returns for the first sample's value (None: there is none), read and chosen in a worker.

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

    with Workers(1, act, names, context) as workers:
        choice: Choice | ConfigError = next(workers.run([order.number_at(0) if len(order) else 0]))
    if isinstance(choice, ConfigError):
        raise choice
    return choice


@dataclass
class _Worker:
    """One process, as this one sees it, and what it had noted (last_signs) when it last did something (monotonic s)."""

    number: int
    link: "Connection[Any, Any]"
    last_sign_at: float
    last_signs: Any = None
    has_all_tasks: bool = False
    has_finished: bool = False


def _link() -> "tuple[Connection[Any, Any], Connection[Any, Any]]":
    """Returns two ends; at the first one, an other side that stands still for `STUCK_S` is a BlockingIOError."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(None)  # The user may have set another default, which would be taken for a worker's death.
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(STUCK_S), int(STUCK_S % 1 * 1e6)))
    return Connection(ours.detach()), Connection(theirs.detach())


def _serve(
    number: int,
    link: "Connection[Any, Any]",
    inherited: list["Connection[Any, Any]"],
    job: Job,
    finish: Callable[[], Any],
    metrics: StageMetrics,
    output: WorkerOutput,
) -> None:
    """Worker main."""
    init_worker(number, metrics, output, None)
    for other in inherited:
        other.close()
    use_one_thread_of_torch()
    try:
        _work(link, job, finish, metrics)
    except OSError:  # Of the link: the exporting process is gone.
        os._exit(1)


def _work(link: "Connection[Any, Any]", job: Job, finish: Callable[[], Any], metrics: StageMetrics) -> None:
    """Worker main loop, until there are no more tasks; raises OSError where the link breaks."""
    is_done = False
    while not is_done:
        try:
            task = link.recv()
        except EOFError:
            return
        is_done = task is None
        try:
            answer = ("finished", finish()) if is_done else ("done", job(task, metrics))
        except Exception as error:
            answer, is_done = ("failed", Failure.of(error)), True
        link.send(answer)
