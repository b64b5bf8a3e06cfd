"""The runner's side of a competitor: its process group, the commands, the watch over time and memory."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.environments import Environment, this_environment
from benchmarks.figures import EpochFigures, Memory
from benchmarks.system import disk_bytes
from benchmarks.task import Peer, Task
from tfds_torch.errors import StallError, WorkerError
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.runtime.process_tree import process_tree, tree_pss_bytes

# The current folder, which comes first in the path of `python -c`, must not hide the standard library. All competitors
# are served by the same code, also where an older revision of this package is imported.
_BOOT = """
import os, sys
os.setpgid(0, 0)
sys.path[:] = [entry for entry in sys.path if entry]
import json, runpy
request = json.loads(sys.argv[1])
sys.path[:] = request.pop("path")
runpy.run_path(request.pop("serving"))["serve"](**request)
"""
_SERVING = Path(__file__).with_name("serving.py")
_LOOK_EVERY_S = 0.2
_GRACE_S = 5.0
T = TypeVar("T", int, float)


class CompetitorProcess:
    """A competitor in an interpreter of its own, which runs epochs when told to, and is stopped in between.

    Stopped means SIGSTOP for all of its processes: whatever a competitor does between epochs (fill buffers, poll
    queues) would take time from the one whose turn it is. Not thread-safe.

    Args:
        peer: which competitor.
        task: what it has to do.
        timeout_s: what an epoch may take, the process's start included.
        environment: where the process runs; None: where this one does.
    """

    def __init__(self, peer: Peer, task: Task, timeout_s: float, environment: Environment | None = None) -> None:
        self.peer = peer
        self._environment = environment or this_environment()
        self._task = task
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._log: Any = None
        self._num_epochs = 0
        self._started_at = 0.0
        self._paused_cpu_s: float | None = None
        self._paused_disk_bytes: int | None = None

    def run_epoch(self) -> EpochFigures:
        """Starts the process where there is none yet, runs an epoch, and stops it again.

        Raises:
            WorkerError: the competitor failed; the message says how.
            StallError: it took longer than it may. In both cases its processes have been ended.
        """
        return self._run_epoch(lambda: None)

    def measure_memory(self) -> Memory | None:
        """Runs an epoch and looks at the sizes of its processes meanwhile; None where the system does not tell.

        Raises:
            WorkerError: the competitor failed.
            StallError: it took longer than it may.
        """
        samples: list[list[int]] = []
        self._run_epoch(lambda: samples.append(list(tree_pss_bytes(self._pid).values())))
        sizes = max(samples, key=sum, default=[])
        return Memory(sizes[0], tuple(sizes[1:]), len(samples)) if sizes else None

    def end(self) -> None:
        """Ends all processes of the competitor; does nothing when there are none."""
        process, self._process = self._process, None
        if process is None:
            return
        members = process_tree(process.pid)
        # First politely: multiprocessing's resource tracker ignores SIGTERM, and removes shared memory at its end.
        for number in (signal.SIGTERM, signal.SIGCONT):
            _signal_group(process, number)
        self._connection.close()
        deadline = time.monotonic() + _GRACE_S
        while (process.poll() is None or any(map(_is_running, members))) and time.monotonic() < deadline:
            time.sleep(0.01)
        _signal_group(process, signal.SIGKILL)
        process.wait()
        self._log.close()

    @property
    def _pid(self) -> int:
        return self._process.pid if self._process else 0

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        request = {"path": self._environment.path, "serving": str(_SERVING), "descriptor": theirs.fileno()}
        request |= {"loader": self.peer.loader, "task": asdict(self._task)}
        command = [self._environment.executable, "-c", _BOOT, json.dumps(request)]
        self._started_at = time.monotonic()
        try:
            # Fixed command, no shell: only this package's own code and the competitor run.
            self._process = subprocess.Popen(  # noqa: S603
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **self._environment.environ},
            )
        except OSError as error:
            self._connection.close()
            self._log.close()
            raise WorkerError(f"its process could not be started: {error}") from error
        finally:
            theirs.close()

    def _run_epoch(self, while_waiting: Callable[[], Any]) -> EpochFigures:
        is_first = self._process is None
        try:
            if is_first:
                self._start()
            waiting_cpu_s = None if is_first else self._resume()
            before = self._paused_cpu_s, self._paused_disk_bytes
            reply = self._ask(self._num_epochs, while_waiting)
            self._num_epochs += 1
            self._pause()
        except BaseException:
            self.end()
            raise
        start_s = reply["first_batch_at"] - self._started_at if is_first else None
        used = None if waiting_cpu_s is None else _difference(self._paused_cpu_s, before[0])
        return EpochFigures(
            EpochTimes(**reply["times"]),
            reply["num_examples"],
            start_s,
            waiting_cpu_s,
            used and used - (waiting_cpu_s or 0),
            None if is_first else _difference(self._paused_disk_bytes, before[1]),
        )

    def _ask(self, epoch: int, while_waiting: Callable[[], Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        with suppress(BrokenPipeError):  # It has died: its log says how.
            self._connection.send(epoch)
        while not self._connection.poll(_LOOK_EVERY_S):
            while_waiting()
            if self._process is not None and self._process.poll() is not None:
                raise WorkerError(self._describe_death(self._process.returncode))
            if time.monotonic() > deadline:
                raise StallError(f"epoch {epoch} was not over after {self._timeout_s:g} s")
        while_waiting()
        try:
            reply: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerError(self._describe_death(self._process.wait() if self._process else 0)) from None
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def _pause(self) -> None:
        if self._process is not None:
            _signal_group(self._process, signal.SIGSTOP)
            members = process_tree(self._pid)
            self._paused_cpu_s = _cpu_s(members)
            self._paused_disk_bytes = disk_bytes(member.pid for member in members)

    def _resume(self) -> float | None:
        """Continues the processes; returns what processor time they used although they were stopped."""
        used_s = _cpu_s(process_tree(self._pid))
        if self._process is not None:
            _signal_group(self._process, signal.SIGCONT)
        return None if used_s is None or self._paused_cpu_s is None else used_s - self._paused_cpu_s

    def _describe_death(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process {how}{hint}" + (f": {lines[-1][:200]}" if lines else "")


def _is_running(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _cpu_s(processes: list[psutil.Process]) -> float | None:
    """Returns the processor time that running processes have used so far, seconds; None: none of them runs."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            found.append(used.user + used.system)
    return sum(found) if found else None


def _difference(after: T | None, before: T | None) -> T | None:
    return None if after is None or before is None else after - before


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signals a competitor's whole group, or the process alone while it has not made its group yet."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        process.send_signal(number)
