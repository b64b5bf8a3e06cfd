"""Connections of a process to the fetcher; where the fetcher has ended, another one is started."""

import contextlib
import os
import random
import socket
import sys
import threading
import time
import weakref
from typing import Any

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.remote.fetcher_process import FetcherProcess
from tfds_torch.storage.remote.fetcher_socket import SILENCE_S, new_address, stall, start_lock, try_connect
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.protocol import Message, error_of, pack, receive

_NUM_ATTEMPTS = 6
_LONGEST_BEGINNING_S = 10.0


class FetcherConnections:
    """Asks the fetcher at an address, over as many connections as threads ask at a time.

    Threads may share it. A forked process opens its own connections, and does not end its parent's fetcher.

    Args:
        options: options with which a fetcher is started.
        address: path of its Unix socket; None: a new path is made.
        lacks_secrets: whether this process lacks the storage options with which the fetcher was started.
    """

    def __init__(self, options: RemoteOptions, address: str | None = None, *, lacks_secrets: bool = False) -> None:
        if sys.platform == "win32":
            raise ConfigError("Object stores cannot be read on Windows: there are no Unix sockets and no file locks.")
        self._options, self._lacks_secrets = options, lacks_secrets
        self.address = address or new_address()
        self.has_secrets = lacks_secrets or options.storage_options is not None
        self._lock = ProcessLock()
        self._owner = os.getpid()
        self._idle: list[socket.socket] = []
        self._end: Any = None
        self._beginning: threading.Thread | None = None
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, message: Message, body: bytes = b"") -> tuple[Message, bytes]:
        """Return the answer to a message and its body; a fetcher that ended meanwhile is replaced.

        Raises:
            TfdsTorchError: the fetcher reports this error.
            WorkerError: several fetchers ended, one after the other.
            StallError: the fetcher gave no sign of life.
        """
        for attempt in range(_NUM_ATTEMPTS):
            if attempt > 1:
                time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)  # noqa: S311 (no secret)
            connection = self._take()
            try:
                connection.sendall(pack(message, body))
                reply, body = _answer(connection)
            except TimeoutError:
                connection.close()
                raise stall(self.address, SILENCE_S) from None
            except OSError:
                connection.close()
                self._close_idle()  # The idle connections were to the same fetcher, which has ended.
                continue
            except BaseException:  # Ctrl-C: an answer that is still due must not be taken for the next one.
                connection.close()
                raise
            self._give(connection)
            if "error" in reply:
                raise error_of(reply)
            return reply, body
        raise WorkerError(
            f"The fetcher of remote files ended {_NUM_ATTEMPTS} times before it had answered (out of memory, or killed "
            f"from outside?)."
        )

    def tell(self, message: Message, *, starts: bool = True) -> None:
        """Send a message that has no answer; a message that is lost because the fetcher ended is not sent again.

        Args:
            message: the message to send.
            starts: whether a fetcher is started for it, where none is running.
        """
        if not starts and not os.path.exists(self.address):
            return
        connection = self._take()
        try:
            connection.sendall(pack(message))
        except OSError:
            connection.close()
            self._close_idle()
        except BaseException:
            connection.close()
            raise
        else:
            self._give(connection)

    def begin(self) -> None:
        """Start the fetcher in the background, where none is running, so that the next request waits less."""
        self._beginning = threading.Thread(target=self._begin, name="tfds_torch-fetcher-start", daemon=True)
        _beginning.add(self._beginning)
        self._beginning.start()

    def close(self) -> None:
        """Close the connections, and end the fetcher that this process started, or is starting."""
        if self._beginning is not None:
            self._beginning.join()
        with self._lock:
            self._leave_parents()
            _close_all(self._idle)
            end, self._end = self._end, None
        if end is not None:
            end()

    def _take(self) -> socket.socket:
        with self._lock:
            self._leave_parents()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give(self, connection: socket.socket) -> None:
        with self._lock:
            if self._owner == os.getpid():
                self._idle.append(connection)
            else:
                connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            _close_all(self._idle)

    def _leave_parents(self) -> None:
        """Drop, in a forked process, the parent's connections, which both would read from, and the parent's fetcher."""
        if self._owner != os.getpid():
            _close_all(self._idle)
            self._end, self._owner = None, os.getpid()

    def _connect(self) -> socket.socket:
        connection = try_connect(self.address)
        if connection is not None:
            return connection
        if self._lacks_secrets:
            return self._wait_for_owner()
        with start_lock(self.address):
            connection = try_connect(self.address)  # Another process may have started a fetcher meanwhile.
            if connection is None:
                self._start()
                connection = try_connect(self.address)
        if connection is None:
            raise WorkerError("The fetcher of remote files ended right after its start.")
        return connection

    def _begin(self) -> None:
        with contextlib.suppress(TfdsTorchError, OSError):  # The next request raises the error.
            self._give(self._connect())

    def _wait_for_owner(self) -> socket.socket:
        """Wait a second for a process that has the storage options to start another fetcher."""
        ends_at = time.monotonic() + 0.8
        while time.monotonic() < ends_at:
            time.sleep(0.05)
            connection = try_connect(self.address)
            if connection is not None:
                return connection
        raise ConfigError(
            "The fetcher of remote files has ended (or runs on another machine), and this process cannot start one: "
            "the storage options were given to another process, and secrets are not handed on. Give credentials by "
            "environment variables or a profile, or start again."
        )

    def _start(self) -> None:
        with self._lock:
            end = self._end
        if end is not None:  # That of a fetcher that has died.
            end()
        fetcher = FetcherProcess(self.address, self._options)
        with self._lock:
            self._end = weakref.finalize(self, fetcher.end)


def _close_all(idle: list[socket.socket]) -> None:
    while idle:
        idle.pop().close()


def _answer(connection: socket.socket) -> tuple[Message, bytes]:
    while True:
        reply, body = receive(connection)
        if "waiting" not in reply:
            return reply, body


_beginning: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def _wait_for_beginning() -> None:
    """Wait for threads that start fetchers: a process that is forked meanwhile would keep their locks and pipes."""
    for thread in list(_beginning):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_LONGEST_BEGINNING_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_beginning)
