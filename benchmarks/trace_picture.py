"""The picture of docs/which-stage-is-slow.md: part of the trace of a real run, as SVG for light and dark pages.

`python -m benchmarks.trace_picture docs/assets/drawing-trace.svg` reads photographs with two workers and draws what the
trace says of the middle of the second epoch. It needs tensorflow, which prepares the embedded dataset.
"""

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader, demo

COLOURS = {
    "waiting": ("#d98a00", "#e0a53a"),
    "consumer": ("#3c8a5d", "#4fae78"),
    "fetch": ("#c5cee6", "#3a4566"),
    "read": ("#8455c4", "#a987dd"),
    "download": ("#c24d9e", "#e07cc2"),
    "decode": ("#5b7fd1", "#6f93e6"),
    "resize": ("#2f4f9e", "#a9c0f5"),
    "transform": ("#9a5b8f", "#c78abc"),
    "collate": ("#1b8aa0", "#45b3c9"),
    "slot_wait": ("#c9a36b", "#8d7447"),
    "hand_over": ("#b03a48", "#e0707d"),
    "pin": ("#8a8f2a", "#b9bf4a"),
    "device_copy": ("#5e6b2f", "#93a552"),
}
"""Span -> its colour on light and on dark pages."""
MEANINGS = {
    "waiting": "the loop waits for a batch",
    "consumer": "the loop trains",
    "fetch": "a worker makes a batch",
    "read": "reading files",
    "download": "waiting for an object store",
    "decode": "decoding",
    "resize": "resizing",
    "transform": "your transform",
    "collate": "putting it together",
    "slot_wait": "as far ahead as it may be",
    "hand_over": "a batch is on its way",
    "pin": "into pinned memory",
    "device_copy": "copying to the device",
}
LEFT, WIDTH, TOP, ROW, LINE = 152, 860, 44, 34, 22


class Bar(NamedTuple):
    """A span in the picture: seconds from the left end of the picture, and how many spans it lies in."""

    name: str
    start_s: float
    stop_s: float
    depth: int


def rows_of(trace: Mapping[str, Any], start_s: float, length_s: float) -> dict[str, list[Bar]]:
    """Returns `process, thread` -> the bars of a trace within a window that begins `start_s` after the first span."""
    events = trace["traceEvents"]
    names = {(one["name"], one["pid"], one["tid"]): one["args"].get("name") for one in events if one["ph"] == "M"}
    spans = [one for one in events if one["ph"] == "X"]
    origin_s = min((one["ts"] for one in spans), default=0.0) / 1e6 + start_s
    by_thread: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for one in spans:
        by_thread[one["pid"], one["tid"]].append(one)
    rows = {}
    for (pid, tid), name in ((key[1:], value) for key, value in names.items() if key[0] == "thread_name"):
        process = names["process_name", pid, 0].partition(" (pid")[0]
        title = name if process == "training process" else f"{process}, {name}"
        rows[title] = _bars_of(by_thread[pid, tid], origin_s, length_s)
    return rows


def _bars_of(spans: Sequence[Mapping[str, Any]], origin_s: float, length_s: float) -> list[Bar]:
    bars: list[Bar] = []
    around: list[float] = []  # The ends of the spans that the next one may lie in.
    for span in sorted(spans, key=lambda one: (one["ts"], -one["dur"])):
        start_s = span["ts"] / 1e6 - origin_s
        stop_s = start_s + span["dur"] / 1e6
        around = [end_s for end_s in around if end_s > start_s]
        if stop_s > 0 and start_s < length_s:
            bars.append(Bar(span["name"], max(0.0, start_s), min(length_s, stop_s), len(around)))
        around.append(stop_s)
    return bars


