"""AtomicFolder: the old or the new folder lies at its path, whole; `exchange` and what takes its place."""

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime import atomic_folder
from tfds_torch.runtime.atomic_folder import MARKER, AtomicFolder, exchange, settle_folder


def make(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "content").write_text(content)
    return folder


def begun(tmp_path: Path) -> AtomicFolder:
    """Returns a folder `out` of the content `old`, beside which a new one is complete."""
    whole = AtomicFolder(make(tmp_path / "out", "old"))
    whole.begin("note")
    (whole.new / "content").write_text("new")
    return whole


def read(folder: Path) -> str:
    return (folder / "content").read_text()


@pytest.fixture
def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_folder, "_exchanging_call", lambda: None)


def test_two_folders_are_exchanged_by_one_call_where_the_system_has_it(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one", "1"), make(tmp_path / "other", "2")
    is_exchanged = exchange(one, other)
    assert (read(one), read(other)) == (("2", "1") if is_exchanged else ("1", "2"))
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "renameat2"):  # The tests' own folder is on a real disk.
        assert is_exchanged
    if is_exchanged:
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*one.*nowhere"):
            exchange(one, tmp_path / "nowhere")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_exchange_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(one: bytes, other: bytes) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(atomic_folder, "_exchanging_call", lambda: refuse)
    whole = begun(tmp_path)
    assert not exchange(whole.new, whole.path)
    whole.put()
    assert (read(whole.path), whole.is_put(), whole.left()) == ("new", True, [tmp_path / ".out.old"])


def test_the_call_of_macos_takes_the_same_two_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self) -> None:
            self.calls = list[tuple[bytes, bytes, int]]()

        @property
        def renamex_np(self) -> Any:
            def call(one: bytes, other: bytes, flags: int) -> int:
                self.calls.append((one, other, flags))
                return 0

            return call

    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: library)
    monkeypatch.setattr(sys, "platform", "darwin")
    call = atomic_folder._exchanging_call.__wrapped__()
    assert call(b"one", b"other") == 0
    assert library.calls == [(b"one", b"other", 2)]


def test_a_system_without_either_call_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    assert atomic_folder._exchanging_call.__wrapped__() is None


@pytest.mark.parametrize("step", ["before", "between", "after"])
def test_a_kill_at_the_renames_leaves_what_settle_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_exchange: None, step: str
) -> None:
    whole, rename, left = begun(tmp_path), os.rename, {"before": 0, "between": 1, "after": 2}[step]

    class Killed(BaseException):
        pass

    def kill(*paths: Any) -> None:
        nonlocal left
        if not left:
            left = -1
            raise Killed
        if left > 0:
            left -= 1
            rename(*paths)
        else:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed) if step != "after" else monkeypatch.context():
        patch.setattr(os, "rename", kill)
        whole.put()
    assert whole.path.exists() == (step != "between")
    for _ in range(2):
        settle_folder(whole.path)
        assert read(whole.path) == ("old" if step == "before" else "new")
    assert whole.is_put() == (step != "before")


def test_an_old_folder_whose_new_one_is_gone_comes_back(tmp_path: Path) -> None:
    whole = AtomicFolder(tmp_path / "out")
    make(whole.old, "old")
    settle_folder(tmp_path / "out")
    assert read(tmp_path / "out") == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_a_reader_settles_nothing_where_a_folder_is_there_or_never_was(tmp_path: Path) -> None:
    whole = begun(tmp_path)
    settle_folder(whole.path)
    settle_folder(tmp_path / "never")
    settle_folder("a\0b")
    assert (read(whole.path), read(whole.new)) == ("old", "new")
    assert sorted(os.listdir(tmp_path)) == [".out.new", "out"]


def test_a_second_rename_that_is_refused_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_exchange: None
) -> None:
    whole, rename = begun(tmp_path), os.rename

    def refuse(one: Any, other: Any) -> None:
        if one == whole.new:
            raise OSError(errno.EIO, "Input/output error")
        rename(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            whole.put()
    assert (read(whole.path), whole.is_put()) == ("old", False)


def test_a_new_folder_is_known_by_its_marker_and_note_until_it_is_put_or_discarded(tmp_path: Path) -> None:
    whole = begun(tmp_path)
    assert (whole.note_of(whole.new), whole.note_of(whole.path)) == ("note", "")
    (whole.new / "more").mkdir()
    whole.discard()
    whole.discard()
    assert sorted(os.listdir(tmp_path)) == ["out"]
    whole.begin("again")
    whole.put()
    assert whole.note_of(whole.path) == "again"
    whole.end()
    assert not (whole.path / MARKER).exists()


def test_a_folder_that_is_not_known_by_its_marker_is_not_discarded(tmp_path: Path) -> None:
    whole = AtomicFolder(make(tmp_path / "out", "old"))
    make(whole.new, "foreign")
    whole.discard()
    assert read(whole.new) == "foreign"


@pytest.mark.parametrize("what", ["new", "old", "file", "link", "broken link"])
def test_what_lies_in_the_way_is_named(tmp_path: Path, what: str) -> None:
    whole = AtomicFolder(make(tmp_path / "out", "old"))
    beside = whole.old if what == "old" else whole.new
    if what in ("new", "old"):
        make(beside, "foreign")
    elif what == "file":
        beside.write_text("foreign")
    else:
        beside.symlink_to(make(tmp_path / "other", "other") if what == "link" else tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=rf"\.out\.{'old' if what == 'old' else 'new'} is in the way, which was not"):
        whole.check()


def test_a_new_folder_that_was_left_is_not_in_the_way(tmp_path: Path) -> None:
    whole = begun(tmp_path)
    whole.check()
    whole.put()
    whole.check()
    whole = AtomicFolder(make(tmp_path / "other", "old"))
    whole.new.mkdir()  # Of a kill before its marker.
    whole.check()


def test_a_folder_of_another_user_in_a_sticky_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AtomicFolder(make(tmp_path / "out", "old"))
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(
        ConfigError, match=r"cannot be replaced: the new folder is written beside it, and .* may not be"
    ):
        whole.check()


def test_a_folder_whose_name_leaves_no_room_for_another_one_has_a_place_beside_it(tmp_path: Path) -> None:
    whole = AtomicFolder(make(tmp_path / ("ä" * 127), "old"))
    whole.begin("note")
    (whole.new / "content").write_text("new")
    whole.put()
    assert read(whole.path) == "new"


def test_a_link_to_the_folder_stays(tmp_path: Path) -> None:
    make(tmp_path / "out", "old")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to(tmp_path / "out")
    whole = AtomicFolder(link)
    whole.begin("note")
    (whole.new / "content").write_text("new")
    whole.put()
    assert link.is_symlink()
    assert read(link) == read(tmp_path / "out") == "new"
    assert os.listdir(tmp_path / "links") == ["link"]
