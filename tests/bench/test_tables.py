"""How figures are summed up, compared and written."""

from dataclasses import replace

import pytest
from bench.made_up import outcome, table_of

from benchmarks.comparisons import STARTING
from benchmarks.tables import Column, Ratio, Spread, Table, collect

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
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert Spread.of([None]) is None


def test_figures_are_written_in_their_columns_form_and_what_is_not_there_is_a_dash_and_no_zero() -> None:
    table = TABLE.fill({"one": {"time": [1.0, 0.5, 2.0], "size": [1234]}, "two": {"time": [None]}}, {"one": "the one"})
    headings, rows = table.texts()
    assert headings == ["what", "s", "bytes", "x one", "one by it"]
    assert rows[0] == ["the one", "1.00 (0.50 to 2.00)", "1,234", "1.0 (1.0 to 1.0)", "1.0 (1.0 to 1.0)"]
    assert rows[1] == ["two", "-", "-", "-", "-"]


def test_rows_are_compared_turn_by_turn_as_far_as_both_have_turns() -> None:
    table = TABLE.fill({"one": {"time": [50.0, 100.0, 10.0, 1.0]}, "two": {"time": [100.0, 400.0, 30.0]}})
    assert table.spread("two", "by_one") == Spread(3.0, 2.0, 4.0)
    assert table.spread("two", "one_by_it") == pytest.approx(Spread(1 / 3, 0.25, 0.5))


def test_a_row_without_figures_has_its_reason() -> None:
    table = TABLE.fill({"one": {"time": [1.0]}, "two": {}}, {"two": "the two"}, {"two": "it broke"})
    assert table.reasons() == ["the two is missing: it broke"]
    assert table.texts()[1][1] == ["the two", "-", "-", "-", "-"]
    assert (table.spread("two", "by_one"), table.spread("three", "time")) == (None, None)


def test_measurements_are_collected_by_row_in_their_order() -> None:
    samples = [("a", {"x": 1.0}), ("b", {"x": 2.0, "y": None}), ("a", {"x": 3.0})]
    assert collect(samples) == {"a": {"x": [1.0, 3.0]}, "b": {"x": [2.0], "y": [None]}}


def test_warm_ups_count_for_the_start_and_epochs_for_the_rest() -> None:
    table = table_of([outcome("ours", (100, 400, 200), first_batch_s=0.25, tail_s=0.05)], STARTING.table)
    assert table.spread("ours", "examples_per_s") == Spread(200, 100, 400)
    assert table.spread("ours", "first_batch_s") == Spread(0.25, 0.25, 0.25)
    assert table.spread("ours", "tail_s") == Spread(0.05, 0.05, 0.05)
    assert table.spread("ours", "start_s") == Spread(3.5, 3.0, 4.0)
    assert table.spread("ours", "very_first_batch_s") == Spread(0.5, 0.5, 0.5)


def test_speed_without_the_tail_ends_with_the_last_batch() -> None:
    table = table_of([outcome("ours", (100.0, 50.0), tail_s=0.5)])  # 100 examples in 1 and 2 s.
    expected = Spread((200 + 100 / 1.5) / 2, 100 / 1.5, 200)
    assert table.spread("ours", "examples_per_s_without_tail") == pytest.approx(expected)


def test_memory_is_a_sum_and_its_parts() -> None:
    table = table_of([outcome("ours"), outcome("timm", memory_bytes=(600_000_000, 600_000_000))], STARTING.table)
    row = table.rows[0]
    assert table.spread("ours", "memory_mb") == Spread(600, 600, 600)
    assert table.spread("ours", "memory_by_timm") == Spread(0.5, 0.5, 0.5)
    assert row.figures["memory_parts"] == "100 + 200 + 300"
    assert table_of([outcome("ours", memory_bytes=())], STARTING.table).texts()[1][0][-4:] == ["-"] * 4


def test_processor_time_and_disk_are_of_the_measured_epochs_that_have_them() -> None:
    one = outcome("ours")
    times = zip(one.epochs, (0.1, None, 0.3), strict=True)
    one.epochs[:] = [replace(epoch, cpu_s=cpu_s, disk_bytes=5_000_000) for epoch, cpu_s in times]
    table = table_of([one, outcome("timm")])
    assert table.spread("ours", "cpu_us") == Spread(2000.0, 1000.0, 3000.0)
    assert table.spread("ours", "disk_mb") == Spread(5.0, 5.0, 5.0)
    assert (table.spread("timm", "cpu_us"), table.spread("timm", "disk_mb")) == (None, None)


def test_whole_batches_are_compared_with_and_without_tail() -> None:
    outcomes = [outcome("ours", (300, 400, 200), tail_s=0.1), outcome("timm", (150, 100, 200))]
    headings, rows = table_of([*outcomes, outcome("ffcv", missing="it broke")]).texts()
    assert headings == [
        *("competitor", "examples/s", "tfds_torch by it", "x timm", "examples/s without tail"),
        *("first batch of a later epoch, s", "tail, s", "processor time of an example, us", "examples an epoch"),
    ]
    assert rows[0][:5] == ["tfds_torch", "300 (200 to 400)", "1.00 (1.00 to 1.00)", "2.00", "429"]
    assert rows[0][5:] == ["0.50", "0.100", "-", "100"]
    assert rows[1][2] == "2.00 (1.00 to 4.00)"
    assert rows[2] == ["FFCV", *["-"] * 8]
