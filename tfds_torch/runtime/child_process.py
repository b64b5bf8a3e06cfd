"""A fresh Python process at the other end of two pipes: how it is started, what goes over them, and how it ends."""

import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from tfds_torch.errors import TfdsTorchError, WorkerError

# The current folder, which comes first in the path of `python -c`, must not hide the standard library.
_BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from {module} import {serve}
{serve}()
"""
FRAME = struct.Struct("<Q")
GRACE_S = 5.0  # For a process to end.


def start_child(serve: Callable[[], None], bufsize: int = -1) -> "subprocess.Popen[bytes]":
    """Starts a process that runs a module-level function, once it was sent `encode_path()`."""
    command = [sys.executable, "-c", _BOOT.format(module=serve.__module__, serve=serve.__name__)]
    # Fixed command, no shell: only this package's own code runs.
    return subprocess.Popen(command, bufsize, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603


def encode_path() -> bytes:
    """Returns where this process finds its modules, which a child is sent first."""
    return pickle.dumps([os.path.abspath(entry or ".") for entry in sys.path])


def receive_frame(pipe: IO[bytes]) -> bytearray | None:
    """Returns the next frame, or None when the pipe ends before it is complete."""
    header = _read_exactly(pipe, FRAME.size)
    return None if header is None else _read_exactly(pipe, *FRAME.unpack(header))


def _read_exactly(pipe: Any, size: int) -> bytearray | None:
    data = bytearray(size)
    rest = memoryview(data)
    while rest and (num_read := pipe.readinto(rest)):
        rest = rest[num_read:]
    return None if rest else data


def describe_death(function: Callable[..., Any], process: "subprocess.Popen[bytes]") -> str:
    """Says how a process ended before it had finished; waits for its end."""
    code = process.wait(GRACE_S)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"The process (pid {process.pid}) running {name_of(function)} {how}{hint} before it had finished."


def name_of(function: Callable[..., Any]) -> str:
    """Returns how a function is called in messages."""
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def take_over_output() -> IO[bytes]:
    """Returns what was standard output, for replies; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Prints of the function and its libraries must not mix with the replies.
    return replies


def to_ours(error: BaseException) -> TfdsTorchError:
    """Returns an error that the parent can unpickle; called while it is handled."""
    if isinstance(error, TfdsTorchError):
        return type(error)(str(error))
    return WorkerError(f"A helper process failed:\n{traceback.format_exc()}")


def send_reply(pipe: IO[bytes], kind: str, payload: Any) -> None:
    """Sends one frame to the parent."""
    sys.stdout.flush()  # What was printed before an item is there when the item is.
    frame = pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(FRAME.pack(len(frame)))
    pipe.write(frame)
    pipe.flush()
