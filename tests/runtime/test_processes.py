"""WorkerProcesses: workers are started, watched and ended by the process that owns them; and closing at exit."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.worker_output import WorkerOutput

Start = Callable[..., tuple[WorkerProcesses, list[Connection]]]
METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)]


def answer(link: Connection) -> None:
    """Reports its name and whether it is a daemon, and ends when the other side of the link is closed or sends."""
    current = multiprocessing.current_process()
    link.send((current.name, current.daemon))
    try:
        link.recv()
    except EOFError:
        return


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(method: Any, num_workers: int, **options: Any) -> tuple[WorkerProcesses, list[Connection]]:
        processes, links = WorkerProcesses(method, WorkerOutput(num_workers)), []
        started.append(processes)
        for _ in range(num_workers):
            ours, theirs = processes.context.Pipe()
            processes.start(answer, (theirs,), {}, **options)
            theirs.close()
            links.append(ours)
        return processes, links

    yield run
    for processes in started:
        processes.end(0.0)


@pytest.mark.parametrize("method", METHODS)
def test_workers_have_numbers_and_those_that_end_are_found(method: str, start: Start) -> None:
    processes, links = start(method, 2)
    assert [link.recv() for link in links] == [("tfds_torch worker 0", True), ("tfds_torch worker 1", True)]
    assert (processes.method, processes.is_owner, processes.find_dead({0, 1})) == (method, True, [])
    os.kill(processes.pids[1], signal.SIGKILL)
    assert processes.find_dead({0, 1}, 30.0) == [(1, processes.pids[1], -signal.SIGKILL)]
    assert processes.find_dead({0}) == []


def test_a_context_of_multiprocessing_may_be_given(start: Start) -> None:
    processes, links = start(multiprocessing.get_context("fork"), 1)
    assert links[0].recv() == ("tfds_torch worker 0", True)
    assert processes.method == "fork"


def test_a_worker_that_is_no_daemon_may_start_processes(start: Start) -> None:
    _, links = start("fork", 1, is_daemon=False)
    assert links[0].recv() == ("tfds_torch worker 0", False)


def test_workers_end_by_themselves_and_stopped_ones_by_sigkill(start: Start) -> None:
    processes, links = start("fork", 3)
    for link in links:
        link.recv()
    links[0].send("end")
    os.kill(processes.pids[1], signal.SIGSTOP)
    assert processes.find_dead({0}, 30.0) == [(0, processes.pids[0], 0)]
    processes.end(0.0)
    processes.end(0.0)
    assert [code for _, _, code in processes.find_dead({0, 1, 2})] == [0, -signal.SIGKILL, -signal.SIGKILL]


def test_workers_are_given_time_to_end(start: Start) -> None:
    processes, links = start("fork", 2)
    for link in links:
        link.recv()
        link.send("end")
    processes.end(3600.0)
    assert [code for _, _, code in processes.find_dead({0, 1})] == [0, 0]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_input_that_cannot_be_pickled_is_named(method: str) -> None:
    processes = WorkerProcesses(method, WorkerOutput(1))
    inputs = {"one": 1, "two": {"lock": threading.Lock()}}
    message = rf"^two\['lock'\] = a lock cannot be pickled .* started by '{method}' get it pickled"
    with pytest.raises(ConfigError, match=message):
        processes.start(print, (inputs,), inputs)
    with pytest.raises(TypeError, match="cannot pickle"):
        processes.start(print, (inputs,), {})
    assert processes.pids == []


FORKS = """
import os, sys
from tests_of_processes import answer
from tfds_torch.runtime.processes import WorkerProcesses
from tfds_torch.runtime.worker_output import WorkerOutput

processes = WorkerProcesses("fork", WorkerOutput(2))
links = []
for is_daemon in (True, False):
    ours, theirs = processes.context.Pipe()
    processes.start(answer, (theirs,), {}, is_daemon=is_daemon)
    theirs.close()
    ours.recv()
    links.append(ours)
if (pid := os.fork()) == 0:
    print(processes.is_owner, processes.find_dead({0, 1}), flush=True)
    processes.end(0.0)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(processes.is_owner, processes.find_dead({0, 1}, 0.1), flush=True)
for link in links:
    link.send("end")
processes.end(60.0)
print([code for _, _, code in processes.find_dead({0, 1})], flush=True)
"""


def test_a_forked_process_that_exits_leaves_the_workers_to_its_parent() -> None:
    script = FORKS.replace("tests_of_processes", __name__)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environ)
    assert (done.stdout, done.stderr) == ("False []\nTrue []\n[0, 0]\n", "")


def test_what_is_left_open_is_closed_before_multiprocessing_waits_for_its_children() -> None:
    script = """
import multiprocessing
from tfds_torch.runtime.processes import close_at_exit

class Holder:
    def __init__(self, name):
        self.name = name
        close_at_exit(self)
    def close(self):
        print("closed", self.name, len(multiprocessing.active_children()))

class Broken(Holder):
    def close(self):
        raise ValueError("broken")

dropped, kept, broken = Holder("dropped"), Holder("kept"), Broken("broken")
del dropped
multiprocessing.get_context("fork").Process(target=multiprocessing.Event().wait, daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("closed kept 1\n", 0)
    assert "could not be closed" in done.stderr
    assert done.stderr.endswith("ValueError: broken\n")


def test_ctrl_c_waits_while_workers_are_spawned() -> None:
    """multiprocessing starts a process of its own beside the first one, and lets the signal through afterwards."""
    script = """
import multiprocessing, signal
from tfds_torch.runtime.processes import interrupts_held

with interrupts_held("spawn"):
    multiprocessing.get_context("spawn").Lock()
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\nset()\n", "")
