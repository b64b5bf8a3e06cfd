"""create_loader(trace=): the file has a row for each thread, and its spans are what `stats()` adds up."""

import json
import os
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import INTERRUPTED
from zygote import Script, torch_zygote

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, Views, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data import device_copy
from torch_data.fake_cuda import COPY_MS, FakeCuda
from torch_data.loader_datasets import Batches, Squares

BATCH_SIZE, NUM_BATCHES = 8, 8  # Of 61 photographs.
PARTS = {"read": "fetch", "resize": "decode", "hand_over": "waiting", "device_copy": "waiting"}
MEAN = (0.5, 0.5, 0.5)


def make_dataset(root: Path) -> ImageDataset:
    preprocess = TrainPreprocess(size=32)
    return ImageDataset(
        ParserTfds(root, "photos", is_training=True, batch_size=BATCH_SIZE, preprocess=preprocess, shuffle=False)
    )


def load(path: Path) -> dict[str, Any]:
    """Returns a trace, checked against the format."""
    trace: dict[str, Any] = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    named = {"process_name": set(), "thread_name": set()}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        if event["ph"] == "M":
            if event["name"] in named:
                assert isinstance(event["args"]["name"], str)
                named[event["name"]].add((event["pid"], event["tid"] if event["name"] == "thread_name" else 0))
            continue
        assert event["ph"] == "X"
        assert isinstance(event["ts"], float)
        assert isinstance(event["dur"], float)
        assert event["ts"] > 0 <= event["dur"]
    found = spans(trace)
    assert {(span["pid"], span["tid"]) for span in found} == named["thread_name"]
    assert {(span["pid"], 0) for span in found} == named["process_name"]
    assert trace["otherData"]["num_spans"] == len(found)
    return trace


