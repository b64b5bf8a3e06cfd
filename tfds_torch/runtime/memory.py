"""Memory: what this process keeps where it is freed, and what a tree of processes takes."""

import ctypes
import sys
from pathlib import Path

from tfds_torch.runtime.process_tree import process_tree

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of glibc's malloc.h.
_KEPT_BYTES, _LARGEST_HEAPED_BYTES = 1 << 27, 1 << 26
_PROC = Path("/proc")


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to 128 MiB in each arena, instead of giving it back to the system.

    Decoded images are a few hundred kilobytes each. Left alone, their memory goes back to the system at every turn, and
    comes again page by page: a sixth of a decoding process's time. For processes of our own only: it cannot be undone.

    Returns:
        Whether this system's allocator takes such settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Another C library than glibc.
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_HEAPED_BYTES))


def tree_pss_bytes(pid: int | None = None) -> dict[int, int]:
    """Returns pid -> proportional set size, bytes, of a process (this one) and of its descendants, itself first.

    The proportional set size (PSS) divides every shared page among the processes that share it, so that the sum over a
    tree of processes counts each page once; their resident sizes would count it in every worker.

    Processes that end meanwhile are left out. Without `/proc` the result is empty.
    """
    sizes = {member: _pss_bytes(member) for member in process_tree(pid)}
    return {member: size for member, size in sizes.items() if size is not None}


def _pss_bytes(pid: int) -> int | None:
    """Returns a process's proportional set size, bytes; None where the system does not report it."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
