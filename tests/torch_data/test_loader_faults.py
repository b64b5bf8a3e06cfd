"""What a Loader makes of workers that die, stop or hang, and of a training process that goes away."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch.utils.data

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.reader_thread import Reply
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.torch_data.loading import sending
from tfds_torch.torch_data.loading.source import BatchSource, SourceNames
from torch_data import loader_lives, reading
from torch_data.loader_datasets import NUM_BATCHES

slow, campaign = pytest.mark.slow, pytest.mark.campaign
WATCHDOG_S, GRACE_S = 120.0, 30.0
RunLife = Callable[..., Any]

WAYS = [
    pytest.param("fork", "persistent"),
    pytest.param("fork", "once", marks=slow),
    pytest.param("spawn", "persistent", marks=campaign),
    pytest.param("spawn", "once", marks=slow),
    pytest.param("forkserver", "persistent", marks=campaign),
    pytest.param("forkserver", "once", marks=campaign),
]
OF_STALLS = [pytest.param(*way.values, marks=campaign if way.values[0] == "spawn" else way.marks) for way in WAYS]
STALL_S = {"fork": "4", "spawn": "25", "forkserver": "25"}  # Of which a start may take a good part.

UNLINKED = re.compile(
    r".*resource_tracker: There appear to be 1 leaked semaphore objects.*\n.*\n"
    r".*resource_tracker: '/mp-\w+': \[Errno 2\] No such file or directory\n.*\n"
)
"""Of a worker that was ended while it removed what tensorflow's imports had made: it was removed, and not yet said."""


@pytest.fixture
def life_environment(root: Path) -> Iterator[dict[str, str]]:
    """The environment of a script, by which its processes are found; none may be left, nor anything in /dev/shm."""
    mark, before = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    yield {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        reading.MARK: mark,
    }
    _, alive = psutil.wait_procs(reading.marked_processes(mark), GRACE_S)
    for process in alive:
        process.kill()
    assert alive == []
    # What other tests have there at the same time is of other processes.
    left = [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")]
    assert [name for name in left if not psutil.pid_exists(int(name.split("_")[1]))] == []


@pytest.fixture
def run_life(life_environment: dict[str, str], tmp_path: Path) -> RunLife:
    """`run_life(function, *args)`: runs a function of loader_lives.py as a script; returns its JSON result."""

    def run(function: Callable[..., Any], *args: str) -> Any:
        command = [sys.executable, loader_lives.__file__, function.__name__, *args]
        done = subprocess.run(
            command, cwd=tmp_path, env=life_environment, capture_output=True, text=True, timeout=WATCHDOG_S
        )
        assert done.returncode == 0, done.stderr
        complaints = UNLINKED.sub("", done.stderr)
        for complaint in ("leaked", "Traceback", "Exception ignored"):
            assert complaint not in complaints, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", "was killed by SIGKILL (out of memory?)"),
        ("exit", "ended with exit code 0"),
    ],
)
@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_a_worker_that_dies_is_a_worker_error_at_once_and_the_next_epoch_is_whole(
    how: str, said: str, method: str, persistent: str, run_life: RunLife
) -> None:
    life = run_life(loader_lives.meet, how, method, persistent, "100")
    assert life["came"] == [0, 1, 2][: len(life["came"])], "what it had not handed over is lost with it"
    assert life["error"] == "WorkerError"
    expected = f"Worker 1 (pid {life['pids'][1]}) {said} while it read Harmed. Begin the epoch again, with a new"
    assert life["message"].startswith(expected)
    assert life["waited_s"] < 30
    assert life["again"] == list(range(NUM_BATCHES))
    assert life["tensorflow"] is False


def test_a_worker_that_was_asked_to_end_is_not_said_to_have_finished(run_life: RunLife) -> None:
    life = run_life(loader_lives.terminate_a_worker)
    assert life["error"] == "WorkerError"
    assert f"Worker 1 (pid {life['pids'][1]}) was killed by SIGTERM (somebody asked it to end" in life["message"]


class Breaking:
    """Stands for the reader of a batch whose sender dies: the connection breaks a moment before the process ends."""

    is_idle, thread_id = False, None

    def reply(self, timeout_s: float) -> Reply:
        return Reply(error=ConnectionResetError(104, "Connection reset by peer"))


class Dying:
    """Stands for workers of which one is dead only once it was waited for."""

    is_dead = False

    def wait_for_death(self, timeout_s: float) -> None:
        self.is_dead = True

    def find_dead(self, error: BaseException | None = None) -> list[tuple[int, int, int]]:
        return [(1, 4321, 1)] if self.is_dead else []


