"""Charts of reports, by matplotlib, which comes with the extra `bench` and is imported where something is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.tables import Column, Row, Spread, Table
from benchmarks.task import LIMIT, OURS

_MOST_PANELS_IN_A_ROW = 3
_WIDTHS = {1: 8.0, 2: 11.0, 3: 11.0}  # inches
_BAR_HEIGHT = 0.5


@dataclass(frozen=True)
class Theme:
    """Colours of a chart.

    Attributes:
        text: of titles, names and values.
        ours: bars of this package.
        peer: bars of the others.
        limit: the bar of the limit.
        background: "none": transparent.
    """

    text: str
    ours: str
    peer: str
    limit: str
    background: str = "none"


PAGE = Theme("#333333", "#1f6f8b", "#b9c4cc", "#e3d3b3", "white")
LIGHT = Theme("#1f2328", "#0969da", "#afb8c1", "#e7d3a8")
DARK = Theme("#e6edf3", "#58a6ff", "#586069", "#8a7443")
"""For GitHub's light and dark pages."""


def draw_report(report: Report, path: Path) -> bool:
    """Writes a PNG with a panel for every column of every table that has bars; returns whether there are some.

    Raises:
        ImportError: matplotlib is not installed.
    """
    keys = [(table, table.column(key)) for table in report.tables for key in table.bars]
    panels = [(table, column) for table, column in keys if _shown(table, column)]
    if not panels:
        return False
    is_one_table = len({table.name for table, _ in panels}) == 1
    num_columns = min(_MOST_PANELS_IN_A_ROW if is_one_table else 2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    most_bars = max(len(table.rows) for table, _ in panels)
    figure = _figure(_WIDTHS[num_columns], (_BAR_HEIGHT * most_bars + 0.9) * num_rows + 0.6, PAGE)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for axes, panel in zip_longest(grid, panels):
        if panel is None:
            axes.set_axis_off()
            continue
        table, column = panel
        _draw_bars(axes, _shown(table, column), column, PAGE)
        axes.set_xlabel(column.heading, fontsize=9, color=PAGE.text)
        axes.set_title(table.title, fontsize=9, color=PAGE.text, loc="left")
    title = report.title[0].upper() + report.title[1:]
    figure.suptitle(title, fontsize=11, color=PAGE.text, x=0.01, ha="left", weight="bold")
    caption = (
        f"{report.settings['num_photos']:,} photographs, {report.machine['num_cores']} cores; median, whiskers from "
        "least to greatest"
    )
    figure.supxlabel(caption, fontsize=8, color=PAGE.text, x=0.01, ha="left")
    figure.savefig(path, dpi=150, metadata={"Software": None})
    return True


def draw_face(rows: Sequence[Row], column: Column, title: str, caption: str, theme: Theme, path: Path) -> None:
    """Writes an SVG for a page that may be light or dark: a bar for every row, its name and its value.

    The text stays text, in the reader's own sans-serif font. The file depends on nothing but the arguments.

    Args:
        rows: from above.
        column: which figure; its median is shown.
        title: above the bars.
        caption: below them.
        theme: colours.
        path: of the file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    fonts = ["Helvetica", "Arial", "DejaVu Sans"]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "tfds_torch", "font.sans-serif": fonts}
    with mpl.rc_context(settings):
        figure = _figure(7.6, 0.36 * len(rows) + 1.0, theme)
        axes = figure.subplots()
        _draw_bars(axes, rows, column, theme, with_whiskers=False)
        axes.tick_params(axis="x", labelbottom=False)
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        figure.suptitle(title, fontsize=12, color=theme.text, x=0.01, ha="left", weight="bold")
        figure.supxlabel(caption, fontsize=8.5, color=theme.text, x=0.01, ha="left")
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def _figure(width: float, height: float, theme: Theme) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # Without pyplot: no global state, no display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.background)
    FigureCanvasAgg(figure)
    return figure


def _shown(table: Table, column: Column) -> list[Row]:
    return [row for row in table.rows if isinstance(row.figures.get(column.key), Spread)]


def _draw_bars(axes: Any, rows: Sequence[Row], column: Column, theme: Theme, *, with_whiskers: bool = True) -> None:
    rows = rows[::-1]  # Bars are drawn from below.
    spreads = [figure for row in rows if isinstance(figure := row.figures[column.key], Spread)]
    medians = [spread.median for spread in spreads]
    below, above = [[one.median - one.least for one in spreads], [one.greatest - one.median for one in spreads]]
    colors = [_color(row.name, theme) for row in rows]
    whiskers = {"ecolor": theme.text, "elinewidth": 1, "capsize": 3}
    axes.barh(range(len(rows)), medians, color=colors, height=0.62)
    axes.set_yticks(range(len(rows)), [row.title for row in rows])
    ends = medians
    if with_whiskers:
        axes.errorbar(medians, range(len(rows)), xerr=[below, above], fmt="none", **whiskers)
        ends = [one.greatest for one in spreads]
    axes.set_xlim(0, max(ends) * 1.25 or 1)  # Room for the values.
    for number, (row, median, end) in enumerate(zip(rows, medians, ends, strict=True)):
        weight = "bold" if row.name == OURS and not with_whiskers else "normal"
        axes.annotate(
            column.form.format(median),
            (end, number),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=theme.text,
            weight=weight,
        )
    axes.tick_params(length=0, labelsize=9.5, labelcolor=theme.text)
    for row, label in zip(rows, axes.get_yticklabels(), strict=True):
        label.set_weight("bold" if row.name == OURS else "normal")
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#cccccc")
    axes.set_facecolor("none")


def _color(name: str, theme: Theme) -> str:
    if name == LIMIT:
        return theme.limit
    return theme.ours if _is_ours(name) else theme.peer


def _is_ours(name: str) -> bool:
    """Whether a row is this package."""
    return name.startswith((OURS, "index", "loader", "MultiLoader"))
