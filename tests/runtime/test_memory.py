"""Memory: freed memory stays, blocks are used again and never while used, shared pages are counted once."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch.runtime import memory
from tfds_torch.runtime.memory import ReusedMemory, tree_pss_bytes

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


# Blocks for batches

SHAPE = (4, 8, 8, 3)


def test_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    memory = ReusedMemory()
    pixels = memory.take(SHAPE)
    address = pixels.ctypes.data
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    del pixels
    part = images[1:2]
    del images
    array = part.numpy()
    del part
    other = memory.take(SHAPE)
    assert other.ctypes.data != address
    del array
    assert memory.take(SHAPE).ctypes.data == address


def test_memory_of_another_size_is_not_mixed_up() -> None:
    memory = ReusedMemory()
    first = memory.take(SHAPE)
    del first
    larger = memory.take((5, 8, 8, 3))
    assert larger.shape == (5, 8, 8, 3)
    larger[:] = 7
    assert (larger == 7).all()


def test_no_more_is_kept_than_may_be() -> None:
    for kept_bytes, number in ((0, 2), (2 * 768, 2), (4 * 768, 4), (9 * 768, 5)):
        memory = ReusedMemory(most_kept=2, kept_bytes=kept_bytes)
        taken = [memory.take(SHAPE) for _ in range(5)]
        taken.clear()
        assert len(memory._blocks) == number


def test_small_memory_is_not_kept_beside_large_memory_without_end() -> None:
    memory = ReusedMemory(most_kept=1, kept_bytes=100)
    taken = [memory.take((90,)), *(memory.take((5,)) for _ in range(4))]
    while taken:
        taken.pop(0)
    assert sorted(block.size for block in memory._blocks) == [5, 5, 90]


@pytest.mark.timeout(30)
def test_memory_may_be_given_back_while_some_is_taken_by_the_same_thread() -> None:
    """As garbage collection does it, which may run at any moment."""
    memory = ReusedMemory()
    taken = [memory.take(SHAPE)]

    class Blocks(list[Any]):
        def pop(self, *where: Any) -> Any:
            taken.clear()
            return super().pop(*where)

    memory._blocks = Blocks([np.empty(np.prod(SHAPE), np.uint8)])
    kept = memory.take(SHAPE)
    assert kept.shape == SHAPE
    assert len(memory._blocks) == 1


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
