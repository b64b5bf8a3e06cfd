"""The suite `notebook`: workers of a process that has read without workers before.

Command: `python -m tfds_torch.bench notebook`. Explanation: read mode `index` leaves nothing in a process that its
workers inherit to their harm. A stream imports tensorflow where it is read; workers that are forked from such a process
cannot use it as they are.
"""

from collections.abc import Sequence
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.report import epoch_as_dict, missing_outcomes
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_speed
from tfds_torch.bench.task import Peer, Task
from tfds_torch.bench.turns import take_turns

LEAST_RATIOS = {"index": 0.95, "examples": 0.8}
"""Of a fresh process's examples per second, for every read mode that is measured."""

_LOADERS = "tfds_torch.bench.peers.notebook"


def _measure(run: Run) -> Found:
    settings, contestants = run.settings, []
    for mode in LEAST_RATIOS:
        task = Task(
            str(run.data_dir),
            None,
            settings.num_photos,
            settings.batch_size,
            max(1, settings.num_workers),
            read={"mode": mode},
        )
        for peer in _peers(mode):
            contestants.append(ContestantProcess(peer, task, settings.timeout_s))
    outcomes = take_turns(contestants, settings.num_repeats, run.say)
    return Found(judge_notebook(outcomes), sections=[_section(outcomes)])


def judge_notebook(outcomes: Sequence[Outcome]) -> list[Target]:
    """Returns the targets of the suite: ratios are medians of those of all turns."""
    return [
        judge_speed(outcomes, least, fresh.name, "that of a fresh process", ours=after.name)
        for mode, least in LEAST_RATIOS.items()
        for fresh, after in [_peers(mode)]
    ]


def _peers(mode: str) -> tuple[Peer, Peer]:
    return (
        Peer(f"{mode}, fresh", f"{mode}, fresh", f"{_LOADERS}:fresh"),
        Peer(f"{mode}, after 0", f"{mode}, after an epoch without workers", f"{_LOADERS}:after_reading"),
    )


def _section(outcomes: Sequence[Outcome]) -> Section:
    there = {outcome.peer.name: outcome for outcome in outcomes}
    rows: list[dict[str, Any]] = []
    for mode in LEAST_RATIOS:
        fresh, _ = (there[peer.name] for peer in _peers(mode))
        rows += [_row(there[peer.name], fresh) for peer in _peers(mode)]
    return Section(
        "notebook",
        "the second loader of a process",
        "Whole batches of photographs, with the work of the suite `jpeg`. All four take turns, epoch by epoch; a "
        "warm-up epoch is not counted, but its first batch is told: it contains the start of the workers.",
        [
            Column("process", "read mode, process"),
            Column("examples_per_s", "examples/s"),
            Column("ratio", "x a fresh process, turn by turn", "{:.2f}"),
            Column("very_first_batch_s", "very first batch, s", "{:.2f}"),
        ],
        rows,
        missing_outcomes(outcomes),
        bars="examples_per_s",
    )


def _row(outcome: Outcome, fresh: Outcome) -> dict[str, Any]:
    if outcome.missing is not None:
        return {"process": outcome.peer.title}
    return {
        "process": outcome.peer.title,
        "examples_per_s": figures.examples_per_s(outcome),
        "ratio": figures.speed_ratio(outcome, fresh),
        "very_first_batch_s": figures.first_epoch_batch_s(outcome),
        "epochs": [epoch_as_dict(epoch) for epoch in outcome.epochs],
    }


NOTEBOOK = Suite(
    "notebook",
    "photographs a second behind workers, in a process that has read without workers before",
    "This package alone: a process that reads an epoch with `num_workers=0` and then with workers, as a notebook does, "
    "against a fresh one, for read mode `index` (without tensorflow) and for a stream (with it).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.notebook_suite",
)
