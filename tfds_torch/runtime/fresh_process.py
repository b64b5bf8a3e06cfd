"""Run a function in a fresh Python process, for code that must not run in this one.

tensorflow must not be imported by a training process, and cannot be used after a fork of a process that used it. A
fresh interpreter (no fork, so no inherited threads or locks) runs such a function instead; the results come back over
a pipe. It may be used from daemonic processes (torch's loader workers), which `multiprocessing` forbids. `call` and
`iterate` start a process each time; a `FreshProcess` stays, and answers requests.

The child writes its own output to our standard error, ignores Ctrl-C (the parent ends it), and ends when the parent
is gone, also by SIGKILL.
"""

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, ParamSpec, TypeVar

from tfds_torch.errors import TfdsTorchError, WorkerError

P = ParamSpec("P")
T = TypeVar("T")

# The current folder, which comes first in the path of `python -c`, must not hide the standard library.
_BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from {module} import {serve}
{serve}()
"""
_FRAME = struct.Struct("<Q")
_GRACE_S = 5.0


def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns `function(*args, **kwargs)`, computed in a fresh process.

    Args:
        function: a module-level function of an importable module.
        *args: picklable arguments.
        **kwargs: picklable arguments.

    Returns:
        What the function returned (it must be picklable).

    Raises:
        TfdsTorchError: as raised by the function.
        WorkerError: the function raised anything else (its traceback is in the message), or its process died.
    """
    for result in _run(function, args, kwargs, stream=False):
        return result  # type: ignore[no-any-return]
    raise WorkerError(f"{_name(function)} returned nothing from its own process.")


