"""The machine, the versions, this process, and files out of the page cache."""

import mmap
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs
import pytest

from benchmarks.machine import (
    can_drop,
    describe_machine,
    describe_versions,
    drop_from_page_cache,
    large_folder,
    own_memory_bytes,
)
from tfds_torch.errors import ConfigError


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    known = {"cpu", "cpu_frequency", "cpu_config", "num_cores", "ram_bytes", "kernel", "architecture", "load_before"}
    assert set(machine) == {*known, "runnable_threads"}
    assert not any(platform.node() == value for value in machine.values())
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


def test_without_pyperf_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyperf", None)
    with pytest.raises(ConfigError, match=r"pyperf.*: in a clone, pip install -e '\.\[bench\]'\.$"):
        describe_machine()


def test_memory_that_was_given_back_stays_in_the_greatest_size() -> None:
    (before, _) = own_memory_bytes()
    with mmap.mmap(-1, 50_000_000) as room:
        room.write(bytes(50_000_000))
    now, greatest = own_memory_bytes()
    assert greatest is not None
    assert greatest - before > 45_000_000
    assert greatest >= now


def test_a_large_folder_goes_at_the_end_and_one_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    with large_folder() as folder:
        (folder / "file").write_text("")
    assert list((tmp_path / "tfds_torch" / "bench").iterdir()) == []
    (tmp_path / "tfds_torch" / "bench").rmdir()
    (tmp_path / "tfds_torch" / "bench").write_text("")
    with (
        pytest.raises(ConfigError, match=r"^The files of a measurement cannot be written to .*bench: "),
        large_folder(),
    ):
        pass


def test_files_are_dropped_and_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(arguments[1:]))
    path = tmp_path / "file"
    path.write_bytes(b"content")
    drop_from_page_cache([path, path])
    assert asked == [(0, 0, os.POSIX_FADV_DONTNEED)] * 2
    assert path.read_bytes() == b"content"


def test_without_the_request_cold_figures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    assert not can_drop()
    with pytest.raises(ConfigError, match=r"^This system cannot be asked to forget files \(posix_fadvise\)"):
        drop_from_page_cache([tmp_path / "file"])
