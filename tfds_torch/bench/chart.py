"""The chart of a report. matplotlib comes with the extra `bench`; it is imported where a chart is drawn."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.report import Report
from tfds_torch.bench.section import Section
from tfds_torch.bench.task import LIMIT, OURS, OURS_IN_PROCESS

_OURS_COLOR, _PEER_COLOR, _WORKER_COLOR, _LIMIT_COLOR = "#1f6f8b", "#b9c4cc", "#7f93a0", "#e3d3b3"
_COLORS = {OURS: _OURS_COLOR, OURS_IN_PROCESS: _OURS_COLOR, LIMIT: _LIMIT_COLOR}
_UNKNOWN = "not known"
_PANELS_IN_A_ROW = 2
_TEXT_COLOR = "#333333"
_WIDTHS = {1: 8.0, 2: 11.0, 3: 11.0}  # inches
_BAR_HEIGHT = 0.5


def draw_chart(report: Report, path: Path) -> None:
    """Writes a PNG: a bar for every contestant that has figures, median, with whiskers from least to greatest.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # Without pyplot: no global state, no display.
    from matplotlib.figure import Figure

    panels = _panels_of(report)
    num_columns = min(len(_PANELS["start"]) if report.outcomes else _PANELS_IN_A_ROW, max(1, len(panels)))
    num_rows = -(-len(panels) // num_columns)
    height = _BAR_HEIGHT * len(report.outcomes) + 1.1 if report.outcomes else 2.4 * num_rows + 0.8
    figure = Figure(figsize=(_WIDTHS[num_columns], height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharey=bool(report.outcomes)).flat
    for axes, panel in zip_longest(grid, panels):
        (panel or _draw_nothing)(axes)
    title = report.title[0].upper() + report.title[1:]
    figure.suptitle(title, fontsize=11, color=_TEXT_COLOR, x=0.01, ha="left", weight="bold")
    figure.supxlabel(_caption(report), fontsize=8, color=_TEXT_COLOR, x=0.01, ha="left")
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _panels_of(report: Report) -> list[Callable[[Any], None]]:
    shown = [outcome for outcome in report.outcomes if outcome.missing is None][::-1]  # Bars are drawn from below.
    if report.outcomes:
        return [partial(panel, shown=shown) for panel in _PANELS[report.suite]]
    return [partial(_draw_section, section=section) for section in report.sections if section.bars is not None]


def _caption(report: Report) -> str:
    settings = report.settings
    how_much = f"{settings['num_photos']:,} photographs"
    if report.outcomes:
        counts = {epoch.num_examples for outcome in report.outcomes for epoch in outcome.epochs}
        how_much = (
            f"{max(counts, default=0):,} examples an epoch, batches of {settings['batch_size']}, "
            f"{settings['num_workers']} workers"
        )
    return f"{how_much}, {report.machine['num_cores']} cores; median, whiskers from least to greatest"


def _draw_nothing(axes: Any) -> None:
    axes.set_axis_off()


def _draw_section(axes: Any, section: Section) -> None:
    label, column = section.columns[0], next(column for column in section.columns if column.key == section.bars)
    rows = [row for row in section.rows if isinstance(row.get(column.key), Spread)][::-1]
    names, spreads = [row[label.key] for row in rows], [row[column.key] for row in rows]
    colors = [_OURS_COLOR if name.startswith("index") else _PEER_COLOR for name in names]
    _draw_bars(axes, names, colors, spreads, column.heading, column.form)
    axes.set_title(section.title, fontsize=9, color=_TEXT_COLOR, loc="left")


def _draw_spreads(
    axes: Any, shown: Sequence[Outcome], figure: Callable[[Outcome], Spread | None], label: str, form: str
) -> None:
    names = [outcome.peer.title for outcome in shown]
    _draw_bars(axes, names, _colors(shown), [figure(outcome) for outcome in shown], label, form)


def _colors(shown: Sequence[Outcome]) -> list[str]:
    return [_COLORS.get(outcome.peer.name, _PEER_COLOR) for outcome in shown]


def _draw_bars(
    axes: Any, names: Sequence[str], colors: Sequence[str], spreads: Sequence[Spread | None], label: str, form: str
) -> None:
    medians = [spread.median if spread else 0.0 for spread in spreads]
    below = [spread.median - spread.least if spread else 0.0 for spread in spreads]
    above = [spread.greatest - spread.median if spread else 0.0 for spread in spreads]
    error = {"ecolor": _TEXT_COLOR, "elinewidth": 1, "capsize": 3}
    axes.barh(names, medians, xerr=[below, above], color=colors, height=0.62, error_kw=error)
    ends = [median + over for median, over in zip(medians, above, strict=True)]
    _finish(axes, ends, [form.format(spread.median) if spread else _UNKNOWN for spread in spreads], label)


def _draw_memory(axes: Any, shown: Sequence[Outcome]) -> None:
    titles = [outcome.peer.title for outcome in shown]
    training = [outcome.memory.training_bytes / 1e9 if outcome.memory else 0.0 for outcome in shown]
    total = [outcome.memory.total_bytes / 1e9 if outcome.memory else 0.0 for outcome in shown]
    axes.barh(titles, total, color=_colors(shown), height=0.62)
    axes.barh(titles, training, color=_WORKER_COLOR, height=0.62, label="training process")
    texts = [f"{size:.1f}" if outcome.memory else _UNKNOWN for size, outcome in zip(total, shown, strict=True)]
    _finish(axes, total, texts, "memory of all processes, GB")
    if any(training):
        axes.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=_TEXT_COLOR)


def _finish(axes: Any, ends: Sequence[float], texts: Sequence[str], label: str) -> None:
    axes.set_xlim(0, max(ends, default=0) * 1.18 or 1)
    for number, (end, text) in enumerate(zip(ends, texts, strict=True)):
        axes.annotate(
            text, (end, number), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=_TEXT_COLOR
        )
    axes.set_xlabel(label, fontsize=9, color=_TEXT_COLOR)
    axes.tick_params(length=0, labelsize=9, labelcolor=_TEXT_COLOR)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#cccccc")


_SPEED = partial(_draw_spreads, figure=figures.examples_per_s, label="examples/s", form="{:,.0f}")
_LOST = partial(_draw_spreads, figure=figures.lost_s, label="later epochs: first batch + tail, s", form="{:.2f}")
_START = partial(_draw_spreads, figure=figures.start_s, label="process start to first batch, s", form="{:.1f}")
_PANELS: dict[str, Sequence[Callable[..., None]]] = {
    "sample": [_SPEED],
    "start": [_START, _LOST, _draw_memory],
    "jpeg": [_SPEED, _LOST],
    "jpeg_eval": [_SPEED, _LOST],
    "png32": [_SPEED, _LOST],
    "memory": [_START, _LOST, _draw_memory],
}
