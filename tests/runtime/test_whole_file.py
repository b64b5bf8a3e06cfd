"""write_whole: a file that is there whole or not at all."""

import os
import stat
from pathlib import Path
from unittest import mock

import pytest

from tfds_torch.runtime.whole_file import write_whole


def test_content_takes_the_place_of_a_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_bytes(b"old")
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    write_whole(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "target.json").read_bytes() == b"new"


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")
    with mock.patch("os.replace", side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]
