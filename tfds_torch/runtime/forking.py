"""What a forked worker must not inherit from its parent's other threads: imports that are under way, and held locks.

A fork copies locks, but not the threads that would release them. Locks are looked at where they lie: walking through
the frames of other threads (`sys._current_frames`) crashed Python 3.11 now and then, under load.
"""

import importlib
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property  # noqa: TID251 (those of other packages are looked for)
from typing import Any
from weakref import WeakSet

from tfds_torch.runtime.user_random import renew_locks_of_generators

_LONGEST_IMPORT_S = 10.0
_LOOK_S = 0.005
_PROPERTIES_HAVE_LOCKS = sys.version_info < (3, 12)
"""Whether a cached property of functools has a lock, one for all objects of its class."""

_endless: set[tuple[int, str]] = set()  # (thread, module) of imports for which nobody waits any more.
_cached_properties: "WeakSet[Any]" = WeakSet()  # Those in the modules that were looked through.
_looked_through: set[str] = set()  # Names of modules.


def wait_for_imports() -> None:
    """Wait until no other thread imports a module; an import that takes very long is not waited for again.

    A forked worker that needs the same module would wait for the end of that import for ever. Do not call this while a
    fork is under way: modules register functions to be called before and after a fork.
    """
    ends_at = time.monotonic() + _LONGEST_IMPORT_S
    own = threading.get_ident()
    while own not in (imports := _imports()):  # Else they may wait for this thread's module.
        awaited = imports.items() - _endless
        if not awaited:
            break
        if time.monotonic() >= ends_at:
            _endless.update(awaited)
            break
        time.sleep(_LOOK_S)
    if _PROPERTIES_HAVE_LOCKS:
        _find_cached_properties()


def run_forked(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Unlock the locks that threads of the parent may hold, and run a worker in a process that was forked for it."""
    for found in _cached_properties:
        found.lock = threading.RLock()
    renew_locks_of_generators()
    target(*args)


def _imports() -> dict[int, str]:
    """Return the outermost import of each thread that imports a module: the thread's number -> the module."""
    bootstrap: Any = importlib._bootstrap
    outermost: dict[int, str] = {}
    for name, reference in list(bootstrap._module_locks.items()):  # In the order in which they were made.
        owner = getattr(reference(), "owner", None)
        if owner is not None:
            outermost.setdefault(owner, name)
    return outermost


def _find_cached_properties() -> None:
    """Find the cached properties in the classes of modules that were imported since the last look."""
    for name, module in list(sys.modules.items()):
        if name in _looked_through:
            continue
        _looked_through.add(name)
        for value in list(getattr(module, "__dict__", {}).values()):
            if issubclass(type(value), type):  # isinstance would ask objects that warn of it.
                members = list(vars(value).values())
                _cached_properties.update(one for one in members if type(one) is cached_property)
