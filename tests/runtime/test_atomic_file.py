"""write_atomically and AtomicFile: a file that is there whole or not at all."""

import fcntl
import os
import signal
import stat
from pathlib import Path
from unittest import mock

import pytest

from tfds_torch.runtime.atomic_file import AtomicFile, write_atomically


def test_content_takes_the_place_of_a_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_bytes(b"old")
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    write_atomically(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "target.json").read_bytes() == b"new"


def test_a_link_that_is_not_followed_is_replaced_by_a_file_of_this_users_own(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    target.chmod(0o666)
    for name in ("small", "large"):
        (tmp_path / name).symlink_to(target)
    write_atomically(tmp_path / "small", b"mine", follows_link=False)
    file = AtomicFile(tmp_path / "large", follows_link=False)
    file.write(b"mine", 0)
    file.commit()
    for name in ("small", "large"):
        path = tmp_path / name
        assert (path.is_symlink(), path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (False, b"mine", 0o600)
    assert target.read_bytes() == b"theirs"
    assert sorted(os.listdir(tmp_path)) == ["large", "small", "target"]


def test_a_link_that_is_named_as_left_behind_is_not_followed_and_a_fifo_not_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    link, fifo = (tmp_path / f".data.bin.{digit * 16}.tmp" for digit in "ab")
    link.symlink_to(target)
    os.mkfifo(fifo)
    with mock.patch("fcntl.flock") as flock:
        AtomicFile(tmp_path / "data.bin").commit()
    assert link.is_symlink()
    assert not fifo.exists()
    assert flock.call_count == 2  # Of the FIFO and of the new file; not of the link's target.
    assert target.read_bytes() == b"theirs"


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")
    with mock.patch("os.replace", side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_parts_are_written_at_any_offset_and_put_in_place_as_one(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    path.chmod(0o640)
    file = AtomicFile(path)
    file.write(b"end", 5)
    file.write(b"start", 0)
    file.write(b"", 100)
    assert path.read_bytes() == b"old"
    file.commit()
    file.discard()
    assert path.read_bytes() == b"startend"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["data.bin"]


def test_what_is_given_up_or_forgotten_leaves_nothing(tmp_path: Path) -> None:
    for forget in (False, True):
        file = AtomicFile(tmp_path / "data.bin")
        file.write(b"content", 0)
        if not forget:
            file.discard()
            file.discard()
        del file
        assert os.listdir(tmp_path) == []


def test_nothing_is_written_to_what_was_put_in_place_or_given_up(tmp_path: Path) -> None:
    for end in (AtomicFile.commit, AtomicFile.discard):
        file = AtomicFile(tmp_path / "data.bin")
        end(file)
        with pytest.raises(ValueError, match="is complete, or was given up"):
            file.write(b"more", 0)


def test_a_child_that_ends_does_not_delete_the_parents_file(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "data.bin")
    child = os.fork()
    if child == 0:
        file.write(b"child", 0)
        file.discard()
        os._exit(0)
    os.waitpid(child, 0)
    file.commit()
    assert (tmp_path / "data.bin").read_bytes() == b"child"


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    file, pwrite = AtomicFile(tmp_path / "data.bin"), os.pwrite
    with mock.patch("os.pwrite", lambda descriptor, content, offset: pwrite(descriptor, content[:3], offset)):
        file.write(b"0123456789", 2)
    file.commit()
    assert (tmp_path / "data.bin").read_bytes() == b"\0\x000123456789"


def write_and_die(path: Path) -> None:
    child = os.fork()
    if child == 0:
        file = AtomicFile(path)
        file.write(b"half", 0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_writer_left_goes_when_its_place_is_written_anew(tmp_path: Path) -> None:
    living = AtomicFile(tmp_path / "data.bin")
    others = [tmp_path / ".data.bin.tmp", tmp_path / ".data.bin.0123.tmp", tmp_path / ".other.bin.0123456789abcdef.tmp"]
    for other in others:
        other.touch()
    write_and_die(tmp_path / "data.bin")
    write_and_die(tmp_path / "data.bin")
    left = [one for one in tmp_path.iterdir() if one not in others]
    assert len(left) == 2  # The one that lives, and that of the second: it has removed what the first one left.
    file = AtomicFile(tmp_path / "data.bin")
    assert {*tmp_path.iterdir()} == {living.beside, file.beside, *others}
    file.commit()
    living.commit()
    assert {*tmp_path.iterdir()} == {tmp_path / "data.bin", *others}


def test_a_file_that_was_removed_before_it_was_locked_is_made_anew(tmp_path: Path) -> None:
    flock, removed = fcntl.flock, list[Path]()

    def remove_then_lock(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(descriptor, operation)

    with mock.patch("fcntl.flock", remove_then_lock):
        file = AtomicFile(tmp_path / "data.bin")
    assert file.beside not in removed
    file.write(b"all", 0)
    file.commit()
    assert (tmp_path / "data.bin").read_bytes() == b"all"


def test_without_locks_nothing_is_removed(tmp_path: Path) -> None:
    write_and_die(tmp_path / "data.bin")
    (left,) = tmp_path.iterdir()
    with mock.patch("fcntl.flock", side_effect=OSError("no locks here")):
        AtomicFile(tmp_path / "data.bin").commit()
    assert {*tmp_path.iterdir()} == {left, tmp_path / "data.bin"}
