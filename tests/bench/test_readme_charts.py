"""The README's table and chart, and the committed reports that they are made of."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import output
from benchmarks.comparisons import COMPETITORS
from benchmarks.readme_charts import (
    ASSETS,
    BEGIN,
    CHARTS,
    END,
    LINES,
    RESULTS,
    draw_charts,
    read_reports,
    readme_block,
)
from benchmarks.report import Report
from benchmarks.suites import SUITES
from benchmarks.tables import Spread
from benchmarks.targets import judge
from tfds_torch.errors import ConfigError

README = Path(__file__).parents[2] / "README.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return read_reports()


def texts(chart: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(chart).iter(f"{SVG}text")]


def test_the_readme_has_the_table_of_the_committed_reports(reports: Mapping[str, Report]) -> None:
    found = re.findall(f"{BEGIN}.*?{END}", README.read_text(), re.DOTALL)
    assert found == [readme_block(reports)], "put there what `python -m benchmarks readme` prints"


def test_the_committed_charts_are_those_of_the_committed_reports(reports: Mapping[str, Report], tmp_path: Path) -> None:
    for path in draw_charts(reports, tmp_path):
        assert texts(ASSETS / path.name) == texts(path), "run `python -m benchmarks chart`"


def test_a_chart_holds_the_figures_of_its_report_and_is_drawn_alike_again(
    reports: Mapping[str, Report], tmp_path: Path
) -> None:
    first = {path.name: path.read_bytes() for path in draw_charts(reports, tmp_path / "first")}
    second = {path.name: path.read_bytes() for path in draw_charts(reports, tmp_path / "second")}
    assert first == second
    assert list(first) == list(CHARTS)
    table = reports["jpeg"].table(COMPETITORS)
    shown = [row for row in table.rows if row.name not in ("baseline", "ours_0")]
    for name in CHARTS:
        drawn = texts(tmp_path / "first" / name)
        for row in shown:
            spread = row.figures["examples_per_s"]
            assert isinstance(spread, Spread)
            assert f"{spread.median:,.0f}" in drawn
            assert any(text.endswith(row.title) for text in drawn)


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
    block = readme_block(with_speed(reports, "ours", 9_999.0))
    assert block.count("| 9,999 |") == sum(line.suite == "jpeg" for line in LINES)


def test_bars_stand_from_the_fastest_peer_to_the_slowest(reports: Mapping[str, Report], tmp_path: Path) -> None:
    (light, _) = draw_charts(with_speed(reports, "grain", 9_999.0), tmp_path)
    names = texts(light)
    assert names.index("tfds_torch") > names.index("Grain") > names.index("FFCV") > names.index("timm create_loader")


def test_what_is_missing_is_said(reports: Mapping[str, Report], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^There is no report of the suite memory: run `python -m .* memory`\.$"):
        readme_block({name: report for name, report in reports.items() if name != "memory"})
    jpeg = reports["jpeg"]
    table = jpeg.table(COMPETITORS)
    alone = {**reports, "jpeg": replace(jpeg, tables=[replace(table, rows=table.rows[:1])])}
    with pytest.raises(ConfigError, match=r"^The report of the suite jpeg has no examples_per_s of ffcv"):
        readme_block(alone)
    with pytest.raises(ConfigError, match=r"^The report of the suite jpeg has no figures of ffcv: run it with all"):
        draw_charts(alone, tmp_path)
    with pytest.raises(ConfigError, match=r"^There are no reports in .*nowhere: run `python -m benchmarks`"):
        read_reports(tmp_path / "nowhere")
    (tmp_path / "old.json").write_text('{"schema": 1}')
    with pytest.raises(ConfigError, match=r"old\.json cannot be read: its schema is 1, and should be 2\."):
        read_reports(tmp_path)


# The committed reports


def test_pages_say_what_the_data_says(reports: Mapping[str, Report]) -> None:
    for name, report in reports.items():
        has_chart = (RESULTS / f"{name}.png").exists()
        assert has_chart == any(table.bars for table in report.tables)
        assert (RESULTS / f"{name}.md").read_text() == report.markdown(f"{name}.png" if has_chart else None)
    in_order = [reports[suite.name] for suite in SUITES if suite.name in reports]
    assert (RESULTS / output.OVERVIEW).read_text() == output.overview_page(in_order)
    assert {path.stem for path in RESULTS.iterdir()} == {*reports, "overview"}


def test_verdicts_follow_from_the_figures(reports: Mapping[str, Report]) -> None:
    for suite in SUITES:
        if suite.name in reports:
            report = reports[suite.name]
            assert judge(suite.targets, report.tables) == list(report.targets), suite.name


def test_a_report_is_read_as_it_was_written() -> None:
    for path in RESULTS.glob("*.json"):
        data = json.loads(path.read_text())
        assert json.loads(json.dumps(Report.from_dict(data).as_dict())) == data
