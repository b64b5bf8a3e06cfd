"""What of a machine belongs to one rank, and how many workers that is: `num_workers="auto"`."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.control_groups import group_folders, read_word

WORKER_BYTES = 400_000_000
"""About what a worker takes: its process (115 MB), images being decoded, and some batches that are ready."""

MOST_WORKERS = 16
"""A rank's workers at most: more have rarely anything to do, and each takes memory."""


class UsableCores(NamedTuple):
    """The processors that this process, and all ranks beside it, may use.

    Attributes:
        number: how many; a container may be given a fraction.
        source: what says so, for messages.
    """

    number: float
    source: str


class WorkerChoice(NamedTuple):
    """A number of workers for each rank.

    Attributes:
        num_workers: how many; 0: the training process reads by itself.
        reason: a sentence with all figures.
    """

    num_workers: int
    reason: str


def usable_cores(root: Path = Path("/")) -> UsableCores:
    """Returns the processors that this process may use: its affinity, or its container's share of their time.

    Args:
        root: the file system's root.
    """
    if hasattr(os, "sched_getaffinity"):
        found = UsableCores(len(os.sched_getaffinity(0)), "this process's affinity")
    else:
        found = UsableCores(os.cpu_count() or 1, "the machine's")
    shares = [found]
    for folder in group_folders("cpu", root):
        quota, period, name = _quota(folder)
        if quota > 0 and period > 0:
            shares.append(UsableCores(quota / period, f"the container's limit, {folder / name}"))
    return min(shares, key=lambda share: share.number)


def num_cores() -> int:
    """Returns the whole processors that this process may use, one at least."""
    return max(1, math.floor(usable_cores().number))


def num_local_ranks(environ: Mapping[str, str]) -> int:
    """Returns how many ranks share this machine: `LOCAL_WORLD_SIZE` of an environment, 1 where it has none.

    Raises:
        ConfigError: it is no integer >= 1.
    """
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"LOCAL_WORLD_SIZE={text!r} in the environment must be an integer >= 1, or not be there.")
    return int(text)


def choose_workers(
    cores: UsableCores,
    num_local_ranks: int = 1,
    available_bytes: int | None = None,
    *,
    inline_cores: int = 0,
    worker_bytes: int = WORKER_BYTES,
    most_workers: int = MOST_WORKERS,
) -> WorkerChoice:
    """Returns how many workers each rank of this machine should have.

    Each rank has its part of the cores; where that is more than two, one is left to the training process. Workers that
    the memory does not hold are left out; a rank without room for any reads by itself.

    Args:
        cores: of all ranks together.
        num_local_ranks: ranks on this machine, >= 1.
        available_bytes: memory that all their workers may take; None: not known, and no limit.
        inline_cores: a rank with at most so many cores reads by itself: with 0 workers.
        worker_bytes: memory of a worker.
        most_workers: of a rank.
    """
    share = cores.number / num_local_ranks
    ranks = f"{num_local_ranks} rank{'s' * (num_local_ranks > 1)} on this machine"
    reason = f"{cores.number:g} core{'s' * (cores.number != 1)} ({cores.source}) for {ranks}: {share:.3g} each"
    if share <= inline_cores:
        return WorkerChoice(
            0, f"0 workers: {reason}, and with at most {inline_cores} the training process reads by itself."
        )
    num_workers = max(1, math.floor(share))
    if num_workers > 2:
        num_workers -= 1
        reason += ", one of them left to the training process"
    if num_workers > most_workers:
        num_workers = most_workers
        reason += f"; a rank gets at most {most_workers}"
    if available_bytes is not None:
        room = available_bytes // (worker_bytes * num_local_ranks)
        reason += f"; {available_bytes / 1e9:.3g} GB of memory are free, room for {room} of {worker_bytes / 1e9:.3g} GB"
        reason += " on each rank" if num_local_ranks > 1 else ""
        num_workers = min(num_workers, room)
    return WorkerChoice(num_workers, f"{num_workers} worker{'s' * (num_workers != 1)}: {reason}.")


def _quota(folder: Path) -> tuple[float, float, str]:
    """Returns a control group's processor time, the period it is given for, and the file that says so; 0: no limit."""
    words = (read_word(folder / "cpu.max") or "").split()  # Version 2.
    if len(words) == 2:
        return (0.0 if words[0] == "max" else float(words[0])), float(words[1]), "cpu.max"
    quota, period = (read_word(folder / f"cpu.cfs_{name}_us") or "0" for name in ("quota", "period"))
    return float(quota), float(period), "cpu.cfs_quota_us"
