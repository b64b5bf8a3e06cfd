"""What a worker does when it begins: it watches its parent, and waits for its turn where there are few cores."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

import psutil
import pytest
from runtime.ended import wait_until_ended

from tfds_torch.runtime import worker_start
from tfds_torch.runtime.limits import UsableCores
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_start import end_with_parent, stagger_first_batch

NUM_WORKERS = 5
DEADLINE_S = 30.0


def started(*workers: int) -> StageMetrics:
    metrics = StageMetrics(NUM_WORKERS)
    for worker in workers:
        metrics.bind(worker)
        metrics.note_started()
    return metrics


def wait(monkeypatch: pytest.MonkeyPatch, metrics: StageMetrics, worker: int, num_cores: float) -> threading.Thread:
    """Returns the thread in which a worker waits for its turn."""
    monkeypatch.setattr(worker_start, "usable_cores", lambda: UsableCores(num_cores, "the machine's"))
    thread = threading.Thread(target=stagger_first_batch, args=(metrics, worker), daemon=True)
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


def start_a_child_and_wait(link: Connection) -> None:
    process = multiprocessing.get_context("fork").Process(target=wait_with_watch, args=(link,), daemon=True)
    process.start()
    process.join()


def wait_with_watch(link: Connection) -> None:
    end_with_parent()
    link.send(os.getpid())
    threading.Event().wait(600)


def test_a_child_ends_when_its_parent_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "_PARENT_CHECK_S", 0.1)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=start_a_child_and_wait, args=(theirs,))
    parent.start()
    theirs.close()
    child = psutil.Process(ours.recv())
    parent.kill()
    parent.join()
    assert wait_until_ended([child], DEADLINE_S) == []


def test_a_process_without_a_parent_of_multiprocessing_watches_none() -> None:
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before


# The allocator.

ALLOCATING = """
import json, resource, sys
from tfds_torch.runtime.worker_start import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

was_set = keep_freed_memory() if sys.argv[1] == "kept" else None
counts = []
for _ in range(20):
    before = num_faults()
    blocks = [bytearray(8 << 20) for _ in range(4)]
    del blocks
    counts.append(num_faults() - before)
print(json.dumps([was_set, sum(counts[10:])]))
"""


def count_faults(how: str) -> tuple[bool | None, int]:
    done = subprocess.run([sys.executable, "-c", ALLOCATING, how], capture_output=True, text=True, check=True)
    was_set, num_faults = json.loads(done.stdout)
    return was_set, num_faults


def test_memory_that_was_freed_is_not_asked_for_again() -> None:
    was_set, num_kept = count_faults("kept")
    _, num_given_back = count_faults("given back")
    assert was_set is True
    assert num_kept < 100 < num_given_back
