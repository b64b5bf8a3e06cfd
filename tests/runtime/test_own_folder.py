"""Folders that only this user can have written to."""

import os
import pickle
import pwd
import stat
from pathlib import Path
from typing import Any, NoReturn

import pytest
from foreign_folders import OTHER_USER, TRAPS

from tfds_torch.runtime.own_folder import ForeignFolderError, _why_foreign, cache_folder, check_own_folder, own_folder


def status(mode: int, user: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("user", ["own", 0])
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1755])
def test_what_only_this_user_and_root_can_write_to_is_own(user: Any, mode: int) -> None:
    assert _why_foreign(status(mode, os.geteuid() if user == "own" else user)) is None


def test_what_others_can_write_to_is_foreign() -> None:
    me = os.geteuid()
    for mode in (0o720, 0o702, 0o770, 0o777, 0o1777):
        assert _why_foreign(status(mode, me)) == f"others can write to it (mode {mode:o})"
    assert _why_foreign(status(0o700, OTHER_USER)) == (
        f"it belongs to user {OTHER_USER}, and this process runs as user {me}"
    )


def test_a_folder_that_is_not_there_is_made_with_its_parents_for_this_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        folder = own_folder(tmp_path / "a" / "b")
    finally:
        os.umask(umask)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)] == [0o700, 0o700]
    assert own_folder(folder) == folder


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_refused_with_what_to_do(trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_folder(tmp_path / "folder")
    words, set_trap = TRAPS[trap]
    set_trap(folder, monkeypatch)
    for act in (own_folder, check_own_folder):
        with pytest.raises(ForeignFolderError, match=words) as caught:
            act(folder)
        assert caught.value.filename == str(folder)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.filename) == (str(caught.value), str(folder))


def test_a_link_that_leads_nowhere_is_refused_and_nothing_is_made_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ForeignFolderError, match="it is a symbolic link"):
        own_folder(tmp_path / "link")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            own_folder(path)
    with pytest.raises(FileNotFoundError):
        check_own_folder(tmp_path / "none")


def test_a_user_without_a_home_and_an_entry_has_the_cache_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", fail)
    assert cache_folder("remote") == Path("/.cache/tfds_torch/remote")
    monkeypatch.setenv("HOME", "/home/of/it")
    assert cache_folder("remote") == Path("/home/of/it/.cache/tfds_torch/remote")
