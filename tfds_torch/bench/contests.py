"""The suites in which this package competes with others: whole epochs, and how training begins."""

from collections.abc import Callable, Sequence

from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.conversion import converted
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_sample, judge_start
from tfds_torch.bench.task import Peer, Task
from tfds_torch.bench.turns import start_again_and_again, take_turns
from tfds_torch.errors import TfdsTorchError

_WORK = (
    "Every contestant reads the same JPEG files (the demo dataset `photos`: about 500x375, 60 to 120 KB), shuffled, "
    "decodes them whole, cuts and resizes a random piece to 224x224 with Pillow (antialiased), flips half of them, and "
    "delivers batches uint8 [B, 3, 224, 224] to the training process, which does nothing else. "
)
_STOPPED = "while the others had their turns, its processes were stopped (SIGSTOP). "
_CONFIGURED = "how each contestant is configured, and why: the modules of tfds_torch.bench.peers"


def _measure_sample(run: Run) -> Found:
    def measure(peers: Sequence[Peer], begin: Callable[[Peer], ContestantProcess]) -> list[Outcome]:
        return take_turns([begin(peer) for peer in peers], run.settings.num_repeats, run.say)

    return _measure(run, measure, judge_sample)


def _measure_start(run: Run) -> Found:
    def measure(peers: Sequence[Peer], begin: Callable[[Peer], ContestantProcess]) -> list[Outcome]:
        return start_again_and_again(peers, begin, run.settings.num_repeats, run.say)

    return _measure(run, measure, judge_start)


SAMPLE = Suite(
    "sample",
    "photographs a second into the training process, whole epochs",
    f"{_WORK}Contestants live in processes of their own and take turns, epoch by epoch; a warm-up epoch is not "
    f"counted; {_STOPPED}Examples per second are those of whole epochs, the wait for the first batch and the tail "
    f"after the last one included: median (least to greatest).",
    _measure_sample,
    _CONFIGURED,
    has_peers=True,
)
START = Suite(
    "start",
    "how training and its epochs begin and end, and in how much memory",
    f"{_WORK}In turn, every contestant is started afresh and alone, for a first and a later epoch. The first "
    f"column counts from the start of the process, imports included. Memory is the proportional set size (PSS), "
    f"summed over all processes and sampled throughout one more epoch, at its greatest.",
    _measure_start,
    _CONFIGURED,
    has_peers=True,
)


def _measure(
    run: Run,
    measure: Callable[[Sequence[Peer], Callable[[Peer], ContestantProcess]], list[Outcome]],
    judge: Callable[[Sequence[Outcome]], list[Target]],
) -> Found:
    tasks, refused = _prepare(run)

    def begin(peer: Peer) -> ContestantProcess:
        return ContestantProcess(peer, tasks[peer], run.settings.timeout_s)

    done = {outcome.peer: outcome for outcome in measure([peer for peer in run.peers if peer in tasks], begin)}
    outcomes = [done.get(peer) or Outcome(peer, missing=refused[peer]) for peer in run.peers]
    return Found(judge(outcomes), outcomes)


def _prepare(run: Run) -> tuple[dict[Peer, Task], dict[Peer, str]]:
    """Returns the tasks of the contestants, and why some have none: their files could not be written."""
    tasks, refused, settings = {}, {}, run.settings
    for peer in run.peers:
        run.say(f"preparing the files of {peer.title}")
        try:
            folder = None if peer.file_format == "tfrecord" else str(converted(run.data_dir, peer.file_format))
        except TfdsTorchError as error:
            refused[peer] = str(error).strip().splitlines()[-1]
        else:
            size = (settings.num_photos, settings.batch_size, settings.num_workers)
            tasks[peer] = Task(str(run.data_dir), folder, *size)
    return tasks, refused
