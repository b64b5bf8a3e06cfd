"""The suite `mixture`: what it computes, at a small size, and that its members hold what the one dataset holds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.made_up import SUITE_OF

from benchmarks import mixture_costs
from benchmarks.mixture_costs import FEW, MANY, SPEEDS, WEIGHTS, make_order, whole_weights
from benchmarks.peers import mixed_draws, ours
from benchmarks.peers.mixed_draws import draw_grain, draw_independently, draw_ours, draw_torchdata, largest_deviation
from benchmarks.tables import Table
from benchmarks.targets import judge
from benchmarks.task import Run, Settings, Task
from tfds_torch.plan.mixture_weights import MOST_PERIOD, Segment
from tfds_torch.runtime import subprocess_call

SETTINGS = Settings(num_photos=64, batch_size=16, num_workers=0, num_repeats=2, timeout_s=120)


def task_of(photos: Path, num_members: int, num_photos: int = 64) -> Task:
    return Task(str(photos), None, num_photos, batch_size=16, num_workers=0, num_members=num_members)


def run_in(data_dir: Path) -> Run:
    return Run((), SETTINGS, data_dir, lambda text: None)


# The members


@pytest.mark.parametrize("num_members", [2, 3, 64])
def test_an_epoch_of_a_mixture_has_every_photograph_once(num_members: int, photos: Path) -> None:
    parser = ours.mixture_of(task_of(photos, num_members))
    assert len(parser.members) == num_members
    for epoch in range(2):
        batches = list(parser.batches(epoch=epoch))
        assert [len(batch.index) for batch in batches] == [16] * 4
        assert sorted(np.concatenate([batch.index for batch in batches]).tolist()) == list(range(64))


def test_parts_lie_side_by_side_and_differ_by_one_example_at_most(photos: Path) -> None:
    parts = ours.mixture_of(task_of(photos, 3)).members
    assert list(parts) == ["part 0", "part 1", "part 2"]
    assert [part.num_examples for part in parts.values()] == [21, 21, 22]
    ids = [part.source.ids(np.arange(part.num_examples)) for part in parts.values()]
    (whole,) = ours.mixture_of(task_of(photos, 1)).members.values()
    assert [one for some in ids for one in some] == list(whole.source.ids(np.arange(64)))


def test_both_ways_deliver_as_many_images_of_the_same_form(photos: Path) -> None:
    for loader, num_members in ((ours.load, 1), (ours.load_mixture, 64)):
        batches = list(loader(task_of(photos, num_members))(0))
        assert [tuple(images.shape) for images in batches] == [(16, 3, 224, 224)] * 4


def test_a_dataset_and_its_parts_compete_at_the_same_work() -> None:
    for comparison in (*SPEEDS, mixture_costs.PROCESSES):
        assert [peer.name for peer in comparison.peers or ()] == ["1", FEW, MANY]
        assert [peer.changes for peer in comparison.peers or ()] == [{}, {"num_members": 2}, {"num_members": 64}]
    samples = {"1": {"examples_per_s": [100.0, 50.0]}, FEW: {"examples_per_s": [97.0, 50.0]}, MANY: {}}
    table = SPEEDS[0].table.fill(samples, missing={MANY: "it broke"}, num_examples=64, num_workers=2)
    assert table.note.startswith(
        "64 photographs an epoch, with the work of the suite `jpeg`, in 2 workers. The members"
    )
    spread = table.spread(FEW, "by_one")
    assert spread is not None
    assert (spread.least, spread.greatest) == (0.97, 1.0)
    found = {verdict.name: verdict for verdict in judge(SUITE_OF["mixture"].targets, [table])}
    assert found["speed of 2 members"].kept
    assert found["speed of 64 members"].found == "cannot be judged: 64 is missing: it broke"


# The order


@pytest.mark.parametrize("num_members", [2, 4, 64, 128])
def test_whole_weights_fill_the_longest_period_and_have_no_shorter_one(num_members: int) -> None:
    weights = whole_weights(num_members)
    assert len(weights) == num_members
    assert sum(weights) == MOST_PERIOD
    assert math.gcd(*weights) == min(weights) == weights[0] == 1
    assert weights == sorted(set(weights))


def test_tables_are_built_each_time_and_slices_are_looked_up_near_and_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture_costs, "_NUM_TABLES", 2)
    monkeypatch.setattr(mixture_costs, "_NUM_SLICES", 4)
    built: list[tuple[int, int]] = []
    make_table = mixture_costs.make_table

    def note(counts: tuple[int, ...], seed: int) -> object:
        misses = make_table.cache_info().misses
        table = make_table(counts, seed)
        assert make_table.cache_info().misses == misses + 1, "the table came out of the cache"
        built.append((len(counts), len(table.members)))
        return table

    note.cache_clear = make_table.cache_clear
    monkeypatch.setattr(mixture_costs, "make_table", note)
    for _ in range(2):
        built.clear()
        table = mixture_costs.measure_table()
        assert built[1:] == [(2, MOST_PERIOD)] * 2 + [(64, MOST_PERIOD)] * 2
    assert [row.title for row in table.rows] == ["2 members, 65,536 slots", "64 members, 65,536 slots"]
    slices = mixture_costs.measure_slices()
    assert [row.name for row in slices.rows] == ["10^6", "10^12", "schedule", "files"]
    for one, key in ((table, "build_ms"), (slices, "slice_ms"), (slices, "peak_kb")):
        assert all((spread := one.spread(row.name, key)) is not None and spread.least > 0 for row in one.rows)


def test_the_schedule_changes_its_weights_within_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[tuple[tuple[int, ...], list[int]]] = []

    def slice_figures(find: Callable[..., object], starts: Sequence[int]) -> dict[str, list[float]]:
        order = find.__self__
        looked_up.append((tuple(segment.start for segment in order.segments), list(starts)))
        return {"slice_ms": [1.0], "peak_kb": [1.0]}

    monkeypatch.setattr(mixture_costs, "slice_figures", slice_figures)
    mixture_costs.measure_slices()
    assert [starts[0] for _, starts in looked_up] == [10**6, 10**12, 10**12, 10**12]
    (first, second, third), starts = looked_up[2]
    assert (first, second) == (0, 10**6)
    assert starts[0] < third < starts[-1]
    assert third not in starts


def test_an_order_has_small_and_large_members() -> None:
    order = make_order((Segment(0, tuple(whole_weights(64))),))
    sizes = [member.num_examples for member in order.members]
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1], len(sizes)) == (10_000, 1_000_000, 64)


def test_lengths_are_asked_of_mixtures_that_have_not_read(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfds_torch.parsers.mixture_source import MixtureSource

    monkeypatch.setattr(MixtureSource, "read", None)
    found = list(mixture_costs.ask_for_lengths(task_of(photos, 1), 2))
    assert [name for name, _ in found] == [FEW, MANY] * 2
    assert all((figures["make_ms"] or 0) > (figures["len_ms"] or 0) > 0 for _, figures in found)


# Deviations


def test_the_largest_deviation_is_that_of_the_worst_prefix_and_member() -> None:
    assert largest_deviation(np.array([0, 0, 1, 1]), [1, 1]) == 1.0  # After two examples.
    assert largest_deviation(np.array([0, 1, 1, 0]), [2, 2]) == 0.5
    assert largest_deviation(np.array([1, 1, 1, 1]), [0.75, 0.25]) == 3.0
    drawn = np.random.default_rng(0).integers(0, 3, 200)
    weights = [0.2, 0.3, 0.5]
    slowly = max(
        abs(drawn[:n].tolist().count(member) - n * weight)
        for n in range(1, 201)
        for member, weight in enumerate(weights)
    )
    assert largest_deviation(drawn, weights) == pytest.approx(slowly)


DRAWS = (draw_ours, draw_grain, draw_torchdata, draw_independently)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_every_way_draws_by_the_weights_and_again_alike(kind: str, draw: mixed_draws.Draw) -> None:
    weights, num_drawn = WEIGHTS[kind], 5000
    drawn = draw(weights, num_drawn, 3)
    assert (drawn.shape, drawn.dtype) == ((num_drawn,), np.int64)
    assert np.array_equal(drawn, draw(weights, num_drawn, 3))
    shares = np.bincount(drawn, minlength=len(weights)) / num_drawn
    assert np.abs(shares - np.array(weights) / sum(weights)).max() < 0.05
    # Grain's has no seed. Two members have two orders of ties: several seeds may have the same one.
    seeds = range(4, 6) if draw is draw_grain else range(4, 12)
    assert any(not np.array_equal(drawn, draw(weights, num_drawn, seed)) for seed in seeds) == (draw is not draw_grain)


def test_ours_is_the_order_of_a_mixture_and_within_one_example(photos: Path) -> None:
    from tfds_torch import ParserMixture

    parts, weights = ours.mixture_of(task_of(photos, 2)).members, (0.7, 0.3)
    parser = ParserMixture(
        parts, dict(zip(parts, weights, strict=True)), is_training=True, batch_size=16, seed=5, epoch_size=64
    )
    drawn = draw_ours(weights, 64, 5)
    batches = parser.batches(fields=("member",))
    assert drawn.tolist() == [int(member) for batch in batches for member in batch.features["member"]]
    for kind in ("decimal", "whole"):
        assert largest_deviation(draw_ours(WEIGHTS[kind], 100_000, 1), WEIGHTS[kind]) < 1


def test_deviations_are_in_the_table_and_who_is_not_installed_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def iterate(
        function: Callable[..., Iterator[dict[str, float]]], draw: mixed_draws.Draw, *arguments: object
    ) -> Iterator[dict[str, float]]:
        if draw is draw_grain:
            raise mixture_costs.TfdsTorchError("Traceback:\nModuleNotFoundError: No module named 'grain'\n")
        return function(draw, *arguments)

    monkeypatch.setattr(subprocess_call, "iterate", iterate)
    monkeypatch.setattr(mixture_costs, "_NUM_DRAWN", 2000)
    table = mixture_costs.measure_deviations(run_in(tmp_path))
    assert [row.name for row in table.rows] == ["ours", "grain", "torchdata", "independent"]
    assert table.reasons() == ["Grain's mix is missing: ModuleNotFoundError: No module named 'grain'"]
    found, independent = table.spread("ours", "whole"), table.spread("independent", "whole")
    assert found is not None
    assert independent is not None
    assert found.greatest < 1 < independent.least < independent.greatest  # Two seeds.
    verdicts = {one.name: one for one in judge(SUITE_OF["mixture"].targets, [table])}
    assert verdicts["deviation of 64 members from whole numbers"].kept


# The whole suite


@pytest.mark.campaign
def test_the_suite_is_measured_for_real(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture_costs, "_NUM_DRAWN", 2000)
    monkeypatch.setattr(mixture_costs, "_NUM_TABLES", 2)
    settings = replace(SETTINGS, num_workers=1, num_repeats=1)
    tables: dict[str, Table] = {
        table.name: table for table in SUITE_OF["mixture"].measure(Run((), settings, photos, lambda text: None))
    }
    assert [reason for table in tables.values() for reason in table.reasons()] == []
    for name in ("workers", "in_process", "small"):
        expected = 320 if name == "small" else 64
        assert {epoch["num_examples"] for row in tables[name].rows for epoch in row.epochs} == {expected}
    for verdict in judge(SUITE_OF["mixture"].targets, list(tables.values())):
        assert not verdict.found.startswith("cannot be judged"), verdict
