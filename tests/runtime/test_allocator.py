"""The allocator of processes that decode: freed memory stays with the process."""

import json
import subprocess
import sys

_PROGRAM = """
import json, resource, sys
from tfds_torch.runtime.allocator import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

was_told = keep_freed_memory() if sys.argv[1] == "kept" else None
counts = []
for _ in range(20):
    before = num_faults()
    blocks = [bytearray(8 << 20) for _ in range(4)]
    del blocks
    counts.append(num_faults() - before)
print(json.dumps([was_told, sum(counts[10:])]))
"""


def count_faults(how: str) -> tuple[bool | None, int]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    was_told, num_faults = json.loads(done.stdout)
    return was_told, num_faults


def test_memory_that_was_freed_is_not_asked_for_again() -> None:
    was_told, num_kept = count_faults("kept")
    _, num_given_back = count_faults("given back")
    assert was_told is True
    assert num_kept < 100 < num_given_back
