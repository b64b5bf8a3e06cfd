"""Read modes against each other: who does what, in which order, and how it is shown and judged."""

from pathlib import Path
from typing import Any

import pytest
from bench.made_up import epoch, outcome

from tfds_torch.bench import read_modes
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.index_suite import judge_speed
from tfds_torch.bench.read_modes import EXAMPLES, INDEX, ColdContestant, Contest, compete, section_of
from tfds_torch.bench.task import Peer, Task

CONTEST = Contest("race", "a race", "parser_level", "photos", (INDEX, EXAMPLES))


def of(mode: str, speeds: tuple[float, ...], missing: str | None = None) -> Outcome:
    return outcome(Peer(mode, mode, "nowhere:nothing"), speeds, missing=missing)


def test_a_contest_is_shown_with_ratios_turn_by_turn() -> None:
    section = section_of(CONTEST, [of("index", (300, 400, 200)), of("examples", (100, 400, 400))], "A note.")
    assert (section.name, section.title, section.note, section.bars) == ("race", "a race", "A note.", "examples_per_s")
    index, examples = section.rows
    assert index["ratio"] == pytest.approx(Spread(1.0, 0.5, 3.0))
    assert examples["ratio"] == Spread(1.0, 1.0, 1.0)
    assert index["examples_per_s"] == Spread(300.0, 200.0, 400.0)
    assert len(index["epochs"]) == 3
    assert section.table()[1][0][:3] == ["index", "300 (200 to 400)", "1.00 (0.50 to 3.00)"]


def test_a_mode_that_fails_is_named_and_misses_the_target() -> None:
    outcomes = [of("index", (), missing="it broke"), of("examples", (100,))]
    assert section_of(CONTEST, outcomes, "").missing == ["index is missing: it broke"]
    target = judge_speed(CONTEST, outcomes)
    assert (target.found, target.kept) == ("cannot be judged: index is missing: it broke", False)


@pytest.mark.parametrize(("speeds", "found", "kept"), [((96, 95, 1), "0.95 x", True), ((94, 94, 400), "0.94 x", False)])
def test_the_median_of_the_turns_is_judged(speeds: tuple[float, ...], found: str, kept: bool) -> None:
    target = judge_speed(CONTEST, [of("index", speeds), of("examples", (100, 100, 100))])
    assert (target.name, target.found, target.kept) == ("mode index: a race", found, kept)


class Pretender:
    """Notes what it is told to do."""

    def __init__(self, journal: list[str]) -> None:
        self.peer = Peer("index", "index", "nowhere:nothing")
        self.journal = journal

    def run_epoch(self) -> Any:
        self.journal.append("epoch")
        return epoch()

    def measure_memory(self) -> Any:
        self.journal.append("memory")

    def end(self) -> None:
        self.journal.append("end")


def test_files_are_dropped_before_every_epoch_of_a_cold_contestant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal: list[str] = []
    monkeypatch.setattr(read_modes, "drop_from_page_cache", lambda files: journal.append(f"drop {len(files)}"))
    cold = ColdContestant(Pretender(journal), [tmp_path / "a", tmp_path / "b"])
    cold.run_epoch()
    cold.run_epoch()
    cold.measure_memory()
    cold.end()
    assert journal == ["drop 2", "epoch", "drop 2", "epoch", "memory", "end"]


@pytest.mark.slow
def test_modes_read_the_photographs_for_real(photos: Path) -> None:
    said: list[str] = []
    contest = Contest("race", "a race", "parser_level", "photos", (INDEX, EXAMPLES), is_cold=True)
    task = Task(str(photos), None, num_photos=64, batch_size=16, num_workers=0)
    outcomes = compete(contest, task, 1, 120.0, said.append)
    assert [one.missing for one in outcomes] == [None, None]
    assert [[measured.num_examples for measured in one.epochs] for one in outcomes] == [[64], [64]]
    assert said[0] == "a race, warm-up: index"
