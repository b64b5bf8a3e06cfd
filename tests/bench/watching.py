"""Waiting for what other processes do; a watchdog's deadline fails a test that would wait for ever."""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
WATCHDOG_S = 60


def wait_for(look: Callable[[], T]) -> T:
    """Returns what `look` returns as soon as that is true."""
    deadline = time.monotonic() + WATCHDOG_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return found


def read_pids(folder: Path, name: str) -> list[int]:
    """Waits until a planted competitor has told its pids."""
    path = folder / f"{name}.pids"
    wait_for(path.exists)
    return list(map(int, path.read_text().split()))


def open_pids(pids: list[int]) -> list[int]:
    """Returns handles that stay those processes' own; those that are gone already have none."""
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return handles


def assert_all_end(handles: list[int]) -> None:
    for handle in handles:
        readable, _, _ = select.select([handle], [], [], WATCHDOG_S)
        os.close(handle)
        assert readable, "a process still runs"


def state_of(pid: int) -> str:
    """The letter that the system has for a process's state: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
