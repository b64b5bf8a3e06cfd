"""What is said of workers of which no batch came."""

import os

import pytest

from tfds_torch.runtime import worker_faults
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput

PIDS = [101, 102, 103]


def stall(
    monkeypatch: pytest.MonkeyPatch, num_received: int, stopped: int | None = None, done: tuple[int, ...] = ()
) -> str:
    metrics = StageMetrics(3)
    for worker in range(3):
        metrics.bind(worker)
        metrics.note_begun()
        if worker in done:
            metrics.note_done()
    states = {PIDS[stopped]: ("T", "stopped")} if stopped is not None else {}
    monkeypatch.setattr(worker_faults, "process_state", lambda pid: states.get(pid, ("S", "sleeping")))
    faults = WorkerFaults(ErrorContext("digits", "Begin again."), metrics, WorkerOutput(0), 5.0, False)
    return faults.describe_stall(PIDS, num_received)


@pytest.mark.parametrize(
    ("num_received", "stopped", "done", "said"),
    [
        (4, None, (), "Worker 1 (pid 102), whose turn it is, is sleeping (S)"),
        (4, 1, (), "Worker 1 (pid 102), whose turn it is, is stopped (T)"),
        (3, 1, (), "Worker 1 (pid 102), which every other worker waits for, is stopped (T)"),
        (3, None, (0,), "Worker 1 (pid 102), whose turn it is, is sleeping (S)"),
        (5, None, (0, 1, 2), "Worker 2 (pid 103), whose turn it is, is sleeping (S)"),
    ],
)
def test_the_worker_that_keeps_all_waiting_is_named(
    num_received: int, stopped: int | None, done: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stall(monkeypatch, num_received, stopped, done).startswith(f"No batch came within timeout_s=5 s. {said}")


def test_one_that_has_not_begun_is_said_so_and_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = WorkerFaults(ErrorContext("digits", "Begin again."), StageMetrics(1), WorkerOutput(1), 5.0, False)
    monkeypatch.setattr(WorkerOutput, "ask_for_stack", lambda *args: pytest.fail("asked"))
    assert "has not begun to read digits. Begin again." in faults.describe_stall([os.getpid()], 0)


def test_without_a_time_limit_the_messages_name_none() -> None:
    faults = WorkerFaults(ErrorContext("digits", "Begin again."), StageMetrics(1), WorkerOutput(1), None, False)
    assert faults.describe_own_stall("").startswith("No batch came. The training process itself reads digits")
    assert faults.describe_stall([os.getpid()], 0).startswith("No batch came. Worker 0")
