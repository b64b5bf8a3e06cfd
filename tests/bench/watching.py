"""Waiting for what other processes do; a watchdog's deadline fails a test that would wait for ever."""

import os
import select
import time
from collections.abc import Callable, Iterable
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


def open_pids(pids: Iterable[int]) -> list[int]:
    """Returns handles that stay those processes' own."""
    return [os.pidfd_open(pid) for pid in pids]


def assert_all_end(handles: list[int]) -> None:
    for handle in handles:
        readable, _, _ = select.select([handle], [], [], WATCHDOG_S)
        os.close(handle)
        assert readable, "a process still runs"
