"""What a MultiLoader reports of workers that die, stop, hang or fail; and what they do when their parent dies."""

import dataclasses
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from loaders import sources
from loaders.sources import NUM_ITEMS, Harmed
from tfds_torch import MultiLoader, World
from tfds_torch.errors import StallError, WorkerError
from tfds_torch.loaders.item_codec import ItemCodec
from tfds_torch.loaders.transport import END, ITEM, Message, PipeSender
from tfds_torch.loaders.wire import Outgoing
from tfds_torch.loaders.zmq_transport import ZmqSender

slow, campaign = pytest.mark.slow, pytest.mark.campaign
AreGone = Callable[[list[int]], bool]
WAYS = [
    pytest.param("fork", "shared"),
    pytest.param("fork", "zmq"),
    pytest.param("spawn", "shared", marks=slow),
    pytest.param("forkserver", "zmq", marks=slow),
]
STALL_S = 1.5


def meet(
    how: str, method: str, transport: str, persistent: bool = False
) -> tuple[list[int], list[int], Exception, float]:
    """Returns what came, the workers' pids, the error, and how long it took to come."""
    loader = MultiLoader(
        Harmed(how),
        2,
        start_method=method,
        transport=transport,
        persistent_workers=persistent,
        timeout_s=60.0,
    )
    came: list[int] = []
    iteration = iter(loader)
    pids = loader.worker_pids
    came.append(next(iteration))
    if how in ("stop", "hang"):  # Not before: a start may take longer.
        iteration._batches._faults.timeout_s = STALL_S
    begun_at = time.monotonic()
    with pytest.raises((WorkerError, StallError)) as caught:
        came.extend(iteration)
    waited_s = time.monotonic() - begun_at
    loader.close()
    return came, pids, caught.value, waited_s


def check_harm(how: str, method: str, transport: str, are_gone: AreGone, persistent: bool = False) -> None:
    came, pids, error, waited_s = meet(how, method, transport, persistent)
    assert came == list(range(NUM_ITEMS))[: len(came)]
    assert len(came) <= 5
    assert waited_s < 30
    if how in ("stop", "hang"):
        assert isinstance(error, StallError)
        state = "stopped (T)" if how == "stop" else "sleeping (S)"
        assert f"Worker 1 (pid {pids[1]}), whose turn it is, is {state} and reads Harmed" in str(error)
    else:
        assert isinstance(error, WorkerError)
        said = {"kill": "was killed by SIGKILL (out of memory?)", "exit": "ended with exit code 0"}[how]
        assert str(error).startswith(f"Worker 1 (pid {pids[1]}) {said} while it read Harmed. Begin the epoch again")
        assert str(error).endswith("The last that worker 1 wrote to standard error:\nthe last words")
    assert are_gone(pids)


