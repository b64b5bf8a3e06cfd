"""Folders that only this user can have written to: a file at a known path may be another user's."""

import errno
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs


class ForeignFolderError(PermissionError):
    """A folder that is not this user's own; `strerror` is a clause that begins with "it"."""


def cache_folder(kind: str) -> Path:
    """Return the folder for things of a kind in the user's cache; it may be impossible to make it."""
    try:
        base = platformdirs.user_cache_path("tfds_torch")
    except RuntimeError:  # Neither HOME nor an entry in /etc/passwd: a container's user. Containers set HOME to / then.
        base = Path("/.cache/tfds_torch")
    return base / kind


def own_folder(folder: Path) -> Path:
    """Return a folder to which only this user, or root, can write: nobody else can put files into it.

    Where it does not exist, it is made with its parents: others cannot enter any of them.

    Raises:
        ForeignFolderError: as in `check_own_folder`.
        OSError: it cannot be made.
    """
    _make_private(folder)
    check_own_folder(folder)
    return folder


def check_own_folder(folder: Path) -> None:
    """Check that only this user, or root, can write to a folder that exists.

    Raises:
        ForeignFolderError: its owner is another user, others can write to it, or it is a symbolic link.
        OSError: it is not there, or not a folder.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        clause: str | None = f"it is a symbolic link. Name the folder that it points to: {os.readlink(folder)}"
    elif not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    else:
        clause = _why_foreign(found)
        if clause is not None and found.st_uid == os.geteuid():
            clause += f". Where all that lies in it is yours: chmod go-w {shlex.quote(str(folder))}"
    if clause is not None:
        raise ForeignFolderError(errno.EPERM, clause, str(folder))


def _why_foreign(found: os.stat_result) -> str | None:
    """Return why another user may have written to a folder, as a clause; None: only this user and root can."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _make_private(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        return
    _make_private(folder.parent)
    with suppress(FileExistsError):  # Another process has just made it.
        folder.mkdir(0o700)
