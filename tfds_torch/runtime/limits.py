"""The cores and memory that this process may use, by affinity and control groups, and the number of workers for them.

A container limits processor time and memory by control groups (cgroups, versions 1 and 2).
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tfds_torch.errors import ConfigError

_ROOT = Path("/")
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")  # Of control groups, version 2 and 1.
_MEMORY_USAGES = ("memory.current", "memory.usage_in_bytes")

WORKER_BYTES = 400_000_000
"""About what a worker takes: its process (115 MB), images being decoded, and some batches that are ready."""

_MOST_WORKERS = 16  # Of a rank: more have rarely anything to do, and each takes memory.


class UsableCores(NamedTuple):
    """The processors that this process, and all ranks beside it, may use.

    Attributes:
        number: how many; not whole where a container limits their time.
        source: where the number comes from, for messages.
    """

    number: float
    source: str


class WorkerChoice(NamedTuple):
    """A number of workers.

    Attributes:
        num_workers: workers of each rank; 0: the training process reads by itself.
        reason: a sentence with all figures.
    """

    num_workers: int
    reason: str


class MemoryLimit(NamedTuple):
    """The most memory that this process, and those beside it, may take.

    Attributes:
        bytes: how much.
        source: where the limit comes from, for messages.
    """

    bytes: int
    source: str


def usable_cores(root: Path = _ROOT) -> UsableCores:
    """Return the processors that this process may use, by its affinity or its container's share of their time."""
    if hasattr(os, "sched_getaffinity"):
        own = UsableCores(len(os.sched_getaffinity(0)), "this process's affinity")
    else:
        own = UsableCores(os.cpu_count() or 1, "the machine's")
    in_groups = (_cores_of_group(folder) for folder in group_folders("cpu", root))
    return min([own, *(share for share in in_groups if share is not None)], key=lambda share: share.number)


def num_cores() -> int:
    """Return the number of whole processors that this process may use, >= 1."""
    return max(1, math.floor(usable_cores().number))


def num_local_ranks(environ: Mapping[str, str]) -> int:
    """Return how many ranks share this machine: `LOCAL_WORLD_SIZE` of an environment, 1 where it has none.

    Raises:
        ConfigError: the value is not an integer >= 1.
    """
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"LOCAL_WORLD_SIZE={text!r} in the environment must be an integer >= 1, or unset.")
    return int(text)


def memory_limit(root: Path = _ROOT) -> MemoryLimit:
    """Return the smallest limit of memory, the machine's own or one of a container."""
    limits = [
        MemoryLimit(size, f"the container's limit, {folder / name}")
        for folder in group_folders("memory", root)
        for name in _MEMORY_LIMITS
        if (size := _size(folder / name)) is not None
    ]
    machine = MemoryLimit(psutil.virtual_memory().total, "the machine's memory")
    return min([machine, *limits], key=lambda limit: limit.bytes)  # Version 1 says "no limit" with a huge number.


def available_bytes(root: Path = _ROOT) -> int:
    """Return the bytes of memory that may still be taken without swapping or being killed.

    Files that were read lately count as free: the system drops them first.
    """
    in_groups = (_available_in_group(folder) for folder in group_folders("memory", root))
    free: int = psutil.virtual_memory().available
    return min([free, *(size for size in in_groups if size is not None)])


def choose_workers(cores: UsableCores, num_local_ranks: int = 1, available_bytes: int | None = None) -> WorkerChoice:
    """Return how many workers each rank of this machine should have.

    Each rank has its part of the cores; where that is more than two, one is left to the training process. Workers that
    the memory (None: no limit is known) does not hold are left out; a rank without room for any reads by itself.
    """
    share = cores.number / num_local_ranks
    ranks = "1 rank" if num_local_ranks == 1 else f"{num_local_ranks} ranks"
    own = "1 core" if cores.number == 1 else f"{cores.number:g} cores"
    reason = f"{own} ({cores.source}) for {ranks} on this machine: {share:.3g} each"
    num_workers = max(1, math.floor(share))
    if num_workers > 2:
        num_workers -= 1
        reason += ", one of them left to the training process"
    if num_workers > _MOST_WORKERS:
        num_workers = _MOST_WORKERS
        reason += f"; a rank gets at most {_MOST_WORKERS}"
    if available_bytes is not None:
        room = available_bytes // (WORKER_BYTES * num_local_ranks)
        reason += f"; {available_bytes / 1e9:.3g} GB of memory are free, room for {room} of {WORKER_BYTES / 1e9:.3g} GB"
        reason += " on each rank" if num_local_ranks > 1 else ""
        num_workers = min(num_workers, room)
    workers = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    return WorkerChoice(num_workers, f"{workers}: {reason}.")


