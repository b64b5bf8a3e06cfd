"""Connections of a process to the fetcher; where it has ended, another one is started."""

import contextlib
import errno
import fcntl
import os
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tfds_torch.errors import ConfigError, StallError, TfdsTorchError, WorkerError
from tfds_torch.runtime.own_files import ForeignFileError, own_folder
from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.remote.fetcher_process import FetcherProcess
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.protocol import BrokenFrameError, Message, error_of, pack, receive

_SILENCE_S = 60.0
_FULL_S = 0.02
_NUM_ATTEMPTS = 6
_LONGEST_BEGINNING_S = 10.0
_LONGEST_ADDRESS = 100  # Bytes of a Unix socket's path: the system allows 104 to 108.


class FetcherConnections:
    """Asks the fetcher at an address, over as many connections as threads ask at a time.

    Threads may share it. A forked process opens connections of its own, and leaves its parent's fetcher running.

    Args:
        options: what a fetcher is started with.
        address: path of its Unix socket; None: a new one.
        lacks_secrets: whether this process has not got the storage options that the fetcher was started with.
    """

    def __init__(self, options: RemoteOptions, address: str | None = None, *, lacks_secrets: bool = False) -> None:
        if sys.platform == "win32":
            raise ConfigError("Object stores cannot be read on Windows: there are no Unix sockets and no file locks.")
        self._options, self._lacks_secrets = options, lacks_secrets
        self.address = address or _new_address()
        self.has_secrets = lacks_secrets or options.storage_options is not None
        self._lock = ProcessLock()
        self._owner = os.getpid()
        self._idle: list[socket.socket] = []
        self._end: Any = None
        self._beginning: threading.Thread | None = None
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, message: Message, body: bytes = b"") -> tuple[Message, bytes]:
        """Returns the answer to a message and its body; a fetcher that ended meanwhile is replaced.

        Raises:
            TfdsTorchError: as the fetcher reports it.
            WorkerError: one fetcher after the other ended.
            StallError: no sign of life came.
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
                raise _stall(self.address, _SILENCE_S) from None
            except OSError:
                connection.close()
                self._close_idle()  # They were to the same fetcher, which has ended.
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
        """Sends a message that has no answer; one that is lost because the fetcher ended is not sent again.

        Args:
            message: what is sent.
            starts: whether a fetcher is started for it, where there is none.
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
        """Starts the fetcher in the background, where there is none: the next request waits no longer than it takes."""
        self._beginning = threading.Thread(target=self._begin, name="tfds_torch-fetcher-start", daemon=True)
        _beginning.add(self._beginning)
        self._beginning.start()

    def close(self) -> None:
        """Closes the connections, and ends the fetcher that this process started, or is starting."""
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
        """Drops what a forked process has of its parent: connections that both would read from, and its child."""
        if self._owner != os.getpid():
            _close_all(self._idle)
            self._end, self._owner = None, os.getpid()

    def _connect(self) -> socket.socket:
        connection = _try_connect(self.address)
        if connection is not None:
            return connection
        if self._lacks_secrets:
            return self._wait_for_owner()
        with _start_lock(self.address):
            connection = _try_connect(self.address)  # Another process may have started one meanwhile.
            if connection is None:
                self._start()
                connection = _try_connect(self.address)
        if connection is None:
            raise WorkerError("The fetcher of remote files ended right after its start.")
        return connection

    def _begin(self) -> None:
        with contextlib.suppress(TfdsTorchError, OSError):  # The next request raises it.
            self._give(self._connect())

    def _wait_for_owner(self) -> socket.socket:
        """Waits a second for a process that has the storage options to start another fetcher."""
        ends_at = time.monotonic() + 0.8
        while time.monotonic() < ends_at:
            time.sleep(0.05)
            connection = _try_connect(self.address)
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
        if end is not None:  # One that has died.
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


def _try_connect(address: str, patience_s: float = _SILENCE_S) -> socket.socket | None:
    """Returns a connection to the fetcher at an address; None: there is none.

    Raises:
        StallError: so many wait for it already that its system takes no more, for `patience_s` seconds.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ends_at = time.monotonic() + patience_s
    try:
        connection.settimeout(_SILENCE_S)
        while True:
            try:
                connection.connect(address)
                return connection
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    raise _stall(address, patience_s) from None
                time.sleep(_FULL_S)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenFrameError, NotADirectoryError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


def _stall(address: str, silent_s: float) -> StallError:
    return StallError(
        f"The fetcher of remote files gave no sign of life for {silent_s:.0f} s (its socket: {address}). Is its "
        f"process stopped?"
    )


def _new_address() -> str:
    """Returns the path of a socket that is not there yet, in a folder that only this user can enter."""
    for place in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (the folder in it is checked)
        folder = Path(place) / f"tfds_torch-{os.geteuid()}"
        address = str(folder / f"{os.getpid()}-{secrets.token_hex(8)}.sock")
        if len(os.fsencode(address)) > _LONGEST_ADDRESS:
            continue
        try:
            own_folder(folder, closes=True)
        except ForeignFileError as error:
            raise ConfigError(f"The folder {folder} for sockets cannot be used: {error.strerror}.") from error
        except OSError as error:
            raise ConfigError(f"The folder {folder} for sockets cannot be made: {error.strerror}.") from error
        _remove_left_behind(folder)
        return address
    raise ConfigError(f"{tempfile.gettempdir()} is too long a path for a Unix socket: set TMPDIR to a shorter one.")


def _remove_left_behind(folder: Path) -> None:
    """Removes what killed processes left: the sockets of their fetchers, and the locks of these."""
    for lock in folder.glob("*-*.sock.lock"):
        owner, address = lock.name.partition("-")[0], lock.with_suffix("")
        if not owner.isdigit() or psutil.pid_exists(int(owner)):
            continue
        try:
            connection = _try_connect(str(address), patience_s=0.0)
        except (OSError, StallError):
            continue
        if connection is not None:  # A worker's fetcher, which outlives the process that named the address.
            connection.close()
            continue
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Else a worker starts a fetcher at this moment.
            for path in (address, lock):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _start_lock(address: str) -> Iterator[None]:
    """Lets one process at a time start the fetcher of an address."""
    try:
        own_folder(Path(address).parent, closes=True)
        descriptor = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{Path(address).parent} cannot be used for sockets: {error.strerror or errno.errorcode[error.errno or 0]}."
        ) from error
    _start_locks.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        _start_locks.discard(descriptor)
        os.close(descriptor)


_start_locks: set[int] = set()
_beginning: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def _wait_for_beginning() -> None:
    """Lets threads finish that start fetchers: a process that is forked meanwhile would keep their locks and pipes."""
    for thread in list(_beginning):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_LONGEST_BEGINNING_S)


def _leave_start_locks() -> None:
    """Closes in a forked process the locks that threads of its parent hold: it would keep them as long as it lives."""
    while _start_locks:
        os.close(_start_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_beginning, after_in_child=_leave_start_locks)
