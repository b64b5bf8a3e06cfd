"""Waiting for processes to end that are not ours to wait for."""

import time
from collections.abc import Iterable

import psutil


def wait_until_ended(processes: Iterable[psutil.Process], deadline_s: float) -> list[psutil.Process]:
    """Returns those that still live after so many seconds.

    A zombie has ended: whoever inherits the child of a process that was killed may take seconds to notice it.
    """
    left, ends_at = [*processes], time.monotonic() + deadline_s
    while left := [process for process in left if _lives(process)]:
        if time.monotonic() >= ends_at:
            break
        time.sleep(0.01)
    return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
