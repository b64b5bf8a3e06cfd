"""What the system tells of processes, against what they do."""

import mmap
import os
from pathlib import Path

import pytest

from benchmarks import system
from tfds_torch.errors import ConfigError


def test_what_this_process_reads_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000_000))
    before = system.read_bytes()
    path.read_bytes()
    after = system.read_bytes()
    assert before is not None
    assert after is not None
    assert 1_000_000 <= after - before < 1_100_000


def test_memory_that_was_given_back_stays_in_the_greatest_size() -> None:
    before = system.resident_bytes()
    with mmap.mmap(-1, 50_000_000) as room:
        room.write(bytes(50_000_000))
    after = system.resident_bytes()
    assert before is not None
    assert after is not None
    assert after[1] - before[0] > 45_000_000
    assert after[1] >= after[0]


def test_bytes_from_disks_are_those_of_all_processes_that_run() -> None:
    own = system.disk_bytes([os.getpid()])
    assert own is not None
    assert system.disk_bytes([os.getpid(), os.getpid(), 2**22 + 1]) == 2 * own
    assert system.disk_bytes([2**22 + 1]) is None


def test_files_are_dropped_and_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(arguments[1:]))
    path = tmp_path / "file"
    path.write_bytes(b"content")
    system.drop_from_page_cache([path, path])
    assert asked == [(0, 0, os.POSIX_FADV_DONTNEED)] * 2
    assert path.read_bytes() == b"content"


def test_without_the_request_cold_figures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    assert not system.can_drop()
    with pytest.raises(ConfigError, match=r"^This system cannot be asked to forget files \(posix_fadvise\)"):
        system.drop_from_page_cache([tmp_path / "file"])


def test_where_the_system_tells_nothing_there_are_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_PROC", tmp_path)
    assert (system.read_bytes(), system.resident_bytes(), system.disk_bytes([os.getpid()])) == (None, None, None)
