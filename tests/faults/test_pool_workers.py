"""Workers of a Loader over an ImageDataset and of a MultiLoader that die, stop, hang, or fail."""

import gc
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.cells import (
    ALL,
    FORKED,
    HARMED_BATCH,
    QUICK,
    Cell,
    cells,
    crossed,
    harm_at,
    make_loader,
    places,
    planned,
    wait_for,
)
from faults.harm import LAST_WORDS
from tfds_torch.errors import CorruptRecordError, StallError, WorkerError

AreGone = Callable[[list[int]], bool]
LOADER, SHARED = QUICK[:1], QUICK[1:]
ENDS = {
    "kill": "was killed by SIGKILL (out of memory?)",
    "exit": "ended with exit code 0",
    "segfault": "was killed by SIGSEGV",
    "bus": "was killed by SIGBUS (a file was cut while it was read as memory",
}
STALL_S = {"fork": 2.0, "spawn": 25.0, "forkserver": 25.0}
"""Time limits in which a worker also starts."""


def check_that_it_goes_on(loader: Any, came: list[Any], root: str) -> None:
    """Checks the batches that came before an error: they are the epoch's first ones, and the rest comes exactly."""
    assert came == planned(root, 0)[: len(came)]
    loader.load_state_dict(loader.state_dict())
    assert came + list(places(loader)) == planned(root, 0)
    assert list(places(loader)) == planned(root, 1)


