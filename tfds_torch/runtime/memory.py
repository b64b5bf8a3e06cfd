"""Memory: what this process keeps when it is freed, blocks for batches that are used again, and what processes take."""

import ctypes
import math
import sys
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


class ReusedMemory:
    """Memory that one process keeps for its own batches. Thread-safe.

    A batch of 128 photographs takes 19 MB. Fresh memory of that size comes from the system page by page, which took a
    sixth of a worker's time, and is given back at once. Here it is used again as soon as nothing refers to what was
    handed out, neither tensors nor arrays nor views.

    Args:
        most_kept: blocks that are kept while nobody uses them.
        kept_bytes: of all of them, up to which more are kept: small batches are made several at a time.
    """

    def __init__(self, most_kept: int = 4, kept_bytes: int = 1 << 24) -> None:
        self._most_kept, self._kept_bytes = most_kept, kept_bytes
        # No lock: garbage collection may give memory back at any moment, also within `take` in the same thread.
        self._blocks: list[NDArray[np.uint8]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Returns memory of any content, uint8, contiguous."""
        num_bytes = math.prod(shape)
        block = self._pop(num_bytes)
        if block is None:
            block = np.empty(num_bytes, np.uint8)
        # A new object over the same memory: it lives as long as any view of it.
        array = np.frombuffer(block.data, np.uint8)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def _pop(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Returns a block that is kept, of this size; None: there is none. Each step is atomic."""
        others: list[NDArray[np.uint8]] = []
        found: NDArray[np.uint8] | None = None
        while found is None and self._blocks:
            try:
                block = self._blocks.pop()
            except IndexError:  # Another thread took it.
                break
            if block.size == num_bytes:
                found = block
            else:
                others.append(block)
        self._blocks.extend(others)
        return found

    def _give_back(self, block: NDArray[np.uint8]) -> None:
        kept = list(self._blocks)
        if len(kept) < self._most_kept or sum(one.size for one in kept) + block.size <= self._kept_bytes:
            self._blocks.append(block)


def tree_pss_bytes(pid: int | None = None) -> dict[int, int]:
    """Returns pid -> proportional set size, bytes, of a process (this one) and of its descendants, itself first.

    The proportional set size (PSS) divides every shared page among the processes that share it, so that the sum over a
    tree of processes counts each page once; their resident sizes would count it in every worker.

    Processes that end meanwhile are left out. Without `/proc` the result is empty.
    """
    sizes = {}
    for member in process_tree(pid):
        size = _pss_bytes(member)
        if size is not None:
            sizes[member] = size
    return sizes


def _pss_bytes(pid: int) -> int | None:
    """Returns a process's proportional set size, bytes; None where the system does not report it."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
