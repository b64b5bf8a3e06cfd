"""Each suite is measured at a tiny size; its report is written, read back and shown."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import command, report
from benchmarks.peer_process import ROOT
from benchmarks.report import ALL_REPORTS, Report, on_page_markdown, read_reports
from benchmarks.suites import SUITES
from benchmarks.tables import Column, Row, Spread, Table

TINY = ("--photos", "16", "--batch-size", "4", "--workers", "1", "--repeats", "1")
SLOW = {
    "jpeg": "ours,webdataset,grain",
    "jpeg_eval": "ours,limit",
    "png32": "ours,ours_batched,timm",
    "sample": "ours,timm",
    "composed": "memory,fused,drop_in_whole,drop_in",
    "start": "ours,as_numpy",
    "memory": "ours,ours_8",
    "cached": "",
    "remote": "",
    "episodes": "",
    "mixture": "",
    "export": "",
    "transform": "",
}
ABSENT = ("ffcv", "dali", "streaming", "litdata")
"""Peers that are not installed for the tests, where a report may give a reason."""


def measure(suite: str, out: Path, *more: str) -> Report:
    # A fresh process: here, tensorflow is not imported.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", suite, *TINY, "--out", str(out), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = Report.from_dict(json.loads((out / f"{suite}.json").read_text()))
    assert (out / f"{suite}.md").read_text() == found.markdown()
    assert f"{suite}: " in done.stdout
    return found


def rows_without_figures(found: Report) -> dict[str, str]:
    return {
        f"{table.name}: {row.name}": row.missing or "no reason"
        for table in found.tables
        for row in table.rows
        if row.missing or not any(row.figures.values())
    }


def test_every_suite_has_a_smoke_test() -> None:
    assert list(SUITES) == [*list(SLOW)[:7], "order", *list(SLOW)[7:]]


def test_the_suite_order_is_measured(tmp_path: Path) -> None:
    found = measure("order", tmp_path)
    assert [table.name for table in found.tables] == ["order", "locality"]
    assert rows_without_figures(found) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SLOW)
def test_a_suite_is_measured(suite: str, tmp_path: Path) -> None:
    more = ["--only", SLOW[suite]] if SLOW[suite] else ["--photos", "64"] if suite == "mixture" else []
    found = measure(suite, tmp_path, *more)
    if SLOW[suite]:
        assert [row.name for row in found.tables[0].rows] == SLOW[suite].split(",")[: len(found.tables[0].rows)]
    absent = rows_without_figures(found)
    assert {name: reason for name, reason in absent.items() if not name.endswith(ABSENT)} == {}


def test_peers_say_how_they_are_configured() -> None:
    for path in (ROOT / "benchmarks" / "peers").glob("[a-z]*.py"):
        assert "Configured" in path.read_text().split('"""')[1], path.name


def test_a_report_is_read_back_and_is_a_page() -> None:
    rows = [Row("a", "the a", {"x": Spread(2.0, 1.0, 3.0), "text": "5 + 6"}), Row("b", "b|c", {}, "it broke.")]
    table = Table("t", "a table", "How.", "what", [Column("x", "x, s", "{:.1f}"), Column("text", "parts")], rows)
    machine = {"cpu": None, "architecture": "x", "num_cores": 2, "ram_bytes": 2**33, "kernel": "k", "load_before": 0.5}
    settings = {"num_photos": 4096, "num_shards": 8, "batch_size": 128, "num_workers": 2, "num_repeats": 2}
    made = Report("jpeg", "speed", "Thus.", "python -m benchmarks", "now", 3.0, machine, {"a": "1"}, settings, [table])
    data = json.loads(json.dumps(made.as_dict()))
    assert Report.from_dict(data) == made
    lines = made.markdown().splitlines()
    assert "| the a | 2.0 (1.0 to 3.0) | 5 + 6 |" in lines
    assert "| b\\|c | - | - |" in lines
    assert "b|c is missing: it broke." in lines
    with pytest.raises(ValueError, match="its schema is 1, and should be 4"):
        Report.from_dict(data | {"schema": 1})


def test_committed_reports_are_of_suites_and_stand_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports = read_reports()
    assert set(reports) == set(SUITES) - {"order"}
    page = on_page_markdown(f"above\n{ALL_REPORTS}\nbelow")
    assert [line for line in page.splitlines() if line.startswith("### ")] == [
        f"### {name}: {one.title}" for name, one in reports.items()
    ]
    assert on_page_markdown("another page") == "another page"
    (tmp_path / "jpeg.json").write_text("{}")
    with pytest.raises(report.ConfigError, match=r"jpeg\.json cannot be read: its schema is None"):
        read_reports(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jpg"], "There is no suite 'jpg': choose from jpeg, "),
        (["jpeg", "--only", "tim"], "There is no peer 'tim': choose from ours, "),
        (["memory", "--only", "dali"], "None of dali takes part in the suite memory: choose from ours, baseline, "),
        (["jpeg", "--repeats", "0"], "--repeats 0: must be at least 1."),
        (["jpeg", "--photos", "100"], "--photos 100: 2 workers with batches of 128 need at least 256."),
        (["jpeg", "--timeout", "nan"], "--timeout nan: must be a number"),
        (["jpeg", "--baseline", "/nowhere"], "--baseline /nowhere: there is no tfds_torch in it."),
        (["jpeg", "--venv", "dali=/nowhere"], "--venv dali=/nowhere: there is no /nowhere/bin/python."),
        (["jpeg", "--out", "/dev/null/x"], "The reports cannot be written to /dev/null/x: "),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == command.USAGE
    assert f"error: {message}" in capsys.readouterr().err


def test_a_report_is_written_for_each_suite_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def nothing(run: Any) -> Iterator[Table]:
        asked.append(run)
        yield from ()

    monkeypatch.setattr(command, "SUITES", {name: replace(one, measure=nothing) for name, one in SUITES.items()})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    out = tmp_path / "out"
    venv = f"dali={tmp_path}"
    assert command.main(["cached", "jpeg", "--only", "dali,ours", "--venv", venv, "--out", str(out)]) == command.OK
    assert sorted(path.name for path in out.iterdir()) == ["cached.json", "cached.md", "jpeg.json", "jpeg.md"]
    assert [list(run.only) for run in asked] == [["dali", "ours"], []]
    assert asked[0].settings.venvs == {"dali": str(tmp_path)}
    assert "venvs" not in json.loads((out / "jpeg.json").read_text())["settings"]
    assert f"Reports are in {out}." in capsys.readouterr().out
