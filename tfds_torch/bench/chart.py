"""The chart of a report. matplotlib comes with the extra `bench`; it is imported where a chart is drawn."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Outcome, Spread
from tfds_torch.bench.report import Report
from tfds_torch.bench.section import Section
from tfds_torch.bench.task import OURS

_OURS_COLOR, _PEER_COLOR, _WORKER_COLOR = "#1f6f8b", "#b9c4cc", "#7f93a0"
_UNKNOWN = "not known"
_PANELS_IN_A_ROW = 2
_TEXT_COLOR = "#333333"
_SIZE = {"sample": (8.0, 3.6), "start": (11.0, 3.6)}  # inches


def draw_chart(report: Report, path: Path) -> None:
    """Writes a PNG: a bar for every contestant that has figures, median, with whiskers from least to greatest.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # Without pyplot: no global state, no display.
    from matplotlib.figure import Figure

    shown = [outcome for outcome in report.outcomes if outcome.missing is None][::-1]  # Bars are drawn from below.
    drawn = [section for section in report.sections if section.bars is not None]
    num_columns = min(_PANELS_IN_A_ROW, max(1, len(drawn)))
    num_rows = -(-len(drawn) // num_columns)
    size = _SIZE.get(report.suite, (2.0 + 4.5 * num_columns, 2.4 * num_rows + 0.8))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    if drawn:
        panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
        for axes, section in zip_longest(panels, drawn):
            _draw_section(axes, section)
    elif report.suite == "sample":
        _draw_spreads(figure.subplots(), shown, [figures.examples_per_s(o) for o in shown], "examples/s", "{:,.0f}")
    else:
        left, middle, right = figure.subplots(1, 3, sharey=True)
        _draw_spreads(left, shown, [figures.start_s(o) for o in shown], "process start to first batch, s", "{:.1f}")
        label = "later epochs: first batch + tail, s"
        _draw_spreads(middle, shown, [figures.lost_s(o) for o in shown], label, "{:.2f}")
        _draw_memory(right, shown)
    machine = report.machine
    figure.suptitle(
        report.title[0].upper() + report.title[1:], fontsize=11, color=_TEXT_COLOR, x=0.01, ha="left", weight="bold"
    )
    settings = report.settings
    figure.supxlabel(
        f"{settings['num_photos']:,} photographs, batches of {settings['batch_size']}, "
        f"{settings['num_workers']} workers, {machine['num_cores']} cores; "
        f"median of {settings['num_repeats']}, whiskers from least to greatest",
        fontsize=8,
        color=_TEXT_COLOR,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw_section(axes: Any, section: Section | None) -> None:
    if section is None:
        axes.set_axis_off()
        return
    label, column = section.columns[0], next(column for column in section.columns if column.key == section.bars)
    rows = [row for row in section.rows if isinstance(row.get(column.key), Spread)][::-1]
    names, spreads = [row[label.key] for row in rows], [row[column.key] for row in rows]
    colors = [_OURS_COLOR if name.startswith("index") else _PEER_COLOR for name in names]
    _draw_bars(axes, names, colors, spreads, column.heading, column.form)
    axes.set_title(section.title, fontsize=9, color=_TEXT_COLOR, loc="left")


def _draw_spreads(axes: Any, shown: Sequence[Outcome], spreads: Sequence[Spread | None], label: str, form: str) -> None:
    colors = [_OURS_COLOR if outcome.peer.name == OURS else _PEER_COLOR for outcome in shown]
    _draw_bars(axes, [outcome.peer.title for outcome in shown], colors, spreads, label, form)


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
    colors = [_OURS_COLOR if outcome.peer.name == OURS else _PEER_COLOR for outcome in shown]
    axes.barh(titles, total, color=colors, height=0.62)
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
