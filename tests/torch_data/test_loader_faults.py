"""What a Loader makes of workers that die, stop or hang, and of a training process that goes away."""

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime.ended import wait_until_ended
from zygote import Script, last_line_of, torch_zygote

from tfds_torch import create_loader
from tfds_torch.errors import WorkerError
from tfds_torch.runtime.group_signals import GROUP_SIGNALS
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.torch_data.foreign import ForeignWorkers
from tfds_torch.torch_data.foreign_worker import WorkerContext
from torch_data import loader_lives
from torch_data.loader_datasets import NUM_BATCHES, Gated, HalfMessage

slow, campaign = pytest.mark.slow, pytest.mark.campaign
GRACE_S = 30.0
RunLife = Callable[..., Any]
StartLife = Callable[..., Script]

WAYS = [
    pytest.param("fork", "persistent"),
    pytest.param("fork", "once", marks=slow),
    pytest.param("spawn", "persistent", marks=campaign),
    pytest.param("spawn", "once", marks=slow),
    pytest.param("forkserver", "persistent", marks=campaign),
    pytest.param("forkserver", "once", marks=campaign),
]
OF_ENDS = [pytest.param(*way.values, marks=campaign if way.values == ("fork", "once") else way.marks) for way in WAYS]
OF_STALLS = [WAYS[0], *(pytest.param(*way.values, marks=campaign) for way in WAYS[1:])]
STALL_S = {"fork": "4", "spawn": "25", "forkserver": "25"}  # Of which a start may take a good part.

UNLINKED = re.compile(
    r".*resource_tracker: There appear to be 1 leaked semaphore objects.*\n.*\n"
    r".*resource_tracker: '/mp-\w+': \[Errno 2\] No such file or directory\n.*\n"
)
"""Of a worker that was ended while it removed what tensorflow's imports had made: it was removed, and not yet said."""


@pytest.fixture
def start_life(root: Path, tmp_path: Path) -> Iterator[StartLife]:
    """`start_life(function, *args)`: starts a function of loader_lives.py as a script.

    None of its processes may be left, nor anything in /dev/shm.
    """
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    lives, before = [], set(os.listdir("/dev/shm"))

    def start(function: Callable[..., Any], *args: str) -> Script:
        command = [loader_lives.__file__, function.__name__, *args]
        lives.append(Script(torch_zygote(), command, {**os.environ, "PYTHONPATH": path}, tmp_path))
        return lives[-1]

    yield start
    alive = wait_until_ended([process for life in lives for process in life.left()], GRACE_S)
    for process in alive:
        process.kill()
    assert alive == []
    # What other tests have there at the same time is of other processes.
    left = [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")]
    assert [name for name in left if not psutil.pid_exists(int(name.split("_")[1]))] == []


@pytest.fixture
def run_life(start_life: StartLife) -> RunLife:
    """`run_life(function, *args)`: runs a function of loader_lives.py as a script; returns its JSON result."""

    def run(function: Callable[..., Any], *args: str) -> Any:
        done = start_life(function, *args).finish()
        result = last_line_of(done)
        complaints = UNLINKED.sub("", done.stderr)
        for complaint in ("leaked", "Traceback", "Exception ignored"):
            assert complaint not in complaints, done.stderr
        return result

    return run


SAID = {"kill": "was killed by SIGKILL (out of memory?)", "exit": "ended with exit code 0"}


@pytest.mark.parametrize(
    ("how", "method", "persistent"),
    [
        *(pytest.param("kill", *way.values, marks=way.marks) for way in WAYS),
        *(pytest.param("exit", *way.values, marks=campaign if way.marks else slow) for way in WAYS),
    ],
)
def test_a_worker_that_dies_is_a_worker_error_at_once_and_the_next_epoch_is_whole(
    how: str, method: str, persistent: str, run_life: RunLife
) -> None:
    ways = how, method, persistent, "100"
    life = loader_lives.meet(*ways) if method == "fork" else run_life(loader_lives.meet, *ways)
    assert life["came"] == [0, 1, 2][: len(life["came"])], "what it had not handed over is lost with it"
    assert life["error"] == "WorkerError"
    expected = f"Worker 1 (pid {life['pids'][1]}) {SAID[how]} while it read Harmed. Begin the epoch again, with a new"
    assert life["message"].startswith(expected)
    assert life["waited_s"] < 30
    assert life["again"] == list(range(NUM_BATCHES))
    assert life["tensorflow"] is False


def test_a_worker_that_dies_within_a_message_is_noticed_without_a_time_limit() -> None:
    """The training process waits for the rest of it, which never comes."""
    expected = pytest.raises(WorkerError, match=r"^Worker 0 \(pid \d+\) was killed by SIGKILL \(out of memory\?\)")
    with create_loader(HalfMessage(), 1, timeout_s=None, multiprocessing_context="fork") as loader, expected:
        next(iter(loader))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=slow), pytest.param("forkserver", marks=slow)])
