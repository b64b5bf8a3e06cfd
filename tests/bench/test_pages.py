"""README, docs and the chart hold the figures of the committed reports."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.pages import (
    AGAINST,
    ALL_TABLES,
    ASSETS,
    CHARTS,
    RESULTS,
    ROOT,
    TABLES,
    draw_charts,
    on_page_markdown,
    read_reports,
    speed_table,
    with_table,
    write_pages,
)
from benchmarks.report import Report
from benchmarks.suites import SUITES
from benchmarks.tables import COMPETITORS, Spread
from benchmarks.targets import judge
from tfds_torch.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return read_reports()


def texts(chart: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(chart).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", TABLES)
def test_a_page_has_the_table_of_the_committed_reports(name: str, reports: Mapping[str, Report]) -> None:
    page, make = TABLES[name]
    text = (ROOT / page).read_text()
    assert with_table(text, name, ["another"]) != text
    assert with_table(text, name, make(reports)) == text, "run `python -m benchmarks pages`"


def test_the_committed_charts_are_those_of_the_committed_reports(reports: Mapping[str, Report], tmp_path: Path) -> None:
    for path in draw_charts(reports, tmp_path):
        assert texts(ASSETS / path.name) == texts(path), "run `python -m benchmarks pages`"


def test_pages_and_charts_are_written_and_alike_again(reports: Mapping[str, Report], tmp_path: Path) -> None:
    for page, _ in TABLES.values():
        (tmp_path / page).parent.mkdir(exist_ok=True)
    for name, (page, _) in TABLES.items():
        (tmp_path / page).write_text(with_table((ROOT / page).read_text(), name, ["old"]))
    written = write_pages(reports, tmp_path)
    first = {path: path.read_bytes() for path in written}
    assert [path.name for path in written] == ["README.md", "comparison.md", *CHARTS]
    assert first[tmp_path / "README.md"] == (ROOT / "README.md").read_bytes()
    write_pages(reports, tmp_path)
    assert {path: path.read_bytes() for path in written} == first
    table = reports["jpeg"].table(COMPETITORS)
    for name in CHARTS:
        drawn = texts(tmp_path / "docs" / "assets" / name)
        for row in table.rows:
            spread = table.spread(row.name, "examples_per_s")
            shown = row.name not in ("baseline", "ours_0", "ours_0_simplejpeg")
            assert spread is not None
            assert (f"{spread.median:,.0f}" in drawn) == shown
            assert any(text in (row.title, f"limit: {row.title}") for text in drawn) == shown


def with_speed(reports: Mapping[str, Report], name: str, speed: float) -> dict[str, Report]:
    """The same reports, but for one speed of the suite `jpeg`."""
    table = reports["jpeg"].table(COMPETITORS)
    changed = Spread(speed, speed, speed)
    rows = [
        replace(row, figures={**row.figures, "examples_per_s": changed}) if row.name == name else row
        for row in table.rows
    ]
    return {**reports, "jpeg": replace(reports["jpeg"], tables=[replace(table, rows=rows)])}


def test_another_figure_is_another_table(reports: Mapping[str, Report]) -> None:
    table = "\n".join(speed_table(with_speed(reports, "ours", 9_999.0)))
    assert table.count("| 9,999 |") == sum((line.suite, line.ours) == ("jpeg", "ours") for line, _ in AGAINST)


def test_bars_stand_from_the_fastest_peer_to_the_slowest(reports: Mapping[str, Report], tmp_path: Path) -> None:
    (light, _) = draw_charts(with_speed(reports, "grain", 9_999.0), tmp_path)
    names = texts(light)
    assert names.index("tfds_torch") > names.index("Grain") > names.index("FFCV") > names.index("timm create_loader")
    assert names.index("limit: decode and crop alone") < names.index("timm create_loader")


def test_a_missing_report_or_figure_is_an_error(reports: Mapping[str, Report], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^There is no report of the suite memory: run `python -m .* memory`\.$"):
        speed_table({name: report for name, report in reports.items() if name != "memory"})
    with pytest.raises(ConfigError, match=r"^The report of the suite state has no table resuming: run it again\.$"):
        speed_table({**reports, "state": replace(reports["state"], tables=[])})
    jpeg = reports["jpeg"]
    table = jpeg.table(COMPETITORS)
    alone = {**reports, "jpeg": replace(jpeg, tables=[replace(table, rows=table.rows[:1])])}
    with pytest.raises(ConfigError, match=r"^The report of the suite jpeg has no examples_per_s of ffcv"):
        speed_table(alone)
    with pytest.raises(
        ConfigError, match=r"^The report of the suite jpeg has no figures of ours_simplejpeg: run it with all"
    ):
        draw_charts(alone, tmp_path)
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"^The chart cannot be drawn in .*taken.deeper: "):
        draw_charts(reports, tmp_path / "taken" / "deeper")
    with pytest.raises(ConfigError, match=r"^There are no reports in .*nowhere: run `python -m benchmarks`"):
        read_reports(tmp_path / "nowhere")
    (tmp_path / "old.json").write_text('{"schema": 1}')
    with pytest.raises(ConfigError, match=r"old\.json cannot be read: its schema is 1, and should be 3\."):
        read_reports(tmp_path)


# The committed reports


def test_the_site_has_all_tables_of_all_reports(reports: Mapping[str, Report]) -> None:
    assert on_page_markdown("another page") == "another page"
    page = on_page_markdown(f"before\n\n{ALL_TABLES}\n\nafter")
    assert ALL_TABLES not in page
    assert "| suite | targets kept | missed |" in page
    for report in reports.values():
        assert report.markdown() in page
    assert ALL_TABLES in (ROOT / "docs" / "benchmarks.md").read_text().splitlines()


def test_verdicts_follow_from_the_figures(reports: Mapping[str, Report]) -> None:
    for suite in SUITES:
        if suite.name in reports:
            report = reports[suite.name]
            assert judge(suite.targets, report.tables) == list(report.targets), suite.name


def test_a_report_is_read_as_it_was_written_and_nothing_else_is_committed() -> None:
    for path in RESULTS.iterdir():
        assert path.suffix == ".json"
        data = json.loads(path.read_text())
        assert json.loads(json.dumps(Report.from_dict(data).as_dict())) == data
