"""Memory of a process and of all that it started, as Linux accounts for it.

The proportional set size (PSS) divides every shared page among the processes that share it, so the sum over a tree of
processes counts each page once; their resident sizes would count it in every worker.
"""

from pathlib import Path

from tfds_torch.runtime.process_tree import process_tree

_PROC = Path("/proc")


def tree_pss_bytes(pid: int | None = None) -> dict[int, int]:
    """Returns pid -> proportional set size, bytes, of a process (this one) and of its descendants, itself first.

    Processes that end meanwhile are left out. Where the system does not tell (no `/proc`), the result is empty.
    """
    sizes = {}
    for member in process_tree(pid):
        size = _pss_bytes(member)
        if size is not None:
            sizes[member] = size
    return sizes


def _pss_bytes(pid: int) -> int | None:
    return _kilobytes(_PROC / str(pid) / "smaps_rollup", "Pss:")


def _kilobytes(table: Path, key: str) -> int | None:
    """Returns the bytes that a line `key  number kB` of a table in /proc gives; None without table or line."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)
