"""Metrics: what threads and processes report arrives, each in its own row; the times of epochs."""

import copy
import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime import metrics as runtime_metrics
from tfds_torch.runtime.metrics import (
    STAGES,
    EpochTimer,
    EpochTimes,
    LoaderMetrics,
    LoaderStats,
    MemberStats,
    StageMetrics,
    WorkerStats,
)


def report(metrics: StageMetrics, worker: int) -> None:
    metrics.bind(worker)
    metrics.add("read", 0.25)
    metrics.add("read", 0.5)
    metrics.add_batch(8)
    metrics.note_reading(0)
    metrics.note_begun()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_workers_report_arrives_in_their_rows(method: str) -> None:
    metrics = StageMetrics(2)
    process = multiprocessing.get_context(method).Process(target=report, args=(metrics, 1))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert metrics.pid(1) == process.pid
    assert metrics.pid(0) is None
    assert metrics.pid(2) == os.getpid()
    assert metrics.seconds(1) == {stage: 0.75 if stage == "read" else 0.0 for stage in STAGES}
    assert metrics.seconds(0) == metrics.seconds(2) == dict.fromkeys(STAGES, 0.0)
    assert metrics.counts(1) == (1, 8)
    assert (metrics.reading(1), metrics.reading(0)) == (0, None)
    assert (metrics.num_begun(1), metrics.num_begun(0)) == (1, 0)


def test_threads_add_up() -> None:
    metrics = StageMetrics(0)
    threads = [threading.Thread(target=lambda: [metrics.add("read", 1.0) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.seconds(0)["read"] == 4000


def test_the_training_process_adds_to_a_workers_hand_over() -> None:
    metrics = StageMetrics(1)
    metrics.add_hand_over(0, 2.0, 2.5)
    metrics.add_hand_over(0, 2.0, 1.5)  # It was there before it was asked for.
    assert metrics.seconds(0)["hand_over"] == 0.5


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"There is no stage 'rest': the stages are read, download, decode, transform"
    ):
        StageMetrics(0).add("rest", 1.0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics))])
def test_other_copies_begin_anew(duplicate: object) -> None:
    metrics = StageMetrics(1)
    metrics.add("read", 1.0)
    twin: StageMetrics = duplicate(metrics)  # type: ignore[operator]
    assert twin.num_workers == 1
    assert twin.seconds(1)["read"] == 0.0
    twin.add("read", 2.0)
    assert metrics.seconds(1)["read"] == 1.0


def test_stats_are_plain_values_and_one_line() -> None:
    worker = WorkerStats(0, 12, 2, 16, 0.1, 0.2, 0.15, 0.4, 0.05, 0.01)
    stats = LoaderStats(2, 16, 32.0, 0.1, 0.2, 0.15, 0.4, 0.05, 0.01, 0.0, 0.3, 0.2, workers=(worker,))
    plain = stats.to_dict()
    assert plain["workers"] == [
        {
            "worker": 0,
            "pid": 12,
            "batches": 2,
            "examples": 16,
            "read_s": 0.1,
            "decode_s": 0.2,
            "transform_s": 0.15,
            "fetch_s": 0.4,
            "collate_s": 0.05,
            "hand_over_s": 0.01,
            "download_s": 0.0,
        }
    ]
    assert plain["replaced"] == 0
    assert str(stats) == (
        "2 batches, 16 examples, 32 examples/s; seconds: waiting 0.30, loop 0.20, fetch 0.40 (read 0.10, decode 0.20, "
        "transform 0.15), collate 0.05, hand-over 0.01, device copy 0.00"
    )
    assert str(replace(stats, download_s=1.5, downloaded_bytes=2_400_000)).endswith("copy 0.00, download 1.50 (2 MB)")


def test_a_worker_has_started_with_its_first_batch_or_when_it_says_that_there_is_none() -> None:
    metrics = StageMetrics(2)
    metrics.bind(0)
    assert not metrics.has_started(0)
    metrics.add_batch(3)
    metrics.bind(1)
    assert (metrics.has_started(0), metrics.has_started(1)) == (True, False)
    metrics.note_started()
    assert metrics.has_started(1)
    assert metrics.counts(1) == (0, 0)


