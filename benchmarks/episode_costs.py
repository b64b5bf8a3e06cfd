"""The suite `episodes`: windows of robot episodes, against tf.data over whole episodes as robot learners read them."""

import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import Comparison, compare, prepare_data
from benchmarks.competitor_process import CompetitorProcess
from benchmarks.figures import CPU, FIRST_BATCH, MEMORY, NUM_EXAMPLES, OURS_BY_IT, SPEED, START, VERY_FIRST_BATCH
from benchmarks.machine import can_drop, drop_from_page_cache, large_folder
from benchmarks.peers.robot_windows import CAMERAS, make_parser
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import LIMIT, OURS, PLAIN, Peer, Run, Task
from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime import subprocess_call

SMALL, LARGE = "stream_10000", "stream_50000"
NUM_EPOCHS = 10

_DATASET = "episodes/bridge"
_EPISODES_FOR_A_PHOTO = 0.05
_TASK: dict[str, Any] = {"dataset": _DATASET, "image_shape": (3, 256, 256), "work": PLAIN}
_PEERS = (
    Peer(OURS, "tfds_torch", "benchmarks.peers.robot_windows:load"),
    Peer(SMALL, "tf.data, buffer of 10,000", "benchmarks.peers.rlds_stream:load_small"),
    Peer(LARGE, "tf.data, buffer of 50,000", "benchmarks.peers.rlds_stream:load_large"),
)
_LIMIT_PEER = Peer(LIMIT, "decoding alone", "benchmarks.peers.frame_limit:load", changes={"image_shape": None})

SPEEDS = Comparison(
    Table(
        "windows",
        "windows a second into the training process",
        "{num_examples:,} episodes of some 90 steps; a window is an action of 16 steps, the images of two cameras, "
        "256x256, and the state. Batches of {batch_size}, in {num_workers} workers, or in tf.data's threads.",
        "competitor",
        [
            replace(SPEED, heading="windows/s"),
            OURS_BY_IT,
            Column("by_limit", "x decoding alone", "{:.2f}", ratio=Ratio(SPEED.key, by=LIMIT)),
            replace(CPU, heading="processor time of a window, us", has_spread=False),
            replace(FIRST_BATCH, has_spread=False),
            replace(NUM_EXAMPLES, heading="windows an epoch"),
        ],
    ),
    (*_PEERS, _LIMIT_PEER),
    dataset=_DATASET,
    num_for_a_photo=_EPISODES_FOR_A_PHOTO,
    task=_TASK,
)

_MEGABYTES, _, _TRAINING_MEGABYTES, _MEGABYTES_OF_PARTS = MEMORY
MEMORIES = Table(
    "memory",
    "how training begins, and in how much memory it goes on",
    f"Each row in a fresh process that runs alone; our index of steps is there. After a first epoch, {NUM_EPOCHS} "
    f"epochs whose memory is the proportional set size (PSS) of all processes at its greatest. Growth: the median "
    f"slope between any two of these epochs.",
    "competitor",
    [
        _MEGABYTES,
        Column("by_small", "x a buffer of 10,000", "{:.2f}", has_spread=False, ratio=Ratio(_MEGABYTES.key, by=SMALL)),
        Column("growth_mb", "growth, MB an epoch", "{:.3f}", has_spread=False),
        _TRAINING_MEGABYTES,
        _MEGABYTES_OF_PARTS,
        replace(START, has_spread=False),
        replace(VERY_FIRST_BATCH, has_spread=False),
    ],
)

INDEXING = Table(
    "index",
    "building the index of steps",
    "In a fresh process, from the opening of the parser to the number of its windows, {num_examples:,} episodes; and "
    "the same with the index there; the imports are over. cat reads the same files. Cold: from their disk.",
    "files",
    [
        Column("build_s", "building, s", "{:.2f}"),
        Column("cat_s", "cat, s", "{:.2f}"),
        Column("by_cat", "speed, x cat's", "{:.2f}"),
        Column("open_s", "opening, s", "{:.3f}"),
        Column("bytes", "of a step and camera, bytes", "{:.1f}", has_spread=False),
    ],
)


COLUMNS = Table(
    "columns",
    "numbers of all steps, without images",
    "`parser.columns` in a process that has called it before, files in the page cache; scaled to a million steps.",
    "columns",
    [Column("million_s", "of 10^6 steps, s", "{:.2f}")],
)
_NUM_COLUMNS = 5


