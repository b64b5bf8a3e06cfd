"""Run a function in a fresh Python process, for code that must not run in this one.

tensorflow must not be imported by a training process, and cannot be used after a fork of a process that used it. A
fresh interpreter (no fork, so no inherited threads or locks) runs such a function instead; the results come back over
a pipe. It may be used from daemonic processes (a loader's workers), which `multiprocessing` forbids. `call` and
`iterate` start a process each time; a `FreshProcess` stays, and answers requests.

The child writes its own output to our standard error, ignores Ctrl-C (the parent ends it), and ends when the parent
is gone, also by SIGKILL. A process that is forked from the parent leaves the parent's child alone.
"""

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from tfds_torch.errors import TfdsTorchError, WorkerError
from tfds_torch.runtime.group_signals import do_nothing_for_group_signals, signals_held
from tfds_torch.runtime.process_tree import describe_exit

P = ParamSpec("P")
T = TypeVar("T")

# The current folder, which comes first in the path of `python -c`, must not hide the standard library.
_BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json
sys.path[:] = json.loads(sys.argv.pop())
from tfds_torch.runtime.subprocess_call import serve
serve()
"""
_GRACE_S = 5.0  # For a process to end.


def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`, computed in a fresh process; `function` is a module's, the rest is picklable.

    Raises:
        TfdsTorchError: as raised by the function.
        WorkerError: the function raised anything else (its traceback is in the message), or its process died.
    """
    with closing(_run(function, args, kwargs, stream=False)) as results:
        return next(results)  # type: ignore[no-any-return]


