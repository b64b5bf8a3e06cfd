"""The end of a run: every suite that measures whole epochs side by side, and our own targets."""

import io
from pathlib import Path

import pytest
from bench.made_up import outcome, report, section
from rich.console import Console

from tfds_torch.bench import overview
from tfds_torch.bench.report import Report
from tfds_torch.errors import ConfigError


def reports() -> list[Report]:
    return [
        report("sample", [outcome("ours"), outcome("timm", (50, 100, 75)), outcome("as_numpy", missing="gone")]),
        report("index", [], [section()]),
        report("jpeg", [outcome("ours", (700, 600, 800)), outcome("timm"), outcome("limit", (1000, 1000, 1000))]),
        report("jpeg_eval", [outcome("timm")]),
    ]


def test_speeds_stand_side_by_side_with_our_ratio_to_each() -> None:
    headings, rows = overview.speed_table(reports())
    assert headings == ["contestant", "sample", "jpeg", "jpeg_eval"]
    assert rows == [
        ["tfds_torch", "150", "700", ""],
        ["timm ReaderTfds", "75 (2.00 x)", "150 (5.33 x)", "150"],
        ["tfds.as_numpy", "-", "", ""],
        ["decode and crop alone", "", "1,000 (0.70 x)", ""],
    ]


def test_targets_are_counted_and_the_missed_ones_named() -> None:
    headings, rows = overview.targets_table(reports())
    assert headings == ["suite", "targets kept", "missed"]
    assert rows[0] == ["sample", "1 of 2", "speed against webdataset"]
    suite, kept, missed = rows[1]
    assert (suite, kept) == ("jpeg", "2 of 9")
    assert missed.startswith("speed against baseline, speed against webdataset and grain, speed against ffcv, ")
    assert len(rows) == 2  # An evaluation has no targets.


def test_both_tables_are_shown() -> None:
    console = Console(file=io.StringIO(), width=120)
    overview.show(reports(), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for piece in ("overview: examples a second", "75 (2.00 x)", "overview: targets", "2 of 9"):
        assert piece in text


def test_the_page_says_what_made_it(tmp_path: Path) -> None:
    overview.write(reports(), tmp_path)
    page = (tmp_path / "overview.md").read_text()
    assert page.startswith("# Examples a second into the training process, whole epochs\n")
    assert "| timm ReaderTfds | 75 (2.00 x) | 150 (5.33 x) | 150 |" in page
    assert "| sample | 1 of 2 | speed against webdataset |" in page
    assert "- python -m tfds_torch.bench sample, begun 2026-01-02T03:04:05Z\n" in page


def test_without_whole_epochs_there_is_no_page(tmp_path: Path) -> None:
    overview.write([report("index", [], [section()])], tmp_path)
    assert list(tmp_path.iterdir()) == []
    console = Console(file=io.StringIO(), width=120)
    overview.show([report("index", [], [section()])], console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "overview.md").mkdir()
    with pytest.raises(ConfigError, match=r"^The reports cannot be written to "):
        overview.write(reports(), tmp_path)
