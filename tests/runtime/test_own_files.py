"""Folders and files that only this user can have written."""

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from foreign_files import OTHER_USER, TRAPS, exchange_for_fifo, give_away

from tfds_torch.runtime import own_files
from tfds_torch.runtime.own_files import (
    ForeignFileError,
    check_own_file,
    check_own_folder,
    open_own,
    own_folder,
    read_own,
    remove_foreign,
    why_foreign,
    write_own,
)


def status(mode: int, user: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("user", ["own", 0])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o700, 0o755, 0o1755])
def test_what_only_this_user_and_root_can_write_to_is_own(user: Any, mode: int) -> None:
    assert why_foreign(status(mode, os.geteuid() if user == "own" else user)) is None


def test_what_others_can_write_to_is_foreign() -> None:
    me = os.geteuid()
    for mode in (0o620, 0o602, 0o770, 0o777, 0o1777):
        assert why_foreign(status(mode, me)) == f"others can write to it (mode {mode:o})"
    assert why_foreign(status(0o600, OTHER_USER)) == (
        f"it belongs to user {OTHER_USER}, and this process runs as user {me}"
    )


# Folders


def test_a_folder_that_is_not_there_is_made_with_its_parents_for_this_user_alone(tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)] == [0o700, 0o700]
    assert own_folder(folder) == folder


def test_a_link_to_a_folder_is_followed_and_its_target_checked(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    assert own_folder(tmp_path / "link") == tmp_path / "scratch"
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(ForeignFileError, match=r"others can write to it \(mode 777\)") as caught:
        own_folder(tmp_path / "link")
    assert caught.value.filename == str(tmp_path / "scratch")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(0o700)
    give_away(tmp_path / "theirs", monkeypatch)
    for closes in (False, True):
        with pytest.raises(ForeignFileError, match=f"it belongs to user {OTHER_USER}, and this process runs as user"):
            own_folder(tmp_path / "theirs", closes=closes)


def test_a_folder_is_closed_to_others_only_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o2775)
    with pytest.raises(ForeignFileError, match=r"others can write to it \(mode 2775\)"):
        check_own_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2775
    own_folder(folder, closes=True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2755


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            own_folder(path)
    with pytest.raises(FileNotFoundError):
        check_own_folder(tmp_path / "none")


# Files


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_neither_read_nor_written_and_can_be_removed(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, elsewhere = tmp_path / "file", tmp_path / "elsewhere"
    path.write_bytes(b"theirs")
    words, set_trap = TRAPS[trap]
    set_trap(path, elsewhere, monkeypatch)
    for act in (read_own, check_own_file, open_own, lambda one: write_own(one, b"mine")):
        with pytest.raises(ForeignFileError, match=words):
            act(path)
    if trap != "FIFO":
        assert path.read_bytes() == b"theirs"
    remove_foreign(path)
    assert not os.path.lexists(path)
    assert elsewhere.exists() == (trap == "link")
    write_own(path, b"mine")
    assert read_own(path) == b"mine"


@pytest.mark.parametrize("trap", ["link", "FIFO"])
def test_a_trap_that_is_set_between_looking_and_opening_is_found(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    check = own_files.check_own_file

    def check_then_exchange(one: Path) -> None:
        check(one)
        TRAPS[trap][1](path, tmp_path / "elsewhere", monkeypatch)

    monkeypatch.setattr(own_files, "check_own_file", check_then_exchange)
    with pytest.raises(OSError, match=r"symbolic links|not a regular file"):
        open_own(path)


def test_what_is_written_can_be_read_by_this_user_alone_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"long content", b"short"):
        write_own(path, content)
        assert read_own(path) == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_own_file_and_a_folder_are_not_removed(tmp_path: Path) -> None:
    write_own(tmp_path / "file", b"mine")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder", "none"):
        remove_foreign(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_no_file_is_that_error(tmp_path: Path) -> None:
    for act in (read_own, check_own_file, open_own):
        with pytest.raises(FileNotFoundError):
            act(tmp_path / "none")


def test_the_error_can_be_pickled(tmp_path: Path) -> None:
    exchange_for_fifo(tmp_path / "fifo")
    with pytest.raises(ForeignFileError) as caught:
        read_own(tmp_path / "fifo")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.filename) == (str(caught.value), str(tmp_path / "fifo"))
