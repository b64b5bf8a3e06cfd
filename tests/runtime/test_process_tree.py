"""process_tree: the family of a process, its state, and how it ended."""

import os
import signal
import subprocess
import sys

import pytest

from tfds_torch.runtime.process_tree import cpu_s, describe_exit, is_running, process_state, process_tree

GRANDPARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE)
input()
"""
NO_SUCH_PID = 2**22 + 1  # Greater than any that Linux gives.


def test_a_tree_is_a_process_and_its_descendants_parents_first() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # The grandchild runs.
        members = process_tree(process.pid)
        assert members[0] == process.pid
        assert len(members) == 2
        own = process_tree()
        assert own[0] == os.getpid()
        assert own.index(members[0]) < own.index(members[1])
        process.communicate(b"\n")


def test_a_process_that_is_not_there_is_alone_and_does_not_run() -> None:
    assert process_tree(NO_SUCH_PID) == [NO_SUCH_PID]
    assert not is_running(NO_SUCH_PID)
    assert cpu_s([NO_SUCH_PID]) is None


def test_one_that_ended_but_was_not_waited_for_does_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_running(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It stays a zombie.
    assert not is_running(process.pid)
    process.wait()


def test_processor_time_is_that_of_the_processes_together() -> None:
    before = cpu_s([os.getpid()])
    assert before is not None
    while os.times().user + os.times().system < before + 0.1:
        pass
    after = cpu_s([os.getpid(), NO_SUCH_PID])
    assert after is not None
    assert after >= before + 0.05


def test_states_are_described_in_words() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # It has stopped when this returns.
    assert process_state(process.pid) == ("T", "stopped")
    process.kill()
    process.communicate()
    assert process_state(process.pid) == ("?", "unknown")
    assert process_state(os.getpid())[1] in ("running", "sleeping")


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
