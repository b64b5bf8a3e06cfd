"""What a measurement depends on: the machine, as pyperf and psutil tell of it, and the versions."""

import platform
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.limits import num_cores

_ALWAYS = ("tfds-torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow", "protobuf")


def describe_machine() -> dict[str, Any]:
    """Returns CPU model, frequency and configuration, cores that may be used, memory in bytes, kernel, and the load.

    What the system does not tell is None. Of what pyperf collects, neither the machine's name nor paths are taken.

    Raises:
        ConfigError: pyperf or psutil is not installed.
    """
    try:
        import psutil
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


def _kernel() -> str:
    """Returns the system and the number of its kernel, without what a vendor adds to it."""
    number = re.match(r"\d+(\.\d+)*", platform.release())
    return f"{platform.system()} {number[0]}" if number else platform.system()
