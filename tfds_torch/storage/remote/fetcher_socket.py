"""The fetcher's socket: its address, the lock under which a fetcher is started, and connections to it."""

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tfds_torch.errors import ConfigError, StallError
from tfds_torch.runtime.own_folder import ForeignFolderError, own_folder

SILENCE_S = 60.0
_FULL_S = 0.02
_LONGEST_ADDRESS = 100  # Bytes of a Unix socket's path: the system allows 104 to 108.
_start_locks: set[int] = set()
"""Descriptors of the locks that threads of this process hold."""


def new_address() -> str:
    """Return the path of a socket that does not exist yet, in a folder that only this user can enter."""
    for place in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (the folder in it is checked)
        folder = Path(place) / f"tfds_torch-{os.geteuid()}"
        address = str(folder / f"{os.getpid()}-{secrets.token_hex(8)}.sock")
        if len(os.fsencode(address)) > _LONGEST_ADDRESS:
            continue
        try:
            own_folder(folder)
        except ForeignFolderError as error:
            raise ConfigError(
                f"The folder {folder} for sockets cannot be used: {error.strerror}. Or give another one: export "
                f"TMPDIR=$(mktemp -d)"
            ) from error
        except OSError as error:
            raise ConfigError(f"The folder {folder} for sockets cannot be made: {error.strerror}.") from error
        _remove_left_behind(folder)
        return address
    raise ConfigError(f"{tempfile.gettempdir()} is too long a path for a Unix socket: set TMPDIR to a shorter one.")


@contextlib.contextmanager
def start_lock(address: str) -> Iterator[None]:
    """Let one process at a time start the fetcher of an address."""
    try:
        own_folder(Path(address).parent)
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


def try_connect(address: str, patience_s: float = SILENCE_S) -> socket.socket | None:
    """Return a connection to the fetcher at an address; None: there is no fetcher.

    Raises:
        StallError: for `patience_s` seconds, so many others waited for it that the system accepted no more.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ends_at = time.monotonic() + patience_s
    try:
        connection.settimeout(SILENCE_S)
        while True:
            try:
                connection.connect(address)
                return connection
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    raise stall(address, patience_s) from None
                time.sleep(_FULL_S)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, NotADirectoryError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


def stall(address: str, silent_s: float) -> StallError:
    """Return the error for a fetcher that sent nothing for some seconds."""
    return StallError(
        f"The fetcher of remote files gave no sign of life for {silent_s:.0f} s (its socket: {address}). Is its "
        f"process stopped?"
    )


def _remove_left_behind(folder: Path) -> None:
    """Remove the files that killed processes left: the sockets of their fetchers, and the locks of these."""
    for lock in folder.glob("*-*.sock.lock"):
        owner, address = lock.name.partition("-")[0], lock.with_suffix("")
        if not owner.isdigit() or psutil.pid_exists(int(owner)):
            continue
        try:
            connection = try_connect(str(address), patience_s=0.0)
        except (OSError, StallError):
            continue
        if connection is not None:  # A worker's fetcher, which outlives the process that named the address.
            connection.close()
            continue
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Otherwise a worker starts a fetcher now.
            for path in (address, lock):
                path.unlink(missing_ok=True)


def _leave_start_locks() -> None:
    """Close, in a forked process, the locks that threads of its parent hold: it would keep them as long as it lives."""
    while _start_locks:
        os.close(_start_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_start_locks)
