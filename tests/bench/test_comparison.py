"""Comparisons: each competitor gets its work, in its turn, and its figures are in the table."""

# mypy: disable-error-code="arg-type, list-item, misc, operator, return-value"
# Journaled stands for a CompetitorProcess.

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.made_up import SUITE_OF, epoch

from benchmarks import comparison, comparisons
from benchmarks.comparison import compare, start_in_turns, take_turns
from benchmarks.environments import Environment
from benchmarks.figures import EpochFigures
from benchmarks.tables import Spread, Table
from benchmarks.task import Peer, Run, Settings, Task
from tfds_torch import demo
from tfds_torch.errors import ConfigError, StallError, WorkerError
from tfds_torch.runtime import subprocess_call

SETTINGS = Settings(num_photos=64, batch_size=4, num_workers=2, num_repeats=3, timeout_s=60)
Measure = Callable[..., list[Table]]


class Pretender:
    """A competitor without work; with one worker it breaks."""

    def __init__(
        self, peer: Peer, task: Task, timeout_s: float, environment: Environment, cold_files: Sequence[Path]
    ) -> None:
        self.peer = peer
        self.task = task
        self.environment = environment
        self.cold_files = cold_files
        ALL.append(self)

    def run_epoch(self) -> EpochFigures:
        if self.task.num_workers == 1:
            raise WorkerError("it broke")
        return epoch(first_batch_s=1.5, num_examples=self.task.num_photos, start_s=4.0)

    def measure_memory(self) -> list[int]:
        return [5_000_000, 6_000_000]

    def end(self) -> None:
        pass


