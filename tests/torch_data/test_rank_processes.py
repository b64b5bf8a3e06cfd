"""iterate_ranks: ranks as torchrun starts them, and nothing is left of them, whatever happens."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime.ended import wait_until_ended
from torch.distributed.elastic.multiprocessing import api

from tfds_torch import errors
from tfds_torch.torch_data import rank_processes
from tfds_torch.torch_data.rank_processes import iterate_ranks
from torch_data import rank_functions

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No process, thread or file; and the launcher has not taken over this process's signals."""

    def state() -> Any:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        return [signal.getsignal(number) for number in numbers], set(threading.enumerate())

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, children = state(), set(psutil.Process().children(recursive=True))
    yield
    assert state() == before
    assert list(tmp_path.iterdir()) == []
    assert wait_until_ended(set(psutil.Process().children(recursive=True)) - children, DEADLINE_S) == []


def assert_end(pids: list[int]) -> None:
    """Asserts that processes end; those that were ours have been waited for."""
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    assert wait_until_ended(found, DEADLINE_S) == []
    assert not [child for child in psutil.Process().children() if child.pid in pids]


def take_until_error(items: Iterator[tuple[int, Any]]) -> tuple[list[tuple[int, Any]], Exception]:
    taken = []
    try:
        for item in items:
            taken.append(item)
    except errors.TfdsTorchError as error:
        return taken, error
    raise AssertionError(f"no error came, but {taken}")


# What a rank finds.


