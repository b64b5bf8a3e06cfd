"""Processes as Linux lists them in `/proc`: a family, its processor time, the state of one."""

import os
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
