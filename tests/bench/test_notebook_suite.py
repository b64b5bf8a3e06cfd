"""Workers of a process that has read without workers before: how they are judged, and that they are measured."""

from pathlib import Path

import pytest
from bench.made_up import outcome

from tfds_torch.bench import notebook_suite
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.notebook_suite import NOTEBOOK, judge_notebook
from tfds_torch.bench.suite import Run, Settings
from tfds_torch.bench.task import Peer

NAMES = ("index, fresh", "index, after 0", "examples, fresh", "examples, after 0")


def outcomes(*speeds: float) -> list[Outcome]:
    return [outcome(Peer(name, name, "no:where"), (speed,) * 3) for name, speed in zip(NAMES, speeds, strict=True)]


@pytest.mark.parametrize(
    ("index", "examples", "kept"),
    [(95.0, 80.0, [True, True]), (94.9, 79.9, [False, False]), (200.0, 1.0, [True, False])],
)
def test_the_second_loader_is_judged_by_a_fresh_process(index: float, examples: float, kept: list[bool]) -> None:
    targets = judge_notebook(outcomes(100.0, index, 100.0, examples))
    assert [target.kept for target in targets] == kept
    assert [target.wanted for target in targets] == [
        "at least 0.95 x that of a fresh process",
        "at least 0.8 x that of a fresh process",
    ]
    assert targets[0].name == "speed of index, after 0 against index, fresh"


def test_one_that_fails_misses_its_target_and_is_told() -> None:
    *first, _ = outcomes(100.0, 100.0, 100.0, 100.0)
    found = [*first, outcome(Peer(NAMES[-1], NAMES[-1], "no:where"), missing="it broke")]
    assert [target.kept for target in judge_notebook(found)] == [True, False]
    section = notebook_suite._section(found)
    assert section.missing == ["examples, after 0 is missing: it broke"]
    assert [row.get("ratio") is None for row in section.rows] == [False, False, False, True]


@pytest.mark.slow
def test_both_processes_are_measured_in_both_modes(photos: Path) -> None:
    settings = Settings(num_photos=64, batch_size=4, num_workers=2, num_repeats=1, timeout_s=120)
    found = NOTEBOOK.measure(Run((), settings, photos, lambda text: None))
    (section,) = found.sections
    assert section.missing == []
    assert [row["process"] for row in section.rows] == [
        *("index, fresh", "index, after an epoch without workers"),
        *("examples, fresh", "examples, after an epoch without workers"),
    ]
    assert all(row["examples_per_s"].median > 0 and row["very_first_batch_s"].median > 0 for row in section.rows)
    assert [row["ratio"].median for row in section.rows[::2]] == [1.0, 1.0]
    assert len(found.targets) == 2
