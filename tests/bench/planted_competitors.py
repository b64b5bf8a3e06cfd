"""Competitors that do no work, or fail in the ways that real ones do. Importable, and light to import."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import IMAGE_SHAPE, Peer, Task

Epochs = Callable[[int], Iterable[Any]]


def peer(function: Callable[[Task], Epochs], name: str | None = None) -> Peer:
    """A peer that one of these functions stands for."""
    return Peer(name or function.__name__, f"the {function.__name__} one", f"{__name__}:{function.__name__}")


def steady(task: Task) -> Epochs:
    return lambda epoch: (
        np.zeros((min(task.batch_size, task.num_photos - start), *(task.image_shape or IMAGE_SHAPE)), np.uint8)
        for start in range(0, task.num_photos, task.batch_size)
    )


def not_installed(task: Task) -> Epochs:
    import a_package_that_is_not_there  # type: ignore[import-not-found]

    return a_package_that_is_not_there.load


def ffcv_not_installed(task: Task) -> Epochs:
    raise ModuleNotFoundError("No module named 'ffcv'", name="ffcv")


def fails_at_once(task: Task) -> Epochs:
    raise KeyError("lost\nand more lines")


def fails_in_epoch_1(task: Task) -> Epochs:
    epochs = steady(task)

    def run(epoch: int) -> Iterable[Any]:
        yield from epochs(epoch)
        if epoch == 1:
            raise OSError("the disk is gone")

    return run


def leaves_in_epoch_1(task: Task) -> Epochs:
    def run(epoch: int) -> Iterable[Any]:
        if epoch == 1:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        return steady(task)(epoch)

    return run


def is_killed_in_epoch_1(task: Task) -> Epochs:
    def run(epoch: int) -> Iterable[Any]:
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return steady(task)(epoch)

    return run


def hangs(task: Task) -> Epochs:
    """With a child; both tell their pid."""
    tell_pids(task, "hangs", start_child())

    def run(epoch: int) -> Iterable[Any]:
        threading.Event().wait()
        yield from ()

    return run


def busy(task: Task) -> Epochs:
    """Never rests between its epochs, nor does its child; both tell their pid."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    threading.Thread(target=spin, daemon=True).start()
    tell_pids(task, "busy", child.pid)
    return steady(task)


def spin() -> None:
    while True:
        pass


def works_for_0_2_s(task: Task) -> Epochs:
    """Of processor time, in every epoch."""

    def run(epoch: int) -> Iterable[Any]:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        yield from steady(task)(epoch)

    return run


def begins_slowly(task: Task) -> Epochs:
    """Takes 0.3 s when its loader is asked for an iterator, as one that starts workers does."""

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            time.sleep(0.3)
            return iter(steady(task)(0))

    return lambda epoch: (images for images in Loader())


def small_images(task: Task) -> Epochs:
    return lambda epoch: [np.zeros((4, 3, 32, 32), np.uint8)]


def floats(task: Task) -> Epochs:
    return lambda epoch: [np.zeros((4, *IMAGE_SHAPE), np.float32)]


def empty(task: Task) -> Epochs:
    return lambda epoch: []


def large(task: Task) -> Epochs:
    """50 MB, half of them in a child, throughout an epoch."""
    code = "data = bytearray(b'x') * 25_000_000; print(flush=True); import time; time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    data = bytearray(b"x") * 25_000_000
    return lambda epoch: data and steady(task)(epoch)


def start_child() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid


def tell_pids(task: Task, name: str, *others: int) -> None:
    """Writes the pids into `<data_dir>/<name>.pids`, whole or not at all."""
    path = Path(task.data_dir) / f"{name}.pids"
    path.with_suffix(".part").write_text(" ".join(map(str, (os.getpid(), *others))))
    path.with_suffix(".part").rename(path)
