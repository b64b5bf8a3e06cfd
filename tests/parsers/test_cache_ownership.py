"""A decoded cache reads and writes nothing in a folder where another user may have put something."""

import logging
import os
import pickle
import re
import stat
from pathlib import Path

import pytest
from foreign_folders import TRAPS, open_to_others

from parsers.cached_pictures import assert_reads_right, caches, lines_of, open_parser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def plant(root: Path, folder: Path) -> None:
    """Writes a cache whose images are not those of the dataset."""
    open_parser(root, folder)
    (path,) = caches(folder)
    with path.open("r+b") as file:
        file.seek(2**21)  # The first image.
        file.write(bytes(3072))


@pytest.mark.parametrize("trap", TRAPS)
def test_a_cache_in_a_folder_that_is_not_this_users_own_is_neither_read_nor_written(
    trap: str, small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(small, folder)
    words, set_trap = TRAPS[trap]
    set_trap(folder, monkeypatch)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    parser = open_parser(small, folder)
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        rf"There is no decoded cache of pictures:1\.0\.0 \(train\), and its images are decoded from the original "
        rf"files: {re.escape(str(folder))} is not this user's own: {words}\. Or name another folder, "
        rf"DecodedCache\(folder\): one that does not exist yet is made for you alone\.",
        line,
    )
    assert_reads_right(parser, small)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_folder_that_is_made_is_this_users_alone(small: Path, folder: Path) -> None:
    umask = os.umask(0)
    try:
        open_parser(small, folder / "below")
    finally:
        os.umask(umask)
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"": 0o700, ".beton": 0o600, ".json": 0o600, ".lock": 0o600}


def test_a_folder_that_was_opened_to_others_meanwhile_is_left_by_processes_that_open_it_later(
    small: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pickled = pickle.dumps(open_parser(small, folder))
    open_to_others(folder)
    parser = pickle.loads(pickled)
    with caplog.at_level(logging.WARNING):
        assert_reads_right(parser, small)
    (line,) = lines_of(caplog)
    assert line.startswith(
        "The decoded cache of pictures:1.0.0 cannot be read any more, and its images are decoded from"
    )
    assert f"{folder} is not this user's own: others can write to it (mode 722)" in line
