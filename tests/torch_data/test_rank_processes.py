"""iterate_ranks: ranks as torchrun starts them, and nothing is left of them, whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime.ended import wait_until_ended

from tfds_torch import ParserTfds, errors
from tfds_torch.torch_data import rank_processes
from tfds_torch.torch_data.rank_processes import iterate_ranks
from torch_data import rank_functions

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def no_threads_of_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of this process may stay behind either."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")]


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
    """Checks what `rank_functions.facts_of_torchrun` returned on each of two ranks."""
    ports = set()
    for rank, fact in ranks.items():
        ports.add(fact["environ"].pop("MASTER_PORT"))
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        assert fact["environ"] == {**places, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        assert (fact["sum"], fact["num_ranks"], fact["backend"], fact["num_threads"]) == (3, 2, "gloo", 1)
    assert len(ports) == 1
    assert len({os.getpid(), *(fact["pid"] for fact in ranks.values())}) == 3


@pytest.mark.slow
def test_every_rank_finds_what_torchrun_gives_it(capfd: pytest.CaptureFixture[str]) -> None:
    items = list(iterate_ranks(rank_functions.describe, 2, 3))
    ranks = {rank: [facts for other, facts in items if other == rank] for rank in range(2)}
    assert [[fact["number"] for fact in facts] for facts in ranks.values()] == [[0, 1, 2]] * 2
    check_facts({rank: facts[0] for rank, facts in ranks.items()})
    assert_end([facts[0]["pid"] for facts in ranks.values()])
    assert capfd.readouterr() == ("", "")  # Nothing of gloo, nothing of a store that went away.


@pytest.mark.slow
def test_threads_that_the_user_set_are_left_alone_and_so_is_a_single_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ((rank, fact),) = iterate_ranks(rank_functions.describe, 1, 1)
    assert (rank, fact["sum"], fact["num_ranks"], fact["environ"]["OMP_NUM_THREADS"]) == (0, 1, 1, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("RANK", "7")  # Of the parent: a rank of ours has its own.
    for rank, fact in iterate_ranks(rank_functions.describe, 2, 1):
        assert (fact["environ"]["OMP_NUM_THREADS"], fact["environ"]["RANK"]) == ("3", str(rank))


@pytest.mark.slow
def test_items_come_from_all_ranks_while_others_still_run() -> None:
    items = list(iterate_ranks(rank_functions.count_on_rank_0, 2))
    assert [item for item in items if item[0] == 0] == [(0, number) for number in range(100)]
    assert items.count((1, -1)) == len(items) - 100 == 1


@pytest.mark.slow
def test_two_groups_at_the_same_time_do_not_mix() -> None:
    one, other = (iterate_ranks(rank_functions.describe, 2, 2) for _ in range(2))
    pairs = list(zip(one, other, strict=True))
    ports = [{item[1]["environ"]["MASTER_PORT"] for item in items} for items in zip(*pairs, strict=True)]
    assert [len(found) for found in ports] == [1, 1]
    assert ports[0] != ports[1]


@pytest.mark.parametrize("num_replicas", [0, -1, 1.5, "2", True, None])
def test_a_number_of_ranks_that_cannot_be_is_refused(num_replicas: Any) -> None:
    with pytest.raises(errors.ConfigError, match=f"num_replicas={num_replicas!r}"):
        next(iterate_ranks(rank_functions.describe, num_replicas, 1))


def test_nothing_starts_before_the_first_item_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(rank_processes._Ranks, "start", refuse)
    items = iterate_ranks(rank_functions.describe, 2, 1)
    with pytest.raises(AssertionError, match="started"):
        next(items)


# Failures.


@pytest.mark.slow
def test_the_first_failure_ends_ranks_that_wait_for_it_and_names_its_rank() -> None:
    taken, error = take_until_error(iterate_ranks(rank_functions.raise_on_rank_1, 2, "KeyError"))
    assert type(error) is errors.WorkerError
    assert str(error).startswith("Rank 1 of 2: it failed:\nTraceback")
    assert "KeyError: 'lost'" in str(error)
    assert "in raise_on_rank_1" in str(error)
    assert_end([pid for _, pid in taken])


@pytest.mark.slow
def test_a_failure_of_ours_keeps_its_type_and_message() -> None:
    taken, error = take_until_error(iterate_ranks(rank_functions.raise_on_rank_1, 3, "ShardError"))
    assert type(error) is errors.ShardError
    assert str(error) == "Rank 1 of 3: it's 'broken'"
    assert_end([pid for _, pid in taken])


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_though_its_worker_lives_and_the_others_wait() -> None:
    """The worker keeps the dead rank's pipe and sockets open: nobody would hear of its death from them."""
    taken, error = take_until_error(iterate_ranks(rank_functions.die_on_rank_1, 2, True))
    assert type(error) is errors.WorkerError
    assert str(error).startswith("Rank 1 of 2: The process (pid ")
    assert "was killed by SIGKILL (out of memory?)" in str(error)
    assert len(taken) == 3
    assert_end([pid for _, pid in taken])


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_a_rank_that_is_killed_is_named_and_not_the_one_that_lost_its_connection_to_it(is_slow: bool) -> None:
    dying = rank_functions.disconnect_and_die_on_rank_1 if is_slow else partial(rank_functions.die_on_rank_1, False)
    for _ in range(2):
        _, error = take_until_error(iterate_ranks(dying, 2))
        assert str(error).startswith("Rank 1 of 2: The process (pid ")


