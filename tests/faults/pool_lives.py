"""Lives of training processes whose loaders have workers.

`pool_lives.py FUNCTION KIND METHOD PERSISTENT ROOT FOLDER ARGUMENTS...` prints the result as JSON.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

import psutil

from faults.cells import HARMED_BATCH, Cell, harm_at, make_loader, places, wait_for
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.runtime.group_signals import GROUP_SIGNALS


class Life:
    """A training process with a loader whose worker 1 waits for ever at its second batch, if it is harmed.

    Args:
        kind, method, persistent: of the cell.
        root: of the dataset.
        folder: where the harm notes that it happened.
    """

    def __init__(self, kind: str, method: str, persistent: str, root: str, folder: str) -> None:
        self.cell, self.root, self.folder = Cell(kind, method, persistent == "True"), root, folder

    def loader(self, how: str | None = None) -> Any:
        """Returns a loader."""
        return make_loader(self.cell, self.root, None if how is None else harm_at(self.root, how, self.folder))


def wait_for_ever(life: Life) -> None:
    """Prints the pids of the process's children once two batches are there; waits in `next` for one that never comes.

    Worker 1 hangs, and worker 0 waits for work.
    """
    for number, _ in enumerate(life.loader("hang")):
        if number == 1:
            print(json.dumps([child.pid for child in psutil.Process().children(recursive=True)]), flush=True)


def wait_beside_a_sibling(life: Life) -> None:
    """As `wait_for_ever`, with a process that was forked after the workers, whose pid comes last."""
    loader = life.loader("hang")
    iteration = iter(loader)
    for _ in range(2):
        next(iteration)
    sibling = os.fork()
    if not sibling:
        time.sleep(3600)
    print(json.dumps([*loader.worker_pids, sibling]), flush=True)
    for _ in iteration:
        pass


def leave_open(life: Life) -> list[int]:
    """Ends with a stopped worker, and a loader that is not closed."""
    loader = life.loader("hang")
    iteration = iter(loader)
    for _ in range(2):
        next(iteration)
    os.kill(loader.worker_pids[1], signal.SIGSTOP)
    globals()["kept"] = loader, iteration
    return list(loader.worker_pids)


def read_many_epochs(life: Life) -> dict[str, Any]:
    """Reads epochs, every third of them broken off; returns what was open after each of them, and at the end."""
    loader, found = life.loader(), []
    for epoch in range(7):
        for number, _ in enumerate(loader):
            if epoch % 3 == 2 and number == 2:
                break
        found.append(_open_files())
    pids = loader.worker_pids
    loader.close()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 30)
    # What Python itself keeps: the resource tracker, and the server that forks.
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    others = [command for command in commands if "resource_tracker" not in command and "forkserver" not in command]
    return {"open": found, "alive": len(alive), "others": others}


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# Signals to the process group


def get_signals(life: Life) -> dict[str, Any]:
    """Gets every signal of a job scheduler while a batch is waited for, and goes on as such scripts do.

    Its handlers note the signals. The loop ends after the next batch, and another loader goes on from its state.
    """
    folder, came, handled = Path(life.folder), [], []

    def note(number: int, _: object) -> None:
        handled.append(number)
        with (folder / "handlers").open("a") as file:  # Of all processes.
            print(os.getpid(), file=file)

    for number in GROUP_SIGNALS:
        signal.signal(number, note)

    def send() -> None:
        wait_for(folder / "reached")
        while len(came) < HARMED_BATCH:
            time.sleep(0.01)
        for number in GROUP_SIGNALS:
            os.killpg(os.getpgrp(), number)
        while len(handled) < len(GROUP_SIGNALS):
            time.sleep(0.01)
        (folder / "gate").touch()

    sending = threading.Thread(target=send, daemon=True)
    loader = life.loader("wait")
    iteration = iter(loader)
    sending.start()
    for place in places(loader, iteration):
        came.append(place)
        if handled:
            break
    sending.join()
    alive = [pid for pid in loader.worker_pids if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    state = loader.state_dict()
    loader.close()
    loader = life.loader()
    loader.load_state_dict(state)
    pids = {int(pid) for pid in (folder / "handlers").read_text().split()}
    return {
        "came": came,
        "rest": list(places(loader)),
        "alive": len(alive),
        "handled": sorted(handled),
        "here": pids == {os.getpid()},
    }


def leave_open_in_a_child(life: Life) -> int | None:
    """Lets a process of multiprocessing end with a loader that is not closed; returns its exit code."""

    def read() -> None:
        loader = life.loader("hang")
        iteration = iter(loader)
        next(iteration)
        globals()["kept"] = loader, iteration

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(60)
    child.kill()
    return child.exitcode


# A machine whose shared memory is full


def fill_shared_memory(life: Life, when: str) -> dict[str, Any] | None:
    """Reads while /dev/shm is full, and goes on when there is room again; None: no such folder can be made here.

    Args:
        life: of this process.
        when: /dev/shm is filled: `before` the loader is made, or `within` its first epoch.
    """
    if not _has_own_shared_memory():
        return None
    filler = Path("/dev/shm/filler")
    came, said = [], ""
    loader = None
    try:
        if when == "before":
            _fill(filler)
        loader = life.loader()
        iteration = iter(loader)
        if when == "within":
            came.append(next(places(loader, iteration)))
            _fill(filler)
        came += places(loader, iteration)
    except TfdsTorchError as error:
        said = str(error)
    filler.unlink()
    loader, rest = loader or life.loader(), []
    if said:
        loader.load_state_dict(loader.state_dict())
        rest = list(places(loader))
    return {"came": came, "said": said, "rest": rest, "next epoch": list(places(loader))}


def _has_own_shared_memory() -> bool:
    """Gives this process a /dev/shm of 64 KiB, which other processes do not see."""
    new_mounts, private_and_below = 0x20000, (1 << 18) | 0x4000
    libc = ctypes.CDLL(None)
    return (
        libc.unshare(new_mounts) == 0
        and libc.mount(None, b"/", None, private_and_below, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") == 0
    )


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


# Children that the user forks


def fork_in_the_middle(life: Life, kind: str, way: str) -> dict[str, Any]:
    """Forks while an iteration is under way; the child ends with exit code 7, and the parent goes on afterwards.

    Args:
        life: of this process.
        kind: of the child: `os.fork`, or `multiprocessing`.
        way: what the child does before: `nothing`, `close`, `next` with the parent's iteration, or `iter` of its own.
    """
    loader = life.loader()
    iteration = iter(loader)
    came, pids = [next(places(loader, iteration))], list(loader.worker_pids)
    result = Path(life.folder) / "child"

    def be_child() -> NoReturn:
        result.write_text(json.dumps(_act_in_child(loader, iteration, way)))
        sys.exit(7)

    if kind == "os.fork":
        child = os.fork()
        if not child:
            be_child()
        exit_code: int | None = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        process = multiprocessing.get_context("fork").Process(target=be_child)
        process.start()
        process.join()
        exit_code = process.exitcode
    came += places(loader, iteration)
    return {
        "exit code": exit_code,
        "child": json.loads(result.read_text()),
        "came": came,
        "same workers": not life.cell.persistent or list(loader.worker_pids) == pids,
        "next epoch": list(places(loader)),
    }


def _act_in_child(loader: Any, iteration: Any, way: str) -> Any:
    if way == "close":
        loader.close()
    if way == "next":
        try:
            next(iteration)
        except ConfigError as error:
            return str(error)
        return "a batch"
    if way == "iter":
        loader.set_epoch(3)
        try:
            return list(places(loader))
        except ConfigError as error:
            return str(error)
    return None


if __name__ == "__main__":
    function, *arguments = sys.argv[1:]
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    print(json.dumps(globals()[function](Life(*arguments[:5]), *arguments[5:])), flush=True)
