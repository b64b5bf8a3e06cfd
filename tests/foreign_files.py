"""Traps that another user could set at a known path. Importable by every child."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch.runtime import own_files

OTHER_USER = 12345


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file or folder another user's: really where this process may do so, else for the package's eyes."""
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, -1, follow_symlinks=False)
        return
    place, why_foreign = path.lstat(), own_files.why_foreign

    def look(found: os.stat_result) -> str | None:
        if (found.st_dev, found.st_ino) == (place.st_dev, place.st_ino):
            found = os.stat_result((*found[:4], OTHER_USER, *found[5:]))
        return why_foreign(found)

    monkeypatch.setattr(own_files, "why_foreign", look)


def open_to_others(path: Path) -> None:
    """Lets every user write to a file or folder."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o022)


def exchange_for_link(path: Path, target: Path) -> None:
    """Puts a file elsewhere, and a symbolic link to it in its place."""
    path.rename(target)
    path.symlink_to(target)


def exchange_for_fifo(path: Path) -> None:
    """Puts a FIFO in the place of a file."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


TRAPS: dict[str, tuple[str, Callable[[Path, Path, pytest.MonkeyPatch], None]]] = {
    "another owner": (
        f"it belongs to user {OTHER_USER}, and this process runs as user {os.geteuid()}",
        lambda path, elsewhere, monkeypatch: give_away(path, monkeypatch),
    ),
    "writable": (
        r"others can write to it \(mode 6[26]{2}\)",
        lambda path, elsewhere, monkeypatch: open_to_others(path),
    ),
    "link": ("it is a symbolic link", lambda path, elsewhere, monkeypatch: exchange_for_link(path, elsewhere)),
    "FIFO": ("it is not a regular file", lambda path, elsewhere, monkeypatch: exchange_for_fifo(path)),
}
"""Name -> the clause of the message as a pattern, and what sets the trap: (file, a free path, monkeypatch)."""
