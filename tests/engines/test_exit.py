"""A program may end while something is still being read."""

import pytest

SCRIPT = """
import os, sys, time
from tfds_torch import ParserTfds, ReadOptions, World, demo

pread = os.pread


def slow_pread(*args):
    time.sleep(0.02)
    return pread(*args)


os.pread = slow_pread
root = demo.prepare("digits")
parser = ParserTfds(root, "digits", is_training=True, batch_size=32, read=ReadOptions(mode=sys.argv[1]))
batches = parser.batches(World(), fields=("label",))
next(batches)
print("the end")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["index", pytest.param("examples", marks=pytest.mark.slow)])
def test_a_script_may_end_with_an_iterator_that_is_being_read(run_python, mode: str) -> None:
    done = run_python("-c", SCRIPT, mode)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the end\n"
    assert "Traceback" not in done.stderr
