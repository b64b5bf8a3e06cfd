"""The tables of README and docs, and the README's chart: all are made from the committed reports, none is typed.

`python -m benchmarks pages` writes them. mkdocs calls `on_page_markdown`, which puts all tables of all reports on the
page Benchmarks.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.chart import DARK, LIGHT, draw_chart
from benchmarks.report import Report, overview, table_lines
from benchmarks.tables import COMPETITORS, Spread
from benchmarks.task import AS_NUMPY, DALI, FFCV, GRAIN, LIMIT, OURS, OURS_SIMPLEJPEG, TIMM, WEBDATASET
from tfds_torch.errors import ConfigError

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
ASSETS = ROOT / "docs" / "assets"
CHARTS = {"speed-light.svg": LIGHT, "speed-dark.svg": DARK}
BEGIN, END = "<!-- {name}: begin -->", "<!-- {name}: end -->"
"""A table stands between them."""
ALL_TABLES = "<!-- all tables -->"
"""The site has the tables of all reports in the place of this line."""

Reports = Mapping[str, Report]


@dataclass(frozen=True)
class Line:
    """A line of a table: one figure of several rows of a report.

    Attributes:
        title: of the line.
        suite: whose report.
        column: key in the report's table.
        unit: follows each figure.
        is_speed: whether more is better.
        table: name in the report.
        ours: name of our row.
    """

    title: str
    suite: str
    column: str = "examples_per_s"
    unit: str = ""
    form: str = "{:,.0f}"
    is_speed: bool = True
    table: str = COMPETITORS
    ours: str = OURS

    def median(self, reports: Reports, row: str) -> float | None:
        """Returns the median of a row; None where the row has no such figure.

        Raises:
            ConfigError: the suite or its table is missing.
        """
        report = _report(reports, self.suite)
        table = next((table for table in report.tables if table.name == self.table), None)
        if table is None:
            raise ConfigError(f"The report of the suite {self.suite} has no table {self.table}: run it again.")
        spread = table.spread(row, self.column)
        return None if spread is None else spread.median

    def text(self, figure: float | None) -> str:
        """Returns a figure as it is shown."""
        return "-" if figure is None else f"{self.form.format(figure)}{self.unit}"


def _time(title: str, suite: str, column: str, form: str = "{:.2f}", **rows: str) -> Line:
    return Line(title, suite, column, " s", form, is_speed=False, **rows)


def _memory(title: str, suite: str) -> Line:
    return Line(title, suite, "memory_mb", " MB", is_speed=False)


_RESUME = "resume at the end of an epoch, state to first batch, against a stream"
AGAINST = (
    (Line("photographs per second, against FFCV", "jpeg"), FFCV),
    (Line("against DALI without a GPU", "jpeg"), DALI),
    (Line("without libturbojpeg 3, against FFCV", "jpeg", ours=OURS_SIMPLEJPEG), FFCV),
    (Line("without libturbojpeg 3, against DALI", "jpeg", ours=OURS_SIMPLEJPEG), DALI),
    (Line("against WebDataset", "jpeg"), WEBDATASET),
    (Line("against Grain", "jpeg"), GRAIN),
    (Line("against timm", "jpeg"), TIMM),
    (Line("against the limit: decoding and cropping alone", "jpeg"), LIMIT),
    (Line("photographs per second in evaluation, against timm", "jpeg_eval"), TIMM),
    (Line("32x32 PNG images per second, against timm", "png32"), TIMM),
    (_time("from process start to first batch, against timm", "memory", "start_s", "{:.1f}"), TIMM),
    (_time("first batch of a later epoch, against timm", "memory", "first_batch_s"), TIMM),
    (_memory("memory of all processes (PSS), against timm", "memory"), TIMM),
    (_time(_RESUME, "state", "first_batch_s", ours="index_end", table="resuming"), "examples_end"),
)
"""The lines of the README's table: each figure of ours beside one other row's."""

SIDE_BY_SIDE = (
    Line("photographs per second, RandomResizedCrop 224 (`jpeg`)", "jpeg"),
    Line("photographs per second in evaluation (`jpeg_eval`)", "jpeg_eval"),
    Line("32x32 PNG images per second (`png32`)", "png32"),
    _memory("memory of all processes (PSS), whole batches (`memory`)", "memory"),
    _memory("memory of all processes (PSS), single examples (`start`)", "start"),
    _time("process start to first batch, single examples (`start`)", "start", "start_s"),
    _time("first batch of a later epoch, whole batches (`memory`)", "memory", "first_batch_s"),
    _time("first batch of a later epoch, single examples (`start`)", "start", "first_batch_s"),
)
_OWN = (OURS, OURS_SIMPLEJPEG)
_OTHERS = {
    OURS_SIMPLEJPEG: "without libturbojpeg 3",
    TIMM: "timm",
    WEBDATASET: "WebDataset",
    GRAIN: "Grain",
    DALI: "DALI, no GPU",
    FFCV: "FFCV",
    AS_NUMPY: "tfds.as_numpy",
    LIMIT: "decoding and cropping alone",
}


def speed_table(reports: Reports) -> list[str]:
    """Returns the README's table.

    Raises:
        ConfigError: a suite or a figure is missing.
    """
    jpeg, rows = _report(reports, "jpeg"), []
    for line, other in AGAINST:
        figures = []
        for row in (line.ours, other):
            figure = line.median(reports, row)
            if figure is None:
                raise ConfigError(
                    f"The report of the suite {line.suite} has no {line.column} of {row}: run it with all peers."
                )
            figures.append(figure)
        ratio = figures[0] / figures[1] if line.is_speed else figures[1] / figures[0]
        rows.append([line.title, *map(line.text, figures), f"{ratio:.1f} x" if ratio >= 2 else f"{ratio:.2f} x"])
    settings = jpeg.settings
    heading = (
        f"{jpeg.machine['num_cores']} cores, {settings['num_workers']} workers, batches of {settings['batch_size']}"
    )
    return table_lines([heading, "tfds_torch", "the other", "ratio (over 1: tfds_torch is better)"], rows)


def side_by_side(reports: Reports) -> list[str]:
    """Returns the table of the page Comparison.

    Raises:
        ConfigError: a suite is missing.
    """
    rows = [[line.title, *(line.text(line.median(reports, row)) for row in (OURS, *_OTHERS))] for line in SIDE_BY_SIDE]
    return table_lines(["", "tfds_torch", *_OTHERS.values()], rows)


TABLES: Mapping[str, tuple[str, Callable[[Reports], list[str]]]] = {
    "speed": ("README.md", speed_table),
    "side by side": ("docs/comparison.md", side_by_side),
}
"""Name -> page, and what makes the table."""


def read_reports(folder: Path | None = None) -> dict[str, Report]:
    """Returns all reports of a folder (None: the committed ones), by suite.

    Raises:
        ConfigError: there are none, or one cannot be read.
    """
    folder, reports = folder or RESULTS, {}
    for path in sorted(folder.glob("*.json")):
        try:
            reports[path.stem] = Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"The report {path} cannot be read: {error}. Run its suite again.") from error
    if not reports:
        raise ConfigError(f"There are no reports in {folder}: run `python -m benchmarks` first.")
    return reports


def with_table(page: str, name: str, lines: Sequence[str]) -> str:
    """Returns a page with other lines between the comments of a table."""
    begin, end = (re.escape(comment.format(name=name)) for comment in (BEGIN, END))
    table = "\n".join(lines).strip()
    return re.sub(rf"({begin}\n).*?(\n{end})", lambda found: found[1] + table + found[2], page, flags=re.DOTALL)


def write_pages(reports: Reports, root: Path = ROOT) -> list[Path]:
    """Writes the tables into README and docs, draws the README's chart, and returns all these files.

    Raises:
        ConfigError: a suite or a figure is missing, a file cannot be written, or matplotlib is not installed.
    """
    tables = {name: (root / page, make(reports)) for name, (page, make) in TABLES.items()}
    charts = draw_charts(reports, root / ASSETS.relative_to(ROOT))
    for name, (page, lines) in tables.items():
        page.write_text(with_table(page.read_text(encoding="utf-8"), name, lines), encoding="utf-8")
    return [*(page for page, _ in tables.values()), *charts]


def draw_charts(reports: Reports, folder: Path) -> list[Path]:
    """Draws the README's chart, for light and for dark pages, and returns the files.

    Raises:
        ConfigError: the suite `jpeg` or one of the figures is missing, the folder cannot be written, or matplotlib is
            not installed.
    """
    report = _report(reports, "jpeg")
    table = report.table(COMPETITORS)
    speeds = {
        name: table.spread(name, "examples_per_s") for name in (*_OWN, FFCV, DALI, WEBDATASET, GRAIN, TIMM, LIMIT)
    }
    medians = {name: spread.median for name, spread in speeds.items() if isinstance(spread, Spread)}
    absent = [name for name in speeds if name not in medians]
    if absent:
        raise ConfigError(f"The report of the suite jpeg has no figures of {absent[0]}: run it with all peers.")
    # Ours, the others from the fastest to the slowest, and the limit.
    order = sorted(medians, key=lambda name: (name == LIMIT, name not in _OWN, name != OURS, -medians[name]))
    rows = [row for name in order if (row := table.row(name)) is not None]
    rows[-1] = replace(rows[-1], title=f"limit: {rows[-1].title}")
    settings, machine = report.settings, report.machine
    caption = (
        f"JPEG, random crop to 224x224 and flip, whole epochs of {settings['num_photos']:,} into the training process; "
        f"{machine['num_cores']} cores, {settings['num_workers']} workers"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, theme in CHARTS.items():
            bars = [(row.name, row.title, medians[row.name]) for row in rows]
            draw_chart(bars, "Photographs per second", caption, theme, folder / name)
    except (ImportError, OSError) as error:
        raise ConfigError(f"The chart cannot be drawn in {folder}: {error}.") from error
    return [folder / name for name in CHARTS]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the tables of all reports into the page that has a line for them. mkdocs calls this for every page."""
    if ALL_TABLES not in markdown:
        return markdown
    reports = list(read_reports().values())
    lines = [line for _, headings, rows in overview(reports) for line in table_lines(headings, rows)]
    return markdown.replace(ALL_TABLES, "\n".join([*lines, *(report.markdown() for report in reports)]))


def _report(reports: Reports, suite: str) -> Report:
    if suite not in reports:
        raise ConfigError(f"There is no report of the suite {suite}: run `python -m benchmarks {suite}`.")
    return reports[suite]
