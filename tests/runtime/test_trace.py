"""Trace: a file in Chrome's trace event format, bounded, whole or not at all."""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime import trace as runtime_trace
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.trace import Trace


def make_metrics(num_workers: int = 0) -> StageMetrics:
    return StageMetrics(num_workers, has_spans=True)


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def spans(path: Path) -> list[dict[str, Any]]:
    return sorted((event for event in load(path)["traceEvents"] if event["ph"] == "X"), key=lambda one: one["ts"])


def test_a_file_has_named_rows_and_spans_in_microseconds(tmp_path: Path) -> None:
    trace, metrics = Trace(tmp_path / "t.json", {"read": 'a "name"'}), make_metrics(1)
    trace.use(metrics)
    metrics.note_span("waiting", 10.0, 0.5, 3)
    metrics.bind(0)
    metrics.add("read", 0.000_002, 9.5)
    trace.close()
    file, pid = load(tmp_path / "t.json"), os.getpid()
    assert file["displayTimeUnit"] == "ms"
    assert {"read": 'a "name"', "num_spans": 2, "num_dropped": 0, "most_spans": 200_000}.items() <= file[
        "otherData"
    ].items()
    common = {"cat": "tfds_torch", "ph": "X", "pid": pid, "tid": pid}
    assert spans(tmp_path / "t.json") == [
        {"name": "read", "ts": 9.5e6, "dur": 2.0, **common},
        {"name": "waiting", "ts": 10e6, "dur": 0.5e6, "args": {"batch": 3}, **common},
    ]
    names = [event["args"].get("name") for event in file["traceEvents"] if event["ph"] == "M"]
    assert [name for name in names if name] == [
        f"training process (pid {pid})",
        f"worker 0 (pid {pid})",
        "training loop",
        "main",
    ]


def test_spans_that_touch_are_apart_so_that_no_viewer_drops_one(tmp_path: Path) -> None:
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics()
    trace.use(metrics)
    began_at, inner_s = 1e7 / 3, 1 / 3  # As after a month: the clock's last digits are lost in rounding.
    for number in range(1000):
        metrics.note_span("hand_over", began_at, inner_s, 0)
        metrics.note_span("waiting", began_at, inner_s + 1 / 7, number)
        began_at += inner_s + 1 / 7
    trace.close()
    ends: list[float] = []
    for span in sorted(spans(tmp_path / "t.json"), key=lambda span: span["ts"]):
        start, stop = span["ts"] * 1000, (span["ts"] + span["dur"]) * 1000
        while ends and ends[-1] <= start - 2:
            ends.pop()
        assert len(ends) == (span["name"] == "hand_over")
        assert all(stop <= end - 2 for end in ends)
        ends.append(stop)


def test_without_spans_there_is_no_file(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json", {})
    trace.use(make_metrics())
    trace.close()
    assert list(tmp_path.iterdir()) == []


def test_pools_follow_one_another_and_the_oldest_spans_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_trace, "MOST_OF_LOADER", 25)
    trace = Trace(tmp_path / "t.json", {})
    for epoch in range(6):
        metrics = make_metrics()
        trace.use(metrics)
        for number in range(10):
            metrics.note_span("waiting", epoch * 100.0 + number, 0.5, epoch * 10 + number)
    trace.close()
    assert [span["args"]["batch"] for span in spans(tmp_path / "t.json")] == list(range(35, 60))
    about = load(tmp_path / "t.json")["otherData"]
    assert (about["num_spans"], about["num_dropped"]) == (25, 35)


def test_where_a_ring_has_overflowed_the_file_begins_when_all_rows_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfds_torch.runtime.spans.MOST_OF_PROCESS", 11)
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics(1)
    trace.use(metrics)
    for number in range(5):
        metrics.note_span("waiting", number * 10.0, 1.0, number)
    metrics.bind(0)
    for number in range(40):
        metrics.add("read", 0.5, float(number))
    trace.close()
    found = [(span["name"], span["ts"] / 1e6) for span in spans(tmp_path / "t.json")]
    # The worker's spans from 30 on are kept; the first of them ended at 30.5.
    assert found == [("read", float(number)) for number in range(31, 40)] + [("waiting", 40.0)]


def test_a_file_is_written_again_only_where_there_is_something_new(tmp_path: Path) -> None:
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics()
    trace.use(metrics)
    metrics.note_span("waiting", 1.0, 0.5)
    trace.note_epoch_end()
    first = (tmp_path / "t.json").stat().st_ino
    trace.close()
    assert (tmp_path / "t.json").stat().st_ino == first
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


def test_at_an_epochs_end_writing_takes_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("tfds_torch.runtime.trace.time.monotonic", lambda: now[0])
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics()
    trace.use(metrics)
    monkeypatch.setattr(Trace, "_content", lambda *_: now.__setitem__(0, now[0] + 1.0) or b"{}")
    written = []
    for _ in range(100):
        metrics.note_span("waiting", 1.0, 0.5)
        before = now[0]
        trace.note_epoch_end()
        written.append(now[0] - before)
        now[0] += 1.0
    assert written[0] == 1.0
    assert sum(written) == 2.0


def test_what_cannot_be_written_later_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    trace, metrics = Trace(folder / "t.json", {}), make_metrics()
    trace.use(metrics)
    metrics.note_span("waiting", 1.0, 0.5)
    folder.rmdir()
    with caplog.at_level(logging.WARNING, "tfds_torch"):
        trace.close()
    (record,) = caplog.records
    assert f"The trace {folder}/t.json could not be written: [Errno 2]" in record.getMessage()


def test_each_of_several_ranks_has_a_file(tmp_path: Path) -> None:
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics()
    for _ in range(2):
        trace.name_rank(1, 4)
    trace.use(metrics)
    metrics.note_span("waiting", 1.0, 0.5)
    trace.close()
    assert [file.name for file in tmp_path.iterdir()] == ["t-rank1.json"]
    about = load(tmp_path / "t-rank1.json")["otherData"]
    assert (about["rank"], about["num_replicas"]) == (1, 4)


def test_two_open_loaders_of_a_process_cannot_write_to_one_file(tmp_path: Path) -> None:
    first = Trace(tmp_path / "t.json", {})
    text = (
        f"create_loader: trace={str(tmp_path / 't.json')!r} is written by another loader of this process that is still "
        f"open. Close that one first, or give each loader a file of its own."
    )
    with pytest.raises(ConfigError, match=re.escape(text)):
        Trace(tmp_path / "." / "t.json", {})
    first.close()
    Trace(tmp_path / "t.json", {}).close()


def test_a_loader_that_was_dropped_gives_its_file_free(tmp_path: Path) -> None:
    Trace(tmp_path / "t.json", {})
    Trace(tmp_path / "t.json", {}).close()


def test_a_forked_process_does_not_write(tmp_path: Path) -> None:
    trace, metrics = Trace(tmp_path / "t.json", {}), make_metrics()
    trace.use(metrics)
    metrics.note_span("waiting", 1.0, 0.5)
    if not (pid := os.fork()):
        trace.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []
    trace.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/t.json", r"there is no folder '.*none'. Make it, or name a file in another one\."),
        ("folder", r"is a folder, and a trace is a file, such as '.*folder/trace.json'\."),
        ("/proc/t.json", r"cannot be written \(.+\): name a file in a folder that this user may write to\."),
        ("s3://bucket/t.json", r"there is no folder '.*s3:/bucket'\."),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    asked = path if "://" in path else tmp_path / path
    with pytest.raises(ConfigError, match=f"create_loader: trace='.*{path}'.*{message}"):
        Trace(asked, {})
