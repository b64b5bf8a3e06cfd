"""CalledProcess: a forked process that calls the functions which are sent to it, one at a time."""

import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, use_one_thread_of_torch

_GRACE_S = 2.0


class CalledProcess:
    """A worker that is forked now. It ends with this process, and by `end`; Ctrl-C is left to this process.

    Args:
        number: of the worker; its row of the metrics, and its file of the output.
        limit_s: how long it may stand still, seconds; while a message is sent or received, longer is a BlockingIOError.
        inherited: ends of other workers' links; open in the forked process, they would keep those links alive.

    Attributes:
        link: `multiprocessing.connection.wait` finds it ready when there is an answer, or the process has ended.
    """

    def __init__(
        self,
        number: int,
        metrics: StageMetrics,
        output: WorkerOutput,
        limit_s: float,
        inherited: "Iterable[Connection[Any, Any]]",
    ) -> None:
        self.link, theirs = _make_link(limit_s)
        self._number, self._metrics, self._limit_s = number, metrics, limit_s
        self._processes = WorkerProcesses("fork", output)
        output.clear(number)
        arguments = number, theirs, [self.link, *inherited], metrics, output
        try:
            self._processes.start(_serve, arguments, {}, is_daemon=False)
        finally:
            theirs.close()
        self.pid = self._processes.pids[0]
        self._last_signs: Any = None
        self._last_sign_at = time.monotonic()

    def send(self, call: bytes) -> None:
        """Send a pickled (function, arguments, keyword arguments); an OSError: the process has ended."""
        self._last_sign_at = time.monotonic()
        self.link.send_bytes(call)

    def receive(self) -> Any:
        """Return what the function returned, or the Failure that it was; an EOFError or OSError: it has ended."""
        return self.link.recv()

    def stands_still(self) -> bool:
        """Whether a call has neither begun nor done a sample, nor read a part of a file, for the limit."""
        number, metrics, now = self._number, self._metrics, time.monotonic()
        signs = (metrics.reading(number), metrics.counts(number), metrics.seconds(number)["read"])
        if signs != self._last_signs:
            self._last_signs, self._last_sign_at = signs, now
        return now - self._last_sign_at >= self._limit_s

    def describe_end(self, describe: Callable[[list[tuple[int, int, int]]], str]) -> str:
        """Return what `describe` says of (worker, pid, exit code) of the process, which has closed its link."""
        dead = self._processes.find_dead({0}, _GRACE_S)
        if not dead:  # It lives on without a link.
            self._processes.end(0.0)
            dead = self._processes.find_dead({0})
        return describe([(self._number, pid, code) for _, pid, code in dead])

    def end(self) -> None:
        """End the process at once."""
        self.link.close()
        self._processes.end(0.0)


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
    """Return where a called function notes the samples that it is at; None: this is no such process."""
    return _metrics


def _serve(
    number: int,
    link: "Connection[Any, Any]",
    inherited: "list[Connection[Any, Any]]",
    metrics: StageMetrics,
    output: WorkerOutput,
) -> None:
    """Worker main."""
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
