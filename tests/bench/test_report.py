"""What is written and shown: nothing is left out, nothing is made up."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench.made_up import outcome, report, small_table, table_of
from jsonschema import Draft202012Validator
from rich.console import Console

from benchmarks import output
from benchmarks.comparisons import BEYOND, SAMPLE, STARTING
from benchmarks.pages import RESULTS
from benchmarks.report import Report, overview
from tfds_torch.errors import ConfigError

SCHEMA = json.loads((RESULTS.parent / "report.schema.json").read_text())


def sample(speeds: tuple[float, ...] = (300, 400, 200)) -> Report:
    outcomes = [outcome("ours", speeds), outcome("timm"), outcome("grain", missing="it | broke")]
    return report("sample", [table_of(outcomes, SAMPLE.table)])


def index() -> Report:
    return report("index", [small_table(), small_table("size"), small_table("cold speed")])


def memory() -> Report:
    outcomes = [outcome("ours"), outcome("timm", memory_bytes=())]
    beyond = BEYOND.fill({"ours": {"start_s": [1.0], "worker_mb": [None]}})
    return report("memory", [table_of(outcomes, STARTING.table), beyond])


def shown(*reports: Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    for one in reports:
        output.show(one, console)
    output.show_overview(reports, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("made", [sample(), index(), memory(), report("scale", [])], ids=lambda made: made.suite)
def test_a_report_is_written_as_the_schema_says(made: Report, tmp_path: Path) -> None:
    output.write(made, tmp_path)
    (path,) = tmp_path.iterdir()
    data = json.loads(path.read_text())
    assert path.name == f"{made.suite}.json"
    Draft202012Validator(SCHEMA).validate(data)
    assert Report.from_dict(data).as_dict() == json.loads(json.dumps(made.as_dict()))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_reports_are_as_the_schema_says(path: Path) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(path.read_text()))


def test_the_schema_refuses_what_is_not_a_report() -> None:
    data = sample().as_dict()
    validator = Draft202012Validator(SCHEMA)
    for changes in ({"schema": 1}, {"more": 1}, {"targets": [{"name": "a"}]}, {"tables": [{"name": "a"}]}):
        assert not validator.is_valid(json.loads(json.dumps(data | changes)))


def test_the_data_has_all_epochs() -> None:
    ours, _, grain = json.loads(json.dumps(sample().as_dict()))["tables"][0]["rows"]
    assert [round(epoch["examples_per_s"]) for epoch in ours["epochs"]] == [300, 400, 200]
    assert ours["figures"]["examples_per_s"] == pytest.approx({"median": 300, "least": 200, "greatest": 400})
    assert (grain["missing"], grain["epochs"], grain["figures"]["ours_by_it"]) == ("it | broke", [], None)


@pytest.mark.parametrize(("speed", "verdict"), [((300, 300, 300), "kept"), ((150, 150, 150), "**MISSED**")])
def test_the_page_has_figures_targets_reasons_and_circumstances(speed: tuple[float, ...], verdict: str) -> None:
    page = sample(speed).markdown()
    assert page.startswith("### sample: photographs a second")
    assert f"| tfds_torch | {speed[0]} ({speed[0]} to {speed[0]}) |" in page
    assert f"| {verdict} |" in page
    assert "\nGrain is missing: it | broke.\n" in page
    for fact in ("python -m benchmarks sample", "2026-01-02T03:04:05Z", "A fine one", "2 cores", "8 GiB"):
        assert fact in page
    for fact in ("Linux 6.1", "load before: 0.25", "python 3.11.0", "timm not installed", "took 12 s"):
        assert fact in page
    assert page.count("\n| ") == 1 + 3 + 1 + 2  # Two headings, three competitors, two targets.


def test_tables_stand_with_their_notes_on_the_page_and_in_the_terminal() -> None:
    page = index().markdown()
    for line in (
        "#### The speed of it",
        "How it was done.",
        "| read mode | examples/s | x examples |",
        "| index | 1,000 (900 to 1,100) | 1.10 |",
        "| files | - | - |",
        "files is missing: it | broke.",
    ):
        assert f"\n{line}\n" in page
    assert "benchmarks.index_costs" in page
    text = shown(index())
    for piece in ("index: the speed of it", "1,000 (900 to 1,100)", "files is missing: it | broke", "A fine one"):
        assert piece in text


def test_the_terminal_shows_targets_where_there_are_some() -> None:
    text = shown(sample())
    for piece in ("300 (200 to 400)", "kept", "speed against timm", "Grain is missing: it | broke"):
        assert piece in text
    assert "MISSED" in shown(sample((1.0, 1.0, 1.0)))
    assert "Targets" not in shown(report("scale", []))
    assert "Targets" not in report("scale", []).markdown()


def test_unknown_facts_are_named() -> None:
    machine = {**sample().machine, "cpu": None, "ram_bytes": None, "load_before": None}
    text = "\n".join(replace(sample(), machine=machine, took_s=None).facts())
    for piece in ("CPU not known", "memory not known", "load before: not known"):
        assert piece in text
    assert "took" not in text


# All suites of a run


def several() -> Sequence[Report]:
    one = table_of([outcome("ours"), outcome("timm", (50, 100, 75)), outcome("as_numpy", missing="gone")], SAMPLE.table)
    two = table_of([outcome("ours", (700, 600, 800)), outcome("timm"), outcome("limit", (1000, 1000, 1000))])
    return [report("sample", [one]), index(), report("jpeg", [two]), report("jpeg_eval", [table_of([outcome("timm")])])]


def test_speeds_stand_side_by_side_with_our_ratio_to_each() -> None:
    _, headings, rows = overview(several())[0]
    assert headings == ["competitor", "sample", "jpeg", "jpeg_eval"]
    assert rows == [
        ["tfds_torch", "150", "700", ""],
        ["timm ReaderTfds", "75 (2.00 x)", "150 (5.33 x)", "150"],
        ["tfds.as_numpy", "-", "", ""],
        ["decode and crop alone", "", "1,000 (0.70 x)", ""],
    ]


def test_targets_are_counted_and_the_missed_ones_named() -> None:
    _, _, rows = overview(several())[1]
    assert rows[0] == ["sample", "1 of 2", "speed against webdataset"]
    suite, kept, missed = rows[2]
    assert (suite, kept) == ("jpeg", "2 of 10")
    assert missed.startswith("speed against baseline, speed against webdataset and grain, speed against ffcv, ")
    assert [row[0] for row in rows] == ["sample", "index", "jpeg"]  # An evaluation has no targets.


def test_the_terminal_shows_the_overview_of_what_was_measured() -> None:
    text = shown(*several())
    for piece in ("overview: examples a second", "75 (2.00 x)", "overview: targets", "2 of 10"):
        assert piece in text
    assert "overview: examples" not in shown(index())


# Where it is written


@pytest.mark.parametrize("obstacle", ["a file", "a folder in a report's place", "a file above"])
def test_a_folder_that_cannot_be_written_is_an_error(obstacle: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    if obstacle == "a folder in a report's place":
        (folder / "start.json").mkdir(parents=True)
    else:
        folder.write_text("")
        folder = folder / "deeper" if obstacle == "a file above" else folder
    with pytest.raises(ConfigError, match=r"^The reports cannot be written.*Choose another --out\.$"):
        output.check_folder(folder, ["sample", "start"])
