"""What can be found out of other processes: a family, its processor time, the state of one, and how one ended."""

import os
import signal
from pathlib import Path

_PROC = Path("/proc")
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


def process_tree(pid: int | None = None) -> list[int]:
    """Returns a process (this one) and its descendants, parents before their children.

    Where the system does not tell (no `/proc`), it is the process alone.
    """
    children: dict[int, list[int]] = {}
    for child in _all_processes():
        fields = _stat_fields(child)
        if fields:
            children.setdefault(int(fields[1]), []).append(child)
    members = [os.getpid() if pid is None else pid]
    for member in members:  # Grows while it is walked.
        members += children.get(member, [])
    return members


def cpu_s(pids: list[int]) -> float | None:
    """Returns the processor time that processes have used so far, seconds; those that have ended are left out.

    Where the system does not tell (no `/proc`), it is None.
    """
    found = [fields for fields in map(_stat_fields, pids) if fields]
    ticks = [int(fields[11]) + int(fields[12]) for fields in found]  # utime, stime
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; one that has ended but was not waited for does not run."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def process_state(pid: int) -> tuple[str, str]:
    """Returns the letter that Linux gives a process's state, and its meaning; "?" for a process that is not there."""
    letter = next(iter(_stat_fields(pid)), "?")
    return letter, _STATES.get(letter, "unknown")


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


def _all_processes() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(_PROC) if name.isdigit())
    except OSError:
        return []


def _stat_fields(pid: int) -> list[str]:
    """Returns the fields of `/proc/<pid>/stat` that follow the name, from the state on; empty without a process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
