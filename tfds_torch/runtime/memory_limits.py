"""How much memory this process may take: the smallest of the machine's and of its containers' limits."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.runtime.control_groups import group_folders, read_table, read_word

_ROOT = Path("/")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # Of control groups, version 2 and 1.
_USAGES = ("memory.current", "memory.usage_in_bytes")
_CACHES = ("inactive_file", "total_inactive_file")  # In memory.stat; inner groups included, as in the usage.


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that this process, and what runs beside it, may take.

    Attributes:
        bytes: the limit.
        source: where it comes from, for messages: `the machine's memory`, or `the container's limit, <file>`.
    """

    bytes: int
    source: str


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """Returns the smallest limit, or None where the system does not tell.

    Args:
        root: the file system's root.
    """
    limits = [
        MemoryLimit(size, f"the container's limit, {folder / name}")
        for folder in group_folders("memory", root)
        for name in _LIMITS
        if (size := _size(folder / name)) is not None
    ]
    machine = _meminfo(root).get("MemTotal")
    if machine is None and root == _ROOT:
        machine = _physical_bytes()
    if machine is not None:  # First: version 1 says "no limit" with a huge number.
        limits.insert(0, MemoryLimit(machine, "the machine's memory"))
    return min(limits, key=lambda limit: limit.bytes, default=None)


def available_bytes(root: Path = _ROOT) -> int | None:
    """Returns the memory that may still be taken without swapping or being ended, or None where nothing tells.

    Files that were read lately count as free: the system drops them first.

    Args:
        root: the file system's root.
    """
    in_groups = (_available_in_group(folder) for folder in group_folders("memory", root))
    found = [_meminfo(root).get("MemAvailable"), *in_groups]
    return min((size for size in found if size is not None), default=None)


def _available_in_group(folder: Path) -> int | None:
    """Returns what a control group may still take, or None where it has no limit."""
    limit, usage = _first_size(folder, _LIMITS), _first_size(folder, _USAGES)
    if limit is None or usage is None:
        return None
    caches = read_table(folder / "memory.stat")
    # Version 1 has both names; there only the one with `total` counts inner groups.
    cache = caches.get(_CACHES[1], caches.get(_CACHES[0], 0))
    return max(0, limit - max(0, usage - cache))


def _first_size(folder: Path, names: Sequence[str]) -> int | None:
    """Returns what the first file that is there says; None where it says "no limit", or none is there."""
    return next((_size(folder / name) for name in names if (folder / name).exists()), None)


def _size(file: Path) -> int | None:
    word = read_word(file)
    return None if word is None or word == "max" else int(word)


def _meminfo(root: Path) -> dict[str, int]:
    """Returns name -> bytes of the machine's table; none where there is no such table."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, other systems lack these names.
        return None