@pytest.mark.parametrize("how", ["kill", "exit", "stop", "hang"])
@pytest.mark.parametrize(("method", "transport"), WAYS)
def test_a_worker_that_is_harmed_is_an_error_that_names_it(
    how: str, method: str, transport: str, are_gone: AreGone
) -> None:
    check_harm(how, method, transport, are_gone)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["kill", "exit", "stop"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("num_injections", [pytest.param(20, marks=slow), pytest.param(100, marks=campaign)])
def test_every_one_of_many_injections_is_an_error_and_leaves_nothing(
    how: str, method: str, num_injections: int, are_gone: AreGone
) -> None:
    num_open = []
    for number in range(num_injections):
        check_harm(how, method, ("shared", "zmq")[number % 2], are_gone, persistent=number % 4 >= 2)
        gc.collect()  # Of the errors' frames, which pytest has kept.
        num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[-1] <= max(num_open[:4])


def test_timeout_s_limits_the_wait_for_an_item_and_not_the_epoch(tmp_path: Path) -> None:
    """The training loop takes longer than it for a step, and then has to wait for the next item, but not as long."""
    gate, timeout_s = tmp_path / "gate", 3.0
    source = partial(sources.numbers_after, gate)
    with MultiLoader(source, 1, timeout_s=timeout_s, start_method="fork") as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        time.sleep(timeout_s + 0.1)
        threading.Timer(0.7, gate.touch).start()
        assert list(iteration) == list(range(1, NUM_ITEMS))


def test_the_next_iteration_after_a_death_is_whole() -> None:
    with MultiLoader(sources.numbers, 2, persistent_workers=True, timeout_s=60.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        os.kill(loader.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^Worker 1 \(pid \d+\) was killed by SIGKILL"):
            list(iteration)
        loader.set_epoch(0)
        assert list(loader) == list(range(NUM_ITEMS))


def test_a_worker_that_dies_is_noticed_at_once_without_a_time_limit() -> None:
    with MultiLoader(sources.numbers, 2, timeout_s=None) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        os.kill(loader.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^Worker 1 \(pid \d+\) was killed by SIGKILL"):
            list(iteration)


def test_a_persistent_worker_that_died_between_epochs_is_replaced() -> None:
    with MultiLoader(sources.numbers, 2, persistent_workers=True, timeout_s=60.0) as loader:
        assert list(loader) == list(range(NUM_ITEMS))
        (killed,) = (child for child in multiprocessing.active_children() if child.pid == loader.worker_pids[0])
        killed.kill()
        killed.join()
        assert list(loader) == list(range(NUM_ITEMS))


@pytest.mark.parametrize("transport", ["shared", "zmq"])
def test_an_exception_keeps_its_type_and_shows_where_it_was_raised(transport: str, are_gone: AreGone) -> None:
    loader = MultiLoader(sources.failing, 2, transport=transport, timeout_s=60.0)
    iteration = iter(loader)
    pids = loader.worker_pids
    assert [next(iteration), next(iteration)] == [0, 1]
    with pytest.raises(KeyError, match=rf"(?s)no such thing.*Raised in worker 0 \(pid {pids[0]}\):.*in failing"):
        next(iteration)
    with pytest.raises(StopIteration):
        next(iteration)
    assert are_gone(pids)


@slow
def test_what_a_spawned_worker_cannot_import_is_told_with_its_remedy(run_parent: Callable[..., Any]) -> None:
    process = run_parent(
        "sys.modules['__main__'].hidden = type('Hidden', (), {'__call__': sources.Whole, '__module__': '__main__'});"
        " sys.modules['__main__'].Hidden = sys.modules['__main__'].hidden;"
        " next(iter(MultiLoader(Hidden(), 1, start_method='spawn')))"
    )
    _, told = process.communicate(timeout=60)
    assert "could not begin: it does not find 'Hidden' in the main module." in told
    assert "in a module that you import; or start workers with start_method='fork'" in told


def test_what_fails_before_the_first_item_is_raised_as_well() -> None:
    with pytest.raises(LookupError, match="worker 0 finds nothing"):
        next(iter(MultiLoader(sources.failing_at_once, 2, timeout_s=60.0)))


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_the_sources_own_end_of_file_is_not_taken_for_the_loops(error: type[Exception], is_at_once: bool) -> None:
    source = partial(_cut_at_once if is_at_once else _cut_short, error)
    with pytest.raises(error, match="the file is cut"):  # Nothing more may be sent that would let it look.
        list(MultiLoader(source, 1, prefetch_batches=1, timeout_s=60.0))


def _cut_at_once(error: type[Exception], world: World) -> Any:
    raise error("the file is cut")


def _cut_short(error: type[Exception], world: World) -> Iterator[int]:
    yield 0
    raise error("the file is cut")


def test_an_item_that_does_not_travel_is_named_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^item\['bad'\]\[0\] is a builtins.set: a MultiLoader carries dicts"):
        next(iter(MultiLoader(sources.with_a_set, 1, timeout_s=60.0)))


def test_a_function_that_returns_nothing_is_told() -> None:
    with pytest.raises(ValueError, match=r"_none\(World\(.*\) returned None, which cannot be iterated"):
        next(iter(MultiLoader(_none, 1, timeout_s=60.0)))


def _none(world: World) -> Any:
    return None


# Messages that cannot be read: workers are forked after the wire was changed.


@pytest.mark.parametrize("transport", ["shared", "zmq"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tree": ["a", 3]}, "sent an invalid item: a value names a buffer"),
        ({"tree": ["x"], "parts": ()}, "sent an invalid item"),
    ],
)
def test_an_item_that_cannot_be_read_is_a_worker_error_that_names_the_worker(
    change: dict[str, Any], said: str, transport: str, monkeypatch: pytest.MonkeyPatch, are_gone: AreGone
) -> None:
    write = ItemCodec.write

    def change_item(self: ItemCodec, message: Message) -> Outgoing:
        outgoing = write(self, message)
        return dataclasses.replace(outgoing, **change) if message.worker == 1 and message.kind == ITEM else outgoing

    monkeypatch.setattr(ItemCodec, "write", change_item)
    loader = MultiLoader(sources.numbers, 2, transport=transport, timeout_s=60.0, start_method="fork")
    iteration = iter(loader)
    pids = loader.worker_pids
    with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid {pids[1]}\) {said}"):
        list(iteration)
    assert are_gone(pids)


@pytest.mark.parametrize(
    ("kind", "number", "said"),
    [(END, 9, "sent item 9 after 6 items"), (ITEM, 9, "sent item 9 after 0 items")],
)
@pytest.mark.parametrize("transport", ["shared", "zmq"])
def test_an_item_that_is_missing_is_a_worker_error(
    kind: int, number: int, said: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = PipeSender if transport == "shared" else ZmqSender
    send = sender.send

    def skip(self: Any, message: Message) -> None:
        if message.worker == 1 and message.kind == kind:
            message = dataclasses.replace(message, number=number)
        send(self, message)

    monkeypatch.setattr(sender, "send", skip)
    with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid \d+\) {said}"):
        list(MultiLoader(sources.numbers, 2, transport=transport, timeout_s=60.0, start_method="fork"))


def test_bytes_that_are_no_message_are_a_worker_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def babble(self: Any, message: Message) -> None:
        os.write(self._connection.fileno(), b"\xff" * 100)

    monkeypatch.setattr(PipeSender, "send", babble)
    with pytest.raises(WorkerError, match=r"^Worker 0 \(pid \d+\) sent a message of kind 255 with "):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))


def test_a_worker_that_closes_its_end_and_lives_on_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any, message: Message) -> None:
        self._connection.close()
        time.sleep(3600)

    monkeypatch.setattr(PipeSender, "send", leave)
    with pytest.raises(WorkerError, match="has closed its end of the pipe"):
        next(iter(MultiLoader(sources.numbers, 1, start_method="fork", timeout_s=60.0)))


