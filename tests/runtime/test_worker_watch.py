"""What can be told of another process: how it ended, where it stands, what it is doing."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from tfds_torch.runtime.worker_watch import describe_exit, end_with_parent, process_state

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL (out of memory?)"),
        (-11, "was killed by SIGSEGV"),
        (
            -7,
            "was killed by SIGBUS (a file was cut while it was read as memory, such as a decoded cache, a .beton file "
            "or an index; or /dev/shm is full: a container has 64 MB of it unless it is given --shm-size or ",
        ),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_end_is_told_with_signal_and_hint(code: int, said: str) -> None:
    assert describe_exit(code).startswith(said)


def wait_when_told(link: Connection) -> None:
    link.send("here")
    threading.Event().wait(DEADLINE_S)


def start(target: Any) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def test_states_are_told_in_words() -> None:
    process, link = start(wait_when_told)
    link.recv()
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # It has stopped when this returns.
    assert process_state(process.pid) == ("T", "stopped")
    process.kill()
    process.join()
    assert process_state(process.pid) == ("?", "unknown")
    assert process_state(os.getpid())[1] in ("running", "sleeping")


def start_a_child_and_wait(link: Connection) -> None:
    process = multiprocessing.get_context("fork").Process(target=wait_with_watch, args=(link,), daemon=True)
    process.start()
    process.join()


def wait_with_watch(link: Connection) -> None:
    end_with_parent()
    link.send(os.getpid())
    threading.Event().wait(600)


def test_a_child_ends_when_its_parent_was_killed() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=start_a_child_and_wait, args=(theirs,))
    parent.start()
    theirs.close()
    child = psutil.Process(ours.recv())
    parent.kill()
    parent.join()
    assert psutil.wait_procs([child], DEADLINE_S)[1] == [] or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_nobody_started_watches_nobody() -> None:
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before
