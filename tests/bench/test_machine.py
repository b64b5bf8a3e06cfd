"""What is said about the machine and the versions."""

import os
import platform
import re
from importlib.metadata import version

from tfds_torch.bench.machine import describe_machine, describe_versions


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert set(machine) == {"cpu", "num_cores", "ram_bytes", "kernel", "architecture", "load_before"}
    assert machine["num_cores"] == len(os.sched_getaffinity(0))
    assert machine["ram_bytes"] > 2**28
    assert re.fullmatch(r"Linux \d+(\.\d+)*", machine["kernel"])  # Nothing that a vendor adds.
    assert machine["load_before"] >= 0


def test_versions_are_those_that_are_installed_each_once() -> None:
    versions = describe_versions(["torch", "no-such-distribution", "torch"])
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == version("torch")
    assert versions["tfds-torch"] == version("tfds-torch")
    assert versions["no-such-distribution"] is None
    assert len({"tensorflow", "tensorflow-cpu"} & set(versions)) == 1  # They are never there together.