def check_facts(ranks: dict[int, dict[str, Any]]) -> None:
    """Checks what `rank_functions.facts_of_rank` returned on each of two ranks."""
    for rank, fact in ranks.items():
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        assert fact["environ"] == {**places, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        assert (fact["sum"], fact["num_ranks"], fact["backend"], fact["num_threads"]) == (3, 2, "gloo", 1)
    assert len({os.getpid(), *(fact["pid"] for fact in ranks.values())}) == 3


@pytest.mark.slow
def test_ranks_find_what_torchrun_gives_and_two_groups_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    groups = zip(*(iterate_ranks(rank_functions.describe, 2, 3) for _ in range(2)), strict=True)
    for items in zip(*groups, strict=True):
        ranks = {rank: [facts for other, facts in items if other == rank] for rank in range(2)}
        assert [[fact["number"] for fact in facts] for facts in ranks.values()] == [[0, 1, 2]] * 2
        check_facts({rank: facts[0] for rank, facts in ranks.items()})
        assert_end([facts[0]["pid"] for facts in ranks.values()])
    assert capfd.readouterr() == ("", "")  # Nothing of gloo, nothing of the launcher.


@pytest.mark.slow
def test_threads_that_the_user_set_are_left_alone_and_so_is_a_single_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ((rank, fact),) = iterate_ranks(rank_functions.describe, 1, 1)
    assert (rank, fact["sum"], fact["num_ranks"], fact["environ"]["OMP_NUM_THREADS"]) == (0, 1, 1, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("RANK", "7")  # Of the parent: a rank of ours has its own.
    for rank, fact in iterate_ranks(rank_functions.describe, 2, 1):
        assert (fact["environ"]["OMP_NUM_THREADS"], fact["environ"]["RANK"]) == ("3", str(rank))


@pytest.mark.slow
def test_items_come_from_all_ranks_while_others_still_run(capfd: pytest.CaptureFixture[str]) -> None:
    items = list(iterate_ranks(rank_functions.count_on_rank_0, 2))
    assert [item for item in items if item[0] == 0] == [(0, number) for number in range(100)]
    assert items.count((1, -1)) == len(items) - 100 == 1
    assert capfd.readouterr() == ("", "printed\n")


@pytest.mark.parametrize("num_replicas", [0, -1, 1.5, "2", True, None])
def test_a_number_of_ranks_that_cannot_be_is_refused(num_replicas: Any) -> None:
    with pytest.raises(errors.ConfigError, match=f"num_replicas={num_replicas!r}"):
        next(iterate_ranks(rank_functions.describe, num_replicas, 1))


def test_nothing_starts_before_the_first_item_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(rank_processes, "_launched", refuse)
    items = iterate_ranks(rank_functions.describe, 2, 1)
    with pytest.raises(AssertionError, match="started"):
        next(items)


# Failures.


KILLED = r"The process \(pid \d+\) was killed by SIGKILL \(out of memory\?\) before it had finished\."
FAILED = "it failed:\nTraceback(.|\n)*in raise_on_rank_1(.|\n)*KeyError: 'lost'\n"
FAILURES: dict[str, tuple[Callable[..., Iterator[Any]], tuple[Any, ...], type[Exception], str, int]] = {
    "raises": (rank_functions.raise_on_rank_1, ("KeyError",), errors.WorkerError, FAILED, 1),
    "raises an error of ours": (rank_functions.raise_on_rank_1, ("ShardError",), errors.ShardError, "it's 'broken'", 1),
    "dies": (rank_functions.die_on_rank_1, (False,), errors.WorkerError, KILLED, 1),
    # The worker keeps its sockets open: the others would not hear of its death from them.
    "dies, its worker lives": (rank_functions.die_on_rank_1, (True,), errors.WorkerError, KILLED, 2),
    "dies, the others hear of it first": (
        rank_functions.disconnect_and_die_on_rank_1,
        (),
        errors.WorkerError,
        KILLED,
        1,
    ),
    "dies, the others go on": (rank_functions.die_on_rank_1_while_others_count, (), errors.WorkerError, KILLED, 0),
}
"""What rank 1 does -> function and arguments, the error, and how many items of rank 1 come before it."""


@pytest.mark.slow
@pytest.mark.parametrize("what", [pytest.param("dies", marks=pytest.mark.campaign), *sorted({*FAILURES} - {"dies"})])
def test_the_first_failure_names_its_rank_and_ends_the_others(what: str) -> None:
    function, arguments, kind, message, num_items = FAILURES[what]
    num_replicas = 3 if what == "raises an error of ours" else 2
    taken, error = take_until_error(iterate_ranks(function, num_replicas, *arguments))
    assert type(error) is kind
    assert re.fullmatch(f"Rank 1 of {num_replicas}: {message}", str(error)), error
    assert [rank for rank, _ in taken].count(1) == num_items
    assert_end(sorted({pid for _, pid in taken}))


@pytest.mark.slow
def test_a_rank_that_stops_is_ended_and_named() -> None:
    taken, error = take_until_error(iterate_ranks(rank_functions.stop_on_rank_1, 2, stall_timeout_s=2.0))
    assert type(error) is errors.StallError
    assert str(error) == (
        "For 2 s nothing came from the ranks that are still running (1 of 2). Either the storage does not answer, or a "
        "rank is waiting for another: look at what their processes do."
    )
    assert_end([pid for _, pid in taken])


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_the_start_is_named() -> None:
    arguments = rank_functions.ignore, 2, rank_functions.HangOnRank1()
    _, error = take_until_error(iterate_ranks(*arguments, start_timeout_s=12.0))
    assert type(error) is errors.StallError
    assert str(error).startswith("The 2 ranks did not find each other: for 12 s none of them got any further (rank 0 ")
    assert "rank 0 is waiting for the others in init_process_group, rank 1 is loading its modules)" in str(error)
    assert "They meet at 127.0.0.1" in str(error)


def test_ranks_that_cannot_be_started_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(errors.WorkerError, match=r"The 2 ranks cannot be started: .*/nowhere/python"):
            next(iterate_ranks(rank_functions.describe, 2, 1))
    with monkeypatch.context() as patch:
        patch.setattr(rank_processes, "_BOOT", "import os; os._exit(7)")  # Before it opens its pipe.
        with pytest.raises(errors.WorkerError, match=r"Rank [01] of 2: The process \(pid \d+\) ended with exit code 7"):
            next(iterate_ranks(rank_functions.describe, 2, 1))


def test_a_rank_ends_by_itself_where_another_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = api.get_subprocess_handler, []

    def start_rank_0(**options: Any) -> Any:
        if options["local_rank_id"] == 1:
            raise BlockingIOError("no more processes")
        started.append(start(**options))
        return started[0]

    monkeypatch.setattr(api, "get_subprocess_handler", start_rank_0)
    with pytest.raises(errors.WorkerError, match="The 2 ranks cannot be started: no more processes"):
        next(iterate_ranks(rank_functions.describe, 2, 1))
    assert started[0].proc.wait(DEADLINE_S) == 1


# Ends.


def test_closing_ends_the_ranks_and_leaves_no_process_or_semaphore(capfd: pytest.CaptureFixture[str]) -> None:
    items = iterate_ranks(rank_functions.hold_things_for_ever, 2)
    held: dict[int, dict[str, Any]] = {}
    while len(held) < 2:
        held.update([next(items)])
    check_facts(held)
    assert Path("/dev/shm", f"sem.{held[1]['semaphore'].strip('/')}").exists()
    items.close()
    assert_end([pid for facts in held.values() for pid in facts["pids"]])
    for facts in held.values():
        assert not (Path("/dev/shm") / f"sem.{facts['semaphore'].strip('/')}").exists()
    assert list(items) == []
    assert capfd.readouterr() == ("", "")


INTERRUPTED = """
import os, signal, sys
from torch_data import rank_functions
from tfds_torch.torch_data.rank_processes import iterate_ranks

held = {}
try:
    for rank, facts in iterate_ranks(getattr(rank_functions, sys.argv[2]), 2):
        if rank not in held:
            held[rank] = facts
            print(*facts["pids"], flush=True)
        if len(held) == 2:
            os.killpg(os.getpgrp(), signal.SIGINT if sys.argv[1] == "ctrl-c" else signal.SIGKILL)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "function"), [("ctrl-c", "hold_things_for_ever"), ("killed", "wait_for_ever")])
def test_ctrl_c_and_the_parents_death_end_the_ranks(root: Path, tmp_path: Path, how: str, function: str) -> None:
    path = os.pathsep.join([str(root), str(root / "tests")])
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), how, function],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        output, complaints = process.communicate(timeout=DEADLINE_S)
    lines = output.splitlines()
    assert complaints == ""
    if how == "ctrl-c":
        assert (process.returncode, lines.pop()) == (0, "interrupted")
    else:
        assert process.returncode == -signal.SIGKILL
    assert_end([int(pid) for line in lines for pid in line.split()])
