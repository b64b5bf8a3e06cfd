"""The work of the suite `remote`, and fresh processes that do it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.environments import Environment, this_environment
from benchmarks.file_server import Limits
from benchmarks.remote_runs import DATASET, Epoch, Readers, Served, run_epochs, with_home
from benchmarks.task import ENCODED, OURS, Peer, Run, Task
from tfds_torch.errors import TfdsTorchError

OURS_PEER = Peer(OURS, "tfds_torch", "benchmarks.peers.remote_ours:load")
LIMITS = Limits(latency_s=0.04, connection_bytes_per_s=15e6, link_bytes_per_s=100e6)
FAST = Limits(latency_s=0.04, connection_bytes_per_s=30e6, link_bytes_per_s=400e6)

Figures = dict[str, list[float | None]]


def task_of(run: Run, served: Served, cache: Path, **fields: Any) -> Task:
    """Returns the work of an epoch over what is served, by one process; encoded images are read without workers."""
    settings, is_encoded = run.settings, fields.get("work") == ENCODED
    if is_encoded:
        fields["image_shape"] = None
    task = Task(
        served.data_dir,
        None,
        served.num_examples,
        settings.batch_size,
        0 if is_encoded else settings.num_workers,
        dataset=DATASET,
        remote={"url": served.server.url, "cache_dir": str(cache)},
    )
    return replace(task, **fields)


def local(task: Task, data_dir: Path) -> Task:
    """Returns the same work with local files."""
    return replace(task, data_dir=str(data_dir), dataset=DATASET.partition(":")[0], remote={})


def of_ranks(task: Task, num_ranks: int, served: Served) -> list[Task]:
    """Returns the work of each rank of an epoch that several share; they begin together."""
    meeting = str(served.new_folder("meeting")) if num_ranks > 1 else ""
    return [
        replace(task, remote={**task.remote, "rank": rank, "num_ranks": num_ranks, "meeting_dir": meeting})
        for rank in range(num_ranks)
    ]


def fresh_epochs(
    run: Run,
    served: Served,
    peer: Peer,
    tasks: Sequence[Task],
    num_epochs: int = 1,
    home: Path | None = None,
    watched: Path | None = None,
) -> list[Epoch]:
    """Runs epochs in fresh processes; `home` has caches of indices, None: nothing is known yet."""
    environment = with_home(this_environment(), home or served.new_folder("home"))
    return run_epochs(replace(readers_of(run, served, peer, tasks, environment), watched=watched), num_epochs)


def leave_index(run: Run, served: Served, home: Path) -> None:
    """Reads an epoch, whose indices stay in a folder of caches."""
    cache = served.new_folder("cache")
    try:
        fresh_epochs(run, served, OURS_PEER, [task_of(run, served, cache, work=ENCODED)], home=home)
    finally:
        shutil.rmtree(cache)


def readers_of(run: Run, served: Served, peer: Peer, tasks: Sequence[Task], environment: Environment) -> Readers:
    """Returns processes, not yet started."""
    return Readers(peer, tasks, run.settings.timeout_s, served.server, environment)


def extend(samples: Figures, more: Mapping[str, Sequence[float | None]]) -> None:
    """Adds the figures of one turn to a row's."""
    for key, values in more.items():
        samples.setdefault(key, []).extend(values)


def last_line(error: TfdsTorchError) -> str:
    """Returns why a row is missing."""
    return str(error).strip().splitlines()[-1]


def in_note(run: Run, served: Served, limits: Limits) -> dict[str, Any]:
    """Returns what the notes of tables name."""
    return vars(run.settings) | {
        "num_examples": served.num_examples,
        "megabytes": served.split_bytes / 1e6,
        "link_mb": (limits.link_bytes_per_s or 0.0) / 1e6,
        "connection_mb": (limits.connection_bytes_per_s or 0.0) / 1e6,
    }
