"""Watching over worker processes: how one ended or where it stands; and, in a worker, whether its parent is there."""

import faulthandler
import os
import signal
import threading
import time
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

from tfds_torch.runtime.process_tree import is_running

_PARENT_CHECK_S = 1.0
_STACK_CHECK_S = 0.02
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
    "SIGBUS": " (is /dev/shm full? A container has 64 MB of it unless it is given --shm-size or --ipc=host)",
    "SIGTERM": " (somebody asked it to end: a job scheduler, or `kill`)",
}


def describe_exit(exit_code: int) -> str:
    """Returns how a process ended, as the end of a sentence that begins with its name."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
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


def offer_stack() -> int | None:
    """Lets this process write the Python stacks of its threads when it gets the signal of `ask_for_stack`.

    Returns:
        A file descriptor of this process, for `ask_for_stack`; None where the system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("stack")
    faulthandler.register(_stack_signal(), file=descriptor, all_threads=True, chain=False)
    return descriptor


def ask_for_stack(pid: int, descriptor: int, wait_s: float = 2.0) -> str | None:
    """Returns the Python stacks of another process's threads, or None when it does not answer.

    Args:
        pid: a process that has called `offer_stack`.
        descriptor: what that returned there.
        wait_s: how long to wait for it, seconds.
    """
    try:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
            start = os.fstat(file.fileno()).st_size
            os.kill(pid, _stack_signal())
            file.seek(start)
            text = _read_all(file.fileno(), start, wait_s)
    except OSError:
        return None
    return text.decode(errors="replace").strip() or None


def _read_all(file: int, start: int, wait_s: float) -> bytes:
    """Returns what is written to a file from an offset on, until it grows no more."""
    ends_at, size = time.monotonic() + wait_s, start
    while time.monotonic() < ends_at:
        time.sleep(_STACK_CHECK_S)
        now = os.fstat(file).st_size
        if now == size > start:
            break
        size = now
    return os.pread(file, size - start, start)


def _stack_signal() -> int:
    return signal.SIGRTMAX - 3  # Programs have their own plans with SIGUSR1 and SIGUSR2.
