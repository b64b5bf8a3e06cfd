"""Starts the ranks of a training on this machine, as torchrun would, and yields what they yield.

Every rank is a fresh interpreter (`runtime/subprocess_call.py`) with torchrun's environment and a gloo group over
the loopback interface. The parent holds the store through which the ranks find each other, so that no port is chosen
before it is bound. One thread of the parent follows each rank.
"""

import os
import pickle
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Any, TypeVar, cast

import psutil

from tfds_torch.errors import StallError, TfdsTorchError, WorkerError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.arguments import check_integer

# torch is imported inside functions: a rank reads OMP_NUM_THREADS as it loads torch, after its environment was set.

T = TypeVar("T")

_STARTED, _JOINING, _JOINED, _ITEM, _FAILED, _ENDED = "started", "joining", "joined", "item", "failed", "ended"
_DOING = {
    "": "has not started",
    _STARTED: "is loading its modules",
    _JOINING: "is waiting for the others in init_process_group",
    _JOINED: "has joined",
}
_LOOK_S = 1.0  # How often it is looked whether a rank has died.
_DYING_S = 1.0  # How long a process takes to end, at most, once its connections are closed.
_GRACE_S = 20.0
_LOOPBACK = "127.0.0.1"


def iterate_ranks(
    function: Callable[..., Iterator[T]],
    num_replicas: int,
    *args: Any,
    start_timeout_s: float = 60.0,
    stall_timeout_s: float | None = None,
) -> Generator[tuple[int, T], None, None]:
    """Runs a generator function in several ranks at the same time and yields (rank, item) as the items come.

    The function is a module-level one of an importable module; its arguments and items are picklable. Items of one rank
    keep their order. A rank is at most a few items and a pipe's buffer ahead of the caller. Within `start_timeout_s`
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
    request = pickle.dumps((function, args))
    ranks = _Ranks(num_replicas, start_timeout_s, stall_timeout_s)
    try:
        ranks.start(request)
        yield from ranks.items()
    finally:
        ranks.end()


class _Ranks:
    """The processes of all ranks, as the parent sees them: a thread follows each, and queues its messages."""

    def __init__(self, num_replicas: int, start_timeout_s: float, stall_timeout_s: float | None) -> None:
        self._num_replicas = num_replicas
        self._start_timeout_s = start_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._events: queue.Queue[tuple[int, str, Any]] = queue.Queue(2 * num_replicas)
        self._doing: dict[int, str] = {}  # Ranks that have not ended -> the last that was heard of them.
        self._pids: dict[int, int] = {}  # Ranks whose process was not waited for yet.
        self._is_ending = threading.Event()
        self._looked = time.monotonic()
        self._store: Any = None

    def start(self, request: bytes) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        listener = socket.create_server((_LOOPBACK, 0))
        port = listener.getsockname()[1]
        self._store = TCPStore(
            _LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        for rank in range(self._num_replicas):
            environ = _environ_of_rank(rank, self._num_replicas, port)
            threading.Thread(
                target=self._follow, args=(rank, request, environ), name=f"rank {rank}", daemon=True
            ).start()
            self._doing[rank] = ""

    def items(self) -> Iterator[tuple[int, Any]]:
        """Yields (rank, item) until all ranks have ended."""
        while self._doing:
            rank, kind, payload = self._next_event()
            if kind == _ITEM:
                yield rank, payload
            elif kind == _FAILED or (kind == _ENDED and payload):
                self._raise(rank, payload)

    def end(self) -> dict[int, Exception]:
        """Ends the ranks that are left, and returns the failures that were heard meanwhile."""
        self._is_ending.set()
        self._store = None  # Gives the port back.
        for pid in list(self._pids.values()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _end_group(pid)
        failures = {}
        while self._doing:  # Every thread reports when its process was waited for.
            try:
                rank, kind, payload = self._get(_GRACE_S)
            except queue.Empty:
                break  # A process that never came so far as to say its number; it ends with this one.
            if kind == _ENDED and payload:
                failures[rank] = payload
        return failures

    def _follow(self, rank: int, request: bytes, environ: dict[str, str]) -> None:
        failure: Exception | None = None
        replies = cast("Generator[tuple[str, Any], None, None]", subprocess_call.iterate(_run_rank, request, environ))
        try:
            with closing(replies):
                for kind, payload in replies:
                    if kind == _STARTED:
                        self._pids[rank] = payload
                    self._events.put((rank, kind, payload))
                    if self._is_ending.is_set():
                        break
        except TfdsTorchError as error:
            failure = error
        except Exception as error:  # No process could be started.
            failure = WorkerError(f"{type(error).__name__}: {error}")
        self._pids.pop(rank, None)
        self._events.put((rank, _ENDED, failure))

    def _next_event(self) -> tuple[int, str, Any]:
        have_joined = all(kind not in ("", _STARTED, _JOINING) for kind in self._doing.values())
        limit_s = self._stall_timeout_s if have_joined else self._start_timeout_s
        asked = time.monotonic()
        while True:
            if time.monotonic() - self._looked >= _LOOK_S:
                self._looked = time.monotonic()
                for pid in list(self._pids.values()):
                    # Its workers keep the dead rank's pipe open: until they end, its thread would not hear of it.
                    if _has_died(pid):
                        _end_group(pid)
            with suppress(queue.Empty):
                return self._get(_LOOK_S if limit_s is None else min(_LOOK_S, limit_s))
            if limit_s is not None and time.monotonic() - asked >= limit_s:
                raise StallError(self._describe_stall(have_joined, limit_s))

    def _get(self, timeout_s: float) -> tuple[int, str, Any]:
        rank, kind, payload = self._events.get(timeout=timeout_s)
        self._doing[rank] = kind
        if kind == _ENDED:
            del self._doing[rank]
        return rank, kind, payload

    def _raise(self, rank: int, failure: Exception) -> None:
        gone = self._gone(but=rank)
        if not gone and type(failure) is WorkerError:
            # One that died makes the others fail in a collective. They hear of it before this process does: its
            # connections are closed first, and its workers may have them, too.
            deadline = time.monotonic() + _DYING_S
            while not gone and time.monotonic() < deadline:
                time.sleep(0.01)
                gone = self._gone(but=rank)
        failures = self.end()
        rank, failure = next(((other, failures[other]) for other in gone if other in failures), (rank, failure))
        raise type(failure)(f"Rank {rank} of {self._num_replicas}: {failure}") from None

    def _gone(self, but: int) -> list[int]:
        """Returns the other ranks whose process has gone without a last message."""
        left = [rank for rank in self._doing if rank != but]
        return [rank for rank in left if rank not in self._pids or _has_died(self._pids[rank])]

    def _describe_stall(self, have_joined: bool, limit_s: float) -> str:
        if have_joined:
            left = ", ".join(map(str, sorted(self._doing)))
            return (
                f"For {limit_s:g} s nothing came from the ranks that are still running ({left} of "
                f"{self._num_replicas}). Either the storage does not answer, or a rank is waiting for another: look at "
                f"what their processes do."
            )
        doing = ", ".join(f"rank {rank} {_DOING.get(kind, 'is running')}" for rank, kind in sorted(self._doing.items()))
        return (
            f"The {self._num_replicas} ranks did not find each other: for {limit_s:g} s none of them got any further "
            f"({doing}). They meet at {_LOOPBACK}, which must be reachable; a machine that is very busy may need fewer "
            f"ranks."
        )


def _environ_of_rank(rank: int, num_replicas: int, port: int) -> dict[str, str]:
    """Returns the environment variables that torchrun would set."""
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_replicas),
        "LOCAL_WORLD_SIZE": str(num_replicas),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        # The store is there already: no rank opens one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        # A rank that is ended leaves its semaphores to Python's resource tracker, which does its work, and complains.
        "PYTHONWARNINGS": ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"])),
    }
    if num_replicas > 1 and "OMP_NUM_THREADS" not in os.environ:
        environ["OMP_NUM_THREADS"] = "1"
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        environ["GLOO_SOCKET_IFNAME"] = loopback  # gloo would look up this machine's name, which may not be known.
    return environ


def _run_rank(request: bytes, environ: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """The rank's side: yields what becomes of it, and the function's items."""
    os.setpgid(0, 0)  # The group holds every process that the rank starts, and ends with it.
    os.environ.update(environ)
    yield _STARTED, os.getpid()
    try:
        function, args = pickle.loads(request)  # noqa: S301 (from our own parent)
        import torch.distributed

        yield _JOINING, None
        torch.distributed.init_process_group("gloo")
        yield _JOINED, None
        for item in function(*args):
            yield _ITEM, item
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except TfdsTorchError as error:
        yield _FAILED, type(error)(str(error))
    except Exception:
        yield _FAILED, WorkerError(f"it failed:\n{traceback.format_exc()}")


def _has_died(pid: int) -> bool:
    """Whether a child has ended and was not waited for; False where the system does not tell."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # Waited for meanwhile.
        return True


def _end_group(pid: int) -> None:
    """Ends the processes of a dead rank, by SIGKILL: workers do not end by SIGTERM.

    Python's resource tracker is left: it removes the semaphores of the others, and ends by itself.
    """
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # It has ended.
            if os.getpgid(process.pid) == pid and not any("resource_tracker" in word for word in process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)