def test_a_connection_that_breaks_is_told_as_the_death_behind_it() -> None:
    source = BatchSource.__new__(BatchSource)
    source.metrics, source._timeout_s, source._started_at, source._can_import_only = StageMetrics(2), 10.0, None, True
    source._names = SourceNames("Harmed", None, "Begin again.")
    source._processes = Dying()  # type: ignore[assignment]
    with pytest.raises(WorkerError, match=r"^Worker 1 \(pid 4321\) ended with exit code 1 .* Begin again\.$") as caught:
        source._wait(Breaking())  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert "multiprocessing_context='fork', or a module" in str(caught.value)  # It had not begun.


def test_a_batch_for_which_shared_memory_has_no_room_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def dumps(found: Any) -> bytes:
        if not isinstance(found.batch, Failure):
            raise RuntimeError(
                "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
            )
        sent.append(found)
        return b""

    sent: list[Any] = []
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(id=0))
    monkeypatch.setattr(sending.ForkingPickler, "dumps", dumps)
    sending.SendingCollate(list, True, StageMetrics(1), None)([torch.zeros(3)])
    error = sent[0].batch.to_error("worker 0 (pid 1)")
    assert isinstance(error, WorkerError)
    assert re.match(
        r"A batch cannot be handed over: the machine's shared memory \(/dev/shm\), [\d,.]+ MiB, is full", str(error)
    )
    assert "--shm-size" in str(error)


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
        rf"is stopped \(T\) and reads Harmed\..* A stopped process cannot tell its stack; SIGCONT lets it go on\."
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


@pytest.mark.parametrize(("method", "persistent"), [("none", "once"), *WAYS[:3]])
def test_a_worker_that_is_merely_slow_is_no_error(method: str, persistent: str, run_life: RunLife) -> None:
    life = run_life(loader_lives.meet, "slow", method, persistent, "100")
    assert life["error"] is None
    assert life["came"] == life["again"] == list(range(NUM_BATCHES))


def test_a_training_process_that_reads_by_itself_has_a_time_limit_too(run_life: RunLife) -> None:
    life = run_life(loader_lives.stop_reading, "2")
    assert life["error"] == "StallError"
    assert re.search(
        r"timeout_s=2 s\. The training process itself reads Harmed\. The stack of its reading thread:\n.*in harm",
        life["message"],
        re.DOTALL,
    )


def test_a_process_that_ends_leaves_no_stopped_worker(run_life: RunLife) -> None:
    assert len(run_life(loader_lives.leave_open, "fork")) == 2


# The training process goes away


def start_waiting(environment: dict[str, str], tmp_path: Path, *args: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """Returns a script that waits in `next`, in a process group of its own, and its children."""
    command = [sys.executable, loader_lives.__file__, loader_lives.wait_for_ever.__name__, *args]
    process = subprocess.Popen(
        *(command,),
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate()[1])
    return process, json.loads(line)


@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_workers_end_with_a_training_process_that_was_killed(
    method: str, persistent: str, life_environment: dict[str, str], tmp_path: Path
) -> None:
    """One of them sleeps in its dataset, the other one waits for work."""
    process, children = start_waiting(life_environment, tmp_path, "sleep", method, persistent, "100")
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=WATCHDOG_S)
    # The fixture finds out whether they are gone.


@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_ctrl_c_is_one_keyboard_interrupt_and_nothing_is_left(
    method: str, persistent: str, life_environment: dict[str, str], tmp_path: Path
) -> None:
    process, _ = start_waiting(life_environment, tmp_path, "sleep", method, persistent, "100")
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)  # A shell calls both of them 130.
    assert complaints.count("Traceback") == complaints.count("KeyboardInterrupt") == 1, complaints


@pytest.mark.parametrize(("method", "persistent"), WAYS)
def test_sigterm_to_the_process_group_leaves_nothing(
    method: str, persistent: str, life_environment: dict[str, str], tmp_path: Path
) -> None:
    process, _ = start_waiting(life_environment, tmp_path, "sleep", method, persistent, "100")
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == -signal.SIGTERM


# Errors that must not take tensorflow along


@pytest.mark.parametrize(
    ("how", "method", "persistent"),
    [
        *(pytest.param("tensorflow", *way.values, marks=way.marks or slow) for way in WAYS),
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
