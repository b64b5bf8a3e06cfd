"""Traps that another user could set at a known path. Importable by every child."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch.runtime import own_folder

OTHER_USER = 12345


def give_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a folder another user's: really where this process may do so, else for the package's eyes."""
    if os.geteuid() == 0:
        os.chown(folder, OTHER_USER, -1)
        return
    place, why_foreign = folder.lstat(), own_folder._why_foreign

    def look(found: os.stat_result) -> str | None:
        if (found.st_dev, found.st_ino) == (place.st_dev, place.st_ino):
            found = os.stat_result((*found[:4], OTHER_USER, *found[5:]))
        return why_foreign(found)

    monkeypatch.setattr(own_folder, "_why_foreign", look)


def open_to_others(folder: Path) -> None:
    """Lets every user write to a folder."""
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o022)


def exchange_for_link(folder: Path) -> None:
    """Puts a folder elsewhere, and a symbolic link to it in its place."""
    target = folder.with_name(f"{folder.name}-elsewhere")
    folder.rename(target)
    folder.symlink_to(target)


TRAPS: dict[str, tuple[str, Callable[[Path, pytest.MonkeyPatch], None]]] = {
    "another owner": (f"it belongs to user {OTHER_USER}, and this process runs as user {os.geteuid()}", give_away),
    "open": (
        r"others can write to it \(mode 722\)\. Where all that lies in it is yours: chmod go-w \S+",
        lambda folder, monkeypatch: open_to_others(folder),
    ),
    "link": (
        r"it is a symbolic link\. Name the folder that it points to: \S+-elsewhere",
        lambda folder, monkeypatch: exchange_for_link(folder),
    ),
}
"""Name -> the clause of the message as a pattern, and what sets the trap: (folder, monkeypatch)."""
