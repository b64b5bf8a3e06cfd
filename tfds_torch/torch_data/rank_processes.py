"""Starts the ranks of a training on this machine with torch.distributed's launcher, and yields their items.

`torch.distributed.elastic.multiprocessing` starts the processes. (`elastic_launch` around it cannot be ended by its
caller, looks up this machine's name, and changes the caller's environment and signals.) This module adds a
pipe for the items of each rank, in a private folder, finds the rank that failed first, and leaves nothing behind.
"""

import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, TypeVar

import psutil

from tfds_torch.errors import StallError, TfdsTorchError, WorkerError
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.group_signals import do_nothing_for_group_signals, signals_held
from tfds_torch.runtime.process_tree import describe_exit

# torch is imported inside functions: a rank watches its parent before it spends a second on that.

T = TypeVar("T")

_STATE, _ITEM, _FAILED, _ENDED = "state", "item", "failed", "ended"
_JOINED = "has joined"
_LOOK_S = 0.5  # How often a waiting parent looks for dead ranks, and a rank for its parent.
_DYING_S = 1.0  # How long a process takes to end, at most, once its connections are closed.
_GRACE_S = 10.0
_LOOPBACK = "127.0.0.1"
_BOOT = "import sys; from tfds_torch.torch_data.rank_processes import run_rank; run_rank(sys.argv[1], int(sys.argv[2]))"


def iterate_ranks(
    function: Callable[..., Iterator[T]],
    num_replicas: int,
    *args: Any,
    start_timeout_s: float = 60.0,
    stall_timeout_s: float | None = None,
) -> Generator[tuple[int, T], None, None]:
    """Run a generator function in several ranks at the same time and yield (rank, item) as the items come.

    The function is a module-level one of an importable module; its arguments and items are picklable. Items of one rank
    keep their order. A rank is at most an item and a pipe's buffer ahead of the caller. Within `start_timeout_s`
    seconds the ranks must join; afterwards one of them must yield something every `stall_timeout_s` seconds.

    The first failure, the end of the iteration, closing the iterator and Ctrl-C end every rank and its processes; the
    ranks themselves ignore Ctrl-C, and end when this process does. The iterator is for one thread; several iterators
    may run at once.

    Raises:
        TfdsTorchError: as raised by the function in one rank, whose number is in the message.
        WorkerError: a rank raised anything else (its traceback is in the message), or its process died.
        StallError: the ranks did not find each other, or none yielded anything for too long.
    """
    num_replicas = check_integer("num_replicas", num_replicas, 1)
    with _launched(num_replicas, pickle.dumps((function, args))) as (pipes, processes):
        states = dict.fromkeys(pipes, "has not started")
        while pipes:
            have_joined = set(states.values()) == {_JOINED}
            limit_s = stall_timeout_s if have_joined else start_timeout_s
            ready = _wait(pipes, processes, limit_s)
            if not ready and have_joined:
                raise StallError(
                    f"For {limit_s:g} s nothing came from the ranks that are still running "
                    f"({', '.join(map(str, pipes))} of {num_replicas}). Either the storage does not answer, or a rank "
                    f"is waiting for another: look at what their processes do."
                )
            if not ready:
                raise StallError(
                    f"The {num_replicas} ranks did not find each other: for {limit_s:g} s none of them got any further "
                    f"({', '.join(f'rank {rank} {state}' for rank, state in states.items())}). They meet at "
                    f"{_LOOPBACK}, which must be reachable; a machine that is very busy may need fewer ranks."
                )
            for rank in ready:
                try:
                    kind, payload = pickle.loads(pipes[rank].recv_bytes())  # noqa: S301 (from our own child)
                except (EOFError, OSError):  # The latter where a part of a message came.
                    raise _death(rank, processes) from None
                if kind == _ITEM:
                    yield rank, payload
                elif kind == _STATE:
                    states[rank] = payload
                elif kind == _ENDED:
                    pipes.pop(rank).close()
                else:
                    for other in processes:  # One that dies makes the others fail in a collective.
                        if processes[other].poll() is not None:
                            raise _death(other, processes)
                    raise type(payload)(f"Rank {rank} of {num_replicas}: {payload}")


