"""The control groups (cgroups, versions 1 and 2) that a container puts this process in."""

import re
from pathlib import Path


def group_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Returns the folders of this process's control group and of the groups around it, innermost first.

    A limit of any of them binds. Folders that a container does not show are left out; where there are no control
    groups, the list is empty.

    Args:
        controller: `memory` or `cpu`.
        root: the file system's root.
    """
    paths = _own_paths(root)
    folders = []
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, kind = line.partition(" - ")
        mount_root, mount_point = (_unescape(field) for field in mount.split()[3:5])
        filesystem, _, options = kind.split(" ", 2)
        if filesystem == "cgroup2":
            path = paths.get("")
        elif filesystem == "cgroup" and controller in options.split(","):
            path = paths.get(controller)
        else:
            continue
        if path is not None:
            folders += _upwards(root / mount_point.lstrip("/"), mount_root, path)
    return [folder for folder in folders if folder.is_dir()]


def read_word(file: Path) -> str | None:
    """Returns what a control group's file says, or None where there is no such file."""
    lines = _lines(file)
    return lines[0].strip() if lines else None


def read_table(file: Path) -> dict[str, int]:
    """Returns the numbers of a file with lines `name number`; none where there is no such file."""
    return {name: int(number) for name, number in (line.split() for line in _lines(file))}


def _own_paths(root: Path) -> dict[str, str]:
    """Returns controller -> path of this process's group; version 2 has one for all, whose name is empty."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(mount_point: Path, mount_root: str, path: str) -> list[Path]:
    """Returns the folders from a group's up to where its hierarchy is mounted."""
    if path.startswith(mount_root.rstrip("/") + "/"):  # A container is often shown its own part of the hierarchy only.
        path = path[len(mount_root.rstrip("/")) :]
    inner = [part for part in path.split("/") if part]
    if ".." in inner:  # The group lies outside of what this process is shown.
        inner = []
    return [mount_point.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]


def _unescape(field: str) -> str:
    """Returns a field of mountinfo, in which blanks are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _lines(file: Path) -> list[str]:
    """Returns a file's lines that are not empty; none where there is no file that this process may read."""
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")  # Mount points may be named anyhow.
    except OSError:
        return []
    return [line for line in text.splitlines() if line]
