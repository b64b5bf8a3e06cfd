"""What a Feeder tells: figures, status lines, warnings, loggers."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from loaders.feeding import Gate, begin, chunks_of, endless, none_left, rows_of
from tfds_torch import Feeder
from tfds_torch.errors import StallError
from tfds_torch.loaders.feed_options import FeedLimits
from tfds_torch.loaders.feed_queue import Timer
from tfds_torch.runtime.feed_metrics import FeedMetrics, FetcherMetrics


class Clock:
    """Tells the time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fetching_at(clock: Clock, times: list[float], num_rows: int = 3) -> Callable[[int, int], Any]:
    """Returns a fetch function whose chunks come when a clock that it sets shows these times; then it ends."""
    at = iter(times)

    def fetch(worker: int, batch_size: int) -> Any:
        clock.now = next(at)
        return chunks_of([num_rows])[0]

    return fetch


# Timers


def test_the_thresholds_are_ten_seconds_and_a_minute() -> None:
    assert FeedLimits() == FeedLimits(slow_s=10, lagging_s=60, status_s=60, join_s=5)


def test_a_loop_that_waits_is_slow_after_ten_seconds_and_every_ten_seconds() -> None:
    slow = Timer(10, 0)
    assert [at for at in range(100, 145) if slow.is_over(at, 100)] == [110, 120, 130, 140]
    assert slow.left_s(143, 100) == 7
    assert [at for at in range(146, 170) if slow.is_over(at, 146)] == [156, 166]  # Waiting begins again.


def test_loops_that_wait_together_are_told_of_once() -> None:
    slow = Timer(10, 0)
    assert [(at, since) for at in range(25) for since in (0, 3) if slow.is_over(at, since)] == [(10, 0), (20, 0)]


def test_a_status_is_due_every_minute() -> None:
    status = Timer(60, 0)
    assert [at for at in range(0, 200, 7) if status.is_over(at)] == [63, 126, 189]


# What is logged


def test_a_slow_input_is_a_warning_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with Feeder(limits=FeedLimits(slow_s=0.01)) as feeder:
        with pytest.raises(StallError):
            next(iter(begin(feeder, gate, 3, num_threads=1, timeout_s=0.2)))
        gate.let(StopIteration())
    assert none_left()
    slow = [r for r in caplog.records if "source 'train': data input is slow: (still) no data in 0 s" in r.message]
    assert len(slow) >= 2
    assert all(record.levelno == logging.WARNING for record in slow)


def test_a_queue_that_lags_behind_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock, gate = Clock(), Gate()
    with Feeder(clock=clock) as feeder:
        iteration = iter(begin(feeder, gate, 3, num_threads=1))
        for number in range(4):
            gate.let(*chunks_of([3], 3 * number))
            next(iteration)
            clock.now += 30
        gate.let(StopIteration())
        assert list(iteration) == []
    lagging = [r.message for r in caplog.records if "lagging" in r.message]
    assert lagging == ["Data loading is lagging behind: queue size=1, name=train"]


def test_a_full_queue_is_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Feeder() as feeder:
        assert len(rows_of(begin(feeder, chunks_of([3] * 50), 3, max_buffered_chunks=1))) == 150
    full = [record for record in caplog.records if "source 'train': the queue is full" in record.message]
    assert full
    assert {record.levelno for record in full} == {logging.DEBUG}


def test_a_status_line_comes_every_minute_and_at_stop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, calls = Clock(), []
    with Feeder(clock=clock) as feeder:
        feeder.add_logger(calls.append)
        begin(feeder, fetching_at(clock, [110, 150, 161, 165, 230]), 3, num_threads=1)
        assert len(rows_of(feeder.batches("train"))) == 15
        clock.now = 240.0
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == len(calls) == 3
    assert lines[0].startswith("source 'train': 0 examples/s, queue size ")
    assert [line["examples"] for line in calls] == [9, 15, 15]
    assert [line["elapsed_s"] for line in calls] == [61, 130, 140]
    assert calls[0]["recent_examples_per_s"] == pytest.approx(9 / 61)
    assert calls[1]["recent_examples_per_s"] == pytest.approx(6 / 69)
    assert calls[2]["recent_examples_per_s"] == 0
    assert calls[1]["fetch_s"] == 130
    keys = {"source", "chunks", "batches", "queue_size", "elapsed_s", "fetch_s", "enqueue_s", "examples_per_s"}
    assert keys <= set(calls[0])


