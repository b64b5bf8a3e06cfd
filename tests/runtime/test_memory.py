"""Memory: freed memory stays, and pages that processes share are counted once."""

import json
import os
import subprocess
import sys

import pytest

from tfds_torch.runtime import memory
from tfds_torch.runtime.memory import tree_pss_bytes

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


def test_a_process_that_is_not_there_takes_nothing() -> None:
    assert tree_pss_bytes(2**22 + 1) == {}


def test_where_the_system_does_not_tell_there_are_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    assert tree_pss_bytes() == {}


# The allocator

ALLOCATING = """
import json, resource, sys
from tfds_torch.runtime.memory import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

was_set = keep_freed_memory() if sys.argv[1] == "kept" else None
counts = []
for _ in range(20):
    before = num_faults()
    blocks = [bytearray(8 << 20) for _ in range(4)]
    del blocks
    counts.append(num_faults() - before)
print(json.dumps([was_set, sum(counts[10:])]))
"""


def count_faults(how: str) -> tuple[bool | None, int]:
    done = subprocess.run([sys.executable, "-c", ALLOCATING, how], capture_output=True, text=True, check=True)
    was_set, num_faults = json.loads(done.stdout)
    return was_set, num_faults


def test_memory_that_was_freed_is_not_asked_for_again() -> None:
    was_set, num_kept = count_faults("kept")
    _, num_given_back = count_faults("given back")
    assert was_set is True
    assert num_kept < 100 < num_given_back
