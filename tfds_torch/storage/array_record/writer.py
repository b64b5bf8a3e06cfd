"""ArrayRecordFileWriter: ArrayRecord files with one record a group, as TFDS writes them for random access."""

import errno
import os
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.subprocess_call import FreshProcess
from tfds_torch.storage.array_record.package import is_inherited, is_installed

OPTIONS = "group_size:1"
_BATCH_BYTES = 2**20  # Bytes of records that are handed to the package's process at a time.


def check_package() -> None:
    """Raise ConfigError where the package `array-record` is not installed. It is not loaded."""
    if not is_installed():
        raise ConfigError(
            "Files of the format 'array_record' are written by a package that is not installed: "
            "`pip install 'tfds-torch[array-record]'`."
        )


class ArrayRecordFileWriter:
    """Writes records of an ArrayRecord file, one after the other.

    The package keeps threads and locks for a whole process. A process that was forked from one that had loaded the
    package lets a fresh process write.

    Raises:
        OSError: the file cannot be written. `add` and `close` also raise it where the package could not write.
    """

    def __init__(self, path: str, options: str = OPTIONS) -> None:
        self._process = FreshProcess(_Writing, path, options) if is_inherited() else None
        self._writing = _Writing(path, options) if self._process is None else None
        self._records: list[bytes] = []
        self._num_bytes = 0

    def add(self, record: bytes) -> None:
        """Write a record."""
        self._records.append(record)
        self._num_bytes += len(record)
        if self._num_bytes >= _BATCH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the remaining records, and the file's end; may be called once."""
        try:
            self._flush()
            self._ask(None)
        finally:
            self.discard()

    def discard(self) -> None:
        """Stop writing, wherever it is; may be called twice."""
        self._records, self._writing = [], None
        if self._process is not None:
            self._process.close()

    def _flush(self) -> None:
        records, self._records, self._num_bytes = self._records, [], 0
        self._ask(records)

    def _ask(self, request: list[bytes] | None) -> None:
        if self._process is not None:
            answer = self._process.ask(request)
        elif self._writing is not None:
            answer = self._writing(request)
        else:
            raise ValueError("The file is complete, or was given up: nothing more can be written.")
        if answer is not None:
            raise _to_os_error(answer)


class _Writing:
    """Writes records for requests, None for the end; answers with the package's complaint, or None."""

    def __init__(self, path: str, options: str) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._path, self._problem = path, ""
        try:
            self._writer: Any = ArrayRecordWriter(path, options)
        except RuntimeError as error:
            self._problem = str(error)

    def __call__(self, request: list[bytes] | None) -> str | None:
        if self._problem:
            return self._problem
        try:
            for record in request or ():
                self._writer.write(record)
            if request is None:
                self._writer.close()
        except RuntimeError as error:
            return str(error)
        return None


def _to_os_error(problem: str) -> OSError:
    """Return the system's error, which the package reports as a text."""
    problem = " ".join(problem.split())
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in problem:
            return OSError(number, os.strerror(number))
    return OSError(errno.EIO, problem)
