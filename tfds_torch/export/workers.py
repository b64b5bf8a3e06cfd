"""LocalExecutor: forked processes as an Executor, each watched: one that dies or hangs fails its own task only."""

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import Any, NamedTuple, TypeVar

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.called_process import CalledProcess
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.process_tree import process_state
from tfds_torch.runtime.processes import close_at_exit, interrupts_held
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput

T = TypeVar("T")
LOOK_S = 0.2
STUCK_S = 300.0
"""How long a worker may take for one sample."""


class _Task(NamedTuple):
    future: "Future[Any]"
    call: bytes
    worker: int | None


class LocalExecutor(Executor):
    """An Executor of forked processes: what this one holds need not be pickled.

    A worker that raises, dies or hangs fails its own task, and another process takes its place. All end with this
    process (also by SIGKILL), at shutdown, and at once where an error or Ctrl-C leaves the `with` block. Threads may
    share it; it is made where no other thread holds locks.

    Args:
        num_workers: >= 1.
        names: for messages: of the dataset, and of its samples by the numbers that tasks note in `called_metrics()`.
    """

    def __init__(self, num_workers: int, names: ErrorContext | None = None) -> None:
        self._names, self._owner = names or ErrorContext("its task", ""), os.getpid()
        self._metrics, self._output = StageMetrics(num_workers), WorkerOutput(num_workers)
        self._faults = WorkerFaults(self._names, self._metrics, self._output, None, False)
        self._processes: list[CalledProcess | None] = [None] * num_workers
        self._running: dict[int, _Task] = {}
        self._waiting = deque[_Task]()
        self._lock, self._is_closing, self._is_killed = threading.RLock(), False, False
        self._woken, self._wake = Pipe(duplex=False)
        self._manager = threading.Thread(target=self._manage, name="tfds_torch executor", daemon=True)
        with interrupts_held("fork"):  # Signals are left to this thread, also while it waits for the other one.
            try:
                for worker in range(num_workers):
                    self._start(worker)
                self._manager.start()
            except BaseException as error:
                self._end(error)
                raise
        close_at_exit(self)

    @property
    def num_done(self) -> int:
        """Samples that all workers have done."""
        return sum(self._metrics.counts(worker)[1] for worker in range(len(self._processes)))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Have a worker call a picklable function; what cannot be pickled raises here."""
        return self._submit(None, (fn, args, kwargs))

    def submit_to_each(self, fn: Callable[..., T], /, *args: Any) -> "list[Future[T]]":
        """Have every worker call a function once."""
        return [self._submit(worker, (fn, args, {})) for worker in range(len(self._processes))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and end the workers when theirs are done; `cancel_futures`: cancel those not begun."""
        with self._lock:
            self._is_closing = True
            if cancel_futures:
                self._drop_waiting()
        self._wake.send_bytes(b"1")
        if wait:
            self._manager.join()

    def close(self) -> None:
        """End all workers by SIGKILL and fail their tasks, at once; may be called twice."""
        if os.getpid() != self._owner:  # They are not this process's, which was forked.
            return
        with self._lock:
            self._is_killed = True
            for process in filter(None, self._processes):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        self.shutdown(cancel_futures=True)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown() if kind is None else self.close()

    def _submit(self, worker: int | None, call: Any) -> "Future[Any]":
        # Not `Connection.send`, by which torch's tensors would travel as a file each, and there may be 1,024 files.
        task = _Task(Future(), pickle.dumps(call, pickle.HIGHEST_PROTOCOL), worker)
        with self._lock:
            if self._is_closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(task)
        self._wake.send_bytes(b"1")  # Without the lock: it waits where the pipe is full.
        return task.future

    def _manage(self) -> None:
        """Give tasks, take answers and watch the workers, until it is closed and all is done."""
        error: BaseException = WorkerError("The workers were ended before their task was done.")
        try:
            while self._give() or not self._is_closing:
                ready = wait([self._woken, *(one.link for one in self._processes if one is not None)], LOOK_S)
                while self._woken.poll():
                    self._woken.recv_bytes()
                for worker, process in enumerate(self._processes):
                    if process is not None and process.link in ready:
                        self._receive(worker, process)
                    elif process is not None and worker in self._running and process.stands_still():
                        self._lose(worker, self._stuck(worker, process))
        except BaseException as other:  # Such as a fork that fails: whoever waits for a result gets it.
            error = other
        self._end(error)

    def _give(self) -> bool:
        """Give tasks to the workers that have none; return whether any has one."""
        for worker in range(len(self._processes)):
            while worker not in self._running and not self._is_killed:
                with self._lock:
                    task = next((one for one in self._waiting if one.worker in (None, worker)), None)
                    if task is None:
                        break
                    self._waiting.remove(task)
                if task.future.set_running_or_notify_cancel():
                    self._running[worker] = task
                    process = self._processes[worker] or self._start(worker)
                    try:
                        process.send(task.call)
                    except BlockingIOError:
                        self._lose(worker, self._stuck(worker, process, "has taken no task"))
                    except OSError:
                        self._receive(worker, process)  # It has ended; before that it may have sent why.
        return bool(self._running) and not self._is_killed

    def _start(self, worker: int) -> CalledProcess:
        links = [one.link for one in self._processes if one is not None]
        with self._lock, interrupts_held("fork"):
            process = CalledProcess(worker, self._metrics, self._output, STUCK_S, [*links, self._woken, self._wake])
            self._processes[worker] = process
        return process

    def _receive(self, worker: int, process: CalledProcess) -> None:
        try:
            answer = process.receive()
        except BlockingIOError:
            self._lose(worker, self._stuck(worker, process, "has not ended its answer"))
        except (EOFError, OSError):
            self._lose(worker, process.describe_end(self._faults.describe_deaths))
        else:
            task = self._running.pop(worker)
            if isinstance(answer, Failure):
                task.future.set_exception(answer.to_error(f"worker {worker} (pid {process.pid})"))
            else:
                task.future.set_result(answer)

    def _stuck(self, worker: int, process: CalledProcess, what: str = "") -> str:
        letter, state = process_state(process.pid)
        stack = None if letter in "Tt" else self._output.ask_for_stack(worker, process.pid)
        what = what or f"has been at {self._names.dataset}{self._names.example(self._metrics.reading(worker))}"
        said = f"Worker {worker} (pid {process.pid}) is {state} ({letter}), and {what} for {STUCK_S:g} s."
        return f"{said} {self._names.next_step}" + (f" Its stacks:\n{stack}" if stack else "")

    def _lose(self, worker: int, why: str) -> None:
        """End a worker's process and fail its task, if it has one; the next task starts another process."""
        with self._lock:
            process, self._processes[worker] = self._processes[worker], None
            if process is not None:
                process.end()
        if task := self._running.pop(worker, None):
            task.future.set_exception(WorkerError(why))

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._is_closing = True
            self._drop_waiting()
            for process in filter(None, self._processes):
                process.end()
        for task in self._running.values():
            task.future.set_exception(error)
        self._output.close()

    def _drop_waiting(self) -> None:
        while self._waiting:
            future = self._waiting.popleft().future
            future.cancel()
            future.set_running_or_notify_cancel()  # Without it, nobody who waits would hear of it.
