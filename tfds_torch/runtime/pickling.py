"""Arguments of workers that cannot be pickled: the part that fails, and the remedy."""

import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.context import get_spawning_popen
from types import FunctionType
from typing import Any

from tfds_torch.errors import ConfigError

_MOST_LEVELS, _MOST_PARTS = 8, 1000


def check_functions(functions: Mapping[str, Any]) -> None:
    """Check functions that go to a process that spawn or a fork server is starting; else do nothing.

    Other values are not looked at: pickling them once more would take time, and share their memory twice.
    """
    starting = get_spawning_popen()
    for name, value in functions.items() if starting is not None else ():
        error = _error_of(value) if isinstance(value, FunctionType) else None
        found = None if error is None else unpicklable({name: value}, error, repr(getattr(starting, "method", "spawn")))
        if found is not None:
            raise found


def unpicklable(parts: Mapping[str, Any], error: Exception, method: str) -> ConfigError | None:
    """Return the error that names the part of a worker's arguments which cannot be pickled; None: it is not found."""
    for name, value in parts.items():
        found = _find(value, name, error, _MOST_LEVELS)
        if found is not None:
            path, part = found
            return ConfigError(
                f"{path} = {_describe(part)} cannot be pickled ({type(error).__name__}: {error}), and workers that are "
                f"started by {method} get it pickled. Use what a module defines at its top level, not a lambda, a "
                f"function or class within a function, or an open file; or start workers by fork."
            )
    return None


def _find(value: Any, path: str, error: Exception, num_levels: int) -> tuple[str, Any] | None:
    """Return the innermost part that fails as the whole did, and its path."""
    own = _error_of(value)
    if own is None:
        return None
    for name, part in _parts_of(value, path) if num_levels else ():
        found = _find(part, name, error, num_levels - 1)
        if found is not None:
            return found
    # Some fail here only: locks and queues can be pickled for a worker that is being started.
    return (path, value) if (type(own), str(own)) == (type(error), str(error)) else None


def _parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        named = [(f"{path}[{key!r}]", part) for key, part in list(value.items())[:_MOST_PARTS]]
    elif isinstance(value, list | tuple):
        named = [(f"{path}[{number}]", part) for number, part in enumerate(value[:_MOST_PARTS])]
    elif isinstance(value, type):
        named = []
    elif isinstance(value, partial):
        named = [(f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords")]
    else:
        named = [(f"{path}.{name}", part) for name, part in list(getattr(value, "__dict__", {}).items())]
    yield from named


def _error_of(value: Any) -> Exception | None:
    try:
        pickle.dumps(value)
    except Exception as error:
        return error
    return None


def _describe(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"a {type(value).__qualname__}"
