"""A decoded cache reads and writes nothing that another user may have put there."""

import logging
import os
import pickle
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from foreign_files import OTHER_USER, TRAPS, exchange_for_fifo, exchange_for_link, give_away, open_to_others

from parsers.cached_pictures import assert_reads_right, caches, lines_of, open_parser
from tfds_torch import DecodedCache, ParserTfds
from tfds_torch.parsers.cache import opening
from tfds_torch.parsers.cache.decoded_cache import lock_path, status_path
from tfds_torch.parsers.cache.status import read_status
from tfds_torch.storage.beton.verify import verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def plant(root: Path, folder: Path) -> Path:
    """Writes a cache whose images are not those of the dataset, and returns its path."""
    open_parser(root, folder)
    (path,) = caches(folder)
    with path.open("r+b") as file:
        file.seek(2**21)  # The first image.
        file.write(bytes(3072))
    return path


# Folders


@pytest.mark.parametrize("trap", ["another owner", "writable", "link to another's"])
def test_a_cache_in_a_folder_that_is_not_this_users_own_is_neither_read_nor_written(
    trap: str,
    small: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant(small, folder)
    found, words = folder, rf"it belongs to user {OTHER_USER}, and this process runs as user {os.geteuid()}"
    if trap == "writable":
        open_to_others(folder)
        words = r"others can write to it \(mode 722\)"
    else:
        give_away(folder, monkeypatch)
    if trap == "link to another's":
        found = tmp_path / "theirs"
        exchange_for_link(folder, found)
    before = sorted(os.listdir(found))
    parser = open_parser(small, folder)
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        rf"There is no decoded cache of pictures:1\.0\.0 \(train\), and its images are decoded from the original "
        rf"files: {re.escape(str(found))} is not this user's own: {words}\. Close it to others \(chmod go-w\) where it "
        rf"is yours, or name another folder: one that does not exist yet is made for you alone\.",
        line,
    )
    assert_reads_right(parser, small)
    assert sorted(os.listdir(found)) == before


def test_the_folder_that_is_made_is_this_users_alone(small: Path, folder: Path) -> None:
    umask = os.umask(0)
    try:
        open_parser(small, folder / "below")
    finally:
        os.umask(umask)
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"": 0o700, ".beton": 0o600, ".json": 0o600, ".lock": 0o600}


def test_a_folder_named_by_a_link_of_the_users_is_used(
    small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scratch").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    assert open_parser(small, tmp_path / "link").source.file is not None
    assert len(caches(tmp_path / "scratch")) == 1
    assert lines_of(caplog) == []


def test_the_packages_own_folder_is_closed_and_used_whatever_the_umask_was(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = DecodedCache().path
    folder.mkdir(parents=True)
    folder.chmod(0o775)
    assert ParserTfds(small, "pictures", cache=DecodedCache()).source.file is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert lines_of(caplog) == []


# Files


@pytest.mark.parametrize("trap", TRAPS)
def test_a_planted_cache_is_built_anew_with_a_warning_and_its_target_left_alone(
    trap: str,
    small: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, elsewhere = plant(small, folder), tmp_path / "elsewhere"
    planted = path.read_bytes()
    words, set_trap = TRAPS[trap]
    set_trap(path, elsewhere, monkeypatch)
    parser = open_parser(small, folder)
    (line,) = lines_of(caplog)
    start = "The decoded cache of pictures:1.0.0 is not this user's own, and is built again: "
    assert re.fullmatch(rf"{re.escape(start + str(path))}: {words}\.", line)
    assert_reads_right(parser, small)
    assert verify(path).num_samples == 60
    assert not path.is_symlink()
    if trap == "link":
        assert elsewhere.read_bytes() == planted


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("beside", [status_path, lock_path])
def test_a_trap_beside_a_cache_is_replaced_and_never_followed_or_waited_for(
    beside: Callable[[Path], Path],
    trap: str,
    small: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, elsewhere = plant(small, folder), tmp_path / "elsewhere"
    path.unlink()
    set_trap = TRAPS[trap][1]
    beside(path).write_bytes(b"theirs")
    set_trap(beside(path), elsewhere, monkeypatch)
    assert_reads_right(open_parser(small, folder), small)
    assert lines_of(caplog) == []
    found = beside(path).lstat()
    assert stat.S_ISREG(found.st_mode)
    assert found.st_uid == os.geteuid()
    assert not found.st_mode & 0o022
    if trap == "link":
        assert elsewhere.read_bytes() == b"theirs"
    status = read_status(status_path(path))
    assert status is not None
    assert (status.phase, status.dataset, status.split) == ("complete", "pictures:1.0.0", "train")


def test_a_status_that_is_a_fifo_does_not_hang_those_that_wait(
    small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = plant(small, folder)
    path.unlink()
    exchange_for_fifo(status_path(path))
    monkeypatch.setattr(opening, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(opening, "LONGEST_SILENCE_S", 0.1)
    with FileLock(lock_path(path)):
        parser = open_parser(small, folder)
    (line,) = lines_of(caplog)
    assert f"the process that builds {path} has reported nothing for 0 s: it is stuck" in line
    assert_reads_right(parser, small)


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
