"""WorkerOutput: the standard error of workers, and their stacks, in memory that outlives them."""

import faulthandler
import fcntl
import os
import signal
import sys
import time
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, TextIO

_STACK_CHECK_S = 0.02
_MOST_BYTES = 1 << 18
_TAIL_BYTES = 1 << 15
_CRASH = "Fatal Python error: "


class WorkerOutput:
    """A file without a name (memfd) for each worker; without any where the system has none.

    It gets a copy of the text that Python writes to `sys.stderr` in the worker, and the stacks of its threads when it
    crashes by a signal, and when it is asked for them. Output of native code is not in it. The files are inherited by
    forked workers and travel to spawned ones.
    """

    def __init__(self, num_workers: int) -> None:
        self._files: list[int] = []
        if hasattr(os, "memfd_create"):
            self._files = [os.memfd_create("stderr") for _ in range(num_workers)]
        for file in self._files:  # Writers share no offset with the reader, who may cut it off.
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)

    def bind(self, worker: int) -> None:
        """Let this process write as a worker."""
        if not self._files:
            return
        file = self._files[worker]
        faulthandler.enable(file=file, all_threads=True)
        faulthandler.register(_stack_signal(), file=file, all_threads=True, chain=False)
        sys.stderr = _CopiedStream(sys.stderr, file)

    def clear(self, worker: int) -> None:
        """Forget the output of a worker, before another process takes its number."""
        if self._files:
            os.ftruncate(self._files[worker], 0)

    def duplicate(self, worker: int) -> int | None:
        """Return a new descriptor of a worker's file, which the caller closes; None: there is none."""
        return os.dup(self._files[worker]) if self._files else None

    def last_lines(self, worker: int, most: int = 20) -> str:
        """Return the last lines that a worker has written, empty where there are none; of a crash, the first ones."""
        if not self._files:
            return ""
        size = os.fstat(self._files[worker]).st_size
        start = max(0, size - _TAIL_BYTES)
        _, crash, stack = os.pread(self._files[worker], size - start, start).decode(errors="replace").rpartition(_CRASH)
        if crash:  # The innermost calls come first.
            return (crash + "\n".join(stack.splitlines()[:most])).strip("\n")
        lines = stack.splitlines()[1 if start else 0 :]
        return "\n".join(lines[-most:]).strip("\n")

    def ask_for_stack(self, worker: int, pid: int, wait_s: float = 2.0) -> str | None:
        """Return the Python stacks of a worker's threads; None when it does not answer."""
        if not self._files:
            return None
        file = self._files[worker]
        start = os.fstat(file).st_size
        try:
            os.kill(pid, _stack_signal())
        except OSError:
            return None
        text = os.pread(file, _wait_for_end(file, start, wait_s) - start, start)
        return text.decode(errors="replace").strip() or None

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def __del__(self) -> None:
        if os is not None:  # It is: the interpreter ends, and closes them itself.
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            raise TypeError("WorkerOutput travels to new processes only.")
        return {"files": [reduction.DupFd(file) for file in self._files]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files = [file.detach() for file in state["files"]]


class _CopiedStream:
    """A text stream whose text also goes to a file, which begins anew when it is long."""

    def __init__(self, stream: TextIO, file: int) -> None:
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        """Write a text to both."""
        if os.fstat(self._file).st_size > _MOST_BYTES:
            os.ftruncate(self._file, 0)
        os.write(self._file, text.encode(errors="replace"))
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts to both."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _wait_for_end(file: int, start: int, wait_s: float) -> int:
    """Return the size of a file when it has grown and grows no more, or after a while."""
    ends_at, size = time.monotonic() + wait_s, start
    while time.monotonic() < ends_at:
        time.sleep(_STACK_CHECK_S)
        now = os.fstat(file).st_size
        if now == size > start:
            break
        size = now
    return size


def _stack_signal() -> int:
    return signal.SIGRTMAX - 3  # Programs have their own plans with SIGUSR1 and SIGUSR2.
