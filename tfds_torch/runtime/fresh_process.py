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
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, ParamSpec, TypeVar

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.child_process import (
    FRAME,
    GRACE_S,
    describe_death,
    encode_path,
    name_of,
    receive_frame,
    send_reply,
    start_child,
    take_over_output,
    to_ours,
)

P = ParamSpec("P")
T = TypeVar("T")


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
    raise WorkerError(f"{name_of(function)} returned nothing from its own process.")


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
    with start_child(_serve) as process:
        requests, replies = process.stdin, process.stdout
        if requests is None or replies is None:
            raise WorkerError(f"No pipe to the process of {name_of(function)}.")
        try:
            _send_request(requests, request)
            while True:
                reply = receive_frame(replies)
                if reply is None:
                    raise WorkerError(describe_death(function, process))
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
            process.wait(GRACE_S)


def _send_request(pipe: IO[bytes], request: bytes) -> None:
    with suppress(BrokenPipeError):  # The child died at its start: waiting for its reply says how.
        pipe.write(encode_path())
        pipe.write(request)
        pipe.flush()


def _serve() -> None:
    """The child's side: reads one request from standard input, writes replies to what was standard output."""
    replies = take_over_output()
    try:
        function, args, kwargs, stream = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        result = function(*args, **kwargs)
        for item in result if stream else (result,):
            send_reply(replies, "item", item)
        send_reply(replies, "end", None)
    except BrokenPipeError:
        os._exit(1)
    except BaseException as error:
        send_reply(replies, "error", to_ours(error))


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
                    raise WorkerError(describe_death(self._make, process))
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
        process = start_child(_serve_requests, bufsize=0)
        self._process, self._end = process, weakref.finalize(self, _end_process, process, os.getpid())
        _write(process, encode_path())
        _write(process, FRAME.pack(len(self._origin)), self._origin)
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
    process.wait(GRACE_S)


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> bytearray | None:
    """Returns the reply to a request, or None when the process died."""
    _write(process, FRAME.pack(len(request)), request)
    return receive_frame(process.stdout) if process.stdout else None


def _write(process: "subprocess.Popen[bytes]", *parts: bytes) -> None:
    for part in parts:
        rest = memoryview(part)
        with suppress(BrokenPipeError):  # It died: waiting for its reply says how.
            while rest and process.stdin:
                rest = rest[process.stdin.write(rest) :]


def _serve_requests() -> None:
    """The side of a FreshProcess's child."""
    replies = take_over_output()
    frames: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(frames,), daemon=True).start()
    origin, answer = frames.get(), None
    while True:
        request = frames.get()
        try:
            if answer is None:
                make, args = pickle.loads(origin)  # noqa: S301 (from our own parent)
                answer = make(*args)
            send_reply(replies, "item", answer(pickle.loads(request)))  # noqa: S301
        except BrokenPipeError:
            os._exit(1)
        except BaseException as error:
            send_reply(replies, "error", to_ours(error))


def _receive_requests(frames: "queue.SimpleQueue[bytearray]") -> None:
    while (frame := receive_frame(sys.stdin.buffer)) is not None:
        frames.put(frame)
    os._exit(1)  # The parent closed the pipe or died: nobody waits for an answer, also not for one that is being made.
