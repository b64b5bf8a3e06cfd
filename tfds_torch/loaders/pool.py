"""WorkerPool: the processes of a MultiLoader, how they are started, told what to do, watched and ended."""

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from tfds_torch.loaders.transport import Transport
from tfds_torch.loaders.wire import MalformedMessage
from tfds_torch.loaders.worker import BEGIN, END, MORE, ORDER, PoolContext, work
from tfds_torch.runtime.processes import WorkerProcesses, interrupts_held

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
        self._processes = WorkerProcesses(method, context.output, self.num_workers)
        self._orders: list[Connection] = []
        self.is_open = True
        try:
            with interrupts_held(method):
                for worker in range(self.num_workers):
                    self._start(worker)
        except BaseException:
            self.end(0.0)
            raise

    def _start(self, worker: int) -> None:
        theirs, ours = self._processes.context.Pipe(duplex=False)
        self._orders.append(ours)
        outlet = self.transport.outlet(worker, self._processes.context)
        inputs = {f"MultiLoader: {name}": value for name, value in vars(self.context.share).items()}
        self._processes.start(work, (self.context, worker, theirs, outlet), inputs)
        theirs.close()
        self.transport.note_started(worker)
        with suppress(OSError):  # It is dead already, which is found where its items are waited for.
            ours.send_bytes(self.transport.key(worker))

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return self._processes.pids

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it was not ended, all workers live, and this is no forked process."""
        return self.is_open and self._processes.is_owner and not self.find_dead(set(range(self.num_workers)))

    def check_owner(self) -> None:
        """Checks that items are taken by the process that started the workers.

        Raises:
            ConfigError: this one was forked from it, and would take them from it.
        """
        self._processes.check_owner()

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
        return self._processes.find_dead(workers, wait_s) if self.is_open else []

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers: those that are idle by themselves, the others by SIGKILL.

        Args:
            grace_s: how long to wait for the first, seconds.
        """
        if not self.is_open:
            return
        self.is_open = False
        if not self._processes.is_owner:
            return
        for worker, orders in enumerate(self._orders):
            self._order(worker, END, 0, 0, 0, 0)  # Its pipe alone would not tell: workers forked later hold it open.
            orders.close()
        self._processes.end(grace_s)
        self.transport.close()
        self.context.output.close()