def iterate(function: Callable[P, Iterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
    """Yields what the generator `function(*args, **kwargs)` yields in a fresh process.

    Closing the iterator ends the process. The child is never more than a pipe's buffer ahead.

    Args:
        function: a module-level generator function of an importable module.
        *args: picklable arguments.
        **kwargs: picklable arguments.

    Yields:
        The function's elements (they must be picklable).

    Raises:
        TfdsTorchError: as raised by the function.
        WorkerError: the function raised anything else (its traceback is in the message), or its process died.
    """
    yield from _run(function, args, kwargs, stream=True)


def _run(function: Callable[..., Any], args: Any, kwargs: Any, *, stream: bool) -> Iterator[Any]:
    request = pickle.dumps((function, args, kwargs, stream))
    with _start(_serve) as process:
        requests, replies = process.stdin, process.stdout
        if requests is None or replies is None:
            raise WorkerError(f"No pipe to the process of {_name(function)}.")
        try:
            _send_request(requests, request)
            while True:
                reply = _receive(replies)
                if reply is None:
                    raise WorkerError(_describe_death(function, process))
                kind, payload = pickle.loads(reply)  # noqa: S301 (from our own child, over a private pipe)
                if kind == "end":
                    return
                if kind == "error":
                    raise payload
                yield payload
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # What a dead child did not take is flushed here.
                requests.close()
            process.wait(_GRACE_S)


def _start(serve: Callable[[], None], bufsize: int = -1) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _BOOT.format(module=__name__, serve=serve.__name__)]
    # Fixed command, no shell: only this package's own code runs.
    return subprocess.Popen(command, bufsize, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603


def _send_request(pipe: IO[bytes], request: bytes) -> None:
    with suppress(BrokenPipeError):  # The child died at its start: waiting for its reply says how.
        pickle.dump([os.path.abspath(entry or ".") for entry in sys.path], pipe)
        pipe.write(request)
        pipe.flush()


def _receive(pipe: IO[bytes]) -> bytearray | None:
    """Returns the next frame, or None when the pipe ends before it is complete."""
    header = _read_exactly(pipe, _FRAME.size)
    return None if header is None else _read_exactly(pipe, *_FRAME.unpack(header))


def _read_exactly(pipe: Any, size: int) -> bytearray | None:
    data = bytearray(size)
    rest = memoryview(data)
    while rest and (num_read := pipe.readinto(rest)):
        rest = rest[num_read:]
    return None if rest else data


def _describe_death(function: Callable[..., Any], process: "subprocess.Popen[bytes]") -> str:
    code = process.wait(_GRACE_S)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"The process (pid {process.pid}) running {_name(function)} {how}{hint} before it had finished."


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def _serve() -> None:
    """The child's side: reads one request from standard input, writes replies to what was standard output."""
    replies = _take_over_output()
    try:
        function, args, kwargs, stream = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        result = function(*args, **kwargs)
        for item in result if stream else (result,):
            _reply(replies, "item", item)
        _reply(replies, "end", None)
    except BrokenPipeError:
        os._exit(1)
    except BaseException as error:
        _reply(replies, "error", _to_ours(error))


def _take_over_output() -> IO[bytes]:
    """Returns what was standard output, for replies; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Prints of the function and its libraries must not mix with the replies.
    return replies


def _to_ours(error: BaseException) -> TfdsTorchError:
    """Returns an error that the parent can unpickle; called while it is handled."""
    if isinstance(error, TfdsTorchError):
        return type(error)(str(error))
    return WorkerError(f"A helper process failed:\n{traceback.format_exc()}")


def _reply(pipe: IO[bytes], kind: str, payload: Any) -> None:
    sys.stdout.flush()  # What was printed before an item is there when the item is.
    frame = pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_FRAME.pack(len(frame)))
    pipe.write(frame)
    pipe.flush()


def _end_with_parent() -> None:
    while os.read(0, 4096):  # Empty only when the parent closed the pipe or died.
        pass
    os._exit(1)


class FreshProcess:
    """A fresh process that stays, and answers one request after the other.

    It is started by the first request; one that died or was closed, by the next request. It ends with this process
    (also by SIGKILL), when it is closed, or when this object is dropped. Threads may share it: their requests wait for
    each other. A forked process has one of its own, and leaves its parent's alone. It cannot be pickled.

    Args:
        make: a module-level function of an importable module. Called there before the first request; returns what
            answers requests.
        *args: its picklable arguments.
    """

    def __init__(self, make: Callable[..., Callable[[Any], Any]], /, *args: Any) -> None:
        self._make = make
        self._origin = pickle.dumps((make, args), protocol=pickle.HIGHEST_PROTOCOL)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] | None = None
        _all.add(self)

    def ask(self, request: Any) -> Any:
        """Returns the answer to a picklable request.

        Raises:
            TfdsTorchError: as raised there; the process stays.
            WorkerError: anything else was raised (its traceback is in the message), or the process died.
        """
        frame = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            process = self._process or self._begin()
            try:
                reply = _exchange(process, frame)
                if reply is None:
                    raise WorkerError(_describe_death(self._make, process))
            except BaseException:  # Also Ctrl-C: an answer that is still due must not be taken for the next one.
                self._close()
                raise
        kind, payload = pickle.loads(reply)  # noqa: S301 (from our own child, over a private pipe)
        if kind == "error":
            raise payload
        return payload

    def close(self) -> None:
        """Ends the process; the next request starts another one."""
        with self._lock:
            self._close()

    def _begin(self) -> "subprocess.Popen[bytes]":
        # Unbuffered: no buffer has a lock that a fork could leave locked, or bytes that a forked process would write.
        process = _start(_serve_requests, bufsize=0)
        self._process, self._end = process, weakref.finalize(self, _end_process, process, os.getpid())
        _write(process, pickle.dumps([os.path.abspath(entry or ".") for entry in sys.path]))
        _write(process, _FRAME.pack(len(self._origin)), self._origin)
        return process

    def _close(self) -> None:
        self._process, end, self._end = None, self._end, None
        if end is not None:
            end()

    def _forget_parent(self) -> None:
        """Lets go of the parent's process in a forked one, which must not hold its pipes open, nor wait for it."""
        process, self._process, self._end, self._lock = self._process, None, None, threading.Lock()
        if process is not None:
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
            process.returncode = 0  # Popen warns of what was not waited for.


_all: "weakref.WeakSet[FreshProcess]" = weakref.WeakSet()


def _forget_parents() -> None:
    for process in list(_all):
        process._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)


def _end_process(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # A forked process that ends ends no process of its parent.
        return
    process.kill()
    for pipe in filter(None, (process.stdin, process.stdout)):
        pipe.close()
    process.wait(_GRACE_S)


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> bytearray | None:
    """Returns the reply to a request, or None when the process died."""
    _write(process, _FRAME.pack(len(request)), request)
    return _receive(process.stdout) if process.stdout else None


def _write(process: "subprocess.Popen[bytes]", *parts: bytes) -> None:
    for part in parts:
        rest = memoryview(part)
        with suppress(BrokenPipeError):  # It died: waiting for its reply says how.
            while rest and process.stdin:
                rest = rest[process.stdin.write(rest) :]


def _serve_requests() -> None:
    """The side of a FreshProcess's child."""
    replies = _take_over_output()
    frames: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(frames,), daemon=True).start()
    origin, answer = frames.get(), None
    while True:
        request = frames.get()
        try:
            if answer is None:
                make, args = pickle.loads(origin)  # noqa: S301 (from our own parent)
                answer = make(*args)
            _reply(replies, "item", answer(pickle.loads(request)))  # noqa: S301
        except BrokenPipeError:
            os._exit(1)
        except BaseException as error:
            _reply(replies, "error", _to_ours(error))


def _receive_requests(frames: "queue.SimpleQueue[bytearray]") -> None:
    while (frame := _receive(sys.stdin.buffer)) is not None:
        frames.put(frame)
    os._exit(1)  # The parent closed the pipe or died: nobody waits for an answer, also not for one that is being made.
