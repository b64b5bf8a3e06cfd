"""CompetitorProcess: a competitor's process group, seen from the process that measures it."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil

from benchmarks.environments import Environment, this_environment
from benchmarks.figures import EpochFigures
from benchmarks.machine import drop_from_page_cache
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


class CompetitorProcess:
    """A competitor in an interpreter of its own, which runs an epoch on command and is stopped in between (SIGSTOP).

    Without the stop, work between epochs (filled buffers, polled queues) would take time from the one whose turn it is.
    Not thread-safe.

    Args:
        peer: the competitor.
        task: the work of each epoch.
        timeout_s: the most that an epoch may take, the start of the process included.
        environment: where the process runs; None: where this one does.
        cold_files: are dropped from the page cache before each epoch.
    """

    def __init__(
        self,
        peer: Peer,
        task: Task,
        timeout_s: float,
        environment: Environment | None = None,
        cold_files: Sequence[Path] = (),
    ) -> None:
        self.peer = peer
        self._cold_files = cold_files
        self._environment = environment or this_environment()
        self._task = task
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._log: Any = None
        self._num_epochs = 0
        self._started_at = 0.0
        self._paused: tuple[float, int] = (0.0, 0)

    def run_epoch(self, while_waiting: Callable[[], Any] = lambda: None) -> EpochFigures:
        """Starts the process where there is none yet, runs an epoch, and stops the process again.

        Args:
            while_waiting: is called now and then meanwhile.

        Raises:
            WorkerError: the competitor failed.
            StallError: the epoch took too long. In both cases the competitor's processes have been ended.
        """
        drop_from_page_cache(self._cold_files)
        return self._run_epoch(while_waiting)

    def measure_memory(self) -> list[int]:
        """Runs an epoch; returns the PSS of its processes, bytes, the training process first, when it was greatest.

        The list is empty where the system does not report it. Raises as `run_epoch` does.
        """
        samples: list[list[int]] = []
        self._run_epoch(lambda: samples.append(list(tree_pss_bytes(self._pid).values())))
        return max(samples, key=sum, default=[])

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the competitor that live, its first one first; none before its first epoch."""
        return process_tree(self._pid) if self._process else []

    def end(self) -> None:
        """Ends all processes of the competitor; does nothing when there are none."""
        process = self._process
        if process is None:
            return
        members = process_tree(process.pid)
        # First politely: multiprocessing's resource tracker ignores SIGTERM, and removes shared memory at its end.
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(number)
        self._connection.close()
        deadline = time.monotonic() + _GRACE_S
        while (process.poll() is None or any(map(_is_running, members))) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        process.wait()
        self._process = None
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        """Signals the whole group, or the process alone while it has not made its group yet."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            self._process.send_signal(number)

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
        is_first, before = self._process is None, self._paused
        try:
            if is_first:
                self._start()
            else:
                waiting_cpu_s = _usage(process_tree(self._pid))[0] - before[0]
                self._signal(signal.SIGCONT)
            reply = self._ask(self._num_epochs, while_waiting)
            self._num_epochs += 1
            self._signal(signal.SIGSTOP)
            self._paused = _usage(process_tree(self._pid))
        except BaseException:
            self.end()
            raise
        figures = EpochFigures(EpochTimes(**reply["times"]), reply["num_examples"], report=reply["report"])
        if is_first:
            return replace(figures, start_s=reply["first_batch_at"] - self._started_at)
        cpu_s, disk_bytes = self._paused[0] - before[0] - waiting_cpu_s, self._paused[1] - before[1]
        return replace(figures, waiting_cpu_s=waiting_cpu_s, cpu_s=cpu_s, disk_bytes=disk_bytes)

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

    def _describe_death(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process {how}{hint}" + (f": {lines[-1][:200]}" if lines else "")


def _is_running(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _usage(processes: list[psutil.Process]) -> tuple[float, int]:
    """Returns the processor time, seconds, and the bytes from disks that running processes have used so far."""
    cpu_s, disk_bytes = 0.0, 0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            disk_bytes += process.io_counters().read_bytes if psutil.LINUX else 0
    return cpu_s, disk_bytes
