"""The suites in which this package hands over single examples, and competes with others that do, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch import demo
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.conversion import converted
from tfds_torch.bench.environments import Environment, environment_of
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_sample, judge_start
from tfds_torch.bench.task import IMAGE_SHAPE, OURS, OURS_8, OURS_IN_PROCESS, PEERS, TRAIN, Peer, Task
from tfds_torch.bench.turns import start_again_and_again, take_turns
from tfds_torch.errors import TfdsTorchError

CONFIGURED = "how each contestant is configured, and why: the modules of tfds_torch.bench.peers"
STOPPED = "while the others had their turns, its processes were stopped (SIGSTOP). "

FRESH = (
    "In turn, contestants are started afresh and alone, for a first and a later epoch: this package as often as a "
    "measurement is repeated, the others and an older revision of it once. "
)
PSS = (
    "Memory is the proportional set size (PSS), summed over all processes and sampled throughout one more epoch, at "
    "its greatest."
)

_MEASURED_AGAIN = (OURS, OURS_IN_PROCESS, OURS_8)

_WORK = (
    "Every contestant reads the same JPEG files (the demo dataset `photos`: about 500x375, 60 to 120 KB), shuffled, "
    "decodes them whole, cuts and resizes a random piece to 224x224 with Pillow (antialiased), flips half of them, and "
    "delivers batches uint8 [B, 3, 224, 224] to the training process, which does nothing else. "
)


@dataclass(frozen=True)
class Work:
    """What contestants do.

    Attributes:
        kind: `TRAIN`, `EVAL` or `PLAIN`.
        dataset: of which images; `photos`, or a fake one.
        image_shape: of what is delivered.
        num_for_a_photo: examples of an epoch, for every photograph that the command line asks for.
    """

    kind: str = TRAIN
    dataset: str = "photos"
    image_shape: tuple[int, ...] = IMAGE_SHAPE
    num_for_a_photo: int = 1


Measure = Callable[[Sequence[Peer], Callable[[Peer], ContestantProcess]], list[Outcome]]
Judge = Callable[[Sequence[Outcome]], list[Target]]


def compete(run: Run, work: Work, measure: Measure, judge: Judge) -> Found:
    """Prepares everybody's files, lets them be measured, and judges what was found.

    Args:
        run: who takes part, and how much is measured.
        work: what they do.
        measure: takes the contestants that have their files, and a function that begins one; returns what they did.
        judge: returns our own targets.
    """
    tasks, environments, refused = _prepare(run, work)

    def begin(peer: Peer) -> ContestantProcess:
        return ContestantProcess(peer, tasks[peer], run.settings.timeout_s, environments[peer])

    done = {outcome.peer: outcome for outcome in measure([peer for peer in run.peers if peer in tasks], begin)}
    outcomes = [done.get(peer) or Outcome(peer, missing=refused[peer]) for peer in run.peers]
    versions = {name: version for each in environments.values() for name, version in each.versions.items()}
    return Found(judge(outcomes), outcomes, versions=versions)


def in_turns(run: Run, num_repeats: int) -> Measure:
    """Returns the measurement of whole epochs, in turns."""
    return lambda peers, begin: take_turns([begin(peer) for peer in peers], num_repeats, run.say)


def in_fresh_processes(run: Run) -> Measure:
    """Returns the measurement of fresh processes, and of memory: ours as often as we measure, the others once."""

    def num_lives(peer: Peer) -> int:
        return run.settings.num_repeats if peer.name in _MEASURED_AGAIN else 1

    return lambda peers, begin: start_again_and_again(peers, begin, num_lives, run.say)


def _prepare(run: Run, work: Work) -> tuple[dict[Peer, Task], dict[Peer, Environment], dict[Peer, str]]:
    """Returns the tasks and environments of the contestants, and why some have none: they could not be made."""
    tasks, environments, refused, settings = {}, {}, {}, run.settings
    num_examples = settings.num_photos * work.num_for_a_photo
    data_dir = _data_dir(run, work.dataset, num_examples)
    for peer in run.peers:
        run.say(f"preparing the files of {peer.title}")
        try:
            environments[peer] = environment_of(peer, settings.baseline)
            is_source = peer.file_format == "tfrecord"
            folder = None if is_source else str(converted(data_dir, peer.file_format, dataset=work.dataset))
        except TfdsTorchError as error:
            refused[peer] = str(error).strip().splitlines()[-1]
            continue
        tasks[peer] = Task(
            str(data_dir),
            folder,
            num_examples,
            settings.batch_size,
            settings.num_workers,
            dataset=work.dataset,
            image_shape=work.image_shape if peer.hands_over else None,
            work=work.kind,
        )
    return tasks, environments, refused


def _data_dir(run: Run, dataset: str, num_examples: int) -> Path:
    if dataset == "photos":
        return run.data_dir
    run.say(f"preparing {dataset}")
    return demo.prepare_fake(dataset, num_examples=num_examples, num_shards=run.settings.num_shards, progress=False)


def _measure_sample(run: Run) -> Found:
    return compete(run, Work(), in_turns(run, 1), judge_sample)


def _measure_start(run: Run) -> Found:
    return compete(run, Work(), in_fresh_processes(run), judge_start)


SAMPLE = Suite(
    "sample",
    "photographs a second into the training process, whole epochs",
    f"{_WORK}Contestants live in processes of their own and take turns: a warm-up epoch, which is not counted, and one "
    f"more; {STOPPED}Examples per second are those of the whole epoch, the wait for the first batch and the tail after "
    "the last one included.",
    _measure_sample,
    CONFIGURED,
    PEERS,
)
START = Suite(
    "start",
    "how training and its epochs begin and end, and in how much memory",
    f"{_WORK}{FRESH}The first column counts from the start of the process, imports included. {PSS}",
    _measure_start,
    CONFIGURED,
    PEERS,
)
