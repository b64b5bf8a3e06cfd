"""Folders and files that only this user can have written: what lies at a known path may be another user's.

A file is this user's own where its owner is the effective user or root, neither group nor others can write to it, and
it is a regular file itself, not a symbolic link to one.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock

_MOST_BYTES = 1 << 26  # Of a file that is read at once.


class ForeignFileError(PermissionError):
    """A folder or file that is not this user's own; `strerror` is a clause that begins with "it"."""


def why_foreign(found: os.stat_result) -> str | None:
    """Returns why another user may have written a folder or file, as a clause; None: only this user and root can."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def own_folder(folder: Path, *, closes: bool = False) -> Path:
    """Returns a folder, with symbolic links resolved, to which only this user can write.

    It is made where there is none, and so are its parents: none of them can be entered by others.

    Args:
        folder: its path; a link to a folder is followed, once.
        closes: whether a folder of this user to which others can write is closed to them; for folders that this
            package makes, with whatever umask.
    """
    folder = folder.resolve()
    _make_private(folder)
    check_own_folder(folder, closes=closes)
    return folder


def check_own_folder(folder: Path, *, closes: bool = False) -> None:
    """Checks a folder that is there, as `own_folder` does."""
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    clause = why_foreign(found)
    if clause is not None and closes and found.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
        clause = why_foreign(folder.stat())
    if clause is not None:
        raise ForeignFileError(errno.EPERM, clause, str(folder))


def check_own_file(path: Path | str) -> None:
    """Checks a file by its name; in a folder of this user's own, no other user can exchange it afterwards."""
    _check(path, os.lstat(path))


def open_own(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Opens a file of this user's own and returns its descriptor; a FIFO is not waited for, and no link is followed."""
    with suppress(FileNotFoundError):  # O_CREAT makes it.
        check_own_file(path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        _check(path, os.fstat(descriptor))  # It may have been exchanged meanwhile.
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: Path) -> bytes:
    """Returns the content of a file of this user's own, 64 MiB at most."""
    with open(open_own(path), "rb") as file:
        return file.read(_MOST_BYTES)


def write_own(path: Path, content: bytes) -> None:
    """Writes a file of this user's own in place; one that is not there is made, and only this user can read it."""
    with open(open_own(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        file.write(content)


def remove_foreign(path: Path) -> None:
    """Removes a file that is not this user's own from a folder that is; a folder in its place stays."""
    try:
        check_own_file(path)
    except FileNotFoundError:
        pass
    except ForeignFileError:
        with suppress(IsADirectoryError):
            path.unlink()


def own_lock(path: Path) -> BaseFileLock:
    """Returns the lock of a path in a folder of this user's own, not held; what is not a lock of this user's goes."""
    remove_foreign(path)
    return FileLock(path, mode=0o600)  # With umask 002 the next process would take it for foreign.


def _check(path: Path | str, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        clause = why_foreign(found)
    else:
        is_link = stat.S_ISLNK(found.st_mode)
        clause = "it is a symbolic link" if is_link else "it is not a regular file"
    if clause is not None:
        raise ForeignFileError(errno.EPERM, clause, str(path))


def _make_private(folder: Path) -> None:
    """Makes a folder and its parents, where they are not there."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        with suppress(FileExistsError):  # Another process has just made it.
            one.mkdir(0o700)
