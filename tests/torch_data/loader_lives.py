"""Lives of processes whose loaders meet faults: `loader_lives.py FUNCTION ARGUMENTS...` prints the result as JSON."""

import faulthandler
import json
import os
import signal
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

from tfds_torch import create_loader
from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime.group_signals import GROUP_SIGNALS
from tfds_torch.torch_data.foreign import ForeignWorkers

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

from torch_data.loader_datasets import Harmed


def make_loader(how: str, method: str, persistent: str, timeout_s: str, folder: str = "") -> Any:
    """Returns a loader over `Harmed`; method `none`: without workers."""
    num_workers = 0 if method == "none" else 2
    return create_loader(
        Harmed(how, folder),
        num_workers,
        timeout_s=float(timeout_s),
        persistent_workers=persistent == "persistent",
        multiprocessing_context=method if num_workers else None,
    )


def meet(how: str, method: str, persistent: str, timeout_s: str) -> dict[str, Any]:
    """Reads two epochs, in the first of which something happens."""
    with tempfile.TemporaryDirectory() as folder:
        loader = make_loader(how, method, persistent, timeout_s, folder)
        result: dict[str, Any] = {"came": [], "error": None, "message": ""}
        asked_at = time.monotonic()
        try:
            iteration = iter(loader)
            result["pids"] = loader.worker_pids
            for image, _ in iteration:
                result["came"].append(int(image[0, 0, 0, 0]))
                asked_at = time.monotonic()
        except (TfdsTorchError, ValueError) as error:
            result["error"], result["message"] = type(error).__name__, str(error)
        result["waited_s"] = time.monotonic() - asked_at
        result["again"] = [int(image[0, 0, 0, 0]) for image, _ in loader]
        start = time.monotonic()
        loader.close()
        result["close_s"] = time.monotonic() - start
    result["tensorflow"] = "tensorflow" in sys.modules
    return result


def get_signals(method: str) -> dict[str, Any]:
    """Reads an epoch while its process group gets the signals of job schedulers, which its handlers note."""
    reads, writes = os.pipe()
    for number in GROUP_SIGNALS:
        signal.signal(number, lambda number, _: os.write(writes, f"{number} {os.getpid()}\n".encode()))
    with make_loader("slow", method, "once", "100") as loader:
        iteration = iter(loader)
        came = [int(image[0, 0, 0, 0]) for image, _ in islice(iteration, 2)]
        for number in GROUP_SIGNALS:
            os.killpg(os.getpgrp(), number)
        came += [int(image[0, 0, 0, 0]) for image, _ in iteration]
    handled = [line.split() for line in os.read(reads, 4096).decode().splitlines()]
    here = {int(pid) for _, pid in handled} == {os.getpid()}
    return {"came": came, "handled": sorted(int(number) for number, _ in handled), "here": here}


def wait_for_ever(how: str, method: str, persistent: str, timeout_s: str) -> None:
    """Tells the workers' pids once the second batch is there, and waits in `next` for the one that never comes."""
    for number, _ in enumerate(make_loader(how, method, persistent, timeout_s)):
        if number == 1:
            loader_pids = [child.pid for child in _children()]
            print(json.dumps(loader_pids), flush=True)


def wait_beside_a_sibling(method: str) -> None:
    """As `wait_for_ever`, with a process that was forked after the workers; tells the workers' pids and its own."""
    loader = make_loader("sleep", method, "persistent", "100")
    iteration = iter(loader)
    for _ in range(2):
        next(iteration)
    sibling = os.fork()
    if not sibling:
        time.sleep(3600)
    print(json.dumps([*loader.worker_pids, sibling]), flush=True)
    for _ in iteration:
        pass


def leave_open(method: str) -> list[int]:
    """Ends while a stopped worker is there, and a loader that nobody has closed."""
    loader = make_loader("sleep", method, "persistent", "60")
    iteration = iter(loader)
    for _ in range(2):  # From here. A worker that stops by itself may hold the lock with which all of them send.
        next(iteration)
    os.kill(loader.worker_pids[1], signal.SIGSTOP)
    globals()["kept"] = loader, iteration
    return loader.worker_pids


def interrupt_within_a_lock(persistent: str, until: str) -> dict[str, Any]:
    """Ctrl-C comes just when torch has taken the lock of a queue, which is locked for good then.

    Args:
        persistent: as in `make_loader`.
        until: "exit": the error is kept as long as the process lives, as an interactive session does; else it is not.
    """
    faulthandler.dump_traceback_later(20, exit=True)
    ForeignWorkers.end.__defaults__ = (0.2,)  # Of the waits that must not be for ever.
    enter = threading.Condition.__enter__

    def enter_and_interrupt(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.current_thread() is threading.main_thread():
            threading.Condition.__enter__ = enter  # type: ignore[method-assign]
            raise KeyboardInterrupt
        return entered

    loader = make_loader("slow", "fork", persistent, "100")
    iteration = iter(loader)
    next(iteration)
    pids = loader.worker_pids
    threading.Condition.__enter__ = enter_and_interrupt  # type: ignore[method-assign]
    try:
        next(iteration)
    except KeyboardInterrupt as error:
        globals()["kept"] = error
    result = {"left": [pid for pid in pids if os.path.exists(f"/proc/{pid}")], "again": len(list(loader))}
    loader.close()
    if until != "exit":
        del globals()["kept"]
    return result


def stop_reading(timeout_s: str) -> dict[str, Any]:
    """A training process that reads by itself, from what never answers."""
    result = {"error": "", "message": ""}
    try:
        for _ in make_loader("sleep", "none", "", timeout_s):
            pass
    except TfdsTorchError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    result["threads"] = str(threading.active_count())
    return result


def _children() -> Any:
    import psutil

    return psutil.Process().children(recursive=True)


if __name__ == "__main__":
    function, *arguments = sys.argv[1:]
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    print(json.dumps(globals()[function](*arguments)), flush=True)