def spans(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def sums(trace: dict[str, Any]) -> Counter[str]:
    """Returns name -> seconds of its spans."""
    found: Counter[str] = Counter()
    for span in spans(trace):
        found[span["name"]] += span["dur"] / 1e6
    return found


def rows(trace: dict[str, Any]) -> dict[str, set[str]]:
    """Returns `process: thread`, without process ids -> names of its spans."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    found: dict[str, set[str]] = defaultdict(set)
    for span in spans(trace):
        process = names["process_name", span["pid"], 0].partition(" (pid")[0]
        found[f"{process}: {names['thread_name', span['pid'], span['tid']]}"].add(span["name"])
    return found


def check_nesting(trace: dict[str, Any]) -> None:
    """Spans of a row follow one another, or one is part of another one; never partly."""
    by_row = defaultdict(list)
    for span in spans(trace):
        start = round(span["ts"] * 1000)  # Nanoseconds.
        by_row[span["pid"], span["tid"]].append((start, start + round(span["dur"] * 1000), span["name"]))
    for row in by_row.values():
        around: list[tuple[int, int, str]] = []
        for start, stop, name in sorted(row, key=lambda one: (one[0], -one[1])):
            while around and around[-1][1] < start:
                around.pop()
            if around:
                assert around[-1][0] < start, (name, around[-1])
                assert stop < around[-1][1], (name, around[-1])
                assert name != around[-1][2]
            around.append((start, stop, name))


@pytest.mark.parametrize(
    ("num_workers", "method"),
    [(0, None), (1, "fork"), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)],
)
def test_a_trace_has_a_row_for_each_thread_whose_spans_are_the_seconds_of_stats(
    data_root: Path, tmp_path: Path, num_workers: int, method: str | None
) -> None:
    path = tmp_path / "trace.json"
    arguments: dict[str, Any] = {"multiprocessing_context": method, "mean": MEAN, "trace": path}
    with create_loader(make_dataset(data_root), num_workers, **arguments) as loader:
        assert len(list(loader)) == NUM_BATCHES
        assert sums(load(path))["waiting"] == pytest.approx(loader.stats().waiting_s, abs=1e-5), "after an epoch"
        assert len(list(loader)) == NUM_BATCHES
    trace, stats = load(path), loader.stats()
    check_nesting(trace)
    seconds = sums(trace)
    figures = {"read", "decode", "fetch", "collate", "hand_over", "device_copy", "waiting", "consumer"}
    for name in figures:
        assert seconds[name] == pytest.approx(getattr(stats, f"{name}_s"), abs=1e-5), name
    assert 0 < seconds["resize"] < seconds["decode"]
    assert trace["otherData"]["num_workers"] == num_workers
    assert trace["otherData"]["num_dropped"] == 0
    here = rows(trace)["training process: training loop"]
    expected = {"waiting", "consumer", "device_copy", *({"hand_over"} if num_workers else {"fetch", "read"})}
    assert here == expected
    for worker in range(num_workers):
        assert rows(trace)[f"worker {worker}: main"] == {"fetch", "read", "collate", "slot_wait"}
        assert rows(trace)[f"worker {worker}: decode 0"] == {"decode", "resize"}
    pids = {span["pid"] for span in spans(trace)}
    assert pids == {os.getpid(), *(worker.pid for worker in stats.workers)}
    numbers = [span["args"]["batch"] for span in spans(trace) if span["name"] == "consumer"]
    assert numbers == list(range(2 * NUM_BATCHES))


def test_views_are_resized_in_spans_of_their_own(data_root: Path, tmp_path: Path) -> None:
    views = Views((TrainPreprocess(size=32), 2), (TrainPreprocess(size=16), 1))
    parser = ParserTfds(data_root, "photos", is_training=True, batch_size=BATCH_SIZE, preprocess=views)
    loader = create_loader(ImageDataset(parser), trace=tmp_path / "trace.json")
    assert len(list(loader)) == NUM_BATCHES
    loader.close()
    names = Counter(span["name"] for span in spans(load(tmp_path / "trace.json")))
    assert names["resize"] == 3 * names["decode"] >= 3 * NUM_BATCHES


def test_workers_of_each_epoch_have_rows_of_their_own(data_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments: dict[str, Any] = {"multiprocessing_context": "fork", "persistent_workers": False}
    with create_loader(make_dataset(data_root), 1, trace=str(path), **arguments) as loader:
        for _ in range(3):
            list(loader)
    trace = load(path)
    check_nesting(trace)
    assert len({span["pid"] for span in spans(trace)}) == 1 + 3
    assert sums(trace)["decode"] == pytest.approx(loader.stats().decode_s, abs=1e-5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_epoch_and_the_next_one_are_in_the_trace(data_root: Path, tmp_path: Path, num_workers: int) -> None:
    arguments: dict[str, Any] = {"multiprocessing_context": "fork" if num_workers else None}
    with create_loader(make_dataset(data_root), num_workers, trace=tmp_path / "a.json", **arguments) as first:
        iteration = iter(first)
        for _ in range(5):
            next(iteration)
        state = first.state_dict()
    with create_loader(make_dataset(data_root), num_workers, trace=tmp_path / "b.json", **arguments) as second:
        second.load_state_dict(state)
        assert [len(list(second)) for _ in range(2)] == [NUM_BATCHES - 5, NUM_BATCHES]
    for path, num_delivered in (("a.json", 5), ("b.json", 2 * NUM_BATCHES - 5)):
        trace = load(tmp_path / path)
        check_nesting(trace)
        delivered = [span for span in spans(trace) if span["name"] == "waiting" and "args" in span]
        assert len(delivered) == num_delivered


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_trace_of_single_images_has_their_transforms(data_root: Path, tmp_path: Path, num_workers: int) -> None:
    dataset = ImageDataset(ParserTfds(data_root, "photos", batch_size=BATCH_SIZE), transform=lambda image: image.size)
    arguments: dict[str, Any] = {"multiprocessing_context": "fork" if num_workers else None}
    with create_loader(dataset, num_workers, trace=tmp_path / "t.json", **arguments) as loader:
        list(loader)
    trace = load(tmp_path / "t.json")
    check_nesting(trace)
    assert sum(span["name"] == "transform" for span in spans(trace)) == 61
    assert sums(trace)["transform"] == pytest.approx(loader.stats().transform_s, abs=1e-5)
    assert sums(trace)["collate"] == pytest.approx(loader.stats().collate_s, abs=1e-5)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "batch_size"),
    [(Batches(), None), (Squares(), None), (Squares(), 4)],
    ids=["iterable", "map-style", "map-style in batches that are planned"],
)
def test_datasets_of_torch_are_traced(tmp_path: Path, num_workers: int, dataset: Any, batch_size: int | None) -> None:
    arguments: dict[str, Any] = {"multiprocessing_context": "fork" if num_workers else None, "batch_size": batch_size}
    with create_loader(dataset, num_workers, trace=tmp_path / "t.json", **arguments) as loader:
        list(loader)
    trace, stats = load(tmp_path / "t.json"), loader.stats()
    check_nesting(trace)
    for name in ("fetch", "collate", "hand_over", "waiting", "consumer"):
        assert sums(trace)[name] == pytest.approx(getattr(stats, f"{name}_s"), abs=1e-5), name


@pytest.mark.filterwarnings("ignore:The training process reads:UserWarning")
def test_copies_to_cuda_are_a_row_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    with create_loader(Batches(), device="cuda", trace=tmp_path / "t.json") as loader:
        assert len(list(loader)) > 1
    device_copy._copy_stream.cache_clear()
    trace = load(tmp_path / "t.json")
    assert rows(trace)["training process: copy to the device"] == {"pin"}
    assert rows(trace)["training process: device"] == {"device_copy"}
    copies = [span for span in spans(trace) if span["name"] == "device_copy"]
    assert [span["dur"] for span in copies] == pytest.approx([COPY_MS * 1e3] * len(copies))
    assert {round(later["ts"] - copy["ts"]) for copy, later in pairwise(copies)} == {COPY_MS * 1e3}


SCRIPT = """
import os, signal, sys
from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, Views, create_loader

parser = ParserTfds(sys.argv[1], "photos", is_training=True, batch_size=8, preprocess=TrainPreprocess(size=32))
loader = create_loader(ImageDataset(parser), int(sys.argv[2]), trace="trace.json")
for number, batch in enumerate(loader):
    if number == 3:
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_trace_is_there_after_ctrl_c(root: Path, data_root: Path, tmp_path: Path, num_workers: int) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "folder"
    script.write_text(SCRIPT)
    folder.mkdir()
    command = [str(script), str(data_root), str(num_workers)]
    done = Script(torch_zygote(), command, {**os.environ, "PYTHONPATH": str(root)}, folder).finish()
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode in INTERRUPTED
    assert [file.name for file in folder.iterdir()] == ["trace.json"]
    trace = load(folder / "trace.json")
    check_nesting(trace)
    assert sum(span["name"] == "waiting" for span in spans(trace)) == 4


def test_a_loader_that_is_dropped_writes_its_trace(data_root: Path, tmp_path: Path) -> None:
    loader = create_loader(make_dataset(data_root), trace=tmp_path / "t.json")
    next(iter(loader))
    del loader
    assert sums(load(tmp_path / "t.json"))["waiting"] > 0


def test_each_rank_writes_a_file(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with create_loader(make_dataset(data_root), trace=tmp_path / "t.json") as loader:
        list(loader)
    assert [file.name for file in tmp_path.iterdir()] == ["t-rank1.json"]
    assert load(tmp_path / "t-rank1.json")["otherData"]["num_replicas"] == 2


@pytest.mark.parametrize("trace", ["", 7, b"t.json", True])
def test_what_is_no_path_is_refused(data_root: Path, trace: Any) -> None:
    with pytest.raises(ConfigError, match=r"create_loader: trace=.* must be the path of a file, or None\."):
        create_loader(make_dataset(data_root), trace=trace)


def test_two_loaders_with_one_file_are_refused_before_workers_start(data_root: Path, tmp_path: Path) -> None:
    with create_loader(make_dataset(data_root), trace=tmp_path / "t.json") as loader:
        with pytest.raises(ConfigError, match="is written by another loader of this process that is still open"):
            create_loader(make_dataset(data_root), trace=tmp_path / "t.json")
        assert len(list(loader)) == NUM_BATCHES


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_profiler_shows_the_stages_by_name(data_root: Path, num_workers: int) -> None:
    arguments: dict[str, Any] = {"multiprocessing_context": "fork" if num_workers else None, "mean": MEAN}
    with create_loader(make_dataset(data_root), num_workers, collate_fn=tuple, **arguments) as loader:
        iteration = iter(loader)
        next(iteration)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                next(iteration)
    counts = {event.key: event.count for event in profiler.key_averages() if event.key.startswith("tfds_torch.")}
    read = {"tfds_torch.hand_over": 3} if num_workers else {"tfds_torch.fetch": 3, "tfds_torch.collate": 3}
    assert counts == {"tfds_torch.waiting": 3, "tfds_torch.device_copy": 3, **read}
