"""Watching over worker processes: how one ended or where it stands; and, in a worker, whether its parent is there."""

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

from tfds_torch.runtime.process_tree import is_running

_PARENT_CHECK_S = 1.0
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
}
_HINTS = {
    "SIGKILL": " (out of memory?)",
    "SIGBUS": " (a file was cut while it was read as memory, such as a decoded cache, a .beton file or an index; or "
    "/dev/shm is full: a container has 64 MB of it unless it is given --shm-size or --ipc=host)",
    "SIGTERM": " (somebody asked it to end: a job scheduler, or `kill`)",
}


def describe_exit(exit_code: int, cut: str | None = None) -> str:
    """Returns how a process ended, as the end of a sentence that begins with its name.

    Args:
        exit_code: of the process.
        cut: which file was cut while it was mapped, as a clause; None: none, as far as known.
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if cut is not None and name == "SIGBUS":
        return f"was killed by SIGBUS ({cut})"
    return f"was killed by {name}{_HINTS.get(name, '')}"


def process_state(pid: int) -> tuple[str, str]:
    """Returns the letter that Linux gives a process's state, and its meaning; "?" where it does not tell."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?", "unknown"
    return letter, _STATES.get(letter, "unknown")


_watching_in: int | None = None  # The process that watches its parent already.


def end_with_parent() -> None:
    """Lets this process end soon after its parent, whatever its other threads wait for; more calls do no more."""
    global _watching_in
    parent = parent_process()
    if parent is not None and _watching_in != os.getpid():
        _watching_in = os.getpid()
        threading.Thread(target=_watch_parent, args=(parent.pid, parent.sentinel), daemon=True).start()


def _watch_parent(pid: int, sentinel: int) -> None:
    can_ask = is_running(os.getpid())
    # The sentinel alone would not do: processes forked later by the parent hold it open too.
    while not wait([sentinel], _PARENT_CHECK_S) and (not can_ask or is_running(pid)):
        pass
    os._exit(1)