def draw(rows: Mapping[str, Sequence[Bar]], length_s: float, title: str) -> str:
    """Returns the picture of rows of bars, as SVG."""
    scale = (WIDTH - LEFT - 32) / length_s
    used = [name for name in COLOURS if any(bar.name == name for bars in rows.values() for bar in bars)]
    bottom = TOP + ROW * len(rows)
    height = bottom + 40 + LINE * -(-len(used) // 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">',
        _styles(used),
        f'  <rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        f'  <text class="name" x="16" y="26" font-size="14">{escape(title)}</text>',
    ]
    step_s = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60) if length_s / step <= 8)
    for number in range(int(length_s / step_s + 1e-6) + 1):
        x = LEFT + number * step_s * scale
        parts.append(f'  <path class="line" d="M{x:.1f} {TOP} V{bottom}"/>')
        text = f"{number * step_s * 1e3:.0f} ms"
        parts.append(f'  <text class="what" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    for place, (name, bars) in enumerate(rows.items()):
        y = TOP + ROW * place
        parts.append(f'  <text class="name" x="16" y="{y + 20}">{escape(name)}</text>')
        parts += [_bar(bar, y + 4, scale) for bar in bars]
    for place, name in enumerate(used):
        x, y = 16 + place % 3 * 280, bottom + 34 + place // 3 * LINE
        parts.append(f'  <rect class="{name}" x="{x}" y="{y}" width="12" height="12" rx="2"/>')
        parts.append(f'  <text class="what" x="{x + 18}" y="{y + 11}"><tspan class="name">{name}</tspan>')
        parts.append(f"    {escape(MEANINGS[name])}</text>")
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, y: float, scale: float) -> str:
    x, width = LEFT + bar.start_s * scale, max(0.6, (bar.stop_s - bar.start_s) * scale)
    # What lies in another span covers the lower part of it.
    top, height = y + 9 * min(bar.depth, 1), ROW - 8 - 9 * min(bar.depth, 1)
    return f'  <rect class="{bar.name}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="1.5"/>'


def _styles(used: Sequence[str]) -> str:
    grounds = (("#ffffff", "#1c2333", "#4b5468", "#dfe3ec"), ("#1a1e29", "#eef1f8", "#b7bfd2", "#343b4d"))
    themes = []
    for theme, (ground, name, what, line) in enumerate(grounds):
        rules = [f".ground {{ fill: {ground}; }}", f".name {{ fill: {name}; font-weight: 600; }}"]
        rules += [f".what {{ fill: {what}; font-weight: 400; }}", f".line {{ stroke: {line}; }}"]
        rules += [f".{one} {{ fill: {COLOURS[one][theme]}; }}" for one in used]
        themes.append(rules)
    light = "\n".join(f"    {rule}" for rule in themes[0])
    dark = "\n".join(f"      {rule}" for rule in themes[1])
    return f"  <style>\n{light}\n    @media (prefers-color-scheme: dark) {{\n{dark}\n    }}\n  </style>"


def read_photographs(path: Path, num_workers: int, step_s: float) -> float:
    """Reads two epochs of photographs with a trace; returns when the second one began, seconds after the first span."""
    with tempfile.TemporaryDirectory() as folder:
        root = demo.prepare("photos", root=folder, num_examples=1024, progress=False)
        preprocess = TrainPreprocess(size=224)
        parser = ParserTfds(root, "photos", is_training=True, batch_size=64, preprocess=preprocess)
        with create_loader(ImageDataset(parser), num_workers, trace=path) as loader:
            for _ in range(2):
                began_at = time.monotonic()
                for _ in loader:
                    time.sleep(step_s)  # A GPU trains.
    spans = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
    return began_at - float(min(one["ts"] for one in spans)) / 1e6


def main(out: str) -> None:
    """Writes the picture."""
    length_s = 0.25
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        began_s = read_photographs(path, 2, 0.02)
        rows = rows_of(json.loads(path.read_text()), began_s + 0.1, length_s)
    Path(out).write_text(draw(rows, length_s, "A quarter of a second of training on photographs, 2 workers"))


if __name__ == "__main__":
    main(sys.argv[1])
