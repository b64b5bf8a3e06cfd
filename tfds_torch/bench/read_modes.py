"""Read modes of this package against each other: who takes part, in what, and the files that must be cold before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.figures import EpochFigures, Memory, Outcome
from tfds_torch.bench.report import epoch_as_dict, missing_outcomes
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.system import drop_from_page_cache
from tfds_torch.bench.task import IMAGE_SHAPE, Peer, Task
from tfds_torch.bench.turns import Contestant, Say, take_turns

_LOADERS = "tfds_torch.bench.peers.read_modes"


@dataclass(frozen=True)
class ReadMode:
    """A way to read.

    Attributes:
        name: as tables call it.
        read: arguments of `ReadOptions`.
    """

    name: str
    read: Mapping[str, Any] = field(hash=False)


INDEX = ReadMode("index", {"mode": "index"})
EXAMPLES = ReadMode("examples", {"mode": "examples"})
NO_CHECKSUMS = ReadMode("index, not verified", {"mode": "index", "verify_checksums": False})


@dataclass(frozen=True)
class Contest:
    """Read modes that take turns at the same work.

    Attributes:
        name: in the data.
        title: in a line.
        level: function of `peers.read_modes`.
        dataset: what is read.
        modes: who takes part; EXAMPLES, which the others are compared with, among them.
        is_cold: whether the files are read from their disk in every epoch.
        num_turns: epochs of each for a repeat: short ones need more for a median that stands.
    """

    name: str
    title: str
    level: str
    dataset: str
    modes: Sequence[ReadMode]
    is_cold: bool = False
    num_turns: int = 1


class ColdContestant:
    """A contestant whose files are dropped from the page cache before every epoch."""

    def __init__(self, contestant: Contestant, files: Sequence[Path]) -> None:
        self.peer = contestant.peer
        self._contestant = contestant
        self._files = files

    def run_epoch(self) -> EpochFigures:
        """As `Contestant`."""
        drop_from_page_cache(self._files)
        return self._contestant.run_epoch()

    def measure_memory(self) -> Memory | None:
        """As `Contestant`."""
        return self._contestant.measure_memory()

    def end(self) -> None:
        """As `Contestant`."""
        self._contestant.end()


def compete(contest: Contest, task: Task, num_repeats: int, timeout_s: float, say: Say) -> list[Outcome]:
    """Lets the modes take turns, epoch by epoch, and returns what they did.

    Args:
        contest: who does what.
        task: the work; dataset, `read` and image_shape are the contest's.
        num_repeats: of measured turns.
        timeout_s: what an epoch may take.
        say: tells the user what is being done.

    Raises:
        ConfigError: the files are to be cold, and this system cannot be asked for that.
    """
    files = [path for path in (Path(task.data_dir) / contest.dataset).rglob("*.tfrecord*") if path.is_file()]
    contestants: list[Contestant] = []
    for mode in contest.modes:
        image_shape = IMAGE_SHAPE if contest.level == "transformed" else None
        own = replace(task, dataset=contest.dataset, read=mode.read, image_shape=image_shape)
        peer = Peer(mode.name, mode.name, f"{_LOADERS}:{contest.level}")
        contestant = ContestantProcess(peer, own, timeout_s)
        contestants.append(ColdContestant(contestant, files) if contest.is_cold else contestant)
    return take_turns(contestants, num_repeats * contest.num_turns, lambda text: say(f"{contest.title}, {text}"))


def section_of(contest: Contest, outcomes: Sequence[Outcome], note: str) -> Section:
    """Returns the table of a contest; its chart shows examples per second."""
    columns = [
        Column("mode", "read mode"),
        Column("examples_per_s", "examples/s"),
        Column("ratio", "x examples, turn by turn", "{:.2f}"),
        Column("cpu_us", "processor time of an example, us"),
        Column("first_batch_s", "first batch, s", "{:.2f}"),
    ]
    columns += [Column("disk_mb", "MB from disk")] if contest.is_cold else []
    rows = [_row(outcome, find_outcome(outcomes, EXAMPLES)) for outcome in outcomes]
    return Section(contest.name, contest.title, note, columns, rows, missing_outcomes(outcomes), bars="examples_per_s")


def find_outcome(outcomes: Sequence[Outcome], mode: ReadMode) -> Outcome:
    """Returns what a mode did."""
    return next(outcome for outcome in outcomes if outcome.peer.name == mode.name)


def _row(outcome: Outcome, other: Outcome) -> dict[str, Any]:
    if outcome.missing is not None:
        return {"mode": outcome.peer.title}
    return {
        "mode": outcome.peer.title,
        "examples_per_s": figures.examples_per_s(outcome),
        "ratio": figures.speed_ratio(outcome, other),
        "cpu_us": figures.cpu_us_per_example(outcome),
        "first_batch_s": figures.first_batch_s(outcome),
        "disk_mb": figures.disk_megabytes(outcome),
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }
