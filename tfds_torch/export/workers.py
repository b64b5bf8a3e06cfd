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
from typing import Any

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.called_process import NONE_YET, CalledProcess
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.processes import close_at_exit, interrupts_held
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput

_Task = tuple["Future[Any]", bytes, int | None]  # The call, pickled, and the worker that has to do it; None: any.
LOOK_S, STUCK_S = 0.2, 300.0
"""How often workers are looked at, and how long one may take for one sample."""


class LocalExecutor(Executor):
    """An Executor of forked processes: objects of this process need not be pickled.

    A worker that raises, dies or hangs fails its own task, and another process takes its place. All end with this
    process (also by SIGKILL), at shutdown, and at once where an error or Ctrl-C leaves the `with` block. Threads may
    share it; it is made where no other thread holds locks.

    Args:
        num_workers: >= 1.
        names: for messages: of the dataset, and of its samples by the numbers that tasks note in `called_metrics()`.
    """

    def __init__(self, num_workers: int, names: ErrorContext | None = None) -> None:
        metrics, output, self._owner = StageMetrics(num_workers), WorkerOutput(num_workers), os.getpid()
        self._faults = WorkerFaults(names or ErrorContext("its task", ""), metrics, output, None, False)
        self._processes: list[CalledProcess | None] = [None] * num_workers
        self._running, self._waiting = dict[int, "Future[Any]"](), deque[_Task]()
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
        return sum(self._faults.metrics.counts(worker)[1] for worker in range(len(self._processes)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Have a worker call a picklable function; an argument that cannot be pickled raises here."""
        return self._submit(None, (fn, args, kwargs))

    def submit_to_each(self, fn: Callable[..., Any], /, *args: Any) -> "list[Future[Any]]":
        """Have every worker call a function once."""
        return [self._submit(worker, (fn, args, {})) for worker in range(len(self._processes))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and end the workers when theirs are done; `cancel_futures`: cancel those not begun."""
        with self._lock:
            self._is_closing = True
            while self._waiting and cancel_futures:
                (future, _, _) = self._waiting.popleft()
                future.cancel()
                future.set_running_or_notify_cancel()  # Without it, nobody who waits would hear of it.
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
        task: _Task = (Future(), pickle.dumps(call, pickle.HIGHEST_PROTOCOL), worker)
        with self._lock:
            if self._is_closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(task)
        self._wake.send_bytes(b"1")  # Without the lock: it waits where the pipe is full.
        return task[0]

    def _manage(self) -> None:
        """Give tasks, take answers and watch the workers, until it is closed and all is done."""
        error: BaseException = WorkerError("The workers were ended before their task was done.")
        try:
            while self._give() or not self._is_closing:
                ready = wait([self._woken, *(one.link for one in filter(None, self._processes))], LOOK_S)
                while self._woken.poll():
                    self._woken.recv_bytes()
                for worker, process in enumerate(self._processes):
                    if process is not None and (process.link in ready or worker in self._running):
                        self._do(worker, process.answer, process.link in ready)
        except BaseException as other:  # Like a fork that fails: whoever waits for a result gets it.
            error = other
        self._end(error)

    def _give(self) -> bool:
        """Give tasks to the workers that have none; return whether any has one."""
        for worker in range(len(self._processes)):
            while worker not in self._running and not self._is_killed:
                with self._lock:
                    task = next((one for one in self._waiting if one[2] in (None, worker)), None)
                    if task is None:
                        break
                    self._waiting.remove(task)
                future, call, _ = task
                if future.set_running_or_notify_cancel():
                    self._running[worker] = future
                    self._do(worker, (self._processes[worker] or self._start(worker)).call, call)
        return bool(self._running) and not self._is_killed

    def _do(self, worker: int, act: Callable[[Any], Any], argument: Any) -> None:
        """Call a process, or take its answer; where it is lost, its task fails, and the next one starts another."""
        try:
            answer = act(argument)
        except WorkerError as error:
            self._end_process(worker)
            answer = error
        future = None if answer is NONE_YET else self._running.pop(worker, None)
        if future is not None and isinstance(answer, Failure | WorkerError):
            future.set_exception(answer.to_error(f"worker {worker}") if isinstance(answer, Failure) else answer)
        elif future is not None:
            future.set_result(answer)

    def _start(self, worker: int) -> CalledProcess:
        links = [self._woken, self._wake, *(one.link for one in filter(None, self._processes))]
        with self._lock, interrupts_held("fork"):
            self._processes[worker] = process = CalledProcess(worker, self._faults, STUCK_S, links)
        return process

    def _end_process(self, worker: int) -> None:
        with self._lock:
            process, self._processes[worker] = self._processes[worker], None
        if process is not None:
            process.end()

    def _end(self, error: BaseException) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        for worker in range(len(self._processes)):
            self._end_process(worker)
            if future := self._running.pop(worker, None):
                future.set_exception(error)
        self._faults.output.close()