def measure_episodes(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite."""
    yield compare(SPEEDS, run)
    num_episodes = int(run.settings.num_photos * _EPISODES_FOR_A_PHOTO)
    data_dir = prepare_data(_DATASET, run, num_episodes)
    settings = run.settings
    task = Task(str(data_dir), None, num_episodes, settings.batch_size, settings.num_workers, **_TASK)
    yield measure_memories(run, task)
    yield measure_indexing(run, task)
    run.show_progress("reading columns")
    seconds = subprocess_call.call(columns_s, task)
    yield COLUMNS.fill({"action": {"million_s": seconds}})


def measure_memories(run: Run, task: Task) -> Table:
    """Starts each competitor alone, and looks at its memory over some epochs."""
    samples: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for peer in _PEERS:
        competitor, sizes = CompetitorProcess(peer, task, run.settings.timeout_s), list[list[int]]()
        run.show_progress(f"memory of {peer.title}")
        try:
            first = competitor.run_epoch()
            sizes = [competitor.measure_memory() for _ in range(NUM_EPOCHS)]
        except TfdsTorchError as error:
            missing[peer.name], samples[peer.name] = str(error).strip().splitlines()[-1], {}
            continue
        finally:
            competitor.end()
        megabytes = [[part / 1e6 for part in parts] for parts in sizes]
        greatest = max(megabytes, key=sum)
        samples[peer.name] = {
            "memory_mb": [sum(greatest)] if greatest else [None],
            "training_mb": greatest[:1] or [None],
            "memory_parts": " + ".join(f"{part:,.0f}" for part in greatest),
            "growth_mb": [growth([sum(parts) for parts in megabytes])] if greatest else [None],
            "start_s": [first.start_s],
            "very_first_batch_s": [first.times.first_batch_s],
        }
    return MEMORIES.fill(samples, {peer.name: peer.title for peer in _PEERS}, missing)


def growth(sizes: Sequence[float]) -> float:
    """Returns the median slope between any two of some sizes, one for each epoch: an outlier does not move it."""
    pairs = itertools.combinations(enumerate(sizes), 2)
    slopes = [(later - earlier) / (number - before) for (before, earlier), (number, later) in pairs]
    return statistics.median(slopes) if slopes else 0.0


def measure_indexing(run: Run, task: Task) -> Table:
    """Builds the index of steps, each time in an empty cache, and opens it again."""
    shards = sorted((Path(task.data_dir) / task.dataset).glob("*/*.tfrecord-*"))
    samples = []
    for kind in ("cold", "warm") if can_drop() else ("warm",):
        for number in range(run.settings.num_repeats):
            run.show_progress(f"building the index of steps, {kind}")
            with large_folder() as folder:
                samples.append((kind, _index_figures(task, shards, folder / str(number), is_cold=kind == "cold")))
    return INDEXING.fill(collect(samples), num_examples=task.num_photos)


def _index_figures(task: Task, shards: Sequence[Path], folder: Path, *, is_cold: bool) -> dict[str, float | None]:
    folder.mkdir()
    if is_cold:
        drop_from_page_cache(shards)
    began_s = time.perf_counter()
    # A list, no shell: files that this package has written.
    subprocess.run(["/bin/cat", *map(str, shards)], stdout=subprocess.DEVNULL, check=True)  # noqa: S603
    cat_s = time.perf_counter() - began_s
    if is_cold:
        drop_from_page_cache(shards)
    build_s, num_windows = subprocess_call.call(_open, task, str(folder))
    open_s, _ = subprocess_call.call(_open, task, str(folder))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "build_s": build_s,
        "cat_s": cat_s,
        "by_cat": cat_s / build_s,
        "open_s": open_s,
        "bytes": size / num_windows / len(CAMERAS),
    }


def _open(task: Task, cache_dir: str) -> tuple[float, int]:
    """Returns seconds, and the number of windows."""
    os.environ["XDG_CACHE_HOME"] = cache_dir
    from tfds_torch import ParserTfds

    # What TFDS imports, when it first opens a dataset, takes as long as reading some hundred megabytes.
    ParserTfds(task.data_dir, task.dataset, image_key=None, target_key=None)
    began_s = time.perf_counter()
    num_windows = make_parser(task).num_examples
    return time.perf_counter() - began_s, num_windows


def columns_s(task: Task) -> list[float]:
    """Reads the actions of all steps several times, and returns seconds for a million steps."""
    parser, found = make_parser(task), []
    for _ in range(1 + _NUM_COLUMNS):
        began_s = time.perf_counter()
        num_steps = len(parser.columns(["action"])["action"])
        found.append((time.perf_counter() - began_s) / num_steps * 1e6)
    return found[1:]
