"""The suite `episodes`: windows of robot episodes, against tf.data over whole episodes as robot learners read them."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.peer_process import PeerProcess
from benchmarks.protocol import PLAIN, Task
from benchmarks.suites.epochs import TURNS
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import (
    CPU,
    FIRST_BATCH,
    MEMORY,
    MEMORY_PARTS,
    NUM_EXAMPLES,
    OURS,
    OURS_BY_IT,
    SPEED,
    START,
    TRAINING_MEMORY,
    VERY_FIRST_BATCH,
    Outcome,
    Peer,
    Run,
    Suite,
    compare,
    last_line,
)
from tfds_torch.errors import TfdsTorchError

SMALL = "stream_10000"
_EPOCHS_FOR_A_REPEAT = 5

_DATASET = "episodes/bridge"
_EPISODES_FOR_A_PHOTO = 0.05
_PEERS = (
    Peer(OURS, "tfds_torch", "ours"),
    Peer(SMALL, "tf.data, buffer of 10,000", "rlds_stream", options={"num_shuffled": 10_000}),
    Peer("stream_50000", "tf.data, buffer of 50,000", "rlds_stream", options={"num_shuffled": 50_000}),
)

SPEEDS = Table(
    "windows",
    "windows a second into the training process",
    "{num_examples:,} episodes of some 90 steps; a window is an action of 16 steps, the images of two cameras, "
    "256x256, and the state. Batches of {batch_size}, in {num_workers} workers, or in tf.data's threads.",
    "competitor",
    [
        replace(SPEED, heading="windows/s"),
        OURS_BY_IT,
        replace(CPU, heading="processor time of a window, us", has_spread=False),
        replace(FIRST_BATCH, has_spread=False),
        replace(NUM_EXAMPLES, heading="windows an epoch"),
    ],
)
MEMORIES = Table(
    "memory",
    "how training begins, and in how much memory it goes on",
    "Each row in a fresh process that runs alone; our index of steps is there. After a first epoch, {num_epochs} "
    "epochs whose memory is the proportional set size (PSS) of all processes at its greatest. Growth: the median "
    "slope between any two of these epochs.",
    "competitor",
    [
        MEMORY,
        Column("by_small", "x a buffer of 10,000", "{:.2f}", has_spread=False, ratio=Ratio(MEMORY.key, by=SMALL)),
        Column("growth_mb", "growth, MB an epoch", "{:.3f}", has_spread=False),
        TRAINING_MEMORY,
        MEMORY_PARTS,
        replace(START, has_spread=False),
        replace(VERY_FIRST_BATCH, has_spread=False),
    ],
)


def _measure(run: Run) -> Iterator[Table]:
    number = max(1, int(run.settings.num_photos * _EPISODES_FOR_A_PHOTO))
    task = run.task(
        run.data_dir(_DATASET, number),
        number,
        dataset=_DATASET,
        image_shape=(3, 256, 256),
        work=PLAIN,
        options={"source": "windows"},
    )
    yield compare(run, SPEEDS, _PEERS, task)
    yield measure_memories(run, task)


def measure_memories(run: Run, task: Task) -> Table:
    """Starts each peer alone, and looks at its memory over some epochs."""
    samples: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    num_epochs = _EPOCHS_FOR_A_REPEAT * run.settings.num_repeats
    for peer in _PEERS:
        run.show_progress(f"memory of {peer.title}")
        process = PeerProcess(peer.module, run.task_of(peer, task), run.settings.timeout_s, run.interpreter_of(peer))
        try:
            first = process.run_epoch()
            megabytes = [[part / 1e6 for part in process.measure_memory()] for _ in range(num_epochs)]
        except TfdsTorchError as error:
            missing[peer.name], samples[peer.name] = last_line(error), {}
            continue
        finally:
            process.end()
        greatest = max(megabytes, key=sum)
        growth_mb = growth([sum(parts) for parts in megabytes]) if greatest else None
        samples[peer.name] = Outcome([first], memory_mb=greatest).samples() | {"growth_mb": [growth_mb]}
    titles = {peer.name: peer.title for peer in _PEERS}
    return MEMORIES.fill(samples, titles, missing, num_epochs=num_epochs)


def growth(sizes: Sequence[float]) -> float:
    """Returns the median slope between any two of some sizes, one for each epoch: an outlier does not move it."""
    pairs = itertools.combinations(enumerate(sizes), 2)
    slopes = [(later - earlier) / (number - before) for (before, earlier), (number, later) in pairs]
    return statistics.median(slopes) if slopes else 0.0


SUITE = Suite(
    "episodes",
    "windows of robot episodes",
    f"""This package reads windows of made-up robot episodes (the demo dataset `episodes/bridge`) by number, against a
    tf.data pipeline over whole episodes with a shuffle buffer, as Octo and OpenVLA have it. {TURNS}""",
    _measure,
)