ALL: list[Pretender] = []


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures a suite whose competitors pretend; FFCV's files cannot be written, DALI's environment cannot be made."""

    def convert(data_dir: Path, file_format: str, *, dataset: str) -> Path:
        if file_format == "beton":
            raise ConfigError("first line\nNo module named 'ffcv' (how to get it)")
        return data_dir / dataset / file_format

    def environment_of(peer: Peer, baseline: str) -> Environment:
        if peer.environment == "dali":
            raise ConfigError("nvidia-dali could not be installed: no room")
        return Environment(peer.environment, [], versions={f"of {baseline}": "1"} if peer.environment else {})

    ALL.clear()
    monkeypatch.setattr(comparison, "environment_of", environment_of)
    monkeypatch.setattr(comparison, "CompetitorProcess", Pretender)
    monkeypatch.setattr(comparison, "converted", convert)
    monkeypatch.setattr(demo, "prepare_fake", lambda name, num_examples, **_: tmp_path / f"{name}-{num_examples}")
    monkeypatch.setattr(subprocess_call, "call", lambda function, module: {"torch": 1.0}[module])
    monkeypatch.setattr(comparisons, "num_cores", lambda: 2)

    def run(suite: str, **settings: Any) -> list[Table]:
        ALL.clear()
        asked = Run(SUITE_OF[suite].peers, replace(SETTINGS, **settings), tmp_path / "data", lambda text: None)
        return list(SUITE_OF[suite].measure(asked))

    return run


def tasks() -> dict[str, Task]:
    return {pretender.peer.name: pretender.task for pretender in ALL}


@pytest.mark.parametrize(("suite", "num_epochs"), [("jpeg", 3), ("jpeg_eval", 1), ("png32", 3), ("sample", 1)])
def test_everybody_takes_part_in_whole_epochs(suite: str, num_epochs: int, measure: Measure) -> None:
    (table,) = measure(suite)
    assert [row.name for row in table.rows] == [peer.name for peer in SUITE_OF[suite].peers]
    reasons = {"dali": "nvidia-dali could not be installed: no room", "ffcv": "No module named 'ffcv' (how to get it)"}
    missing = {row.name: row.missing for row in table.rows if row.missing}
    assert missing == ({} if suite == "sample" else reasons)
    assert {len(row.epochs) for row in table.rows if not row.missing} == {num_epochs}
    assert {len(row.warm_ups) for row in table.rows if not row.missing} == {1}


def test_photographs_are_trained_and_evaluated_with(measure: Measure, tmp_path: Path) -> None:
    for suite, work, is_training in (("jpeg", "train", True), ("jpeg_eval", "eval", False)):
        measure(suite)
        for task in tasks().values():
            assert (task.dataset, task.work, task.is_training, task.num_photos) == ("photos", work, is_training, 64)
        assert tasks()["ours"].image_shape == (3, 224, 224)
        assert tasks()["limit"].image_shape is None  # It hands over nothing that could be looked at.
        assert (tasks()["ours"].num_workers, tasks()["ours_0"].num_workers) == (2, 0)
        assert tasks()["grain"].converted_dir == str(tmp_path / "data" / "photos" / "array_record")


def test_small_images_are_more_and_of_another_dataset(measure: Measure, tmp_path: Path) -> None:
    measure("png32")
    ours = tasks()["ours"]
    assert (ours.dataset, ours.work, ours.is_training, ours.num_photos) == ("cifar10", "plain", True, 320)
    assert (ours.image_shape, ours.data_dir) == ((3, 32, 32), str(tmp_path / "cifar10-320"))


def test_memory_is_measured_in_fresh_processes_beside_the_imports(measure: Measure) -> None:
    table, imports, beyond = measure("memory")
    assert [len(row.warm_ups) for row in table.rows] == [3, 3, 3, 1, 0]
    assert len(ALL) == 10
    assert tasks()["ours_8"].num_workers == 8
    assert table.spread("ours", "memory_mb") == Spread(11, 11, 11)
    assert imports.spread("torch", "import_s") == Spread(1, 1, 1)
    assert beyond.spread("ours", "start_s") == Spread(3, 3, 3)


@pytest.mark.parametrize(("num_workers", "expected"), [(2, 128.0), (8, None)])
def test_a_further_worker_is_told_without_the_batches_that_it_holds(num_workers: int, expected: float | None) -> None:
    samples = {"ours": {"memory_mb": [600.0]}, "ours_8": {"memory_mb": [600.0 + 6 * (128 + 38.535168)]}}
    table = comparisons.STARTING.table.fill(samples)
    beyond = comparisons.beyond(table, comparisons.IMPORTS.fill({}), num_workers, batch_size=128)
    spread = beyond.spread("ours", "worker_mb")
    assert (spread and spread.median) == (expected and pytest.approx(expected))
    assert beyond.spread("ours", "start_s") is None


def test_the_baseline_runs_in_its_own_environment_and_is_named_among_the_versions(
    measure: Measure, tmp_path: Path
) -> None:
    measure("jpeg")
    own = {pretender.peer.name: pretender.environment.executable for pretender in ALL}
    assert {name for name, environment in own.items() if environment} == {"baseline"}
    run = Run(SUITE_OF["jpeg"].peers, SETTINGS, tmp_path, lambda text: None)
    list(SUITE_OF["jpeg"].measure(run))
    assert run.versions == {"of edba0d4": "1"}


def test_all_workers_compete_at_every_batch_size(measure: Measure) -> None:
    tables = measure("scale", num_photos=4096)
    assert [table.name for table in tables] == ["batches_of_32", "batches_of_128", "batches_of_256"]
    asked = [(one.task.num_workers, one.task.batch_size, one.task.split, one.task.num_photos) for one in ALL]
    assert asked[:4] == [(count, 32, "train[:50%]", 2048) for count in (0, 1, 2)] + [(0, 128, "train[:50%]", 2048)]
    assert tables[0].reasons() == ["1 worker is missing: it broke"]
    assert tables[0].spread("2", "by_no_workers") == Spread(1, 1, 1)


def test_no_batch_is_larger_than_a_worker_can_fill(measure: Measure) -> None:
    measure("scale", num_photos=256)
    assert sorted({one.task.batch_size for one in ALL}) == [32, 64]


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6]), (8, [0, 1, 2, 4, 8])])
def test_workers_go_up_to_the_number_of_cores(cores: int, counts: list[int]) -> None:
    assert list(comparisons.worker_counts(cores)) == counts


def test_a_process_that_has_read_is_compared_with_a_fresh_one_in_both_modes(measure: Measure) -> None:
    index, examples = measure("notebook", num_workers=0)
    assert [row.missing for row in index.rows + examples.rows] == ["it broke"] * 4  # There is one worker at least.
    index, examples = measure("notebook", num_workers=3)
    assert [one.task.read["mode"] for one in ALL] == ["index", "index", "examples", "examples"]
    assert examples.spread("after_reading", "by_fresh") == Spread(1, 1, 1)


def test_read_modes_compete_warm_and_cold(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for part in ("measure_building", "measure_order", "measure_locality"):
        monkeypatch.setattr(comparisons, part, lambda run: Table("part", "", "", "", []))
    tables = {table.name: table for table in measure("index", num_repeats=5)}
    assert list(tables)[1:] == [*(one.table.name for one in comparisons.WARM_MODES), "photos_cold"]
    assert {name: len(table.rows[0].epochs) for name, table in tables.items() if table.rows} == {
        **dict.fromkeys(["photos_parser", "photos_decoded", "photos_transformed"], 5),
        **dict.fromkeys(["png_parser", "png_arrays"], 10),
        "photos_cold": 3,
    }
    first, last = ALL[0].task, ALL[-1].task
    assert (first.num_photos, first.split, first.image_shape) == (32, "train[:50%]", None)
    assert (first.read, last.read) == ({"mode": "index"}, {"mode": "examples"})
    assert "2 workers" in tables["photos_decoded"].note
    assert tables["photos_decoded"].note.startswith("32 examples an epoch")
    assert tables["png_arrays"].note.startswith("320 examples an epoch")


def test_an_import_happens_while_it_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert comparisons.import_s("imported_by_a_test") > 0
    assert sys.modules.pop("imported_by_a_test").__file__ == str(tmp_path / "imported_by_a_test.py")


@pytest.mark.campaign
def test_modes_and_processes_read_the_photographs_for_real(photos: Path) -> None:
    settings = replace(SETTINGS, batch_size=16, num_repeats=1, timeout_s=120)
    run = Run((), settings, photos, lambda text: None)
    for table in (compare(one, run) for one in (comparisons.COLD_MODES, *comparisons.NOTEBOOK)):
        assert table.reasons() == []
        num_examples = 32 if table.name == "photos_cold" else 64
        assert {epoch["num_examples"] for row in table.rows for epoch in row.epochs} == {num_examples}
        assert len(table.rows) == (3 if table.name == "photos_cold" else 2)


# Turns


class Journaled:
    """A competitor that keeps a journal of its calls; its epochs take 1, 2, 3 ... seconds."""

    def __init__(self, name: str, journal: list[str], fail: Callable[[int], BaseException | None] = lambda _: None):
        self.peer = Peer(name, name.upper(), "nowhere:nothing")
        self.journal = journal
        self.fail = fail
        self.num_epochs = 0

    def run_epoch(self) -> EpochFigures:
        self.journal.append(f"{self.peer.name}{self.num_epochs}")
        error = self.fail(self.num_epochs)
        if error is not None:
            raise error
        self.num_epochs += 1
        return epoch(float(self.num_epochs), num_examples=60)

    def measure_memory(self) -> list[int]:
        self.run_epoch()
        self.journal[-1] += " memory"
        return [7, 8, 9]

    def end(self) -> None:
        self.journal.append(f"{self.peer.name} ends")


def test_competitors_take_turns_epoch_by_epoch_and_all_end() -> None:
    journal: list[str] = []
    take_turns([Journaled(name, journal) for name in "abc"], 2, str)
    assert journal[:9] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]
    assert sorted(journal[9:]) == ["a ends", "b ends", "c ends"]


def test_the_warm_up_is_not_counted_and_each_turn_is_shown() -> None:
    shown: list[str] = []
    (outcome,) = take_turns([Journaled("a", [])], 3, shown.append)
    assert shown == ["warm-up: A", *(f"epoch {number} of 3: A" for number in (1, 2, 3))]
    assert [figures.times.whole_s for figures in outcome.warm_ups] == [1.0]
    assert [figures.times.whole_s for figures in outcome.epochs] == [2.0, 3.0, 4.0]
    assert outcome.samples()["examples_per_s"] == [30.0, 20.0, 15.0]


@pytest.mark.parametrize("when", [0, 1, 2])
def test_one_that_fails_ends_at_once_and_the_others_go_on(when: int) -> None:
    journal: list[str] = []
    failing = Journaled("b", journal, lambda number: WorkerError("it broke") if number == when else None)
    outcomes = take_turns([Journaled("a", journal), failing, Journaled("c", journal)], 2, str)
    assert [outcome.missing for outcome in outcomes] == [None, "it broke", None]
    assert [len(outcome.epochs) for outcome in outcomes] == [2, max(0, when - 1), 2]
    assert journal[journal.index(f"b{when}") + 1] == "b ends"
    assert [line for line in journal if line.startswith("b")][: when + 2] == [
        *(f"b{number}" for number in range(when + 1)),
        "b ends",
    ]


def test_an_interrupt_ends_everyone() -> None:
    journal: list[str] = []
    interrupted = Journaled("b", journal, lambda number: KeyboardInterrupt() if number == 1 else None)
    with pytest.raises(KeyboardInterrupt):
        take_turns([Journaled("a", journal), interrupted, Journaled("c", journal)], 2, str)
    assert journal[:5] == ["a0", "b0", "c0", "a1", "b1"]
    assert sorted(journal[5:]) == ["a ends", "b ends", "c ends"]


def test_fresh_lives_come_in_turns_one_at_a_time_and_the_last_shows_its_memory() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    outcomes = start_in_turns(peers, lambda peer: Journaled(peer.name, journal), lambda _: 2, str)
    first_round = ["a0", "a1", "a ends", "b0", "b1", "b ends"]
    assert journal == [*first_round, "a0", "a1", "a2 memory", "a ends", "b0", "b1", "b2 memory", "b ends"]
    for outcome in outcomes:
        assert [figures.times.whole_s for figures in outcome.warm_ups] == [1.0, 1.0]
        assert [figures.times.whole_s for figures in outcome.epochs] == [2.0, 2.0]
        assert outcome.memory_bytes == [7, 8, 9]


def test_one_that_fails_is_not_started_again() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    fail = {"a": lambda number: StallError("too slow") if number == 1 else None, "b": lambda _: None}
    outcomes = start_in_turns(peers, lambda peer: Journaled(peer.name, journal, fail[peer.name]), lambda _: 2, str)
    assert [outcome.missing for outcome in outcomes] == ["too slow", None]
    assert [line for line in journal if line.startswith("a")] == ["a0", "a1", "a ends"]


def test_some_live_more_often_than_others() -> None:
    journal: list[str] = []
    peers = [Peer(name, name, "nowhere:nothing") for name in "ab"]
    num_lives = {"a": 2, "b": 1}
    outcomes = start_in_turns(peers, lambda peer: Journaled(peer.name, journal), lambda peer: num_lives[peer.name], str)
    assert [len(outcome.warm_ups) for outcome in outcomes] == [2, 1]
    assert journal[:7] == ["a0", "a1", "a ends", "b0", "b1", "b2 memory", "b ends"]
    assert all(outcome.memory_bytes == [7, 8, 9] for outcome in outcomes)
    assert start_in_turns([], lambda peer: Journaled(peer.name, journal), lambda _: 2, str) == []
