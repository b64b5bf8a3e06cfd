"""A lock that does not stay shut in a forked process."""

import os
import threading
import weakref
from typing import Any


class ProcessLock:
    """A `threading.Lock` that is open in a forked child, whatever the parent's threads did, and in a pickled copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _alive.add(self)

    def acquire(self) -> bool:
        """Waits for the lock and takes it."""
        return self._lock.acquire()

    def release(self) -> None:
        """Lets the lock go."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *details: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessLock, ()

    def renew(self) -> None:
        """Begins in a forked child: another thread of the parent may have held the lock at that moment."""
        self._lock = threading.Lock()


_alive: "weakref.WeakSet[ProcessLock]" = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _alive:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
