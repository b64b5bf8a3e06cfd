"""Peers take turns, and their figures are compared round by round."""

from typing import Any

import pytest

from benchmarks import turns
from benchmarks.peer_process import Epoch
from benchmarks.suites import start
from benchmarks.suites.episodes import growth
from benchmarks.suites.mixture import WEIGHTS, draw_independently, draw_ours, largest_deviation
from benchmarks.suites.order import num_places
from benchmarks.tables import Column, Ratio, Spread, Table
from benchmarks.turns import Outcome, Peer, Run, Settings, compare, start_in_turns, take_turns, turned, write_in_turns
from tfds_torch.errors import WorkerError
from tfds_torch.plan.passes import BlockShuffle

RUN = Run(Settings(num_photos=64, batch_size=4, num_workers=2, num_repeats=2, timeout_s=60))
TABLE = Table(
    "a",
    "",
    "",
    "what",
    [
        Column("time", "s", "{:.2f}"),
        Column("size", "bytes", has_spread=False),
        Column("by_one", "x one", "{:.1f}", ratio=Ratio("time", by="one")),
        Column("one_by_it", "one by it", "{:.1f}", ratio=Ratio("time", of="one")),
    ],
)


def test_a_spread_is_median_least_and_greatest_of_what_is_there() -> None:
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([None]) is None


def test_a_ratio_is_the_median_of_the_ratios_of_each_round_as_far_as_both_have_rounds() -> None:
    table = TABLE.fill({"one": {"time": [50.0, 100.0, 10.0, 1.0]}, "two": {"time": [100.0, 400.0, 30.0]}})
    assert table.spread("two", "by_one") == Spread(3.0, 2.0, 4.0)
    assert table.spread("two", "one_by_it") == pytest.approx(Spread(1 / 3, 0.25, 0.5))


def test_a_figure_that_is_not_there_is_a_dash_with_its_reason() -> None:
    samples: dict[str, dict[str, list[float]]] = {"one": {"time": [1.0, 0.5, 2.0], "size": [1234]}, "two": {}}
    table = TABLE.fill(samples, {"two": "the two"}, {"two": "it broke"})
    assert table.texts()[1] == [
        ["one", "1.00 (0.50 to 2.00)", "1,234", "1.0 (1.0 to 1.0)", "1.0 (1.0 to 1.0)"],
        ["the two", "-", "-", "-", "-"],
    ]
    assert table.reasons() == ["the two is missing: it broke"]


class Journaled:
    """A peer that keeps a journal of its calls; its epochs take 1, 2, 3 ... seconds; it fails in epoch `fails`."""

    def __init__(self, name: str, journal: list[str], fails: int | None = None) -> None:
        self.name, self.journal, self.fails, self.number = name, journal, fails, 0

    def run_epoch(self) -> Epoch:
        self.journal.append(f"{self.name}{self.number}")
        if self.number == self.fails:
            raise WorkerError("first line\nit broke")
        self.number += 1
        return Epoch(60, 0.5, 0.1, float(self.number), start_s=4.0, versions={"it": "1.0"})

    def measure_memory(self) -> list[int]:
        self.journal.append(f"{self.name} memory")
        return [7_000_000, 8_000_000]

    def end(self) -> None:
        self.journal.append(f"{self.name} ends")


def test_the_order_is_turned_around_from_round_to_round_and_all_end() -> None:
    journal: list[str] = []
    processes: Any = {name: Journaled(name, journal, 1 if name == "b" else None) for name in "abc"}
    outcomes = {name: Outcome() for name in "abc"}
    take_turns(processes, outcomes, 3, print)
    assert journal[:6] == ["a0", "b0", "c0", "c1", "b1", "b ends"]
    assert journal[6:11] == ["a1", "a2", "c2", "c3", "a3"]
    assert sorted(journal[11:]) == ["a ends", "b ends", "c ends"]
    assert [len(outcome.firsts) for outcome in outcomes.values()] == [1, 1, 1]  # Warm-ups, which do not count.
    assert outcomes["a"].samples()["examples_per_s"] == [30.0, 20.0, 15.0]
    assert (outcomes["b"].missing, outcomes["b"].samples()) == ("it broke", {})
    assert turned("abc", 0) == turned("abc", 2) == ["a", "b", "c"]


