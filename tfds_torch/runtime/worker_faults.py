"""Messages about workers of a loader that died, or that deliver no batch."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tfds_torch.runtime.examples_at_work import Work, describe_work
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.process_tree import describe_exit, process_state
from tfds_torch.runtime.processes import describe_guard
from tfds_torch.runtime.worker_output import WorkerOutput

_STOPPED = "Tt"


@dataclass(frozen=True)
class ErrorContext:
    """Facts about a loader for messages, beside its workers' own reports."""

    dataset: str
    next_step: str = "Begin the epoch again, with a new iteration."
    find_id: Callable[[int], str] | None = None
    start_argument: str = "multiprocessing_context"
    find_cut: Callable[[], str | None] | None = None

    def example(self, index: int | None) -> str:
        """Return the place of an example, as the rest of a sentence; empty where it is not known."""
        return self.work(Work(example=index))

    def work(self, work: Work) -> str:
        """Return the examples that a process is at, likewise."""
        return "" if self.find_id is None else describe_work(work, partial(self._describe, self.find_id))

    def _describe(self, find_id: Callable[[int], str], index: int) -> str:
        try:
            name = find_id(index)
        except Exception:  # A message about a fault must not fail.
            return f"example {index}"
        shard, separator, record = name.rpartition("__")
        return f"shard {shard}, record {record} (example {index})" if separator else f"{name} (example {index})"


class WorkerFaults:
    """Describes the faults of a loader's workers, from their earlier reports."""

    def __init__(
        self,
        names: ErrorContext,
        metrics: StageMetrics,
        output: WorkerOutput,
        timeout_s: float | None,
        can_import_only: bool,
    ) -> None:
        self.names, self.metrics, self.output = names, metrics, output
        self.timeout_s, self.can_import_only = timeout_s, can_import_only

    def describe_deaths(self, dead: Sequence[tuple[int, int, int]]) -> str:
        """Return the message for workers that ended too early, given number, pid and exit code of each."""
        cut = self.names.find_cut() if self.names.find_cut is not None else None
        said = [
            f"Worker {worker} (pid {pid}) {describe_exit(code, cut)} {self._when(worker)}" for worker, pid, code in dead
        ]
        may_not_import = self.can_import_only and any(self.metrics.pid(worker) is None for worker, _, _ in dead)
        said.append(describe_guard(self.names.start_argument) if may_not_import else self.names.next_step)
        # Torch writes that shared memory is short, whatever a SIGBUS came from.
        wrote = [self._last_lines(worker) for worker, _, code in dead if cut is None or code != -signal.SIGBUS]
        return " ".join(said) + "".join(wrote)

    def describe_protocol_error(self, worker: int, pid: int, what: str) -> str:
        """Return the message for a worker whose messages cannot be read; `what` is its fault, a clause."""
        return f"Worker {worker} (pid {pid}) {what}. {self.names.next_step}{self._last_lines(worker)}"

    def describe_stall(self, pids: Sequence[int], num_received: int) -> str:
        """Return the message for a batch that did not come in time; workers, whose processes are given, take turns."""
        if not pids:
            return f"{self._no_batch()} {self.names.next_step}"
        turns = [(num_received + number) % len(pids) for number in range(len(pids))]
        at_work = [worker for worker in turns if not self.metrics.is_done(worker)] or turns
        # One that is stopped keeps all of them waiting when an iteration begins.
        stopped = [worker for worker in at_work if process_state(pids[worker])[0] in _STOPPED]
        worker = (stopped or at_work)[0]
        letter, state = process_state(pids[worker])
        whose = "whose turn it is" if worker == at_work[0] else "which every other worker waits for"
        said = f"{self._no_batch()} Worker {worker} (pid {pids[worker]}), {whose}, is {state} ({letter})"
        if self.metrics.pid(worker) is None:
            hint = ""
            if self.can_import_only:
                hint = f" It may still import the script. {describe_guard(self.names.start_argument)}"
            return f"{said} and has not begun to read {self.names.dataset}. {self.names.next_step}{hint}"
        said += f" and reads {self._place_of(worker)}. {self.names.next_step} "
        if letter in _STOPPED:
            return f"{said}A stopped process cannot report its stack; SIGCONT continues it."
        stack = self.output.ask_for_stack(worker, pids[worker])
        return said + (f"Its stacks:\n{stack}" if stack else "It did not report its stack.")

    def describe_own_stall(self, stack: str) -> str:
        """Return the message for a batch that did not come where the training process reads by itself."""
        said = f"{self._no_batch()} The training process itself reads {self._place_of(0)}."
        return f"{said} The stack of its reading thread:\n{stack}" if stack else said

    def describe_slow_start(self, waited_s: float) -> str:
        """Return the message for a slow start: no worker has made a batch for a while."""
        num_workers = self.metrics.num_workers
        begun = sum(self.metrics.num_begun(worker) > 0 for worker in range(num_workers))
        return (
            f"{self.names.dataset}: no batch after {waited_s:g} s yet: {begun} of {num_workers} workers have begun to "
            f"read."
        )

    def _last_lines(self, worker: int) -> str:
        lines = self.output.last_lines(worker)
        return f"\nThe last that worker {worker} wrote to standard error:\n{lines}" if lines else ""

    def _no_batch(self) -> str:
        return "No batch came." if self.timeout_s is None else f"No batch came within timeout_s={self.timeout_s:g} s."

    def _when(self, worker: int) -> str:
        if self.metrics.pid(worker) is None:
            return "before it had begun: what it wrote to standard error says why."
        return f"while it read {self._place_of(worker)}."

    def _place_of(self, worker: int) -> str:
        return self.names.dataset + self.names.work(self.metrics.at_work.of(worker))
