"""The README's chart, by matplotlib, which comes with the extra `bench` and is imported where something is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.task import LIMIT, OURS, OURS_SIMPLEJPEG


@dataclass(frozen=True)
class Theme:
    """Colours of a chart: of its text, and of the bars of this package, of the others and of the limit."""

    text: str
    ours: str
    peer: str
    limit: str


LIGHT = Theme("#1f2328", "#0969da", "#afb8c1", "#e7d3a8")
DARK = Theme("#e6edf3", "#58a6ff", "#586069", "#8a7443")
"""For GitHub's light and dark pages."""


def draw_chart(bars: Sequence[tuple[str, str, float]], title: str, caption: str, theme: Theme, path: Path) -> None:
    """Writes an SVG with a bar for each (name, title, value), from above.

    The text stays text, in the reader's own sans-serif font. The file depends on nothing but the arguments.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # Without pyplot: no global state, no display.
    from matplotlib.figure import Figure

    names, titles, values = zip(*reversed(bars), strict=True)  # Bars are drawn from below.
    fonts = ["Helvetica", "Arial", "DejaVu Sans"]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tfds_torch", "font.sans-serif": fonts}):
        figure = Figure(figsize=(7.6, 0.36 * len(bars) + 1.0), layout="constrained", facecolor="none")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        colors = [
            {OURS: theme.ours, OURS_SIMPLEJPEG: theme.ours, LIMIT: theme.limit}.get(name, theme.peer) for name in names
        ]
        axes.barh(range(len(bars)), values, color=colors, height=0.62)
        axes.set_yticks(range(len(bars)), titles)
        axes.set_xlim(0, max(values) * 1.25)  # Room for the values.
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            weight = "bold" if name == OURS else "normal"
            style: dict[str, Any] = {"va": "center", "fontsize": 9.5, "color": theme.text, "weight": weight}
            axes.annotate(f"{value:,.0f}", (value, number), xytext=(5, 0), textcoords="offset points", **style)
            axes.get_yticklabels()[number].set_fontweight(weight)
        axes.tick_params(length=0, labelsize=9.5, labelcolor=theme.text, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.set_facecolor("none")
        figure.suptitle(title, fontsize=12, color=theme.text, x=0.01, ha="left", weight="bold")
        figure.supxlabel(caption, fontsize=8.5, color=theme.text, x=0.01, ha="left")
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
