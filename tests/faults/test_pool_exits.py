"""Iterations that are given up, and training processes that go away: no worker, and nothing of theirs, is left."""

import gc
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import INTERRUPTED
from pytest_report import add_section
from runtime.ended import wait_until_ended
from zygote import Script

from faults import pool_lives
from faults.cells import (
    ALSO_FORKED,
    HARMED_BATCH,
    NUM_WORKERS,
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
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.group_signals import GROUP_SIGNALS

AreGone = Callable[[list[int]], bool]
RunLife = Callable[..., Any]
StartLife = Callable[..., Script]
GRACE_S = 30.0
LOADER, SHARED = QUICK[:1], QUICK[1:]  # A life takes seconds: only one of them is quick.


# Iterations that are given up


WAYS_OUT = ("break", "drop", "error in the loop")


@pytest.mark.parametrize(
    ("way", "cell"),
    crossed(
        WAYS_OUT,
        quick={"Loader-fork-persistent": ("error in the loop",), "shared-fork-persistent": ("break",)},
        slow={
            "Loader-fork-persistent": ("break", "drop"),
            "Loader-fork-once": WAYS_OUT,
            "shared-fork-persistent": ("drop",),
            "shared-fork-once": ("drop", "error in the loop"),
            "zmq-fork-persistent": ("break", "error in the loop"),
            "shared-spawn-persistent": ("drop",),
        },
    ),
)
def test_an_iteration_that_is_given_up_leaves_no_process_but_persistent_workers(
    way: str, cell: Cell, numbered_root: str, are_gone: AreGone
) -> None:
    loader = make_loader(cell, numbered_root)
    iteration = iter(loader)
    pids = list(loader.worker_pids)
    assert len(pids) == NUM_WORKERS
    if way == "drop":
        assert next(places(loader, iteration)) == planned(numbered_root, 0)[0]
    if way == "break":
        for _ in iteration:
            break
    if way == "error in the loop":
        with pytest.raises(ZeroDivisionError):
            [1 / 0 for _ in iteration]
    del iteration
    gc.collect()
    assert loader.worker_pids == (pids if cell.persistent else [])
    assert cell.persistent or are_gone(pids)
    assert list(places(loader)) == planned(numbered_root, 1)
    assert loader.worker_pids == (pids if cell.persistent else [])
    del loader
    gc.collect()
    assert are_gone(pids)


@pytest.mark.parametrize(
    ("way", "cell"),
    crossed(
        ("drop", "close"),
        quick={"Loader-fork-persistent": ("close",), "shared-fork-once": ("drop",)},
        slow={
            "Loader-fork-persistent": ("drop",),
            "Loader-fork-once": ("drop",),
            "shared-fork-once": ("close",),
            "zmq-fork-persistent": ("close",),
        },
    ),
)
def test_a_worker_that_is_busy_for_ever_ends_with_its_loader(
    way: str, cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    loader = make_loader(cell, numbered_root, harm_at(numbered_root, "hang", tmp_path))
    iteration = iter(loader)
    pids = list(loader.worker_pids)
    assert next(places(loader, iteration)) == planned(numbered_root, 0)[0]
    wait_for(tmp_path / "reached")
    if way == "drop":
        del iteration, loader
        gc.collect()
    else:
        loader.close()
        with pytest.raises(ConfigError, match="when another one of the same loader began, or when it was closed"):
            next(iteration)
        with pytest.raises(ConfigError, match=f"This {cell.loader_name} is closed: make a new one"):
            iter(loader)
    assert are_gone(pids)


@pytest.mark.parametrize("cell", cells(slow=ALSO_FORKED))
def test_a_new_iteration_ends_the_one_before(cell: Cell, numbered_root: str) -> None:
    with make_loader(cell, numbered_root) as loader:
        first = iter(loader)
        next(first)
        assert list(places(loader)) == planned(numbered_root, 1)
        with pytest.raises(ConfigError, match="This iteration ended when another one of the same loader began"):
            next(first)


@pytest.mark.parametrize(
    ("way", "cell"),
    crossed(
        ("thread", "signal handler"),
        quick={"Loader-fork-persistent": ("signal handler",), "shared-fork-once": ("thread",)},
        slow={
            "Loader-fork-persistent": ("thread",),
            "Loader-fork-once": ("signal handler",),
            "shared-fork-once": ("signal handler",),
            "zmq-fork-persistent": ("thread",),
        },
    ),
)
def test_a_loader_that_is_closed_while_its_batch_is_waited_for_is_an_error_and_leaves_nothing(
    way: str, cell: Cell, numbered_root: str, tmp_path: Path, are_gone: AreGone
) -> None:
    loader = make_loader(cell, numbered_root, harm_at(numbered_root, "hang", tmp_path))
    iteration = iter(loader)
    pids = list(loader.worker_pids)
    came = [place for _, place in zip(range(HARMED_BATCH), places(loader, iteration), strict=False)]
    assert came == planned(numbered_root, 0)[:HARMED_BATCH]
    wait_for(tmp_path / "reached")
    if way == "thread":
        closing = threading.Timer(0.2, loader.close)
        closing.start()
    else:
        before = signal.signal(signal.SIGALRM, lambda *_: loader.close())
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(ConfigError, match="closed"):
            next(iteration)
    finally:
        closing.join() if way == "thread" else signal.signal(signal.SIGALRM, before)
    assert are_gone(pids)


# The training process goes away


def start_waiting(start_life: StartLife, cell: Cell) -> tuple[Script, list[int]]:
    """Returns a script that waits in `next`, in a process group of its own, and its children."""
    life = start_life(pool_lives.wait_for_ever, cell)
    line = life.read_line()
    if not line:
        pytest.fail(life.finish().stderr)
    return life, json.loads(line)


@pytest.mark.parametrize("cell", cells(LOADER, ("Loader-spawn-once", "zmq-forkserver-once")))
def test_workers_end_with_a_training_process_that_was_killed(cell: Cell, start_life: StartLife) -> None:
    """One of them sleeps in its dataset, the other one waits for work."""
    life, children = start_waiting(start_life, cell)
    assert len(children) >= NUM_WORKERS
    os.kill(life.pid, signal.SIGKILL)
    assert life.finish().returncode == -signal.SIGKILL
    # The fixture finds out whether they are gone.


@pytest.mark.parametrize("cell", cells(SHARED, (*LOADER, "zmq-forkserver-once")))
def test_workers_end_with_a_killed_training_process_while_one_lives_that_it_forked_later(
    cell: Cell, start_life: StartLife
) -> None:
    """Such a process holds what the training process held: pipes that end with their last holder do not end then."""
    life = start_life(pool_lives.wait_beside_a_sibling, cell)
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


@pytest.mark.parametrize("cell", cells(SHARED, (*LOADER, "Loader-spawn-once", "zmq-forkserver-once")))
def test_ctrl_c_is_one_keyboard_interrupt_and_nothing_is_left(cell: Cell, start_life: StartLife) -> None:
    life, _ = start_waiting(start_life, cell)
    os.killpg(life.pid, signal.SIGINT)  # As a terminal does.
    done = life.finish()
    assert done.returncode in INTERRUPTED
    assert done.stderr.count("Traceback") == done.stderr.count("KeyboardInterrupt") == 1, done.stderr


@pytest.mark.parametrize("cell", cells(SHARED, ("zmq-forkserver-once",)))
def test_sigterm_to_the_process_group_leaves_nothing(cell: Cell, start_life: StartLife) -> None:
    life, _ = start_waiting(start_life, cell)
    os.killpg(life.pid, signal.SIGTERM)
    assert life.finish().returncode == -signal.SIGTERM


@pytest.mark.parametrize("cell", cells(slow=("Loader-spawn-once", "shared-forkserver-once", "zmq-fork-once")))
def test_signals_to_the_process_group_are_the_scripts_alone(cell: Cell, numbered_root: str, run_life: RunLife) -> None:
    """The loop gets its batches, sees what its handler has noted, and another one goes on exactly."""
    life = run_life(pool_lives.get_signals, cell)
    assert (life["handled"], life["here"]) == (sorted(GROUP_SIGNALS), True)
    assert life["alive"] == NUM_WORKERS
    assert len(life["came"]) == HARMED_BATCH + 1
    assert as_places([*life["came"], *life["rest"]]) == planned(numbered_root, 0)


@pytest.mark.parametrize("cell", cells(SHARED, LOADER))
def test_a_process_of_multiprocessing_that_ends_with_an_open_loader_ends(cell: Cell, run_life: RunLife) -> None:
    """Its exit waits for workers, one of which is busy for ever."""
    assert run_life(pool_lives.leave_open_in_a_child, cell) == 0


@pytest.mark.parametrize("cell", cells(SHARED, LOADER))
def test_a_script_that_ends_with_a_stopped_worker_ends(cell: Cell, run_life: RunLife) -> None:
    assert len(run_life(pool_lives.leave_open, cell)) == NUM_WORKERS


@pytest.mark.parametrize("cell", cells(SHARED, (*LOADER, "zmq-fork-once")))
def test_many_epochs_leave_no_file_open_and_no_process(cell: Cell, run_life: RunLife) -> None:
    life = run_life(pool_lives.read_many_epochs, cell)
    assert max(life["open"][3:]) <= max(life["open"][:3]), life["open"]
    assert (life["alive"], life["others"]) == (0, [])


@pytest.mark.parametrize("cell", cells((), QUICK))
def test_a_loader_that_is_made_while_dev_shm_is_full_works_or_says_what_to_do(
    cell: Cell, numbered_root: str, run_life: RunLife, pytestconfig: pytest.Config
) -> None:
    check_full_memory(run_life(pool_lives.fill_shared_memory, cell, "before"), numbered_root, pytestconfig)


@pytest.mark.parametrize("cell", cells(LOADER, SHARED))
def test_a_loader_goes_on_exactly_when_dev_shm_becomes_full(
    cell: Cell, numbered_root: str, run_life: RunLife, pytestconfig: pytest.Config
) -> None:
    check_full_memory(run_life(pool_lives.fill_shared_memory, cell, "within"), numbered_root, pytestconfig)


def check_full_memory(life: dict[str, Any] | None, root: str, config: pytest.Config) -> None:
    if life is None:  # A container may forbid it.
        add_section(config, "not tested on this machine", lambda: ["a full /dev/shm, which needs a mount namespace"])
        return
    assert not life["said"] or re.search(r"/dev/shm.*is full.*--shm-size", life["said"], re.DOTALL)
    assert as_places([*life["came"], *life["rest"]]) == planned(root, 0)
    assert as_places(life["next epoch"]) == planned(root, 1)


# Children that the user forks


CHILDS_WAYS = ("nothing", "close", "iter", "next")


@pytest.mark.parametrize(
    ("way", "cell"),
    crossed(
        CHILDS_WAYS,
        quick={},
        slow={
            "Loader-fork-persistent": CHILDS_WAYS,
            "shared-fork-once": ("iter", "next"),
            "Loader-spawn-once": ("close",),
        },
    ),
)
def test_a_forked_child_leaves_the_workers_alone_and_no_batch_is_lost(
    way: str, cell: Cell, numbered_root: str, run_life: RunLife
) -> None:
    """It ends as scripts do, with multiprocessing's exit handler."""
    check_life_with_child(run_life(pool_lives.fork_in_the_middle, cell, "os.fork", way), way, cell, numbered_root)


@pytest.mark.parametrize(
    ("way", "cell"),
    crossed(
        ("close", "iter"),
        quick=dict.fromkeys(LOADER, ("iter",)),
        slow={"shared-fork-once": ("close", "iter"), "Loader-fork-persistent": ("close",)},
    ),
)
def test_a_child_of_multiprocessing_leaves_the_workers_alone_and_no_batch_is_lost(
    way: str, cell: Cell, numbered_root: str, run_life: RunLife
) -> None:
    check_life_with_child(
        run_life(pool_lives.fork_in_the_middle, cell, "multiprocessing", way), way, cell, numbered_root
    )


def check_life_with_child(life: dict[str, Any], way: str, cell: Cell, root: str) -> None:
    assert life["exit code"] == 7
    assert as_places(life["came"]) == planned(root, 0)
    assert as_places(life["next epoch"]) == planned(root, 1)
    assert life["same workers"]
    if way == "iter" and cell.method == "forkserver":
        assert "was forked from one that has a fork server" in life["child"]
    elif way == "iter":
        assert as_places(life["child"]) == planned(root, 3), "it has workers of its own"
    if way == "next":
        assert "process" in life["child"]


def as_places(found: list[Any]) -> list[Any]:
    """Returns what JSON makes of places as they were."""
    return [(epoch, number, tuple(index)) for epoch, number, index in found]
