"""locked_folder: one export at a time writes to a folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfds_torch.errors import ExportError
from tfds_torch.runtime.atomic_folder import AtomicFolder


@contextmanager
def locked_folder(path: Path, wait_s: float) -> Iterator[None]:
    """Makes a folder, and keeps other exports of this machine out of it until the block ends; forked workers, too.

    Args:
        path: of the folder.
        wait_s: how long another export may take to end.

    Raises:
        ExportError: another export writes there, or it cannot be made.
    """
    deadline = time.monotonic() + wait_s
    while (descriptor := _lock(path)) is None:
        if time.monotonic() >= deadline:
            raise ExportError(f"Another export writes to {path}: let it end, or choose another folder.")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds the folder's lock; None: another process has it."""
    try:
        AtomicFolder(path).settle()
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ExportError(f"The folder {path} cannot be made: {error.strerror}.") from error
    if _take(descriptor) and _is_at(descriptor, path):  # It may have been replaced before it was locked.
        return descriptor
    os.close(descriptor)
    return None


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # Some file systems have no locks.
        return True
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
