"""FetcherProcess: the fetcher as a child of the process that starts it."""

import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.process_tree import describe_exit
from tfds_torch.storage.remote.options import DEFAULT_CONNECTIONS, RemoteOptions
from tfds_torch.storage.remote.protocol import error_of

MODULE = "tfds_torch.storage.remote.fetcher"
# The path of modules and the secrets arrive on standard input: a command line can be read by every user.
_BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json
setup = json.loads(sys.stdin.buffer.readline())
sys.path[:] = setup.pop("path")
from tfds_torch.storage.remote.fetcher import main
main(setup)
"""
_GRACE_S = 5.0
_LAST_LINES_S = 1.0
_logger = logging.getLogger(MODULE)


class FetcherProcess:
    """A running fetcher. It runs in its own session, so that Ctrl-C in the terminal does not reach it.

    It ends when this process ends, in whatever way: its standard input is closed then. This process logs the fetcher's
    standard error as warnings: they are part of a training's log, and do not disturb a progress bar.

    Args:
        address: path of the socket on which it answers.
        options: where the fetcher caches, and how it asks stores.

    Raises:
        TfdsTorchError: the fetcher reports why it cannot work.
        WorkerError: the fetcher ended before it could answer.
    """

    def __init__(self, address: str, options: RemoteOptions) -> None:
        self._address, self._owner = address, os.getpid()
        readable, writable = os.pipe()
        self.process = subprocess.Popen(  # noqa: S603 (no shell; our own code)
            [sys.executable, "-c", _BOOT, MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=writable,
            start_new_session=True,
        )
        os.close(writable)
        self._log = threading.Thread(target=_log_lines, args=(readable,), name="tfds_torch-fetcher-log", daemon=True)
        self._log.start()
        _running.add(self)
        try:
            self._set_up(options)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the fetcher, where this process started it."""
        if os.getpid() != self._owner:
            return
        self._close_pipes()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.join(_LAST_LINES_S)
        if Path(self._address).name.startswith(f"{os.getpid()}-"):  # Else a later fetcher may use the address.
            for path in (self._address, f"{self._address}.lock"):
                Path(path).unlink(missing_ok=True)

    def leave_to_parent(self) -> None:
        """Close the pipes in a forked process, which must neither wait for it nor keep it alive."""
        self._close_pipes()
        self.process.returncode = 0  # Popen warns of a process that was not waited for.

    def _set_up(self, options: RemoteOptions) -> None:
        setup: dict[str, Any] = {
            "path": [os.path.abspath(entry or ".") for entry in sys.path],
            "address": self._address,
            "cache": str(options.folder),
            "max_bytes": options.max_bytes,
            "ahead_bytes": options.ahead_bytes,
            "connections": options.connections or DEFAULT_CONNECTIONS,
            "timeout_s": options.timeout_s,
            "trust_size": options.trust_size,
            "storage_options": dict(options.storage_options or {}),
            "parent": self._owner,
        }
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("Both are pipes.")
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(setup, default=_plain).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            end = describe_exit(self.process.wait(_GRACE_S))
            self._log.join(_LAST_LINES_S)
            raise WorkerError(f"The fetcher of remote files {end} before it could answer; its error is above.")
        reply = json.loads(line)
        if "error" in reply:
            raise error_of(reply)

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _log_lines(descriptor: int) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            _logger.warning("%s", line.rstrip())


def _plain(value: object) -> Any:
    """Return the value of a storage option as JSON can hold it."""
    return value.decode() if isinstance(value, bytes) else str(value)


_running: "weakref.WeakSet[FetcherProcess]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for fetcher in list(_running):
        fetcher.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
