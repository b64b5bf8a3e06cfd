"""WorkerPool: the worker processes of a loader, which it starts, commands, watches and ends."""

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from tfds_torch.loaders.transport import ProtocolError, Transport
from tfds_torch.loaders.worker import BEGIN, COMMAND, CREDIT, STOP, PoolContext, work
from tfds_torch.plan.cursor import Start
from tfds_torch.runtime.processes import WorkerProcesses, interrupts_held

GRACE_S = 1.0
"""Seconds that workers have to end by themselves."""


def find_start_method(asked: str | None) -> tuple[str, str]:
    """Return how workers start, and why so.

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
    """The workers of one loader, for one iteration after the other."""

    def __init__(self, context: PoolContext, transport: Transport, start: str | BaseContext) -> None:
        self.context, self.transport = context, transport
        self.num_workers = context.metrics.num_workers
        self.num_begun = 0
        self._processes = WorkerProcesses(start, context.output)
        self.method = self._processes.method
        self._commands: list[Connection] = []
        self.is_open = True
        try:
            with interrupts_held(self.method):
                for worker in range(self.num_workers):
                    self._start(worker)
        except BaseException:
            self.end(0.0)
            raise

    def _start(self, worker: int) -> None:
        theirs, ours = self._processes.context.Pipe(duplex=False)
        self._commands.append(ours)
        sender = self.transport.sender(worker, self._processes.context)
        self._processes.start(work, (self.context, worker, theirs, sender), self.context.source.inputs)
        theirs.close()
        sender.close()

    @property
    def pids(self) -> list[int]:
        """The processes, by the worker's number."""
        return self._processes.pids

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it was not ended, all workers live, and this process started them."""
        return self.is_open and self._processes.is_owner and not self.find_dead(set(range(self.num_workers)))

    def begin(self, start: Start, num_allowed: int) -> int:
        """Begin an iteration in all workers, each of which may send some items; return its number."""
        number, self.num_begun = self.num_begun, self.num_begun + 1
        for worker in range(self.num_workers):
            self._drop_what_came(worker)
            self._command(worker, BEGIN, number, start.epoch, start.start_batch, start.first_example, num_allowed)
        return number

    def allow_more(self, worker: int, iteration: int) -> None:
        """Let a worker send one more item of an iteration."""
        self._command(worker, CREDIT, iteration, 1, 0, 0, 0)

    def _command(self, worker: int, *numbers: int) -> None:
        with suppress(OSError):  # It is dead already, which is found where its items are waited for.
            os.write(self._commands[worker].fileno(), COMMAND.pack(*numbers))  # A pipe takes so few bytes whole.

    def _drop_what_came(self, worker: int) -> None:
        """Drop the items that a worker has sent in a broken-off iteration before its turn; else it would block."""
        with suppress(EOFError, ProtocolError):  # Reported when the worker is awaited.
            while self.transport.receive(worker) is not None:
                pass

    def find_dead(self, workers: set[int], wait_s: float = 0.0) -> list[tuple[int, int, int]]:
        """Return (worker, pid, exit code) of those that have ended; wait up to `wait_s` seconds for the first."""
        return self._processes.find_dead(workers, wait_s) if self.is_open else []

    def end(self, grace_s: float = GRACE_S) -> None:
        """End the workers: idle ones end by themselves within `grace_s` seconds, the others by SIGKILL."""
        if not self.is_open:
            return
        self.is_open = False
        if not self._processes.is_owner:
            return
        for worker, commands in enumerate(self._commands):
            self._command(worker, STOP, 0, 0, 0, 0, 0)  # Workers that were forked later hold its pipe open.
            commands.close()
        self._processes.end(grace_s)
        self.transport.close()
        self.context.output.close()