def iterate(function: Callable[P, Iterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
    """Yield the items of the generator `function(*args, **kwargs)`, which runs in a fresh process.

    Arguments and errors are as in `call`. Closing the iterator ends the process. The child is never more than a pipe's
    buffer ahead.
    """
    yield from _run(function, args, kwargs, stream=True)


def _run(function: Callable[..., Any], args: Any, kwargs: Any, *, stream: bool) -> Generator[Any, None, None]:
    request = pickle.dumps((function, args, kwargs, stream))
    child = _Child(function)
    try:
        child.send(request)
        while (reply := _open(child.receive()))[0] != "end":
            yield reply[1]
    finally:
        child.end()


class FreshProcess:
    """A fresh process that stays, and answers one request after the other.

    It is started by the first request; one that died or was closed, by the next request. It ends with this process
    (also by SIGKILL), when it is closed, or when this object is dropped. Threads may share it: their requests wait for
    each other. A forked process has its own, and leaves its parent's alone. It cannot be pickled.

    Args:
        make: a module-level function of an importable module. It is called there before the first request, and returns
            the function that answers requests.
        *args: picklable arguments of `make`.
    """

    def __init__(self, make: Callable[..., Callable[[Any], Any]], /, *args: Any) -> None:
        self._make, self._args = make, args
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._end: Callable[[], object] | None = None
        _fresh_processes.add(self)

    def ask(self, request: Any) -> Any:
        """Return the answer to a picklable request."""
        frame = pickle.dumps((_answer, (self._make, self._args, request), {}, False), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            child = self._child or self._begin()
            try:
                child.send(frame)
                reply = child.receive()
            except BaseException:  # Also Ctrl-C: an answer that is still due must not be taken for the next one.
                self._close()
                raise
        return _open(reply)[1]

    def close(self) -> None:
        """End the process; the next request starts another one."""
        with self._lock:
            self._close()

    def _begin(self) -> "_Child":
        child = self._child = _Child(self._make)
        self._end = weakref.finalize(self, child.end)
        return child

    def _close(self) -> None:
        self._child, end, self._end = None, self._end, None
        if end is not None:
            end()

    def _forget_parent(self) -> None:
        """Forget the parent's child in a forked process; another thread may have held the lock."""
        self._child, self._end, self._lock = None, None, threading.Lock()


class _Child:
    """A fresh process that runs a function, and the pipes to it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._owner = function, os.getpid()
        path = json.dumps([os.path.abspath(entry or ".") for entry in sys.path])
        requests, self._requests = Pipe(duplex=False)
        self._replies, replies = Pipe(duplex=False)
        with requests, replies, signals_held():  # Until it leaves them alone.
            self.process = subprocess.Popen(  # noqa: S603 (no shell; our own code)
                [sys.executable, "-c", _BOOT, path], stdin=requests.fileno(), stdout=replies.fileno()
            )
        _children.add(self)

    def send(self, request: bytes) -> None:
        """Send a pickled request; where the process died, `receive` raises how it ended."""
        with suppress(BrokenPipeError):
            self._requests.send_bytes(request)

    def receive(self) -> bytes:
        """Return the next pickled reply; raise WorkerError where the process died before that."""
        try:
            return self._replies.recv_bytes()
        except (EOFError, OSError):  # The latter where a part of it came.
            end = describe_exit(self.process.wait(_GRACE_S))
            name = f"{self._function.__module__}.{getattr(self._function, '__qualname__', self._function)}"
            raise WorkerError(
                f"The process (pid {self.process.pid}) running {name} {end} before it had finished."
            ) from None

    def end(self) -> None:
        """End the process, where it is this one's child."""
        if os.getpid() == self._owner:
            self.process.kill()
            self._close_pipes()
            self.process.wait(_GRACE_S)

    def leave_to_parent(self) -> None:
        """Close the pipes to it in a forked process, which must not wait for it."""
        self._close_pipes()
        self.process.returncode = 0  # Popen warns of processes that were not waited for.

    def _close_pipes(self) -> None:
        self._requests.close()
        self._replies.close()


_children: "weakref.WeakSet[_Child]" = weakref.WeakSet()
_fresh_processes: "weakref.WeakSet[FreshProcess]" = weakref.WeakSet()


def _forget_parents() -> None:
    for child in list(_children):
        child.leave_to_parent()
    for process in list(_fresh_processes):
        process._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)


def _open(reply: bytes) -> tuple[str, Any]:
    """Return the kind and the value of a reply, or raise the error that it holds."""
    kind, payload = pickle.loads(reply)  # noqa: S301 (from our own child, over a private pipe)
    if kind == "error":
        raise payload
    return kind, payload


# The child's side


def serve() -> None:
    """Answer requests, one after the other, until the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is left to the parent, and so are signals to the group.
    do_nothing_for_group_signals()
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # Prints of the function and its libraries must not mix with the replies.
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(requests,), daemon=True).start()
    while True:
        _respond(requests.get(), replies)


def _respond(request: bytes, replies: Connection) -> None:
    """Answer one request; nothing of it is kept."""
    try:
        function, args, kwargs, stream = pickle.loads(request)  # noqa: S301 (from our own parent)
        result = function(*args, **kwargs)
        for item in result if stream else (result,):
            _reply(replies, "item", item)
        if stream:
            _reply(replies, "end", None)
    except BrokenPipeError:
        os._exit(1)
    except BaseException as error:
        _reply(replies, "error", to_ours(error))


def _receive_requests(requests: "queue.SimpleQueue[bytes]") -> None:
    # Not sys.stdin: a process that the function forks closes it, and would wait for its lock, which this thread holds.
    pipe = Connection(os.dup(0), writable=False)
    with suppress(EOFError, OSError):
        while True:
            requests.put(pipe.recv_bytes())
    os._exit(1)  # An answer that is being made is not needed any more.


_made: list[Callable[[Any], Any]] = []  # In a FreshProcess's child.


def _answer(make: Callable[..., Callable[[Any], Any]], args: tuple[Any, ...], request: Any) -> Any:
    """Return the answer of the function that `make(*args)` returned when it was first called."""
    if not _made:
        _made.append(make(*args))
    return _made[0](request)


def to_ours(error: BaseException) -> TfdsTorchError:
    """Return an error that the parent can unpickle; called while it is handled."""
    if isinstance(error, TfdsTorchError):
        return type(error)(str(error))
    return WorkerError(f"A helper process failed:\n{traceback.format_exc()}")


def _reply(replies: Connection, kind: str, payload: Any) -> None:
    sys.stdout.flush()  # What was printed before an item is there when the item is.
    replies.send_bytes(pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL))
