"""SpanRings: the latest spans of each process are there, each in the lane of its thread."""

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime import spans as runtime_spans
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.spans import DECODE, DEVICE, MAIN, MOST_OF_LOADER, MOST_OF_PROCESS, OTHER, Span, SpanRings


def test_spans_come_in_the_order_in_which_they_were_noted() -> None:
    rings = SpanRings(2)
    rings.note("read", 1.0, 0.25)
    rings.note("fetch", 0.5, 1.0)
    rings.note("waiting", 2.0, 0.5, number=7)
    rings.note("device_copy", 3.0, 0.5, kind=DEVICE)
    assert list(rings.read(1).spans()) == [
        Span("read", MAIN, 0, 1.0, 0.25, -1),
        Span("fetch", MAIN, 0, 0.5, 1.0, -1),
        Span("waiting", MAIN, 0, 2.0, 0.5, 7),
        Span("device_copy", DEVICE, 0, 3.0, 0.5, -1),
    ]
    assert len(rings.read(0)) == 0
    assert rings.read(1).complete_from == 0.0


def test_an_unknown_span_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"There is no span 'rest': spans are read, download, decode, resize"):
        SpanRings(1).note("rest", 0.0, 1.0)


@pytest.mark.parametrize("num_noted", [1, 9, 10, 11, 25, 30])
def test_the_newest_spans_take_the_places_of_the_oldest(num_noted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_spans, "MOST_OF_PROCESS", 10)
    rings = SpanRings(1)
    for number in range(num_noted):
        rings.note("waiting", float(number), 0.5, number)
    found = rings.read(0)
    # The oldest one's place may just be written over: where the ring is full, one less is there.
    assert [span.number for span in found.spans()] == list(range(max(0, num_noted - 9), num_noted))
    assert found.num_lost == max(0, num_noted - 9)
    assert found.complete_from == (found.num_lost + 0.5 if found.num_lost else 0.0)


def test_the_spans_of_many_processes_are_bounded_together() -> None:
    assert SpanRings(1).capacity == MOST_OF_PROCESS
    assert SpanRings(101).capacity * 101 <= MOST_OF_LOADER


def test_threads_have_lanes_that_the_next_ones_take_over() -> None:
    rings = SpanRings(1)
    for _ in range(3):
        together = threading.Barrier(2)
        with ThreadPoolExecutor(2, "tfds_torch-decode") as threads:

            def note(_: int, barrier: threading.Barrier = together) -> None:
                barrier.wait(10)
                rings.note("decode", 0.0, 1.0)

            list(threads.map(note, range(2)))
    other = threading.Thread(target=rings.note, args=("transform", 0.0, 1.0))
    other.start()
    other.join()
    rings.note("read", 0.0, 1.0)
    lanes = [(span.kind, span.lane) for span in rings.read(0).spans()]
    assert sorted(lanes) == sorted([(DECODE, 0), (DECODE, 1)] * 3 + [(OTHER, 0), (MAIN, 0)])


def test_threads_that_note_at_once_lose_nothing() -> None:
    rings = SpanRings(1)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: [rings.note("read", number, 1.0) for _ in range(1000)], range(4)))
    assert len(rings.read(0)) == 4000


def report(metrics: StageMetrics, worker: int) -> None:
    metrics.bind(worker)
    metrics.add("read", 0.25, 1.0)
    metrics.note_span("resize", 1.0, 0.125)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_the_spans_of_a_worker_reach_the_training_process(method: str) -> None:
    metrics = StageMetrics(2, has_spans=True)
    process = multiprocessing.get_context(method).Process(target=report, args=(metrics, 1))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert metrics.spans is not None
    assert [(span.name, span.kind, span.seconds) for span in metrics.spans.read(1).spans()] == [
        ("read", MAIN, 0.25),
        ("resize", MAIN, 0.125),
    ]
    metrics.add_hand_over(1, 2.0, 2.5)
    assert [(span.name, span.number) for span in metrics.spans.read(2).spans()] == [("hand_over", 1)]
    assert metrics.pid(2) == os.getpid()


def test_without_spans_nothing_is_noted() -> None:
    metrics = StageMetrics(0)
    metrics.add("read", 0.25, 1.0)
    metrics.note_span("resize", 1.0, 0.5)
    assert metrics.spans is None
    assert metrics.seconds(0)["read"] == 0.25
