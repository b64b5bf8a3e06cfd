"""Rows of contestants: what each suite tells, and the short form."""

import pytest
from bench.made_up import PEER_OF, outcome

from tfds_torch.bench.contest_tables import short_table_of, table_of
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.suites import SUITES


def outcomes() -> list[Outcome]:
    ours = outcome("ours", (300, 400, 200), tail_s=0.1)
    return [ours, outcome("timm", (150, 100, 200)), outcome("ffcv", missing="it broke")]


def test_whole_batches_are_compared_turn_by_turn_with_and_without_tail() -> None:
    headings, rows = table_of("jpeg", outcomes())
    assert headings == [
        *("contestant", "examples/s", "tfds_torch by it", "x timm", "examples/s without tail"),
        *("first batch, s", "tail, s", "processor time of an example, us", "examples an epoch"),
    ]
    assert rows[0] == [
        *("tfds_torch", "300 (200 to 400)", "1.00 (1.00 to 1.00)", "2.00", "429"),
        *("0.50", "0.100", "-", "100"),
    ]
    assert rows[1][2] == "2.00 (1.00 to 4.00)"
    assert rows[2] == ["FFCV", *["-"] * 8]


def test_memory_tells_the_start_twice() -> None:
    headings, rows = table_of("memory", outcomes())
    assert headings[1:3] == ["process start to first batch, s", "its first epoch to first batch, s"]
    assert rows[0][1:3] == ["3.50 (3.00 to 4.00)", "0.50 (0.50 to 0.50)"]
    assert rows[0][-2:] == ["600", "100 + 200 + 300"]


def test_the_short_form_has_speeds_and_our_ratio() -> None:
    assert short_table_of(outcomes()) == (
        ["contestant", "examples/s", "tfds_torch by it"],
        [["tfds_torch", "300", "1.00"], ["timm ReaderTfds", "150", "2.00"], ["FFCV", "-", "-"]],
    )
    assert short_table_of(outcomes()[1:])[1][0] == ["timm ReaderTfds", "150", "-"]


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite.peers], ids=lambda suite: suite.name)
def test_every_suite_with_contestants_has_its_columns(suite: object) -> None:
    name = suite.name  # type: ignore[attr-defined]
    headings, rows = table_of(name, [outcome(PEER_OF["ours"])])
    assert len(headings) == len(rows[0]) >= 5
