"""What the ranks of test_rank_processes.py run. Importable by a fresh process."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

import torch
import torch.distributed

from tfds_torch import errors
from tfds_torch.torch_data.plain_epochs import PlainEpochs

ENVIRON = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"


def rank() -> int:
    return torch.distributed.get_rank()


def facts_of_rank() -> dict[str, Any]:
    """Returns where this rank runs, and what all ranks' numbers add up to."""
    total = torch.tensor([rank() + 1])
    torch.distributed.all_reduce(total)
    facts = {"pid": os.getpid(), "environ": {name: os.environ.get(name) for name in ENVIRON}, "sum": total.item()}
    facts |= {"num_threads": torch.get_num_threads(), "num_ranks": torch.distributed.get_world_size()}
    return facts | {"backend": torch.distributed.get_backend()}


def describe(num_items: int) -> Iterator[dict[str, Any]]:
    """Says where it runs, and what all ranks' numbers add up to."""
    facts = facts_of_rank()
    for number in range(num_items):
        yield facts | {"number": number}


def count_on_rank_0() -> Iterator[int]:
    """Rank 1 yields something only after rank 0 has yielded all of its own."""
    if rank() == 0:
        print("printed")
        yield from range(100)
    torch.distributed.barrier()
    if rank() == 1:
        yield -1


def raise_on_rank_1(kind: str) -> Iterator[Any]:
    """Rank 0 waits for rank 1, which raises."""
    yield os.getpid()
    if rank() == 1:
        raise getattr(errors, kind)("it's 'broken'") if hasattr(errors, kind) else KeyError("lost")
    torch.distributed.barrier()


def die_on_rank_1(has_worker: bool) -> Iterator[Any]:
    """Rank 0 waits for rank 1, which dies; a worker of its own keeps its files and sockets open."""
    yield os.getpid()
    if rank() == 1:
        if has_worker:
            yield fork_one_that_waits()
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()


def disconnect_and_die_on_rank_1() -> Iterator[int]:
    """What the system does with a process that is killed, slowly: it closes its connections, and then ends it."""
    yield os.getpid()
    if rank() == 1:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    os.close(int(name))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()


def die_on_rank_1_while_others_count() -> Iterator[int]:
    """Nobody waits for rank 1, and rank 0 never comes to an end."""
    if rank() == 1:
        fork_one_that_waits()
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        yield os.getpid()


def fork_one_that_waits() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of forking with threads.
        pid = os.fork()
    if pid == 0:
        threading.Event().wait()
    return pid


def hold_things_for_ever() -> Iterator[dict[str, Any]]:
    """Has a child process and a semaphore, which Python's resource tracker watches, and says which."""
    counter = PlainEpochs()
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    semaphore = counter._shared.get_lock()._semlock.name
    found = facts_of_rank() | {"semaphore": semaphore}
    while True:
        yield {"pids": [os.getpid(), child.pid, resource_tracker._resource_tracker._pid]} | found


def wait_for_ever() -> Iterator[dict[str, Any]]:
    """Rank 1 is blocked in a collective."""
    yield {"pids": [os.getpid()]}
    if rank() == 1:
        torch.distributed.barrier()
    while True:
        yield {"pids": [os.getpid()]}


def stop_on_rank_1() -> Iterator[int]:
    """Rank 1 stops after its first item, as a machine that swaps does."""
    yield os.getpid()
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


class HangOnRank1:
    """An argument that rank 1 never finishes to load."""

    def __reduce__(self) -> Any:
        return _hang_on_rank_1, ()


def _hang_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        threading.Event().wait()


def ignore(_: object) -> Iterator[None]:
    yield
