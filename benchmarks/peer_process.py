"""PeerProcess: a peer's process group, seen from the process that measures it."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.protocol import Task
from tfds_torch.errors import StallError, WorkerError
from tfds_torch.runtime.process_tree import describe_exit, process_tree, tree_pss_bytes

ROOT = Path(__file__).parents[1]
_LOOK_EVERY_S = 0.2
_GRACE_S = 5.0


@dataclass(frozen=True)
class Interpreter:
    """Where a peer's script runs: a Python, and variables to add to this process's own."""

    executable: str
    environ: Mapping[str, str]

    @classmethod
    def here(cls, *, before: str = "", **environ: str) -> "Interpreter":
        """Returns this process's Python; `before` is a folder whose packages hide others."""
        path = [before, str(ROOT), os.environ.get("PYTHONPATH", "")]
        return cls(sys.executable, {"PYTHONPATH": os.pathsep.join(filter(None, path)), **environ})

    @classmethod
    def of_venv(cls, folder: str) -> "Interpreter":
        """Returns the Python of a virtual environment, which sees this checkout, too."""
        return cls(str(Path(folder) / "bin" / "python"), {"PYTHONPATH": str(ROOT)})


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch.

    Attributes:
        num_examples: how many images really came.
        first_batch_s: from asking for the iterator to the first batch.
        tail_s: from the loop's asking for more, after the last batch, to the end.
        start_s: from the start of the process to its first batch; None in later epochs.
        cpu_s: processor time of the processes that live on after the epoch; None in a process's first one.
        report: what the peer has to say about it.
        versions: of the peer's packages.
    """

    num_examples: int
    first_batch_s: float
    tail_s: float
    whole_s: float
    start_s: float | None = None
    cpu_s: float | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def examples_per_s(self) -> float:
        """Of the whole epoch, its beginning and its tail included."""
        return self.num_examples / self.whole_s


class PeerProcess:
    """A peer's script in an interpreter of its own, which runs an epoch on command and is stopped in between (SIGSTOP).

    Without the stop, work between epochs (filled buffers, polled queues) would take time from the one whose turn it is.
    It is started by its first command. Not thread-safe.

    Args:
        script: a module, `benchmarks.peers.NAME`.
        task: the work of each epoch.
        timeout_s: of a command, the start of the process included.
        interpreter: where it runs; None: as this process does.
    """

    def __init__(self, script: str, task: Task, timeout_s: float, interpreter: Interpreter | None = None) -> None:
        self._script = script
        self._task = task
        self._timeout_s = timeout_s
        self._interpreter = interpreter or Interpreter.here()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Any = None
        self._left = b""
        self._num_epochs = 0
        self._started_at = 0.0
        self._cpu_s = 0.0

    def prepare(self) -> None:
        """Asks for the peer's files. Raises as `run_epoch` does."""
        try:
            self._start()
            self._ask("prepare", lambda: None)
        finally:
            self.end()

    def run_epoch(self, while_waiting: Callable[[], Any] = lambda: None) -> Epoch:
        """Starts the process where there is none yet, runs an epoch, and stops the process again.

        Args:
            while_waiting: is called now and then meanwhile.

        Raises:
            WorkerError: the peer failed.
            StallError: the epoch took too long. In both cases the peer's processes have been ended.
        """
        is_first = self._process is None
        try:
            if is_first:
                self._start()
            else:
                self._cpu_s = self._used_cpu_s()
                self._signal(signal.SIGCONT)
            answer = self._ask(self._num_epochs, while_waiting)
            self._num_epochs += 1
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.end()
            raise
        first_batch_at = answer.pop("first_batch_at")
        if is_first:
            return Epoch(**answer, start_s=first_batch_at - self._started_at)
        return Epoch(**answer, cpu_s=self._used_cpu_s() - self._cpu_s)

    def measure_memory(self) -> list[int]:
        """Runs an epoch; returns the PSS of its processes, bytes, the training process first, when it was greatest.

        The list is empty where the system does not report it. Raises as `run_epoch` does.
        """
        samples: list[list[int]] = []
        self.run_epoch(lambda: samples.append(list(tree_pss_bytes(self._pid).values())))
        return max(samples, key=sum, default=[])

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the peer that live, its first one first; none before its first command."""
        return process_tree(self._pid) if self._process else []

    def end(self) -> None:
        """Ends all processes of the peer; does nothing when there are none."""
        process = self._process
        if process is None:
            return
        members = process_tree(process.pid)
        # First politely: multiprocessing's resource tracker ignores SIGTERM, and removes shared memory at its end.
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + _GRACE_S
        while (process.poll() is None or any(map(_is_running, members))) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        process.wait()
        self._process = None
        self._log.close()
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    @property
    def _pid(self) -> int:
        return self._process.pid if self._process else 0

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._started_at = time.monotonic()
        try:
            # A list, no shell: only the scripts of this folder, and the packages that they import.
            self._process = subprocess.Popen(  # noqa: S603
                [self._interpreter.executable, "-P", "-m", self._script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **self._interpreter.environ},
                process_group=0,
            )
        except OSError as error:
            self._log.close()
            raise WorkerError(f"its process could not be started: {error}") from error
        self._send(asdict(self._task))

    def _send(self, command: Any) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # It has died: its log says how.
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()

    def _ask(self, command: Any, while_waiting: Callable[[], Any]) -> dict[str, Any]:
        what = f"epoch {command}" if isinstance(command, int) else command
        deadline = time.monotonic() + self._timeout_s
        self._send(command)
        while (line := self._read_line()) is None:
            while_waiting()
            if time.monotonic() > deadline:
                raise StallError(f"{what} was not over after {self._timeout_s:g} s")
        while_waiting()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _read_line(self) -> bytes | None:
        """Returns the next line, or None after a short wait.

        Raises:
            WorkerError: the process has ended.
        """
        if self._process is None or self._process.stdout is None:
            raise WorkerError("its process has ended")
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._left:
            readable, _, _ = select.select([descriptor], [], [], _LOOK_EVERY_S)
            if not readable:
                if self._process.poll() is not None:
                    raise WorkerError(self._describe_death())
                return None
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise WorkerError(self._describe_death())
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        return line

    def _describe_death(self) -> str:
        code = self._process.wait() if self._process else 0
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process {describe_exit(code)}" + (f": {lines[-1][:200]}" if lines else "")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _used_cpu_s(self) -> float:
        used = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used


def _is_running(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
