"""exit_closing: what is left open is closed at the end of a process, and only what is still there."""

import subprocess
import sys


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
