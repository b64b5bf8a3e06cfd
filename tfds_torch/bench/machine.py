"""What a measurement depends on: the machine and the versions."""

import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from tfds_torch.runtime.machine_share import num_cores

_ALWAYS = ("tfds-torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow", "protobuf")


def describe_machine() -> dict[str, Any]:
    """Returns CPU model, cores that may be used, memory in bytes, kernel, and the load of the last minute.

    What the system does not tell is None.
    """
    return {
        "cpu": _cpu_model(),
        "num_cores": num_cores(),
        "ram_bytes": _ram_bytes(),
        "kernel": _kernel(),
        "architecture": platform.machine(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def describe_versions(distributions: Iterable[str]) -> dict[str, str | None]:
    """Returns the versions of Python and of packages, those that everything depends on included; None: not there."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in dict.fromkeys([*_ALWAYS, *distributions]):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    if versions["tensorflow-cpu"] is not None:  # One of the two is never there.
        del versions["tensorflow"]
    elif versions["tensorflow"] is not None:
        del versions["tensorflow-cpu"]
    return versions


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _kernel() -> str:
    """Returns the system and the number of its kernel, without what a vendor adds to it."""
    number = re.match(r"\d+(\.\d+)*", platform.release())
    return f"{platform.system()} {number[0]}" if number else platform.system()
