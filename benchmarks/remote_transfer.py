"""Encoded images from a server: at what speed, how many bytes, on how many machines, and in how small a cache."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.remote_runs import Epoch, Served
from benchmarks.remote_tables import BYTES, LOCAL, MACHINES, NEW, NUM_RANKS, OBSTORE, RANKS, SMALL_CACHE
from benchmarks.remote_tasks import (
    FAST,
    LIMITS,
    OURS_PEER,
    Figures,
    extend,
    fresh_epochs,
    in_note,
    last_line,
    leave_index,
    local,
    of_ranks,
    task_of,
)
from benchmarks.tables import Table
from benchmarks.task import ENCODED, OURS, Peer, Run, Task
from tfds_torch.errors import TfdsTorchError

BYTES_COPIES, MACHINES_COPIES = 5, 3
"""How often the photographs are in the bucket: an epoch takes the link some 20 s; enough blocks for four lanes."""

SMALL_WINDOW = 1024
GROUPS = 4

_OBSTORE_PEER = Peer(OBSTORE, "obstore alone", "benchmarks.peers.bare_obstore:load")


def measure_bytes(run: Run, served: Served) -> Table:
    """Reads encoded images, by one rank and by several."""
    titles = {
        OBSTORE: "obstore alone",
        NEW: "tfds_torch, no index",
        OURS: "tfds_torch",
        RANKS: f"tfds_torch, {NUM_RANKS} ranks",
        LOCAL: "tfds_torch, local files",
    }
    samples: dict[str, Figures] = {name: {} for name in titles}
    missing: dict[str, str] = {}
    for turn in range(run.settings.num_repeats):
        home = served.new_folder("home")  # What the row without an index leaves there, the next ones have.
        for name, title in titles.items():
            if name in missing:
                continue
            run.show_progress(f"{BYTES.title}, {turn + 1} of {run.settings.num_repeats}: {title}")
            cache = served.new_folder("cache")
            peer, tasks = _bytes_tasks(run, served, name, cache)
            try:
                epochs = fresh_epochs(run, served, peer, tasks, 2, home)
            except TfdsTorchError as error:
                missing[name], samples[name] = last_line(error), {}
            else:
                extend(samples[name], _bytes_figures(epochs, served, name))
            finally:
                shutil.rmtree(cache)
    return BYTES.fill(samples, titles, missing, copies=served.num_copies, **in_note(run, served, LIMITS))


def _bytes_tasks(run: Run, served: Served, name: str, cache: Path) -> tuple[Peer, list[Task]]:
    task = task_of(run, served, cache, work=ENCODED)
    if name == OBSTORE:
        url = f"{served.data_dir}/{served.dataset_dir.relative_to(served.dataset_dir.parents[1])}"
        return _OBSTORE_PEER, [replace(task, data_dir=url, converted_dir=str(served.dataset_dir))]
    if name == LOCAL:
        return OURS_PEER, [local(task, served.dataset_dir.parents[1])]
    return OURS_PEER, of_ranks(task, NUM_RANKS if name == RANKS else 1, served)


def _bytes_figures(epochs: Sequence[Epoch], served: Served, name: str) -> Figures:
    cold, warm = epochs
    speed, warm_speed = (served.split_bytes / epoch.whole_s for epoch in epochs)
    if name == LOCAL:
        return {"warm_mb_per_s": [warm_speed / 1e6]}
    figures: Figures = {
        "mb_per_s": [speed / 1e6],
        "by_link": [speed / served.link_bytes_per_s],
        "fetched": [cold.data_bytes / served.split_bytes],
    }
    if name == OBSTORE:
        return figures
    memory, cpu_s = (sum(parts) for parts in zip(*cold.fetchers, strict=True)) if cold.fetchers else (None, None)
    return figures | {
        "lost": [lost_or_twice(cold, served.num_examples) + lost_or_twice(warm, served.num_examples)],
        "warm_requests": [warm.data_requests],
        "warm_mb_per_s": [warm_speed / 1e6],
        "fetcher_mb": [None if memory is None else memory / 1e6 / len(cold.fetchers)],
        "fetcher_cpu": [None if cpu_s is None else cpu_s / (cold.ledger.num_bytes / 1e9)],
    }


def measure_machines(run: Run, served: Served) -> Table:
    """Reads one epoch by one machine, by two, and by four."""
    samples: dict[str, Figures] = {}
    missing: dict[str, str] = {}
    alone: list[list[int]] = []
    counts = [1, 2, GROUPS]
    home = served.new_folder("home")
    try:
        leave_index(run, served, home)
    except TfdsTorchError as error:
        missing = {str(count): last_line(error) for count in counts}
        return MACHINES.fill({str(count): {} for count in counts}, missing=missing, **in_note(run, served, FAST))
    for count in counts:
        name = str(count)
        run.show_progress(f"{MACHINES.title}: {count}")
        caches = [served.new_folder("cache") for _ in range(count)]
        task = task_of(run, served, caches[0], work=ENCODED, read={"block_groups": GROUPS})
        task = replace(task, batch_size=run.settings.batch_size // count)
        tasks = [
            replace(rank, remote={**rank.remote, "cache_dir": str(cache)})
            for rank, cache in zip(of_ranks(task, count, served), caches, strict=True)
        ]
        try:
            (epoch,) = fresh_epochs(run, served, OURS_PEER, tasks, home=home)
        except TfdsTorchError as error:
            samples[name], missing[name] = {}, last_line(error)
            continue
        finally:
            fetched = [_file_bytes(cache) for cache in caches]
            for cache in caches:
                shutil.rmtree(cache)
        batches = epoch.global_batches()
        alone = batches if count == 1 else alone
        samples[name] = {
            "fetched": [max(fetched) / served.split_bytes],
            "all_fetched": [epoch.data_bytes / served.split_bytes],
            "equal": [_share_equal(batches, alone)],
            "lost": [lost_or_twice(epoch, served.num_examples)],
        }
    return MACHINES.fill(samples, missing=missing, **in_note(run, served, FAST))


def measure_small_cache(run: Run, served: Served) -> Table:
    """Reads two epochs through a folder that holds a quarter of the split, and through one that holds all.

    Both have an index: without one, shards are fetched as wholes first, and a small folder does not keep them.
    """
    titles = {"none": "not limited", "quarter": "a quarter of the split"}
    samples: dict[str, Figures] = {}
    missing: dict[str, str] = {}
    home = served.new_folder("home")
    try:
        leave_index(run, served, home)
    except TfdsTorchError as error:
        missing = dict.fromkeys(titles, last_line(error))
        return SMALL_CACHE.fill(
            {name: {} for name in titles}, titles, missing, window=SMALL_WINDOW, **in_note(run, served, LIMITS)
        )
    for name, title in titles.items():
        run.show_progress(f"{SMALL_CACHE.title}: {title}")
        cache = served.new_folder("cache")
        most = served.split_bytes // 4 if name == "quarter" else None
        task = task_of(run, served, cache, work=ENCODED, read={"shuffle_buffer": SMALL_WINDOW})
        task = replace(task, remote={**task.remote, "max_bytes": most})
        try:
            first, second = fresh_epochs(run, served, OURS_PEER, [task], 2, home, watched=cache)
        except TfdsTorchError as error:
            samples[name], missing[name] = {}, last_line(error)
            continue
        finally:
            shutil.rmtree(cache)
        cached = max(first.most_cached, second.most_cached)
        samples[name] = {
            "fetched": [first.data_bytes / served.split_bytes],
            "next_fetched": [second.data_bytes / served.split_bytes],
            "lost": [lost_or_twice(first, served.num_examples) + lost_or_twice(second, served.num_examples)],
            "cached_mb": [cached / 1e6],
            "by_limit": [None if most is None else cached / most],
        }
    return SMALL_CACHE.fill(samples, titles, missing, window=SMALL_WINDOW, **in_note(run, served, LIMITS))


def lost_or_twice(epoch: Epoch, num_examples: int) -> float:
    """Returns how many examples an epoch of all ranks lacks, and how many came again."""
    numbers = [number for batch in epoch.global_batches() for number in batch]
    return float(num_examples - len(set(numbers)) + len(numbers) - len(set(numbers)))


def _share_equal(batches: Sequence[Any], others: Sequence[Any]) -> float:
    equal = sum(bool(one == other) for one, other in zip(batches, others, strict=False))
    return equal / max(len(batches), len(others), 1)


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
