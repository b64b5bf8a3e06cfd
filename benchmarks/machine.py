"""The machine and the versions that a measurement depends on; folders for large files."""

import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import num_cores
from tfds_torch.runtime.own_folder import cache_folder

_ALWAYS = ("tfds-torch", "torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow", "turbojpeg", "simplejpeg")


def describe_machine() -> dict[str, Any]:
    """Returns CPU, cores that may be used, memory in bytes, kernel and load, without the machine's name and paths."""
    cpu = platform.processor() or None
    if psutil.LINUX:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        cpu = found[1] if found else cpu
    number = re.match(r"\d+(\.\d+)*", platform.release())  # Without what a vendor adds to it.
    return {
        "cpu": cpu,
        "num_cores": num_cores(),
        "ram_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {number[0]}" if number else platform.system(),
        "architecture": platform.machine(),
        "load_before": psutil.getloadavg()[0],
    }


def describe_versions(more: Mapping[str, str]) -> dict[str, str]:
    """Returns the versions of Python and of packages, those that peers have told among them."""
    found = {"python": platform.python_version()}
    for name in _ALWAYS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, **more}


def cache_dir() -> Path:
    """Returns the folder that keeps the files of peers."""
    return cache_folder("bench")


@contextmanager
def large_folder() -> Iterator[Path]:
    """A folder on the disk that also holds datasets, removed at the end.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="files-") as folder:
            yield Path(folder)
    except OSError as error:
        raise ConfigError(f"The files of a measurement cannot be written to {cache_dir()}: {error}.") from error