def test_signals_to_the_process_group_are_the_scripts_alone(method: str, run_life: RunLife) -> None:
    life = run_life(loader_lives.get_signals, method)
    assert life == {"came": list(range(NUM_BATCHES)), "handled": sorted(GROUP_SIGNALS), "here": True}


def test_a_connection_that_breaks_is_reported_as_the_death_behind_it() -> None:
    """torch raises what the connection does, while the worker at its other end is not quite dead yet."""
    context, names, shared = multiprocessing.get_context("fork"), ErrorContext("Harmed"), WorkerContext.of(1)
    workers = ForeignWorkers(context, names, shared, 10.0)
    workers.faults = WorkerFaults(names, shared.metrics, shared.output, 10.0, can_import_only=True)
    process = workers.context.Process(target=os._exit, args=(0,))
    process.start()
    assert workers.find_failed(EOFError()) == [(0, process.pid, 0)]
    assert workers.find_failed(ValueError("of a dataset")) == []
    assert workers.find_failed(RuntimeError(f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly")) != []
    said = workers.faults.describe_deaths(workers.find_failed(EOFError()))
    assert said.startswith(f"Worker 0 (pid {process.pid}) ended with exit code 0 before it had begun")
    assert said.endswith("Or start workers with multiprocessing_context='fork'.")
    workers.end()


@slow
def test_a_worker_that_crashes_is_a_worker_error(run_life: RunLife) -> None:
    life = run_life(loader_lives.meet, "segfault", "fork", "once", "100")
    assert life["error"] == "WorkerError"
    assert f"Worker 1 (pid {life['pids'][1]}) was killed by SIGSEGV while it read Harmed." in life["message"]


@slow
@pytest.mark.parametrize(("method", "persistent"), OF_STALLS)
def test_a_stopped_worker_is_a_stall_error_after_timeout_s(method: str, persistent: str, run_life: RunLife) -> None:
    life = run_life(loader_lives.meet, "stop", method, persistent, STALL_S[method])
    assert (life["came"], life["error"]) == ([0, 1, 2][: len(life["came"])], "StallError")
    expected = (
        rf"No batch came within timeout_s={STALL_S[method]} s\. Worker 1 \(pid {life['pids'][1]}\), whose turn it is, "
        rf"is stopped \(T\) and reads Harmed\..* A stopped process cannot report its stack; SIGCONT continues it\."
    )
    assert re.fullmatch(expected, life["message"])
    assert life["again"] == list(range(NUM_BATCHES))


@slow
@pytest.mark.parametrize(("method", "persistent"), OF_STALLS)
def test_a_worker_that_hangs_is_a_stall_error_with_its_stack(method: str, persistent: str, run_life: RunLife) -> None:
    life = run_life(loader_lives.meet, "sleep", method, persistent, STALL_S[method])
    assert (life["came"], life["error"]) == ([0, 1, 2], "StallError")
    assert "is sleeping (S) and reads Harmed." in life["message"]
    assert re.search(r"Its stacks:\n.*in harm\n.*in act\n", life["message"], re.DOTALL)
    assert life["again"] == list(range(NUM_BATCHES))


@slow
@pytest.mark.parametrize(("method", "persistent"), [("none", "once"), *WAYS[:3]])
def test_a_slow_worker_is_not_an_error(method: str, persistent: str, run_life: RunLife) -> None:
    life = run_life(loader_lives.meet, "slow", method, persistent, "100")
    assert life["error"] is None
    assert life["came"] == life["again"] == list(range(NUM_BATCHES))


def test_a_training_process_that_reads_by_itself_has_a_time_limit_too(run_life: RunLife) -> None:
    life = run_life(loader_lives.stop_reading, "1")
    assert life["error"] == "StallError"
    assert re.search(
        r"timeout_s=1 s\. The training process itself reads Harmed\. The stack of its reading thread:\n.*in harm",
        life["message"],
        re.DOTALL,
    )


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=slow), 1])
def test_timeout_s_limits_the_wait_for_a_batch_and_not_the_epoch(num_workers: int, tmp_path: Path) -> None:
    """The training loop takes longer than it for a step, and then has to wait for the next batch, but not as long."""
    gate, timeout_s = tmp_path / "gate", 1.5
    with create_loader(Gated(gate), num_workers, timeout_s=timeout_s) as loader:
        iteration = iter(loader)
        came = [int(next(iteration)[1][0])]
        time.sleep(timeout_s + 0.1)
        threading.Timer(0.3, gate.touch).start()
        came += [int(labels[0]) for _, labels in iteration]
        assert came == list(range(NUM_BATCHES))


