"""A peer that does no work, or fails in the ways that real ones do, as the option `kind` says."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import Epochs, Task, serve


def load(task: Task) -> Epochs:
    """Tells its pid and that of a child in the file of the option `pids`."""
    kind = task.options["kind"]
    print("what a library prints")
    if kind == "not installed":
        import a_package_that_is_not_there  # type: ignore[import-not-found]

        return a_package_that_is_not_there.load
    if pids := task.options.get("pids"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        Path(f"{pids}.part").write_text(f"{os.getpid()} {child.pid}")
        Path(f"{pids}.part").rename(pids)

    def epochs(number: int) -> Iterator[Any]:
        if kind == "slow to begin":
            time.sleep(0.3)
        if kind == "killed in epoch 1" and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "leaves in epoch 1" and number == 1:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        if kind == "hangs":
            time.sleep(1000)
        for start in range(0, 0 if kind == "empty" else task.num_examples, task.batch_size):
            shape = (min(task.batch_size, task.num_examples - start), *(task.image_shape or ()))
            yield np.zeros(shape, np.float32 if kind == "floats" else np.uint8)
        if kind == "fails in epoch 1" and number == 1:
            raise OSError("the disk is gone\nand more lines")

    return epochs


def prepare(task: Task) -> None:
    Path(task.files, "made").write_text(task.options["kind"])


if __name__ == "__main__":
    serve(load, ("numpy",), prepare=prepare, install="pip install it")