# Epochs


class Clock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(runtime_metrics, "time", clock)
    return clock


class Loader:
    """Takes 1 s to begin, a second more for every further batch, and 16 s to end."""

    def __init__(self, clock: Clock, num_batches: int) -> None:
        self.clock = clock
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[int]:
        self.clock.now += 1
        for number in range(self.num_batches):
            self.clock.now += number
            yield number
        self.clock.now += 16


def test_an_epoch_s_times_with_the_consumer_s_own_in_the_whole_only(clock: Clock) -> None:
    timer = EpochTimer()
    for _ in timer.time(Loader(clock, 3)):
        clock.now += 100
    assert timer.epochs == [EpochTimes(first_batch_s=1, tail_s=16, whole_s=1 + 1 + 2 + 300 + 16, num_batches=3)]


def test_an_epoch_without_batches_is_all_first_batch_and_tail(clock: Clock) -> None:
    timer = EpochTimer()
    assert list(timer.time(Loader(clock, 0))) == []
    assert timer.epochs == [EpochTimes(first_batch_s=17, tail_s=17, whole_s=17, num_batches=0)]


def test_epochs_are_kept_in_order(clock: Clock) -> None:
    timer = EpochTimer()
    for num_batches in (1, 2):
        assert list(timer.time(Loader(clock, num_batches))) == list(range(num_batches))
    assert [times.num_batches for times in timer.epochs] == [1, 2]


def test_releasing_the_iterator_counts_to_the_tail(clock: Clock) -> None:
    class Slow:
        def __init__(self) -> None:
            self.left = 1

        def __iter__(self) -> "Slow":
            return self

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def __del__(self) -> None:
            clock.now += 5

    class SlowLoader:
        def __iter__(self) -> Slow:
            return Slow()

    timer = EpochTimer()
    assert list(timer.time(SlowLoader())) == [0]
    assert timer.epochs[0].tail_s == 5


@pytest.mark.parametrize("error", [None, ValueError("lost")])
def test_an_epoch_that_is_broken_off_or_fails_is_not_kept(clock: Clock, error: Exception | None) -> None:
    def batches() -> Iterator[int]:
        yield 0
        if error:
            raise error
        yield 1

    timer = EpochTimer()
    epoch = timer.time(batches())
    assert next(epoch) == 0
    if error:
        with pytest.raises(ValueError, match="lost"):
            next(epoch)
    else:
        epoch.close()
    assert timer.epochs == []


def test_no_batch_is_held_while_the_next_one_is_made(clock: Clock) -> None:
    class Batch:
        pass

    held = []

    def batches() -> Iterator[Batch]:
        references: list[weakref.ref[Batch]] = []
        for _ in range(3):
            held.append(sum(reference() is not None for reference in references))
            batch = Batch()
            references.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in EpochTimer().time(batches()):
        del batch
    assert held == [0, 0, 0]


def test_members_of_a_mixture_are_counted_over_all_pools_and_travel_to_workers() -> None:
    loader, members = LoaderMetrics(), {"a": 10, "b": 4}
    assert loader.stats().members == ()
    for _ in range(2):  # Two pools, one after the other.
        metrics = StageMetrics(1, members)
        loader.use(metrics)
        process = multiprocessing.get_context("fork").Process(target=report_members, args=(metrics,))
        process.start()
        process.join()
        metrics.add_member(1, 2, 0.25)
    found = loader.stats()
    assert found.members == (MemberStats("a", 6, 0.6, 1.0), MemberStats("b", 4, 1.0, 0.5))
    assert str(found).endswith("; passes: a 0.60, b 1.00")
    assert found.to_dict()["members"][0] == {"name": "a", "examples": 6, "passes": 0.6, "read_s": 1.0}
    assert pickle.loads(pickle.dumps(metrics)).member_totals() == {"a": (0, 0.0), "b": (0, 0.0)}
    many = LoaderMetrics()
    many.use(StageMetrics(0, {f"m{number}": 1 for number in range(10)}))
    assert str(many.stats()).endswith("m7 0.00 and 2 more members")


def report_members(metrics: StageMetrics) -> None:
    metrics.bind(0)
    metrics.add_member(0, 3, 0.5)