def test_a_process_that_ends_leaves_no_stopped_worker(run_life: RunLife) -> None:
    assert len(run_life(loader_lives.leave_open, "fork")) == 2


# The training process goes away


def start_waiting(start_life: StartLife, method: str, persistent: str) -> tuple[Script, list[int]]:
    """Returns a script that waits in `next`, in a process group of its own, and its children."""
    life = start_life(loader_lives.wait_for_ever, "sleep", method, persistent, "100")
    line = life.read_line()
    if not line:
        pytest.fail(life.finish().stderr)
    return life, json.loads(line)


@pytest.mark.parametrize(("method", "persistent"), OF_ENDS)
def test_workers_end_with_a_training_process_that_was_killed(
    method: str, persistent: str, start_life: StartLife
) -> None:
    """One of them sleeps in its dataset, the other one waits for work."""
    life, children = start_waiting(start_life, method, persistent)
    assert len(children) >= 2
    os.kill(life.pid, signal.SIGKILL)
    assert life.finish().returncode == -signal.SIGKILL
    # The fixture finds out whether they are gone.


@slow
def test_workers_end_with_a_killed_training_process_while_one_lives_that_it_forked_later(start_life: StartLife) -> None:
    """Such a process holds what the training process held: pipes that end with their last holder do not end then."""
    life = start_life(loader_lives.wait_beside_a_sibling, "fork")
    *workers, sibling = (psutil.Process(pid) for pid in json.loads(life.read_line()))
    try:
        os.kill(life.pid, signal.SIGKILL)
        assert wait_until_ended(workers, GRACE_S) == []
        assert sibling.is_running()
    finally:
        for process in (sibling, *workers):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert life.finish().returncode == -signal.SIGKILL


@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_ctrl_c_is_one_keyboard_interrupt_and_nothing_is_left(
    method: str, persistent: str, start_life: StartLife
) -> None:
    life, _ = start_waiting(start_life, method, persistent)
    os.killpg(life.pid, signal.SIGINT)
    done = life.finish()
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)  # A shell calls both of them 130.
    assert done.stderr.count("Traceback") == done.stderr.count("KeyboardInterrupt") == 1, done.stderr


@pytest.mark.parametrize(("persistent", "until"), [pytest.param("once", "exit", marks=slow), ("persistent", "dropped")])
def test_ctrl_c_while_torch_holds_a_lock_ends_the_epoch_and_lets_the_process_end(
    persistent: str, until: str, run_life: RunLife
) -> None:
    """The lock is never given back: neither the end of torch's iterator may wait for it, nor that of the process."""
    assert run_life(loader_lives.interrupt_within_a_lock, persistent, until) == {"left": [], "again": NUM_BATCHES}


@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_sigterm_to_the_process_group_leaves_nothing(method: str, persistent: str, start_life: StartLife) -> None:
    life, _ = start_waiting(start_life, method, persistent)
    os.killpg(life.pid, signal.SIGTERM)
    assert life.finish().returncode == -signal.SIGTERM


# Errors that must not take tensorflow along


@pytest.mark.parametrize(
    ("how", "method", "persistent"),
    [
        *(pytest.param("tensorflow", *way.values, marks=campaign if way.marks else slow) for way in WAYS),
        *(pytest.param(how, "fork", "once", marks=slow) for how in ("local", "nested", "two arguments")),
    ],
)
def test_any_exception_arrives_with_its_traceback_and_without_tensorflow(
    how: str, method: str, persistent: str, run_life: RunLife
) -> None:
    life = run_life(loader_lives.meet, how, method, persistent, "100")
    assert life["error"] == ("ValueError" if how == "nested" else "WorkerError")
    assert "in raise_error" in life["message"]
    assert ("tensorflow's own" in life["message"]) == (how == "tensorflow")
    assert life["again"] == list(range(NUM_BATCHES))
    assert life["tensorflow"] is False