def test_fresh_processes_come_one_at_a_time_and_the_last_shows_its_memory() -> None:
    journal: list[str] = []
    outcomes = {"a": Outcome(), "b": Outcome()}

    def begin(peer: Peer) -> Any:
        return Journaled(peer.name, journal)

    start_in_turns([Peer(name, name, "ours") for name in "ab"], begin, outcomes, 2, print)
    assert journal[:6] == ["a0", "a1", "a ends", "b0", "b1", "b ends"]
    assert journal[6:] == ["b0", "b1", "b memory", "b ends", "a0", "a1", "a memory", "a ends"]
    samples = outcomes["a"].samples()
    assert (samples["start_s"], samples["memory_mb"], samples["memory_parts"]) == ([4.0, 4.0], [15.0], "7 + 8")


def test_a_comparison_has_a_row_for_each_peer_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def begin(module: str, task: Any, *rest: Any) -> Any:
        made.append((module, task))
        return Journaled(module, [], 0 if task.num_workers == 1 else None)

    monkeypatch.setattr(turns, "PeerProcess", begin)
    peers = [
        Peer("a", "the a", "ours", options={"x": 1}),
        Peer("b", "the b", "dali", {"num_workers": 1}),
        Peer("baseline", "it before", "ours"),
        Peer("c", "the c", "ours"),
    ]
    run = Run(RUN.settings, only=["a", "b"])
    task = run.task("data", 60, options={"y": 2})
    table = compare(run, start.STARTING, peers, task)
    assert [(row.name, row.title, row.missing) for row in table.rows] == [
        ("a", "the a", None),
        ("b", "the b", "it broke"),
    ]
    assert [(module, task.options) for module, task in made] == [
        ("benchmarks.peers.ours", {"x": 1, "y": 2}),
        ("benchmarks.peers.dali", {"y": 2}),
    ]
    assert run.versions == {"it": "1.0"}


def test_writers_take_turns_after_a_warm_up_and_one_that_fails_is_left_out() -> None:
    journal: list[str] = []

    def write(name: str) -> dict[str, float]:
        journal.append(name)
        if name == "b" and journal.count("b") == 2:
            raise WorkerError("it broke")
        return {"time": float(len(journal))}

    writers = {name: (name.upper(), lambda name=name: write(name)) for name in "ab"}
    table = write_in_turns(RUN, TABLE, writers, 2, num_warm_ups=1, after=lambda: journal.append("-"))
    assert journal == ["b", "-", "a", "-", "a", "-", "b", "-", "a", "-"]
    assert table.spread("a", "time") == Spread(7.0, 5.0, 9.0)
    assert table.reasons() == ["B is missing: it broke"]


@pytest.mark.parametrize(("num_workers", "expected"), [(2, 128.0), (8, None)])
def test_a_further_worker_is_told_without_the_batches_that_it_holds(num_workers: int, expected: float | None) -> None:
    table = start.STARTING.fill(
        {
            "ours": {"memory_mb": [600.0], "start_s": [3.0]},
            "ours_8": {"memory_mb": [600.0 + 6 * (128 + 38.535168)]},
        }
    )
    found = start.beyond(table, start.IMPORTS.fill({"torch": {"import_s": [1.0]}}), num_workers, batch_size=128)
    spread = found.spread("ours", "worker_mb")
    assert (spread and spread.median) == (expected and pytest.approx(expected))
    assert found.spread("ours", "start_s") == Spread(2.0, 2.0, 2.0)


def test_growth_is_the_median_slope_and_an_outlier_does_not_move_it() -> None:
    assert growth([100.0, 102.0, 104.0, 190.0, 108.0, 110.0]) == 2.0
    assert growth([5.0]) == 0.0


def test_examples_of_blocks_lie_together() -> None:
    assert num_places(1 << 14, 8192, BlockShuffle(1024, 8)) <= 16 < 1000 < num_places(1 << 14, 8192)


def test_our_mixtures_are_never_an_example_off_and_random_draws_are() -> None:
    for kind in ("decimal", "whole"):
        assert largest_deviation(draw_ours(WEIGHTS[kind], 10_000, 0), WEIGHTS[kind]) <= 1
        assert largest_deviation(draw_independently(WEIGHTS[kind], 10_000, 0), WEIGHTS[kind]) > 5
    assert sum(WEIGHTS["whole"]) == 65_536