# Control groups


def group_folders(controller: str, root: Path = _ROOT) -> list[Path]:
    """Return the folders of this process's control group and of the groups around it, innermost first.

    A limit of any of them holds. Folders that a container does not show are left out; where there are no control
    groups, the list is empty.
    """
    paths = _own_paths(root)
    folders = []
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, kind = line.partition(" - ")
        mount_root, mount_point = (_unescape(field) for field in mount.split()[3:5])
        filesystem, _, options = kind.split(" ", 2)
        if filesystem == "cgroup2":
            path = paths.get("")
        elif filesystem == "cgroup" and controller in options.split(","):
            path = paths.get(controller)
        else:
            continue
        if path is not None:
            folders += _upwards(root / mount_point.lstrip("/"), mount_root, path)
    return [folder for folder in folders if folder.is_dir()]


def read_word(file: Path) -> str | None:
    """Return the text of a control group's file; None where there is none."""
    lines = _lines(file)
    return lines[0].strip() if lines else None


def read_table(file: Path) -> dict[str, int]:
    """Return the numbers of a file with lines `name number`; none where there is no such file."""
    return {name: int(number) for name, number in (line.split() for line in _lines(file))}


def _cores_of_group(folder: Path) -> UsableCores | None:
    """Return a control group's share of processor time: quota by period; None where it has no limit."""
    file = folder / "cpu.max"  # Version 2: "quota period".
    words = (read_word(file) or "").split()
    if len(words) == 2:
        quota, period = words
    else:
        file = folder / "cpu.cfs_quota_us"  # Version 1; -1 stands for no limit.
        quota = read_word(file) or "0"
        period = read_word(folder / "cpu.cfs_period_us") or "0"
    if quota == "max" or float(quota) <= 0 or float(period) <= 0:
        return None
    return UsableCores(float(quota) / float(period), f"the container's limit, {file}")


def _available_in_group(folder: Path) -> int | None:
    """Return the bytes that a control group may still take; None where it has no limit."""
    limit, usage = _first_size(folder, _MEMORY_LIMITS), _first_size(folder, _MEMORY_USAGES)
    if limit is None or usage is None:
        return None
    counts = read_table(folder / "memory.stat")
    # Inner groups included, as in the usage: version 1 has both names, and there only the one with `total` counts them.
    cache = counts.get("total_inactive_file", counts.get("inactive_file", 0))
    return max(0, limit - max(0, usage - cache))


def _first_size(folder: Path, names: Sequence[str]) -> int | None:
    """Return the size in the first file that exists; None where it says "no limit", or no file exists."""
    return next((_size(folder / name) for name in names if (folder / name).exists()), None)


def _size(file: Path) -> int | None:
    word = read_word(file)
    return None if word is None or word == "max" else int(word)


def _own_paths(root: Path) -> dict[str, str]:
    """Return controller -> path of this process's group; version 2 has one for all, whose name is empty."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(mount_point: Path, mount_root: str, path: str) -> list[Path]:
    """Return the folders from a group's up to where its hierarchy is mounted."""
    shown_root = mount_root.rstrip("/")
    if path.startswith(f"{shown_root}/"):  # A container is often shown its own part of the hierarchy only.
        path = path.removeprefix(shown_root)
    inner = [part for part in path.split("/") if part]
    if ".." in inner:  # The group lies outside of what this process is shown.
        inner = []
    return [mount_point.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]


def _unescape(field: str) -> str:
    """Return a field of mountinfo, in which blanks are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _lines(file: Path) -> list[str]:
    """Return a file's lines that are not empty; none where there is no file that this process may read."""
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")  # A mount point may have any name.
    except OSError:
        return []
    return [line for line in text.splitlines() if line]
