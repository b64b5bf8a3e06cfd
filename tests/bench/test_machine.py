"""What is said about the machine and the versions."""

import os
import platform
import re
import sys
from importlib.metadata import version

import pytest

from benchmarks.machine import describe_machine, describe_versions
from tfds_torch.errors import ConfigError


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    told = {"cpu", "cpu_frequency", "cpu_config", "num_cores", "ram_bytes", "kernel", "architecture", "load_before"}
    assert set(machine) == {*told, "runnable_threads"}
    assert not any(platform.node() == value for value in machine.values())  # Whose machine it is, is nobody's business.
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


def test_without_pyperf_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyperf", None)
    with pytest.raises(ConfigError, match=r"pyperf.*: in a clone, pip install -e '\.\[bench\]'\.$"):
        describe_machine()
