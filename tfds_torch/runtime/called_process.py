"""CalledProcess: a forked process that calls the functions which are sent to it, one at a time."""

import os
import pickle
import socket
import struct
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.process_tree import process_state
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.worker_faults import WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, use_one_thread_of_torch

_GRACE_S = 2.0
NONE_YET = object()
"""Stands for an answer that has not come."""


class CalledProcess:
    """A worker that is forked now. It ends with this process, and by `end`; Ctrl-C is left to this process.

    Args:
        number: number of the worker, which is its row of the metrics and its file of the output.
        faults: describes faults of the worker in messages; has the worker's metrics and output.
        limit_s: how long it may take for one sample, or stand still while a message is sent, seconds.
        inherited: ends of other workers' links; open in the forked process, they would keep those links alive.

    Attributes:
        link: `multiprocessing.connection.wait` finds it ready when there is an answer, or the process has ended.
    """

    def __init__(
        self, number: int, faults: WorkerFaults, limit_s: float, inherited: "Iterable[Connection[Any, Any]]"
    ) -> None:
        self.link, theirs = _make_link(limit_s)
        self._number, self._faults, self._limit_s = number, faults, limit_s
        self._processes = WorkerProcesses("fork", faults.output)
        faults.output.clear(number)
        arguments = number, theirs, [self.link, *inherited], faults.metrics, faults.output
        try:
            self._processes.start(_serve, arguments, {}, is_daemon=False)
        finally:
            theirs.close()
        self.pid = self._processes.pids[0]
        self._last_signs: Any = None
        self._last_sign_at = time.monotonic()

    def call(self, call: bytes) -> object:
        """Send a pickled (function, arguments, keywords); return NONE_YET, or raise WorkerError where it is stuck."""
        self._last_sign_at = time.monotonic()
        try:
            self.link.send_bytes(call)
        except BlockingIOError:
            raise self._stuck("has taken no task") from None
        except OSError:  # It has ended, as its answer will say.
            pass
        return NONE_YET

    def answer(self, is_ready: bool) -> Any:
        """Return the result of the function, or its Failure; NONE_YET: it is still at work.

        Args:
            is_ready: whether the link is ready.

        Raises:
            WorkerError: the process died, or has been at one sample for too long: with its number, pid, signal, sample,
                and its last output or its stacks.
        """
        if not is_ready:
            if self._stands_still():
                reading = self._faults.names.example(self._faults.metrics.reading(self._number))
                raise self._stuck(f"has been at {self._faults.names.dataset}{reading}")
            return NONE_YET
        try:
            return self.link.recv()
        except BlockingIOError:
            raise self._stuck("has not ended its answer") from None
        except (EOFError, OSError):
            raise self._death() from None

    def end(self) -> None:
        """End the process at once."""
        self.link.close()
        self._processes.end(0.0)

    def _stands_still(self) -> bool:
        """Return whether it has neither begun nor done a sample, nor read a part of a file, for the limit."""
        number, metrics, now = self._number, self._faults.metrics, time.monotonic()
        signs = (metrics.reading(number), metrics.counts(number), metrics.seconds(number)["read"])
        if signs != self._last_signs:
            self._last_signs, self._last_sign_at = signs, now
        return now - self._last_sign_at >= self._limit_s

    def _death(self) -> WorkerError:
        dead = self._processes.find_dead({0}, _GRACE_S)
        if not dead:  # It lives on without a link.
            self._processes.end(0.0)
            dead = self._processes.find_dead({0})
        return WorkerError(self._faults.describe_deaths([(self._number, pid, code) for _, pid, code in dead]))

    def _stuck(self, what: str) -> WorkerError:
        letter, state = process_state(self.pid)
        stack = None if letter in "Tt" else self._faults.output.ask_for_stack(self._number, self.pid)
        said = f"Worker {self._number} (pid {self.pid}) is {state} ({letter}), and {what} for {self._limit_s:g} s."
        return WorkerError(f"{said} {self._faults.names.next_step}" + (f" Its stacks:\n{stack}" if stack else ""))


def _make_link(limit_s: float) -> "tuple[Connection[Any, Any], Connection[Any, Any]]":
    """Return two ends; at the first one, an other side that stands still for the limit is a BlockingIOError."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(None)  # The user may have set another default, which would be taken for a worker's death.
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(limit_s), int(limit_s % 1 * 1e6)))
    return Connection(ours.detach()), Connection(theirs.detach())


_metrics: StageMetrics | None = None


def called_metrics() -> StageMetrics | None:
    """Return the metrics in which a called function notes its samples; None: this is not such a process."""
    return _metrics


def _serve(
    number: int,
    link: "Connection[Any, Any]",
    inherited: "list[Connection[Any, Any]]",
    metrics: StageMetrics,
    output: WorkerOutput,
) -> None:
    """Run the worker."""
    global _metrics
    init_worker(number, metrics, output, None)
    for other in inherited:
        other.close()
    use_one_thread_of_torch()
    _metrics = metrics
    try:
        while True:
            call = link.recv_bytes()
            try:
                function, args, kwargs = pickle.loads(call)  # noqa: S301 (from our own parent)
                answer = pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                answer = pickle.dumps(Failure.of(error))
            link.send_bytes(answer)
    except EOFError:
        return
    except OSError:  # Of the link: the parent is gone.
        os._exit(1)
