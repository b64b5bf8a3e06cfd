"""Which files of the package are called while something runs, in this process and in those that are forked from it."""

import mmap
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tfds_torch

PACKAGE = os.path.dirname(tfds_torch.__file__) + os.sep


class CalledFiles:
    """Counts the calls of functions, by process and file, while `is_counting`.

    A generator is called whenever it goes on. Every call is written to a log at once, so that a process may end in any
    way. Forked processes inherit the profiler, the log and the switch.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._switch = mmap.mmap(-1, 1)  # Shared with forked processes.

    @property
    def is_counting(self) -> bool:
        return self._switch[0] == 1

    @is_counting.setter
    def is_counting(self, is_counting: bool) -> None:
        self._switch[0] = is_counting

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watches this thread, and the threads and processes that start meanwhile; others run without a profiler."""
        before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])  # None ends it.
            os.close(self._file)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._switch[0] and (name := frame.f_code.co_filename).startswith(PACKAGE):
            os.write(self._file, f"{os.getpid()} {name.removeprefix(PACKAGE)}\n".encode())

    def counts(self) -> dict[int, Counter[str]]:
        """Returns the number of calls: pid -> file, relative to the package."""
        found: dict[int, Counter[str]] = {}
        for line in self._log.read_text().splitlines():
            pid, name = line.split(" ", 1)
            found.setdefault(int(pid), Counter())[name] += 1
        return found