@contextmanager
def _launched(num_replicas: int, request: bytes) -> Iterator[tuple[dict[int, Connection], dict[int, Popen[bytes]]]]:
    """Start the ranks, and at last end them and what they have started; yield the pipe and the process of each."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, api, start_processes

    logging.getLogger(api.__name__).setLevel(logging.ERROR)  # It warns of the thread below.
    folder, ranks = Path(tempfile.mkdtemp(prefix="tfds_torch-ranks-")), range(num_replicas)
    processes: dict[int, Popen[bytes]] = {}
    try:
        try:
            (folder / "request").write_bytes(request)
            pipes = {rank: _make_pipe(folder / str(rank)) for rank in ranks}
            arguments = dict.fromkeys(ranks, ("-Pu", "-c", _BOOT, str(folder), str(os.getpid())))
            environs = {rank: _environ_of_rank(rank, num_replicas) for rank in ranks}
            logs = DefaultLogsSpecs(str(folder))  # None: the ranks' output is left alone.
            # The launcher takes over the signals of the main thread, and leaves another one alone.
            with signals_held(), ThreadPoolExecutor(1) as thread:
                begun: Any = thread.submit(start_processes, "rank", sys.executable, arguments, environs, logs).result()
                processes = {rank: handler.proc for rank, handler in begun.subprocess_handlers.items()}
        except OSError as error:
            raise WorkerError(f"The {num_replicas} ranks cannot be started: {error}") from error
        yield pipes, processes
    finally:  # By SIGKILL: workers ignore SIGTERM. Each rank is the leader of a process group.
        pids = {process.pid for process in processes.values()}
        for found in psutil.process_iter() if pids else ():
            with suppress(OSError, psutil.Error):  # It has ended.
                # A resource tracker of Python removes the semaphores of the others, and ends by itself.
                if os.getpgid(found.pid) in pids and not any("resource_tracker" in word for word in found.cmdline()):
                    os.kill(found.pid, signal.SIGKILL)
        for process in processes.values():
            with suppress(TimeoutExpired):  # It waits for a disk.
                process.wait(_GRACE_S)
        shutil.rmtree(folder, ignore_errors=True)


def _make_pipe(path: Path) -> Connection:
    """Return the end of a rank's pipe that is read; the rank opens the other one."""
    os.mkfifo(path)
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # There is nobody yet to wait for.
    os.set_blocking(file, True)
    return Connection(file, writable=False)


def _wait(pipes: dict[int, Connection], processes: dict[int, Popen[bytes]], limit_s: float | None) -> list[int]:
    """Return the ranks that have sent something, or are gone; none where nothing came within so many seconds."""
    began = time.monotonic()
    while not (ready := wait(pipes.values(), _LOOK_S if limit_s is None else min(_LOOK_S, limit_s))):
        # A rank that never opened its pipe does not make it ready by its death.
        dead = [rank for rank in pipes if processes[rank].poll() is not None]
        if dead or (limit_s is not None and time.monotonic() - began >= limit_s):
            return dead
    return [rank for rank, pipe in pipes.items() if pipe in ready]


def _death(rank: int, processes: dict[int, Popen[bytes]]) -> WorkerError:
    end = f"The process (pid {processes[rank].pid}) {describe_exit(processes[rank].wait(_GRACE_S))}"
    return WorkerError(f"Rank {rank} of {len(processes)}: {end} before it had finished.")


def _environ_of_rank(rank: int, num_replicas: int) -> dict[str, str]:
    """Return torchrun's environment variables but MASTER_*, and others that a fresh process of ours needs."""
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    environ |= {"WORLD_SIZE": str(num_replicas), "LOCAL_WORLD_SIZE": str(num_replicas)}
    environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    # A rank that is ended leaves its semaphores to Python's resource tracker, which does its work, and complains.
    environ["PYTHONWARNINGS"] = f"{os.environ.get('PYTHONWARNINGS', '')},ignore:resource_tracker".lstrip(",")
    if num_replicas > 1:
        environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        environ["GLOO_SOCKET_IFNAME"] = loopback  # gloo would look up this machine's name, which may not be known.
    return environ


def run_rank(folder: str, parent: int) -> None:
    """Be one rank: send the function's items, and the outcome, to the process that has started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    do_nothing_for_group_signals()
    threading.Thread(target=_end_with_parent, args=(folder, parent), daemon=True).start()
    os.dup2(2, 1)  # Output of this process must not mix with the parent's.
    rank, num_replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pipe = Connection(os.open(f"{folder}/{rank}", os.O_WRONLY), readable=False)
    os.register_at_fork(after_in_child=pipe.close)  # The parent hears at once when this process has died.

    def send(kind: str, payload: object = None) -> None:
        with suppress(BrokenPipeError):  # The parent is gone.
            pipe.send_bytes(pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL))

    try:
        send(_STATE, "is loading its modules")
        function, args = pickle.loads(Path(folder, "request").read_bytes())  # noqa: S301 (from our own parent)
        import torch.distributed

        send(_STATE, "is waiting for the others in init_process_group")
        store = torch.distributed.FileStore(f"{folder}/store", num_replicas)  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_replicas)
        send(_STATE, _JOINED)
        for item in function(*args):
            send(_ITEM, item)
        send(_ENDED)
    except Exception as error:
        if isinstance(error, TfdsTorchError):
            send(_FAILED, type(error)(str(error)))
        else:
            time.sleep(_DYING_S)  # Another one may have died, which closes its connections before it has ended.
            send(_FAILED, WorkerError(f"it failed:\n{traceback.format_exc()}"))
    threading.Event().wait()  # Until it is ended: the others must not fail because this one has left.


def _end_with_parent(folder: str, parent: int) -> None:
    """End this process when its parent is gone, or does not know of it because the start of another rank failed."""
    while os.getppid() == parent and os.path.exists(folder):
        time.sleep(_LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
