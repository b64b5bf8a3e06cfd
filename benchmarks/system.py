"""What the system tells of a process, and files out of its page cache."""

import os
from collections.abc import Iterable
from pathlib import Path

from tfds_torch.errors import ConfigError

_PROC = Path("/proc")


def can_drop() -> bool:
    """Whether this system can be asked to forget files."""
    return hasattr(os, "posix_fadvise")


def drop_from_page_cache(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Writes files to their disk and lets the system forget what it holds of them: the next reads come from the disk.

    The disk itself, or the machine below a virtual one, may still hold them.

    Raises:
        ConfigError: this system has no such request.
        OSError: a file cannot be opened.
    """
    if not can_drop():
        raise ConfigError("This system cannot be asked to forget files (posix_fadvise): there are no cold figures.")
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # Pages that are not written yet would stay.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def disk_bytes(pids: Iterable[int]) -> int | None:
    """Returns what running processes had the system read from disks so far; None where it does not tell."""
    found = [size for size in (_value(_PROC / str(pid) / "io", "read_bytes:") for pid in pids) if size is not None]
    return sum(found) if found else None


def read_bytes() -> int | None:
    """Returns what this process read so far, from disks or not; None where the system does not tell."""
    return _value(_PROC / "self" / "io", "rchar:")


def resident_bytes() -> tuple[int, int] | None:
    """Returns this process's resident memory, now and at its greatest so far; None where the system does not tell."""
    now, greatest = (_value(_PROC / "self" / "status", key) for key in ("VmRSS:", "VmHWM:"))
    return None if now is None or greatest is None else (now * 1024, greatest * 1024)


def anonymous_bytes(pid: int) -> int | None:
    """Returns a process's resident memory without files; None where the system does not tell, or the process ended.

    Pages that a fork shares count in full: the size does not change when other processes come and go.
    """
    found = _value(_PROC / str(pid) / "status", "RssAnon:")
    return None if found is None else found * 1024


def _value(table: Path, key: str) -> int | None:
    """Returns the number that follows a key in a table of /proc; None without table or line."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), None)
