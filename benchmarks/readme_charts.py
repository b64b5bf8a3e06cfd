"""The face of the README: its table of speed and memory, and its chart, made of committed reports alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.chart import DARK, LIGHT, draw_face
from benchmarks.comparisons import COMPETITORS
from benchmarks.report import Report, table_lines
from benchmarks.tables import Spread
from benchmarks.task import DALI, FFCV, GRAIN, LIMIT, OURS, TIMM, WEBDATASET
from tfds_torch.errors import ConfigError

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
ASSETS = ROOT / "docs" / "assets"
CHARTS = {"speed-light.svg": LIGHT, "speed-dark.svg": DARK}
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
"""What the table stands between in the README."""

_PEERS = (FFCV, DALI, WEBDATASET, GRAIN, TIMM)


@dataclass(frozen=True)
class Line:
    """A line of the table: a figure of ours beside another one.

    Attributes:
        title: what is compared with what.
        suite: whose report.
        table: in it.
        column: in it.
        other: row of the other one.
        ours: our row.
        unit: behind both figures.
        form: of both figures, as for `str.format`.
        is_speed: whether more is better: the ratio is ours by the other, else the other by ours.
    """

    title: str
    suite: str
    column: str
    other: str
    unit: str = ""
    form: str = "{:,.0f}"
    is_speed: bool = True
    ours: str = OURS
    table: str = COMPETITORS


_SPEED = "examples_per_s"
LINES = (
    Line("photographs per second, against FFCV", "jpeg", _SPEED, FFCV),
    Line("against DALI without a GPU", "jpeg", _SPEED, DALI),
    Line("against WebDataset", "jpeg", _SPEED, WEBDATASET),
    Line("against Grain", "jpeg", _SPEED, GRAIN),
    Line("against timm", "jpeg", _SPEED, TIMM),
    Line("against the limit: decoding and cropping alone", "jpeg", _SPEED, LIMIT),
    Line("photographs per second in evaluation, against timm", "jpeg_eval", _SPEED, TIMM),
    Line("32x32 PNG images per second, against timm", "png32", _SPEED, TIMM),
    Line("from process start to first batch, against timm", "memory", "start_s", TIMM, " s", "{:.1f}", is_speed=False),
    Line("first batch of a later epoch, against timm", "memory", "first_batch_s", TIMM, " s", "{:.2f}", is_speed=False),
    Line("memory of all processes (PSS), against timm", "memory", "memory_mb", TIMM, " MB", is_speed=False),
    Line(
        "resume at the end of an epoch, state to first batch, against a stream",
        "state",
        "first_batch_s",
        "examples_end",
        " s",
        "{:.2f}",
        is_speed=False,
        ours="index_end",
        table="resuming",
    ),
)


def read_reports(folder: Path = RESULTS) -> dict[str, Report]:
    """Returns all reports of a folder, by suite.

    Raises:
        ConfigError: there are none, or one cannot be read.
    """
    reports = {}
    for path in sorted(folder.glob("*.json")):
        try:
            reports[path.stem] = Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"The report {path} cannot be read: {error}. Run its suite again.") from error
    if not reports:
        raise ConfigError(f"There are no reports in {folder}: run `python -m benchmarks` first, or name --reports.")
    return reports


def readme_block(reports: Mapping[str, Report]) -> str:
    """Returns the README's table, with the comments that it stands between.

    Raises:
        ConfigError: a suite or a figure is missing.
    """
    jpeg = _report(reports, "jpeg")
    settings = jpeg.settings
    heading = (
        f"{jpeg.machine['num_cores']} cores, {settings['num_workers']} workers, batches of {settings['batch_size']}"
    )
    rows = []
    for line in LINES:
        ours, other = (_median(reports, line, row) for row in (line.ours, line.other))
        ratio = ours / other if line.is_speed else other / ours
        figures = [f"{line.form.format(figure)}{line.unit}" for figure in (ours, other)]
        rows.append([line.title, *figures, f"{ratio:.1f} x" if ratio >= 2 else f"{ratio:.2f} x"])
    lines = table_lines([heading, "tfds_torch", "the other", "ratio (over 1: tfds_torch is better)"], rows)
    return "\n".join([BEGIN, *lines[:-1], END])


def draw_charts(reports: Mapping[str, Report], folder: Path = ASSETS) -> list[Path]:
    """Draws the README's chart, for light and for dark pages, and returns the files.

    Raises:
        ConfigError: the suite `jpeg` or one of the figures is missing, the folder cannot be written, or matplotlib is
            not installed.
    """
    report = _report(reports, "jpeg")
    table, column = report.table(COMPETITORS), report.table(COMPETITORS).column(_SPEED)
    speeds = {name: table.spread(name, _SPEED) for name in (OURS, *_PEERS, LIMIT)}
    medians = {name: spread.median for name, spread in speeds.items() if spread is not None}
    absent = [name for name in speeds if name not in medians]
    if absent:
        raise ConfigError(f"The report of the suite jpeg has no figures of {absent[0]}: run it with all competitors.")
    # Ours, the others from the fastest to the slowest, and what nobody can reach.
    order = [OURS, *sorted(_PEERS, key=lambda name: -medians[name]), LIMIT]
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
            draw_face(rows, column, "Photographs per second", caption, theme, folder / name)
    except (ImportError, OSError) as error:
        raise ConfigError(f"The chart cannot be drawn in {folder}: {error}.") from error
    return [folder / name for name in CHARTS]


def _report(reports: Mapping[str, Report], suite: str) -> Report:
    if suite not in reports:
        raise ConfigError(f"There is no report of the suite {suite}: run `python -m benchmarks {suite}`.")
    return reports[suite]


def _median(reports: Mapping[str, Report], line: Line, row: str) -> float:
    try:
        figure = _report(reports, line.suite).table(line.table).spread(row, line.column)
    except KeyError:
        figure = None
    if not isinstance(figure, Spread):
        raise ConfigError(f"The report of the suite {line.suite} has no {line.column} of {row}: run it with everybody.")
    return figure.median
