"""The package `array-record`, in this process or, where it cannot be used, in a separate process.

The package keeps threads and locks for a whole process. A lock that a thread held when the process was forked stays
shut in the child for ever (the lock of its background cleaner, on a busy machine in every other fork right after a
first read). A child that inherits the package therefore leaves it alone, and lets a fresh process read (140 us instead
of 28 for a record of 40 kB).
"""

import importlib.util
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.subprocess_call import FreshProcess

_PACKAGE = "array_record.python.array_record_module"


class FileReader(Protocol):
    """Reads records of one file, each with its hash verified; raises RuntimeError for a record that it cannot read."""

    def ok(self) -> bool:
        """Return whether the file could be opened."""

    def num_records(self) -> int:
        """Return the number of records; 0 where the footer is damaged."""

    def read(self, records: list[int]) -> list[bytes]:
        """Return records by their numbers, in the order asked."""


def find_opener(dataset: str) -> Callable[[str], FileReader]:
    """Return the function that opens a local file in this process."""
    if _is_inherited:
        return _FileElsewhere
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise _not_installed(dataset) from error
    return ArrayRecordReader  # type: ignore[no-any-return]


def is_installed() -> bool:
    """Return whether the package is installed, without loading it."""
    with suppress(ModuleNotFoundError):  # Its parent package is not installed.
        return importlib.util.find_spec("array_record.python") is not None
    return False


def check_reading(dataset: str) -> None:
    """Raise ConfigError where the package is not installed; a process that never reads does not load it."""
    if not is_installed():
        raise _not_installed(dataset)


def _not_installed(dataset: str) -> ConfigError:
    return ConfigError(
        f"{dataset} has files of format 'array_record', and the package that reads them is not installed: "
        f"`pip install 'tfds-torch[array-record]'`."
    )


def is_inherited() -> bool:
    """Return whether this process was forked from one that had loaded the package, which must not be used here."""
    return _is_inherited


_is_inherited = False  # Whether this process was forked from one that had loaded the package.


def _note_fork() -> None:
    global _is_inherited
    _is_inherited = _is_inherited or _PACKAGE in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

_Request = tuple[int, str, list[int] | None, list[int]]
"""A file's number and path; the wanted records, None to ask for their count; the numbers of files that were closed."""


class _Files:
    """Answers requests in a fresh process; an answer is a text where the package raised an exception."""

    def __init__(self) -> None:
        self._open_file = find_opener("The dataset")
        self._readers: dict[int, FileReader] = {}

    def __call__(self, request: _Request) -> int | list[bytes] | str | None:
        number, path, records, closed = request
        for other in closed:
            self._readers.pop(other, None)
        try:
            if number not in self._readers:
                self._readers[number] = self._open_file(path)
            reader = self._readers[number]
            if records is not None:
                return reader.read(records)
            return reader.num_records() if reader.ok() else None
        except RuntimeError as error:
            return str(error)


_process = FreshProcess(_Files)
_numbers = count()
_closed: deque[int] = deque()  # Told with the next request: garbage collection may close a file at any moment.


class _FileElsewhere:
    """A file that a fresh process reads."""

    def __init__(self, path: str) -> None:
        self._path, self._number = path, next(_numbers)
        weakref.finalize(self, _closed.append, self._number).atexit = False
        self._num_records = self._ask(None)

    def ok(self) -> bool:
        return self._num_records is not None

    def num_records(self) -> int:
        return self._num_records or 0

    def read(self, records: list[int]) -> list[bytes]:
        found: list[bytes] = self._ask(records)
        return found

    def _ask(self, records: list[int] | None) -> Any:
        closed = [_closed.popleft() for _ in range(len(_closed))]
        answer = _process.ask((self._number, self._path, records, closed))
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer
