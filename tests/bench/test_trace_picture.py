"""The picture of a trace: a row for each thread, a bar for each span within the window, whole SVG."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.trace_picture import COLOURS, MEANINGS, Bar, draw, rows_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.spans import SPANS
from tfds_torch.runtime.trace import Trace

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, object]:
    """Of a loop that waited from 10 s on for a second, half of it for a batch on its way, and then trained."""
    trace, metrics = Trace(tmp_path / "t.json", {}), StageMetrics(1, has_spans=True)
    trace.use(metrics)
    metrics.note_span("waiting", 10.0, 1.0, 0)
    metrics.note_span("hand_over", 10.5, 0.5, 0)
    metrics.note_span("consumer", 11.0, 4.0, 0)
    if not (pid := os.fork()):
        metrics.bind(0)
        metrics.note_span("fetch", 10.0, 0.25)
        os._exit(0)
    os.waitpid(pid, 0)
    trace.close()
    found: dict[str, object] = json.loads((tmp_path / "t.json").read_text())
    return found


def test_bars_are_cut_to_the_window_and_know_what_they_lie_in(trace: dict[str, object]) -> None:
    rows = rows_of(trace, 0.5, 2.0)
    rounded = {
        name: [one._replace(start_s=round(one.start_s, 6), stop_s=round(one.stop_s, 6)) for one in bars]
        for name, bars in rows.items()
    }
    assert rounded == {
        "training loop": [
            Bar("waiting", 0.0, 0.5, 0),
            Bar("hand_over", 0.0, 0.5, 1),
            Bar("consumer", 0.5, 2.0, 0),
        ],
        "worker 0, main": [],
    }


def test_the_picture_names_rows_and_what_is_in_it(trace: dict[str, object]) -> None:
    picture = ElementTree.fromstring(draw(rows_of(trace, 0.0, 2.0), 2.0, "A < B"))
    words = " ".join(" ".join("".join(text.itertext()).split()) for text in picture.iter(f"{SVG}text"))
    assert words.startswith("A < B 0 ms 500 ms 1000 ms 1500 ms 2000 ms training loop worker 0, main waiting the loop")
    bars = [bar.get("class") for bar in picture.iter(f"{SVG}rect")]
    assert bars == ["ground", "waiting", "hand_over", "consumer", "fetch", "waiting", "consumer", "fetch", "hand_over"]


def test_every_span_has_a_colour_and_a_meaning() -> None:
    assert set(COLOURS) == set(MEANINGS) == set(SPANS)