def test_a_logger_that_fails_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, calls = Clock(), []

    def failing(figures: dict[str, Any]) -> None:
        raise OSError("the collector is away")

    with Feeder(clock=clock) as feeder:
        feeder.add_logger(failing)
        feeder.add_logger(calls.append)
        assert len(rows_of(begin(feeder, fetching_at(clock, [200, 300, 400]), 3, num_threads=1))) == 9
    assert len(calls) == 4
    reports = [record for record in caplog.records if "failed; the feed goes on" in record.message]
    assert len(reports) == 4
    assert all(record.exc_info is not None and record.exc_info[0] is OSError for record in reports)


def test_stop_tells_the_status_of_a_run_once() -> None:
    calls: list[dict[str, Any]] = []
    feeder = Feeder()
    feeder.add_logger(calls.append)
    feeder.add_source("train", endless(), ["x", "y"], 3)
    feeder.add_source("test", chunks_of([3]), ["x", "y"], 3)
    feeder.start()
    assert feeder.stop("train")
    assert [figures["source"] for figures in calls] == ["train"]
    assert feeder.stop()
    feeder.close()
    assert [figures["source"] for figures in calls] == ["train", "test"]


# Figures


@pytest.fixture
def metrics() -> tuple[Clock, FeedMetrics, list[FetcherMetrics]]:
    clock, workers = Clock(), [FetcherMetrics(7), FetcherMetrics(9)]
    return clock, FeedMetrics("train", workers, 4, clock), workers


def test_figures_are_sums_of_the_workers(metrics: Any) -> None:
    clock, counts, (first, second) = metrics
    first.add_fetch(1.5)
    first.add_chunk(10, 0.5)
    first.add_chunk(5, 0.25)
    second.add_fetch(2.0)
    second.add_chunk(30, 1.0)
    counts.add_batch(0.125)
    counts.add_waiting(0.5)
    clock.now += 9
    found = counts.stats(3)
    assert (found.chunks, found.examples, found.batches, found.ready_batches) == (3, 45, 1, 3)
    assert (found.examples_per_s, found.recent_examples_per_s) == (5, 5)
    assert (found.fetch_s, found.enqueue_s, found.waiting_s) == (3.5, 1.75, 0.625)
    assert [(worker.worker, worker.chunks, worker.examples) for worker in found.workers] == [(7, 2, 15), (9, 1, 30)]
    counts.begin_interval()
    clock.now += 1
    first.add_chunk(20, 0.0)
    assert counts.stats(0).recent_examples_per_s == 20
    assert found.to_dict()["workers"][1] == {
        "worker": 9,
        "chunks": 1,
        "examples": 30,
        "fetch_s": 2.0,
        "enqueue_s": 1.0,
    }


def test_an_occupancy_of_zero_is_an_empty_queue_and_one_a_full_one(metrics: Any) -> None:
    clock, counts, _ = metrics
    assert counts.stats(0).mean_occupancy == 0  # No time has passed.
    for size, seconds in ((0, 2), (4, 6), (2, 1), (40, 1)):  # A batch may need more chunks than the queue holds.
        counts.note_queue(size)
        clock.now += seconds
    found = counts.stats(0)
    assert (found.queue_size, found.queue_occupancy) == (40, 1)
    assert found.mean_occupancy == pytest.approx((0 * 2 + 1 * 6 + 0.5 * 1 + 1 * 1) / 10)
    counts.end()
    clock.now += 1000
    found = counts.stats(0)
    assert (found.queue_size, found.queue_occupancy, found.elapsed_s) == (0, 0, 10)


def test_a_feeders_metrics_are_those_of_its_sources() -> None:
    with Feeder() as feeder:
        feeder.add_source("train", endless(), ["x", "y"], 3, max_buffered_chunks=2)
        feeder.add_source("test", chunks_of([3]), ["x", "y"], 3)
        assert feeder.metrics().to_dict() == {}
        feeder.start()
        iteration = iter(feeder.batches("train"))
        for _ in range(5):
            next(iteration)
        while feeder.metrics()["train"].queue_size < 2:
            assert threading.Event().wait(0.001) is False  # The fetcher fills it.
        found = feeder.metrics()
        assert list(found.to_dict()) == ["train", "test"]
        train = found["train"]
        assert (train.batches, train.queue_occupancy) == (5, 1)
        assert 0 <= train.mean_occupancy <= 1
        assert train.examples == 3 * train.chunks
        assert train.fetch_s >= 0
        assert str(found).startswith("source 'train': ")
        assert "; source 'test': " in str(found)
        assert "queue size 2 (100% full)" in str(train)
