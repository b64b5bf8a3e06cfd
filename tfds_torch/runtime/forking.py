"""What a forked worker must not inherit from its parent's other threads: imports that are under way, and held locks.

A fork copies locks, but not the threads that would release them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property  # noqa: TID251 (of other packages)
from types import FrameType
from typing import Any

from tfds_torch.runtime.user_random import renew_locks_of_generators

_LONGEST_IMPORT_S = 10.0
_LOOK_S = 0.005
_IMPORTING = ("<frozen importlib._bootstrap>", "_find_and_load")  # File and name of the function.


class _Fork(threading.local):
    """What a thread that forks has found of the others."""

    held: tuple[Any, ...] = ()  # Cached properties that they compute.


_fork = _Fork()
_endless: set[tuple[int, int]] = set()  # Imports, as `_Others.imports`, for which nobody waits any more.


def wait_for_imports() -> None:
    """Waits until no other thread imports a module; one that takes very long is not waited for again.

    A forked worker that needs the same module would wait for the end of that import for ever. Not to be called while a
    fork is under way: modules register what is to be done before and after a fork.
    """
    ends_at = time.monotonic() + _LONGEST_IMPORT_S
    while (left := _Others().imports - _endless) and not _is_importing():  # Else they may wait for this one's module.
        if time.monotonic() >= ends_at:
            _endless.update(left)
            return
        time.sleep(_LOOK_S)


def run_forked(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Runs a worker in a process that was forked for it, after it has unlocked what others of its parent held."""
    for held in _fork.held:
        held.lock = threading.RLock()
    renew_locks_of_generators()
    target(*args)


class _Others:
    """What the other threads of this process are at.

    Attributes:
        imports: the outermost import of each thread that imports a module: thread and frame, by their numbers.
        properties: cached properties that they compute, or wait for.
    """

    def __init__(self) -> None:
        self.imports: set[tuple[int, int]] = set()
        self.properties: list[Any] = []
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # It would hold itself, and what its callers hold.
        for thread, innermost in frames.items():
            self._look_at(thread, innermost)

    def _look_at(self, thread: int, frame: FrameType | None) -> None:
        importing = None
        while frame is not None:
            if _is_import(frame):
                importing = thread, id(frame)
            elif frame.f_code is cached_property.__get__.__code__ and hasattr(frame.f_locals.get("self"), "lock"):
                self.properties.append(frame.f_locals["self"])
            frame = frame.f_back
        if importing is not None:
            self.imports.add(importing)


def _is_import(frame: FrameType) -> bool:
    return (frame.f_code.co_filename, frame.f_code.co_name) == _IMPORTING


def _is_importing() -> bool:
    """Whether this thread imports a module, for which another one may wait."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_import(frame):
        frame = frame.f_back
    return frame is not None


def _note_held() -> None:
    _fork.held = tuple(_Others().properties)


if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):  # Later ones have no lock.
    os.register_at_fork(before=_note_held)