@pytest.mark.slow
def test_a_rank_that_is_killed_is_noticed_while_another_runs_on() -> None:
    taken, error = take_until_error(iterate_ranks(rank_functions.die_on_rank_1_while_rank_0_counts, 2))
    assert str(error).startswith("Rank 1 of 2: The process (pid ")
    assert_end(list({pid for _, pid in taken}))


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
    before = {child.pid for child in psutil.Process().children()}
    arguments = rank_functions.ignore, 2, rank_functions.HangOnRank1()
    _, error = take_until_error(iterate_ranks(*arguments, start_timeout_s=20.0))
    assert type(error) is errors.StallError
    assert str(error).startswith("The 2 ranks did not find each other: for 20 s none of them got any further (rank 0 ")
    assert "rank 0 is waiting for the others in init_process_group, rank 1 is loading its modules)" in str(error)
    assert "They meet at 127.0.0.1" in str(error)
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.slow
def test_a_rank_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    _, error = take_until_error(iterate_ranks(rank_functions.describe, 2, 1))
    assert type(error) is errors.WorkerError
    assert "/nowhere/python" in str(error)


@pytest.mark.slow
def test_ranks_with_different_seeds_raise_on_every_rank(data_root: Path) -> None:
    parsers = [ParserTfds(data_root, "digits", is_training=True, batch_size=8, seed=seed) for seed in (1, 2)]
    told = dict(iterate_ranks(rank_functions.compare_ranks, 2, parsers))
    assert set(told) == {0, 1}
    for message in told.values():
        assert "seed is 1 on rank 0, 2 on rank 1" in message
    assert list(iterate_ranks(rank_functions.compare_ranks, 2, parsers[:1] * 2)) == []


# Ends.


def test_closing_ends_the_ranks_and_leaves_no_process_semaphore_or_port(capfd: pytest.CaptureFixture[str]) -> None:
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
        socket.create_server(("127.0.0.1", facts["port"])).close()
    assert list(items) == []
    assert capfd.readouterr() == ("", "")


INTERRUPTED = """
import os, signal, sys
from tfds_torch.torch_data.rank_processes import iterate_ranks
from torch_data import rank_functions

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
def test_ctrl_c_and_the_parents_death_end_the_ranks(root: Path, how: str, function: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), how, function],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])},
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
