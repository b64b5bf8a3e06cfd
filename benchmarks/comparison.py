"""Comparison: competitors at the same work, in processes of their own, and the table of what they did."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.competitor_process import CompetitorProcess
from benchmarks.conversion import converted
from benchmarks.environments import Environment, environment_of
from benchmarks.figures import EpochFigures, Memory, Outcome
from benchmarks.suite import Run
from benchmarks.system import drop_from_page_cache
from benchmarks.tables import Table
from benchmarks.task import OURS, Peer, Task
from benchmarks.turns import Competitor, start_again_and_again, take_turns
from tfds_torch import demo
from tfds_torch.errors import TfdsTorchError


@dataclass(frozen=True)
class Comparison:
    """What competitors do, and in which table they are.

    Attributes:
        table: without rows; its note may name fields of `Settings`, and `num_examples`.
        peers: who takes part; None: those that the command line has chosen.
        dataset: `photos`, or one that is made up.
        num_for_a_photo: examples of an epoch, for every photograph that the command line asks for.
        task: other fields of the task.
        is_fresh: whether every epoch is the first or second one of a new process, whose memory is measured too.
        is_cold: whether the files are read from their disk in every epoch.
        turns_for_a_repeat: measured epochs of each: short ones need more for a median that stands.
        most_turns: measured epochs of each at most.
    """

    table: Table
    peers: Sequence[Peer] | None = None
    dataset: str = "photos"
    num_for_a_photo: float = 1
    task: Mapping[str, Any] = field(default_factory=dict)
    is_fresh: bool = False
    is_cold: bool = False
    turns_for_a_repeat: int = 1
    most_turns: int | None = None


def measure_comparisons(*all_comparisons: Comparison) -> Callable[[Run], Iterator[Table]]:
    """Returns the measurement of a suite that is made of comparisons alone."""
    return lambda run: (compare(comparison, run) for comparison in all_comparisons)


def compare(comparison: Comparison, run: Run, folder: Path | None = None) -> Table:
    """Prepares everybody's files, lets the competitors take turns, and returns the table.

    Args:
        comparison: who does what.
        run: how much is measured; versions of environments are added to it.
        folder: what competitors find as their `converted_dir`; None: the dataset in their own format.

    Raises:
        TfdsTorchError: the dataset cannot be made, or cannot be made cold. A competitor that fails is in the table.
    """
    peers = run.peers if comparison.peers is None else comparison.peers
    settings, num_examples = run.settings, int(run.settings.num_photos * comparison.num_for_a_photo)
    data_dir = _data_dir(comparison, run, num_examples)
    common = Task(
        str(data_dir),
        None if folder is None else str(folder),
        num_examples,
        settings.batch_size,
        settings.num_workers,
        dataset=comparison.dataset,
    )
    ready: dict[Peer, tuple[Task, Environment]] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        run.say(f"preparing the files of {peer.title}")
        try:
            environment = environment_of(peer, settings.baseline)
            run.versions.update(environment.versions)
            task = replace(common, **{**comparison.task, **peer.changes})
            if folder is None and peer.file_format != "tfrecord":
                own = converted(data_dir, peer.file_format, dataset=comparison.dataset)
                task = replace(task, converted_dir=str(own))
            ready[peer] = task, environment
        except TfdsTorchError as error:
            missing[peer.name] = str(error).strip().splitlines()[-1]
    outcomes = {outcome.peer.name: outcome for outcome in _measure(comparison, run, ready)}
    missing |= {name: outcome.missing for name, outcome in outcomes.items() if outcome.missing is not None}
    table = comparison.table.fill(
        {peer.name: outcomes[peer.name].samples() if peer in ready else {} for peer in peers},
        {peer.name: peer.title for peer in peers},
        missing,
    )
    note = table.note.format(**vars(settings), num_examples=num_examples)
    return replace(table, note=note, rows=[_with_epochs(row, outcomes.get(row.name)) for row in table.rows])


def _with_epochs(row: Any, outcome: Outcome | None) -> Any:
    if outcome is None:
        return row
    epochs, warm_ups = ([epoch.as_dict() for epoch in some] for some in (outcome.epochs, outcome.warm_ups))
    return replace(row, epochs=epochs, warm_ups=warm_ups)


def _measure(comparison: Comparison, run: Run, ready: Mapping[Peer, tuple[Task, Environment]]) -> list[Outcome]:
    num_repeats, timeout_s = run.settings.num_repeats, run.settings.timeout_s

    def begin(peer: Peer) -> Competitor:
        task, environment = ready[peer]
        competitor = CompetitorProcess(peer, task, timeout_s, environment)
        files = (Path(task.data_dir) / task.dataset).rglob("*.tfrecord*") if comparison.is_cold else ()
        return (
            ColdCompetitor(competitor, [path for path in files if path.is_file()]) if comparison.is_cold else competitor
        )

    def say(text: str) -> None:
        run.say(f"{comparison.table.title}, {text}" if comparison.table.title else text)

    if comparison.is_fresh:  # This package as often as a measurement is repeated, the others once.
        ours = [peer.name for peer in ready if peer.name.startswith(OURS)]
        return start_again_and_again(list(ready), begin, lambda peer: num_repeats if peer.name in ours else 1, say)
    num_turns = num_repeats * comparison.turns_for_a_repeat
    return take_turns([begin(peer) for peer in ready], min(num_turns, comparison.most_turns or num_turns), say)


def _data_dir(comparison: Comparison, run: Run, num_examples: int) -> Path:
    if comparison.dataset == "photos":
        return run.data_dir
    run.say(f"preparing {comparison.dataset}")
    num_shards = run.settings.num_shards
    return demo.prepare_fake(comparison.dataset, num_examples=num_examples, num_shards=num_shards, progress=False)


class ColdCompetitor:
    """A competitor whose files are dropped from the page cache before every epoch."""

    def __init__(self, competitor: Competitor, files: Sequence[Path]) -> None:
        self.peer = competitor.peer
        self._competitor = competitor
        self._files = files

    def run_epoch(self) -> EpochFigures:
        """As `Competitor`."""
        drop_from_page_cache(self._files)
        return self._competitor.run_epoch()

    def measure_memory(self) -> Memory | None:
        """As `Competitor`."""
        return self._competitor.measure_memory()

    def end(self) -> None:
        """As `Competitor`."""
        self._competitor.end()
