"""Facts about other processes: a process with its descendants, their memory, a process's state, and how it ended."""

import signal

import psutil

_STATES = {
    psutil.STATUS_RUNNING: ("R", "running"),
    psutil.STATUS_SLEEPING: ("S", "sleeping"),
    psutil.STATUS_DISK_SLEEP: ("D", "waiting for a disk"),
    psutil.STATUS_STOPPED: ("T", "stopped"),
    psutil.STATUS_TRACING_STOP: ("t", "stopped by a debugger"),
    psutil.STATUS_ZOMBIE: ("Z", "ended"),
}
_HINTS = {
    "SIGKILL": " (out of memory?)",
    "SIGBUS": " (a file was cut while it was read as memory, such as a decoded cache, a .beton file or an index; or "
    "/dev/shm is full: a container has 64 MB of it unless it is given --shm-size or --ipc=host)",
    "SIGTERM": " (it was asked to end: a job scheduler, or `kill`)",
}


def process_tree(pid: int | None = None) -> list[psutil.Process]:
    """Return a process (this one) and its descendants, parents before their children; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_pss_bytes(pid: int | None = None) -> dict[int, int]:
    """Return pid -> proportional set size, bytes, of a process (this one) and of its descendants, itself first.

    The proportional set size (PSS) divides every shared page among the processes that share it, so that the sum over a
    tree of processes counts each page once; their resident sizes would count it in every worker.

    Processes that end meanwhile are left out. On another system than Linux the result is empty.
    """
    sizes = {}
    for process in process_tree(pid) if psutil.LINUX else ():
        try:
            sizes[process.pid] = int(process.memory_full_info().pss)
        except (psutil.Error, FileNotFoundError):
            continue
    return sizes


def process_state(pid: int) -> tuple[str, str]:
    """Return Linux's letter for a process's state, and its meaning; "?" for a process that does not exist."""
    try:
        return _STATES.get(psutil.Process(pid).status(), ("?", "unknown"))
    except psutil.Error:
        return "?", "unknown"


def describe_exit(exit_code: int, cut: str | None = None) -> str:
    """Return how a process ended, as the end of a sentence; `cut` names the file that was cut while it was mapped."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if cut is not None and name == "SIGBUS":
        return f"was killed by SIGBUS ({cut})"
    return f"was killed by {name}{_HINTS.get(name, '')}"