@pytest.mark.parametrize("cell", cells(slow=(*FORKED, "shared-spawn-persistent", "zmq-forkserver-once")))
def test_a_killed_worker_is_an_error_that_names_it_and_the_epoch_goes_on_exactly(
    cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    check_death("kill", cell, numbered_root, tmp_path, are_gone)


OTHER_ENDS = ("exit", "segfault", "bus")


@pytest.mark.parametrize(
    ("how", "cell"),
    crossed(
        OTHER_ENDS,
        quick={"examples-fork-once": ("segfault",), "zmq-fork-persistent": ("exit",)},
        slow={
            "Loader-fork-persistent": OTHER_ENDS,
            "shared-fork-once": ("exit", "segfault"),
            "zmq-fork-persistent": ("bus",),
        },
    ),
)
def test_a_worker_that_ends_in_another_way_is_an_error_that_names_it(
    how: str, cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    check_death(how, cell, numbered_root, tmp_path, are_gone)


def check_death(how: str, cell: Cell, root: str, folder: Path, are_gone: AreGone) -> None:
    with make_loader(cell, root, harm_at(root, how, folder)) as loader:
        iteration, came = iter(loader), []
        pids = list(loader.worker_pids)
        asked_at = time.monotonic()
        with pytest.raises(WorkerError) as caught:
            came.extend(places(loader, iteration))
        assert time.monotonic() - asked_at < 30
        assert len(came) <= HARMED_BATCH
        said = str(caught.value)
        assert said.startswith(f"Worker 1 (pid {pids[1]}) {ENDS[how]}")
        assert " while it read numbered:1.0.0, split 'train'" in said
        assert f" The {cell.loader_name}'s state_dict() counts what was delivered: load it, here or in a new" in said
        assert re.search(rf"The last that worker 1 wrote to standard error:\n(?s:.*){LAST_WORDS}", said)
        assert are_gone(pids)
        check_that_it_goes_on(loader, came, root)


@pytest.mark.parametrize("cell", cells(SHARED, LOADER))
def test_a_worker_that_is_killed_while_the_loop_is_at_work_is_an_error_without_a_time_limit(
    cell: Cell, numbered_root: str
) -> None:
    """The loop itself is not interrupted: the error comes where the next batches are asked for."""
    with make_loader(cell, numbered_root, timeout_s=None) as loader:
        iteration = iter(loader)
        came = [next(places(loader, iteration))]
        pid = loader.worker_pids[1]
        os.kill(pid, signal.SIGKILL)
        if cell.method != "forkserver":  # There, it is another process's child.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid {pid}\) was killed by SIGKILL \(out of memory\?\)"):
            came.extend(places(loader, iteration))
        check_that_it_goes_on(loader, came, numbered_root)


PERSISTENT = [cell for cell in ALL if cell.persistent]


@pytest.mark.parametrize("cell", cells(("Loader-fork-persistent", "shared-fork-persistent"), FORKED, PERSISTENT))
def test_a_persistent_worker_that_died_between_epochs_is_replaced(cell: Cell, numbered_root: str) -> None:
    with make_loader(cell, numbered_root) as loader:
        assert list(places(loader)) == planned(numbered_root, 0)
        pids = list(loader.worker_pids)
        (killed,) = (child for child in multiprocessing.active_children() if child.pid == pids[0])
        killed.kill()
        killed.join()
        assert list(places(loader)) == planned(numbered_root, 1)
        assert pids[0] not in loader.worker_pids


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("num_deaths", "cell"), crossed((12, 100), quick={}, slow={QUICK[0]: (12,)}))
def test_every_one_of_many_deaths_is_an_error_and_leaves_nothing_open(
    num_deaths: int, cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    num_open = []
    for number in range(num_deaths):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_death(("kill", "exit")[number % 2], cell, numbered_root, folder, are_gone)
        gc.collect()  # Of the errors' frames, which pytest has kept.
        num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[-1] <= max(num_open[:4]), num_open


# Workers that are stuck, or merely slow


@pytest.mark.parametrize("cell", cells(LOADER, (*SHARED, "examples-fork-once", "zmq-fork-persistent")))
def test_a_hanging_worker_is_a_stall_error_with_its_stack(
    cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    check_stall(cell, numbered_root, tmp_path, are_gone, is_stopped=False)


@pytest.mark.parametrize("cell", cells(SHARED, ("Loader-fork-once",)))
def test_a_stopped_worker_is_a_stall_error_with_its_state(
    cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    check_stall(cell, numbered_root, tmp_path, are_gone, is_stopped=True)


def check_stall(cell: Cell, root: str, folder: Path, are_gone: AreGone, *, is_stopped: bool) -> None:
    timeout_s = STALL_S[cell.method]
    with make_loader(cell, root, harm_at(root, "hang", folder), timeout_s=timeout_s) as loader:
        iteration = iter(loader)
        pids = list(loader.worker_pids)
        came = [place for _, place in zip(range(HARMED_BATCH), places(loader, iteration), strict=False)]
        wait_for(folder / "reached")
        if is_stopped:
            os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(StallError) as caught:
            next(iteration)
        said = str(caught.value)
        state = "stopped (T)" if is_stopped else "sleeping (S)"
        assert said.startswith(
            f"No batch came within timeout_s={timeout_s:g} s. Worker 1 (pid {pids[1]}), whose turn it is, is {state} "
            f"and reads numbered:1.0.0, split 'train'"
        )
        assert f" The {cell.loader_name}'s state_dict() counts what was delivered: load it" in said
        if is_stopped:
            assert said.endswith(" A stopped process cannot report its stack; SIGCONT continues it.")
        else:
            assert re.search(r"Its stacks:\n(?s:.*)in _act\n", said)
        assert are_gone(pids)
        check_that_it_goes_on(loader, came, root)


@pytest.mark.parametrize("cell", cells(SHARED, (*LOADER, "shared-spawn-persistent")))
def test_a_worker_that_is_merely_slow_is_no_error(cell: Cell, numbered_root: str, tmp_path: Path) -> None:
    with make_loader(cell, numbered_root, harm_at(numbered_root, "slow", tmp_path)) as loader:
        assert list(places(loader)) == planned(numbered_root, 0)
        assert (tmp_path / "reached").exists()


@pytest.mark.parametrize("cell", cells(SHARED, LOADER))
def test_timeout_s_limits_the_wait_for_a_batch_and_not_the_epoch(
    cell: Cell, numbered_root: str, tmp_path: Path
) -> None:
    """The loop takes longer than it for a step, and then waits for the next batch, but not as long."""
    timeout_s = STALL_S[cell.method] / 2
    with make_loader(cell, numbered_root, harm_at(numbered_root, "wait", tmp_path), timeout_s=timeout_s) as loader:
        iteration = iter(loader)
        came = [place for _, place in zip(range(HARMED_BATCH), places(loader, iteration), strict=False)]
        time.sleep(timeout_s + 0.1)
        threading.Timer(0.5, (tmp_path / "gate").touch).start()
        assert came + list(places(loader, iteration)) == planned(numbered_root, 0)


# Exceptions


EXCEPTIONS = {
    "key": (KeyError, "no such key"),
    "end of file": (EOFError, "the file is cut"),
    "broken pipe": (BrokenPipeError, "the user's own pipe"),
    "stop iteration": ((WorkerError, RuntimeError), "StopIteration"),
    "local": (WorkerError, "LocalError: only here"),
    "two arguments": (WorkerError, "TwoArgumentsError: .*one.*two"),
    "nested": (ValueError, "the error\n.*OSError: the cause\n"),
    "ours": (CorruptRecordError, "^file x, offset 3"),
    "tensorflow": (WorkerError, "DataLossError: .*tensorflow's own"),
}
TAKES_LONG = ("tensorflow", HARMED_BATCH)  # Its import.
IN_EITHER = (("ours", HARMED_BATCH), ("local", HARMED_BATCH), ("stop iteration", 1))
AT_FIRST = ("end of file", "broken pipe", "stop iteration")
QUICKLY_RAISED = [
    *((name, HARMED_BATCH) for name in EXCEPTIONS if name not in (*AT_FIRST, "tensorflow")),
    *((name, 1) for name in AT_FIRST),  # At its first batch.
]
SLOWLY_RAISED = [*((name, HARMED_BATCH) for name in AT_FIRST), ("key", 1)]


@pytest.mark.parametrize(
    ("name", "at", "cell"),
    crossed(
        [*QUICKLY_RAISED, *SLOWLY_RAISED, TAKES_LONG],
        quick={"Loader-fork-persistent": QUICKLY_RAISED, "shared-fork-once": IN_EITHER},
        slow={
            "Loader-fork-persistent": (*SLOWLY_RAISED, TAKES_LONG),
            "shared-fork-once": (*QUICKLY_RAISED, *SLOWLY_RAISED),
            "zmq-fork-once": (("nested", HARMED_BATCH), ("broken pipe", 1)),
        },
    ),
)
def test_an_exception_arrives_with_its_type_message_and_traceback(
    name: str, at: int, cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    """Each worker may send one batch only, so that nothing else wakes a loop that takes an exception for its own."""
    kind, text = EXCEPTIONS[name]
    with make_loader(cell, numbered_root, harm_at(numbered_root, name, tmp_path, at), prefetch_batches=1) as loader:
        iteration, came = iter(loader), []
        pids = list(loader.worker_pids)
        with pytest.raises(kind) as caught:  # type: ignore[call-overload]
            came.extend(places(loader, iteration))
        assert len(came) == at
        assert re.search(text, str(caught.value), re.DOTALL)
        shown = "\n".join(map(str, (caught.value, caught.value.__cause__)))
        assert re.search(rf"Raised in worker 1 \(pid {pids[1]}\):\n.*in raise_error\n", shown, re.DOTALL)
        assert list(iteration) == []
        assert are_gone(pids) or cell.persistent
        check_that_it_goes_on(loader, came, numbered_root)