# The training process goes away.

PARENT = """
import os, sys, time
sys.path[:0] = {path!r}
from loaders import sources
from tfds_torch import MultiLoader

if __name__ == "__main__":
    loader = MultiLoader(sources.endless, 2, transport={transport!r}, start_method={method!r})
    iteration = iter(loader)
    next(iteration)
    print(*loader.worker_pids, flush=True)
    {then}
"""


@pytest.fixture
def run_parent(tmp_path: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running = []

    def run(then: str, transport: str = "shared", method: str = "fork") -> subprocess.Popen[str]:
        script = tmp_path / "parent.py"
        path = [entry for entry in sys.path if entry]
        script.write_text(textwrap.dedent(PARENT.format(path=path, transport=transport, method=method, then=then)))
        running.append(
            subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize(("method", "transport"), [("fork", "shared"), pytest.param("spawn", "zmq", marks=slow)])
def test_workers_end_when_their_parent_is_killed(
    method: str, transport: str, run_parent: Callable[..., subprocess.Popen[str]], are_gone: AreGone
) -> None:
    process = run_parent("time.sleep(3600)", transport, method)
    pids = pids_of(process)
    assert len(pids) == 2
    process.kill()
    assert are_gone(pids)


def test_workers_end_when_their_parent_is_killed_while_a_process_lives_that_it_forked_later(
    run_parent: Callable[..., subprocess.Popen[str]], are_gone: AreGone
) -> None:
    """Such a process holds what the parent held: pipes that end with their last holder do not end with the parent."""
    process = run_parent("sibling = os.fork(); sibling and print(sibling, flush=True); time.sleep(3600)")
    pids, (sibling,) = pids_of(process), pids_of(process)
    try:
        process.kill()
        assert are_gone(pids)
        assert psutil.pid_exists(sibling)
    finally:
        for pid in (sibling, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_everything_without_a_word_of_workers(
    run_parent: Callable[..., subprocess.Popen[str]], are_gone: AreGone
) -> None:
    process = run_parent("for _ in iteration: pass")
    pids = pids_of(process)
    for pid in [process.pid, *pids]:  # As a terminal does.
        os.kill(pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert told.count("Traceback") == 1
    assert are_gone(pids)


def test_a_script_that_ends_with_a_stopped_worker_ends(
    run_parent: Callable[..., subprocess.Popen[str]], are_gone: AreGone
) -> None:
    process = run_parent("os.kill(loader.worker_pids[0], 19)")
    pids = pids_of(process)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
    assert are_gone(pids)


def test_a_process_that_was_forked_leaves_the_workers_alone() -> None:
    with MultiLoader(partial(sources.numbers), 2, timeout_s=60.0) as loader:
        iteration = iter(loader)
        assert next(iteration) == 0
        child = multiprocessing.get_context("fork").Process(target=loader.close)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert list(iteration) == list(range(1, NUM_ITEMS))
