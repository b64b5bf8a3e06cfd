"""Run a function in a fresh Python process, for code that must not run in this one.

tensorflow must not be imported by a training process, and cannot be used after a fork of a process that used it. A
fresh interpreter (no fork, so no inherited threads or locks) runs such a function instead; the results come back over
a pipe. It may be used from daemonic processes (torch's loader workers), which `multiprocessing` forbids.

The child writes its own output to our standard error, ignores Ctrl-C (the parent ends it), and ends when the parent
is gone, also by SIGKILL.
"""

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import traceback
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
from {module} import _serve
_serve()
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
    command = [sys.executable, "-c", _BOOT.format(module=__name__)]
    # Fixed command, no shell: only this package's own code runs.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
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


def _send_request(pipe: IO[bytes], request: bytes) -> None:
    with suppress(BrokenPipeError):  # The child died at its start: waiting for its reply says how.
        pickle.dump([os.path.abspath(entry or ".") for entry in sys.path], pipe)
        pipe.write(request)
        pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Returns the next frame, or None when the pipe ends before it is complete."""
    header = pipe.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    (size,) = _FRAME.unpack(header)
    frame = pipe.read(size)
    return frame if len(frame) == size else None


def _describe_death(function: Callable[..., Any], process: "subprocess.Popen[bytes]") -> str:
    code = process.wait(_GRACE_S)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"The process (pid {process.pid}) running {_name(function)} {how}{hint} before it had finished."


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def _serve() -> None:
    """The child's side: reads one request from standard input, writes replies to what was standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Prints of the function and its libraries must not mix with the replies.
    try:
        function, args, kwargs, stream = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        result = function(*args, **kwargs)
        for item in result if stream else (result,):
            _reply(replies, "item", item)
        _reply(replies, "end", None)
    except BrokenPipeError:
        os._exit(1)
    except TfdsTorchError as error:
        _reply(replies, "error", type(error)(str(error)))
    except BaseException:
        _reply(replies, "error", WorkerError(f"A helper process failed:\n{traceback.format_exc()}"))


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
