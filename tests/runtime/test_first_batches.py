"""wait_for_turn: with more workers than cores, those of lower numbers make their first batches first."""

import threading

import pytest

from tfds_torch.runtime import worker_start
from tfds_torch.runtime.limits import UsableCores
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_start import wait_for_turn

NUM_WORKERS = 5


def started(*workers: int) -> StageMetrics:
    metrics = StageMetrics(NUM_WORKERS)
    for worker in workers:
        metrics.bind(worker)
        metrics.note_started()
    return metrics


def wait(monkeypatch: pytest.MonkeyPatch, metrics: StageMetrics, worker: int, num_cores: float) -> threading.Thread:
    """Returns the thread in which a worker waits for its turn."""
    monkeypatch.setattr(worker_start, "usable_cores", lambda: UsableCores(num_cores, "the machine's"))
    thread = threading.Thread(target=wait_for_turn, args=(metrics, worker), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("workers_started", "worker", "num_cores"),
    [
        ((), 0, 2),
        ((), 1, 2),
        ((0,), 2, 2),
        ((0, 1, 2), 4, 2),
        ((), 4, 5),
        ((), 4, 8),
        ((4,), 4, 1),
        ((1, 2, 3), 4, 1.5),
    ],
)
def test_a_worker_whose_turn_it_is_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, workers_started: tuple[int, ...], worker: int, num_cores: float
) -> None:
    monkeypatch.setattr(worker_start, "_LONGEST_TURN_S", 3600.0)
    wait(monkeypatch, started(*workers_started), worker, num_cores).join()


def test_a_worker_waits_for_those_before_it_and_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "_LONGEST_TURN_S", 3600.0)
    metrics = started(0)
    thread = wait(monkeypatch, metrics, 3, 2)
    assert thread.is_alive()
    metrics.bind(1)
    metrics.add_batch(7)
    thread.join()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "_LONGEST_TURN_S", 0.0)
    wait(monkeypatch, started(), 4, 1).join()
