"""process_tree: the family of a process, its memory, its state, and how it ended."""

import os
import signal
import subprocess
import sys

import pytest

from tfds_torch.runtime.process_tree import describe_exit, process_state, process_tree, tree_pss_bytes

GRANDPARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE)
input()
"""
NUM_BYTES = 50_000_000
CHILD = f"data = bytearray(b'x') * {NUM_BYTES}; print(flush=True); input()"
FORKED = f"""
import os
data = bytearray(b'x') * {NUM_BYTES}
pid = os.fork()
if pid == 0:
    print(flush=True)
    os.read(0, 1)
    os._exit(0)
os.waitpid(pid, 0)
"""
NO_SUCH_PID = 2**22 + 1  # Greater than any that Linux gives.


def test_a_tree_is_a_process_and_its_descendants_parents_first() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # The grandchild runs.
        members = [member.pid for member in process_tree(process.pid)]
        assert members[0] == process.pid
        assert len(members) == 2
        own = [member.pid for member in process_tree()]
        assert own[0] == os.getpid()
        assert own.index(members[0]) < own.index(members[1])
        process.communicate(b"\n")


def test_a_process_that_is_not_there_has_no_tree_and_no_memory() -> None:
    assert process_tree(NO_SUCH_PID) == []
    assert tree_pss_bytes(NO_SUCH_PID) == {}


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


# Memory.


def start(code: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_child_s_memory_is_counted_to_the_tree_and_this_process_comes_first() -> None:
    with start(CHILD) as process:
        sizes = tree_pss_bytes()
        process.communicate(b"\n")
    assert next(iter(sizes)) == os.getpid()
    assert NUM_BYTES < sizes[process.pid] < 2 * NUM_BYTES


def test_pages_shared_after_a_fork_are_counted_once() -> None:
    with start(FORKED) as process:
        sizes = tree_pss_bytes(process.pid)
        process.communicate(b"\n")
    assert len(sizes) == 2
    assert NUM_BYTES < sum(sizes.values()) < 1.5 * NUM_BYTES
