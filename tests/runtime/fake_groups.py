"""Made-up file systems of containers: /proc and /sys/fs/cgroup below a folder."""

from collections.abc import Mapping
from pathlib import Path

UNIFIED = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
UNLIMITED = 9223372036854771712
"""What version 1 says where there is no limit."""


def version_1(controller: str, mount_root: str = "/") -> str:
    """Returns a line of mountinfo."""
    return f"35 31 0:32 {mount_root} /sys/fs/cgroup/{controller} rw - cgroup cgroup rw,{controller}"


def make_system(root: Path, groups: str, mounts: str, files: Mapping[str, object]) -> Path:
    """Writes a system's files and returns its root.

    Args:
        root: an empty folder.
        groups: /proc/self/cgroup.
        mounts: lines of /proc/self/mountinfo, after one of another kind.
        files: path below /sys/fs/cgroup -> content.
    """
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups + "\n")
    (root / "proc/self/mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw\n" + mounts + "\n")
    for path, content in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return root
