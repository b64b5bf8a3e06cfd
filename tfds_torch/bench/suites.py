"""The suites: what is measured, with whom, and how it is judged."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfds_torch import demo
from tfds_torch.bench import machine
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.conversion import converted
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.report import Report
from tfds_torch.bench.targets import Target, judge_sample, judge_start
from tfds_torch.bench.task import Peer, Task
from tfds_torch.bench.turns import Say, start_again_and_again, take_turns
from tfds_torch.errors import TfdsTorchError

_NUM_SHARDS = 8
_WORK = (
    "Every contestant reads the same JPEG files (the demo dataset `photos`: about 500x375, 60 to 120 KB), shuffled, "
    "decodes them whole, cuts and resizes a random piece to 224x224 with Pillow (antialiased), flips half of them, and "
    "delivers batches uint8 [B, 3, 224, 224] to the training process, which does nothing else. "
)
_STOPPED = "while the others had their turns, its processes were stopped (SIGSTOP). "


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        num_photos: examples of an epoch.
        batch_size: examples of a batch.
        num_workers: loader processes of a contestant.
        num_repeats: measured epochs, or fresh processes.
        timeout_s: what an epoch may take, seconds.
    """

    num_photos: int
    batch_size: int
    num_workers: int
    num_repeats: int
    timeout_s: float


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        name: how the command line calls it.
        title: what it measures, in a line.
        method: how, in a paragraph.
        measure: (peers, begin, repeats, say) -> what the contestants did.
        judge: what they did -> our targets.
    """

    name: str
    title: str
    method: str
    measure: Callable[[Sequence[Peer], Callable[[Peer], ContestantProcess], int, Say], list[Outcome]]
    judge: Callable[[Sequence[Outcome]], list[Target]]


def _measure_sample(
    peers: Sequence[Peer], begin: Callable[[Peer], ContestantProcess], num_repeats: int, say: Say
) -> list[Outcome]:
    return take_turns([begin(peer) for peer in peers], num_repeats, say)


SUITES = (
    Suite(
        "sample",
        "photographs a second into the training process, whole epochs",
        f"{_WORK}Contestants live in processes of their own and take turns, epoch by epoch; a warm-up epoch is not "
        f"counted; {_STOPPED}Examples per second are those of whole epochs, the wait for the first batch and the tail "
        f"after the last one included: median (least to greatest).",
        _measure_sample,
        judge_sample,
    ),
    Suite(
        "start",
        "how training and its epochs begin and end, and in how much memory",
        f"{_WORK}In turn, every contestant is started afresh and alone, for a first and a later epoch. The first "
        f"column counts from the start of the process, imports included. Memory is the proportional set size (PSS), "
        f"summed over all processes and sampled throughout one more epoch, at its greatest.",
        start_again_and_again,
        judge_start,
    ),
)


def run(suite: Suite, peers: Sequence[Peer], settings: Settings, command: str, say: Say) -> Report:
    """Measures a suite.

    Raises:
        TfdsTorchError: the photographs could not be made. A contestant that fails is reported, not raised.
    """
    found = machine.describe_machine()  # First: the load before the start.
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    data_dir = demo.prepare(
        "photos", num_examples=settings.num_photos, num_shards=min(_NUM_SHARDS, settings.num_photos)
    )
    tasks, refused = _prepare(peers, data_dir, settings, say)

    def begin(peer: Peer) -> ContestantProcess:
        return ContestantProcess(peer, tasks[peer], settings.timeout_s)

    able = [peer for peer in peers if peer in tasks]
    done = {outcome.peer: outcome for outcome in suite.measure(able, begin, settings.num_repeats, say)}
    outcomes = [done.get(peer) or Outcome(peer, missing=refused[peer]) for peer in peers]
    return Report(
        suite=suite.name,
        title=suite.title,
        method=suite.method,
        command=command,
        date=date,
        machine=found,
        versions=machine.describe_versions(name for peer in peers for name in peer.distributions),
        settings=asdict(settings) | {"num_shards": min(_NUM_SHARDS, settings.num_photos)},
        outcomes=outcomes,
        targets=suite.judge(outcomes),
    )


def _prepare(
    peers: Sequence[Peer], data_dir: Path, settings: Settings, say: Say
) -> tuple[dict[Peer, Task], dict[Peer, str]]:
    """Returns the tasks of the contestants, and why some have none: their files could not be written."""
    tasks, refused = {}, {}
    for peer in peers:
        say(f"preparing the files of {peer.title}")
        try:
            folder = None if peer.file_format == "tfrecord" else str(converted(data_dir, peer.file_format))
        except TfdsTorchError as error:
            refused[peer] = str(error).strip().splitlines()[-1]
        else:
            tasks[peer] = Task(str(data_dir), folder, settings.num_photos, settings.batch_size, settings.num_workers)
    return tasks, refused
