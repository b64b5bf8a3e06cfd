"""WorkerPool: the processes of a MultiLoader, how they are started, told what to do, watched and ended."""

import os
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.transport import Transport
from tfds_torch.loaders.wire import MalformedMessage
from tfds_torch.loaders.worker import BEGIN, END, MORE, ORDER, PoolContext, work
from tfds_torch.runtime.spawned_process import with_reports
from tfds_torch.runtime.worker_start import interrupts_held

GRACE_S = 1.0
"""Seconds that workers have to end by themselves."""


def find_start_method(asked: str | None) -> tuple[str, str]:
    """Returns how workers start, and why so.

    A forked worker begins at once, and needs no source that can be pickled. It gets locks but not the threads that
    hold them, which JAX's runtime does not survive.
    """
    if asked is not None:
        return asked, f"start_method={asked!r} was asked for."
    if not sys.platform.startswith("linux"):
        return "spawn", "On this system, processes must not be forked."
    if "jax" in sys.modules:
        return "forkserver", "JAX has been imported, whose threads a fork would lose."
    return "fork", "On Linux, workers are forked."


class WorkerPool:
    """The workers of one loader, for one iteration after the other.

    Args:
        context: what the processes share.
        transport: what carries the items.
        method: how they start.

    Raises:
        ConfigError: the source cannot be pickled, and the method needs that.
    """

    def __init__(self, context: PoolContext, transport: Transport, method: str) -> None:
        self.context, self.transport, self.method = context, transport, method
        self.num_workers = context.metrics.num_workers
        self.num_begun = 0
        self._owner = os.getpid()
        self._processes: list[Any] = []
        self._orders: list[Connection] = []
        self._start_context = with_reports(get_context(method), context.output, self.num_workers)
        self.is_open = True
        try:
            with interrupts_held(method):
                for worker in range(self.num_workers):
                    self._start(worker)
        except BaseException as error:
            self.end(0.0)
            if method != "fork" and isinstance(error, Exception):
                _refuse_unpicklable(context, method, error)
            raise

    def _start(self, worker: int) -> None:
        start = self._start_context
        theirs, ours = start.Pipe(duplex=False)
        self._orders.append(ours)
        outlet = self.transport.outlet(worker, start)
        arguments = self.context, worker, theirs, outlet
        process = start.Process(target=work, args=arguments, name=f"tfds_torch worker {worker}", daemon=True)  # type: ignore[attr-defined]
        process.start()
        self._processes.append(process)
        theirs.close()
        self.transport.note_started(worker)
        with suppress(OSError):  # It is dead already, which is found where its items are waited for.
            ours.send_bytes(self.transport.key(worker))

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return [process.pid for process in self._processes]

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it was not ended, all workers live, and this is no forked process."""
        return self.is_open and os.getpid() == self._owner and not self.find_dead(set(range(self.num_workers)))

    def begin(self, epoch: int, start_batch: int, num_allowed: int) -> int:
        """Begins an iteration in all workers; returns its number.

        Args:
            epoch: which one.
            start_batch: the rank's batch at which it begins.
            num_allowed: items that each worker may send.
        """
        number, self.num_begun = self.num_begun, self.num_begun + 1
        for worker in range(self.num_workers):
            self._drop_what_came(worker)
            self._order(worker, BEGIN, number, epoch, start_batch, num_allowed)
        return number

    def allow_more(self, worker: int, iteration: int) -> None:
        """Lets a worker send one more item of an iteration."""
        self._order(worker, MORE, iteration, 1, 0, 0)

    def _order(self, worker: int, *numbers: int) -> None:
        with suppress(OSError):  # As above.
            os.write(self._orders[worker].fileno(), ORDER.pack(*numbers))  # A pipe takes so few bytes whole.

    def _drop_what_came(self, worker: int) -> None:
        """Takes what a worker has sent in an iteration that was broken off before its turn; it blocks otherwise."""
        with suppress(EOFError, MalformedMessage):  # Who ended or does not keep to the protocol is found when awaited.
            while self.transport.receive(worker) is not None:
                pass

    def find_dead(self, workers: set[int], wait_s: float = 0.0) -> list[tuple[int, int, int]]:
        """Returns (worker, pid, exit code) of those that have ended.

        Args:
            workers: which ones to look at.
            wait_s: how long to wait for the first of them.
        """
        processes = [(worker, self._processes[worker]) for worker in sorted(workers)] if self.is_open else []
        if wait_s:
            ending = wait([process.sentinel for _, process in processes], wait_s)
            for _, process in processes:
                if process.sentinel in ending:
                    process.join(wait_s)  # Its files are closed a moment before it has ended.
        return [
            (worker, process.pid, process.exitcode) for worker, process in processes if process.exitcode is not None
        ]

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers: those that are idle by themselves, the others by SIGKILL.

        Args:
            grace_s: how long to wait for the first, seconds.
        """
        if not self.is_open:
            return
        self.is_open = False
        if os.getpid() != self._owner:
            return
        for worker, orders in enumerate(self._orders):
            self._order(worker, END, 0, 0, 0, 0)  # Its pipe alone would not tell: workers forked later hold it open.
            orders.close()
        ends_at, waiting = time.monotonic() + grace_s, {process.sentinel for process in self._processes}
        while waiting and (left_s := ends_at - time.monotonic()) > 0:
            waiting -= set(wait(list(waiting), left_s))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        self.transport.close()
        self.context.output.close()


def _refuse_unpicklable(context: PoolContext, method: str, error: Exception) -> None:
    """Raises ConfigError where the source of a pool is what cannot be handed to its workers."""
    try:
        ForkingPickler.dumps(context.share)
    except Exception as reason:
        raise ConfigError(
            f"MultiLoader: the source {context.share.name} cannot be pickled ({type(reason).__name__}: {reason}), and "
            f"workers that are started by {method!r} get it pickled. Use what a module defines, not a lambda, a "
            f"function within a function, or an open file; or start_method='fork'."
        ) from error
