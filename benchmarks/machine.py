"""The machine and the versions that a measurement depends on, by pyperf and psutil; and files out of its page cache.

pyperf describes the machine, and measures nothing: its Runner times one function after another, where competitors here
take turns, epoch by epoch, are stopped in between and may have interpreters of their own; and its Benchmark refuses a
value of 0 or None, such as the tail of an epoch.
"""

import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import num_cores

_ALWAYS = ("tfds-torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow", "protobuf")


def describe_machine() -> dict[str, Any]:
    """Returns CPU, cores that may be used, memory in bytes, kernel and load, without the machine's name and paths.

    Raises:
        ConfigError: pyperf is not installed.
    """
    try:
        import pyperf
    except ImportError as error:
        raise ConfigError(f"{error}: in a clone, pip install -e '.[bench]'.") from None
    # A Run collects metadata when it is made; its value is not used.
    found = pyperf.Run([1.0]).get_metadata()
    return {
        "cpu": found.get("cpu_model_name"),
        "cpu_frequency": found.get("cpu_freq"),
        "cpu_config": found.get("cpu_config"),
        "num_cores": num_cores(),
        "ram_bytes": psutil.virtual_memory().total,
        "kernel": _kernel(),
        "architecture": platform.machine(),
        "load_before": found.get("load_avg_1min"),
        "runnable_threads": found.get("runnable_threads"),
    }


def describe_versions(distributions: Iterable[str]) -> dict[str, str | None]:
    """Returns the versions of Python and of packages; None: not installed."""
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


def _kernel() -> str:
    """Returns the system and the number of its kernel, without what a vendor adds to it."""
    number = re.match(r"\d+(\.\d+)*", platform.release())
    return f"{platform.system()} {number[0]}" if number else platform.system()


def can_drop() -> bool:
    """Whether this system can be asked to forget files."""
    return hasattr(os, "posix_fadvise")


def drop_from_page_cache(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Writes files to their disk and drops them from the page cache: the next reads come from the disk.

    The disk itself, or the machine below a virtual one, may still hold them.

    Raises:
        ConfigError: this system has no such request.
        OSError: a file cannot be opened.
    """
    if not can_drop():
        raise ConfigError("This system cannot be asked to forget files (posix_fadvise): there are no cold figures.")
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # Pages that are not written yet would stay.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def own_memory_bytes() -> tuple[int, int | None]:
    """Returns this process's resident memory, now and at its greatest so far; None where that is not reported."""
    now = int(psutil.Process().memory_info().rss)
    if not psutil.LINUX:
        return now, None
    # resource.getrusage counts what the parent had at the fork.
    (greatest_kb,) = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return now, 1024 * int(greatest_kb)


def cache_dir() -> Path:
    """Returns the folder that keeps converted data and environments."""
    return platformdirs.user_cache_path("tfds_torch") / "bench"


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
