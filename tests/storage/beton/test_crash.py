"""What is left where writing fails or is killed: what was there before, or the whole new file."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, RunPython
from storage.beton.made_files import left_behind, write_samples

from tfds_torch.errors import ExportError
from tfds_torch.storage.beton.verify import verify

CALLS = ("pwrite", "fsync", "replace")
NUM_CALLS = 8  # A page, metadata, manifest, table, head; fsync, rename, fsync of the folder.


class Failing:
    """Lets one of the calls that change the disk fail; one that writes does so in the middle."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, number: int) -> None:
        self.at, self.number, self.calls = at, number, []
        for name in CALLS:
            patch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, call: Any) -> Any:
        def act(*arguments: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                if name == "pwrite":
                    call(arguments[0], bytes(arguments[1])[:7], arguments[2])
                raise OSError(self.number, os.strerror(self.number))
            return call(*arguments)

        return act


def test_these_are_the_calls_that_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch, -1, 0)
    write_samples(tmp_path / "a.beton")
    assert failing.calls == ["pwrite"] * 5 + ["fsync", "replace", "fsync"]
    assert len(failing.calls) == NUM_CALLS


@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("at", range(NUM_CALLS - 1))
def test_any_failure_leaves_the_old_file_and_nothing_else(
    at: int, has_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.beton"
    if has_old:
        path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        failing = Failing(patch, at, errno.EIO)
        with pytest.raises(ExportError, match=r"cannot be written: Input/output error\. What was there before is unt"):
            write_samples(path, overwrite=True)
    assert len(failing.calls) == at + 1
    assert os.listdir(tmp_path) == (["a.beton"] if has_old else [])
    assert not has_old or path.read_bytes() == b"old"


def test_a_folder_that_cannot_be_synced_is_a_warning_about_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.beton").write_bytes(b"old")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        Failing(patch, NUM_CALLS - 1, errno.EIO)
        write_samples(tmp_path / "a.beton", overwrite=True)
    assert "its folder could not be synced" in caplog.text
    assert verify(tmp_path / "a.beton").num_samples == 7
    assert left_behind(tmp_path) == []


def test_a_full_disk_says_what_is_needed_and_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, 0, errno.ENOSPC)
    with pytest.raises(ExportError) as caught:
        write_samples(tmp_path / "a.beton")
    assert "No space left on device. About 4,194,304 bytes are needed (4,194,304 for 7 of 7 samples), and" in str(
        caught.value
    )
    assert "are free: make room, or write elsewhere. What was there before is untouched." in str(caught.value)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
from storage.beton.made_files import write_samples
from tfds_torch.errors import ExportError
from pathlib import Path
try:
    write_samples(Path(sys.argv[1]) / "a.beton")
except ExportError as error:
    print(error)
"""


def test_a_limit_of_the_files_size_is_an_error_like_a_full_disk(tmp_path: Path, run_python: RunPython) -> None:
    done = run_python("-c", LIMITED, str(tmp_path), env=paths())
    assert "File too large. About 4,194,304 bytes are needed" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tfds_torch.runtime.atomic_file.os.open", refuse)
    with pytest.raises(ExportError, match="cannot be written: Permission denied"):
        write_samples(tmp_path / "a.beton")


def kill_writers(run_python: RunPython, folder: Path, rounds: int) -> dict[str, int]:
    script = Path(__file__).with_name("killed_writer.py")
    done = run_python(str(script), str(folder), str(rounds), "1", env=paths())
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_writers_that_are_killed_leave_no_file_or_a_whole_one(
    rounds: int, tmp_path: Path, run_python: RunPython
) -> None:
    counts = kill_writers(run_python, tmp_path, rounds)
    assert counts["broken"] == 0
    assert counts["absent"] > 0 < counts["whole"]
    assert counts["before_rename"] >= 0.75 * rounds
