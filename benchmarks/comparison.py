"""Comparison: competitors at the same work, each in processes of its own, and the table of their figures.

Competitors take turns, epoch by epoch, so that a drift of the machine hits all of them alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.competitor_process import CompetitorProcess
from benchmarks.conversion import converted
from benchmarks.environments import Environment, environment_of
from benchmarks.figures import Outcome
from benchmarks.tables import Table
from benchmarks.task import OURS, Peer, Run, ShowProgress, Task
from tfds_torch import demo
from tfds_torch.errors import TfdsTorchError


@dataclass(frozen=True)
class Comparison:
    """The work of competitors, and their table.

    Attributes:
        table: without rows; its note may name fields of `Settings`, and `num_examples`.
        peers: the competitors; None: those that the command line has chosen.
        dataset: `photos`, or one that is made up.
        num_for_a_photo: examples of an epoch, for each photograph that the command line asks for.
        task: other fields of the task.
        is_fresh: whether each epoch is the first or second one of a new process, whose memory is measured too.
        is_cold: whether the files are read from their disk in each epoch.
        turns_for_a_repeat: measured epochs of each: short epochs need more of them for a stable median.
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
    """Prepares the files of all competitors, lets them take turns, and returns the table.

    Args:
        comparison: the work.
        run: how much is measured; versions of environments are added to it.
        folder: `converted_dir` of all competitors; None: the dataset in the format of each.

    Raises:
        TfdsTorchError: the dataset cannot be made, or cannot be made cold. A competitor that fails is in the table.
    """
    peers = run.peers if comparison.peers is None else comparison.peers
    settings, num_examples = run.settings, int(run.settings.num_photos * comparison.num_for_a_photo)
    data_dir = prepare_data(comparison.dataset, run, num_examples)
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
        run.show_progress(f"preparing the files of {peer.title}")
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
        **vars(settings),
        num_examples=num_examples,
    )
    return replace(table, rows=[_with_epochs(row, outcomes.get(row.name)) for row in table.rows])


def take_turns(
    competitors: Sequence[CompetitorProcess], num_repeats: int, show_progress: ShowProgress
) -> list[Outcome]:
    """Runs A B C A B C ...: a warm-up epoch of each, then `num_repeats` measured ones.

    A competitor that fails is ended and takes no further turns. All competitors are ended at the end, also of an error.
    """
    outcomes = [Outcome(competitor.peer) for competitor in competitors]
    with ExitStack() as stack:
        for competitor in competitors:
            stack.callback(competitor.end)
        for number in range(1 + num_repeats):
            for competitor, outcome in zip(competitors, outcomes, strict=True):
                if outcome.missing is not None:
                    continue
                turn = f"epoch {number} of {num_repeats}" if number else "warm-up"
                show_progress(f"{turn}: {competitor.peer.title}")
                try:
                    (outcome.epochs if number else outcome.warm_ups).append(competitor.run_epoch())
                except TfdsTorchError as error:
                    outcome.missing = str(error)
                    competitor.end()
    return outcomes


def start_in_turns(
    peers: Sequence[Peer],
    begin: Callable[[Peer], CompetitorProcess],
    num_starts_of: Callable[[Peer], int],
    show_progress: ShowProgress,
) -> list[Outcome]:
    """Starts each competitor several times, in turn, for a first and a later epoch.

    One competitor runs at a time, so that it shares no pages with another one; memory is measured in one more epoch of
    its last start. A competitor that fails is not started again.
    """
    outcomes = [Outcome(peer) for peer in peers]
    for number in range(1, max(map(num_starts_of, peers), default=0) + 1):
        for outcome in outcomes:
            num_starts = num_starts_of(outcome.peer)
            if outcome.missing is not None or number > num_starts:
                continue
            show_progress(f"start {number} of {num_starts}: {outcome.peer.title}")
            competitor = begin(outcome.peer)
            try:
                outcome.warm_ups.append(competitor.run_epoch())
                outcome.epochs.append(competitor.run_epoch())
                if number == num_starts:
                    outcome.memory_bytes = competitor.measure_memory()
            except TfdsTorchError as error:
                outcome.missing = str(error)
            finally:
                competitor.end()
    return outcomes


def _with_epochs(row: Any, outcome: Outcome | None) -> Any:
    if outcome is None:
        return row
    epochs, warm_ups = ([epoch.as_dict() for epoch in some] for some in (outcome.epochs, outcome.warm_ups))
    return replace(row, epochs=epochs, warm_ups=warm_ups)


def _measure(comparison: Comparison, run: Run, ready: Mapping[Peer, tuple[Task, Environment]]) -> list[Outcome]:
    num_repeats, timeout_s = run.settings.num_repeats, run.settings.timeout_s

    def begin(peer: Peer) -> CompetitorProcess:
        task, environment = ready[peer]
        files = (Path(task.data_dir) / task.dataset).rglob("*.tfrecord*") if comparison.is_cold else ()
        return CompetitorProcess(peer, task, timeout_s, environment, [path for path in files if path.is_file()])

    def show_progress(text: str) -> None:
        run.show_progress(f"{comparison.table.title}, {text}" if comparison.table.title else text)

    if comparison.is_fresh:  # This package is started as often as a measurement is repeated, the others once.
        ours = [peer.name for peer in ready if peer.name.startswith(OURS)]
        num_starts = {peer: num_repeats if peer.name in ours else 1 for peer in ready}
        return start_in_turns(list(ready), begin, num_starts.__getitem__, show_progress)
    num_turns = num_repeats * comparison.turns_for_a_repeat
    num_turns = min(num_turns, comparison.most_turns or num_turns)
    return take_turns([begin(peer) for peer in ready], num_turns, show_progress)


def prepare_data(dataset: str, run: Run, num_examples: int) -> Path:
    """Returns the data dir of a dataset of that many examples: an embedded one, or one whose content is made up."""
    if dataset == "photos":
        return run.data_dir
    run.show_progress(f"preparing {dataset}")
    num_shards = min(run.settings.num_shards, num_examples)
    prepare = demo.prepare if dataset.partition("/")[0] in demo.DEMO_NAMES else demo.prepare_fake
    return prepare(dataset, num_examples=num_examples, num_shards=num_shards, progress=False)
