"""`python -m tfds_torch.export cache list | clear`: what is there, and what may be deleted."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from parsers.cached_pictures import NUM_EXAMPLES
from tfds_torch import DecodedCache, ParserTfds
from tfds_torch.parsers.cache import command
from tfds_torch.parsers.cache.command import run
from tfds_torch.parsers.cache.decoded_cache import list_caches, lock_path, status_path
from tfds_torch.parsers.cache.status import CacheStatus, write_status


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    """Two caches, and a file of somebody else's."""
    folder = tmp_path / "caches"
    ParserTfds(small, "pictures", cache=DecodedCache(folder))
    ParserTfds(small, "pictures", "train[:10%]", cache=DecodedCache(folder, max_resolution=16))
    (folder / "mine-0123456789abcde.beton").write_bytes(b"mine")
    (folder / "train.beton").write_bytes(b"mine")
    return folder


MINE = ["mine-0123456789abcde.beton", "train.beton"]


def test_a_list_has_a_line_for_each_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--folder", str(folder)]) == 0
    said = capsys.readouterr().out
    paths = [entry.path.name for entry in list_caches(folder)]
    lines = [next(line for line in said.splitlines() if path in line) for path in paths]
    day = time.strftime("%Y-%m-%d")
    sizes = [f"{entry.num_bytes / 1e6:.1f} MB" for entry in list_caches(folder)]
    assert lines[0].split() == ["pictures:1.0.0", "train", "all", "60", *sizes[0].split(), day, paths[0]]
    assert lines[1].split() == ["pictures:1.0.0", "train[:10%]", "16", "px", "6", *sizes[1].split(), day, paths[1]]
    assert f"decoded caches in {folder}" in said
    assert said.splitlines()[-1].startswith("2 decoded caches, ")


def test_json_has_the_same_and_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--folder", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(folder)
    first, second = told["caches"]
    assert first["num_examples"] == NUM_EXAMPLES
    assert (first["state"], first["split"], first["max_resolution"]) == ("complete", "train", None)
    assert (second["split"], second["max_resolution"], second["num_examples"]) == ("train[:10%]", 16, 6)
    assert abs(first["last_used"] - time.time()) < 600
    assert Path(first["path"]).stat().st_size <= first["num_bytes"]


def test_clear_deletes_caches_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clear", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"Deleted 2 decoded caches in {folder}: 8.4 MB.")
    assert sorted(os.listdir(folder)) == MINE
    assert run(["clear", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out == f"There was nothing to delete in {folder}.\n"


def test_a_cache_that_is_being_built_is_listed_and_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = list_caches(folder)[0].path
    path.unlink()
    write_status(status_path(path), CacheStatus("cats:1.0.0", "train", num_examples=9))
    (folder / f".{path.name}.0123.tmp").write_bytes(bytes(1000))
    with FileLock(lock_path(path)):
        assert run(["list", "--folder", str(folder)]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if "cats" in line)
        assert "building" in line
        assert run(["clear", "--folder", str(folder), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["state"] for one in told["kept"]] == ["building"]
        assert [one["split"] for one in told["deleted"]] == ["train[:10%]"]
        assert told["kept"][0]["num_bytes"] >= 1000
    assert run(["clear", "--folder", str(folder)]) == 0
    assert sorted(os.listdir(folder)) == MINE


def test_damaged_caches_are_listed_and_cleared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = list_caches(folder)[0].path
    path.write_bytes(b"short")
    status_path(path).unlink()
    assert run(["list", "--folder", str(folder)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if path.name in line)
    assert line.split()[:4] == ["?", "?", "all", "?"]
    assert "damaged" in line
    assert run(["clear", "--folder", str(folder)]) == 0
    assert sorted(os.listdir(folder)) == MINE


def test_without_a_folder_it_is_the_users_own(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = tmp_path / "tfds_torch" / "decoded"
    assert run(["list"]) == 0
    assert capsys.readouterr().out == f"There are no decoded caches in {own}.\n"
    ParserTfds(small, "pictures", cache=DecodedCache())
    assert run(["list", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["caches"]
    assert Path(told["path"]).parent == own


@pytest.mark.parametrize("argv", [[], ["lst"], ["list", "--foldr", "a"], ["clear", "all"]])
def test_a_mistyped_command_is_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert "usage: python -m tfds_torch.export cache" in capsys.readouterr().err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "clear deletes caches only" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_folder_that_is_none_is_wrong_usage(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for name, words in (
        ("absent", "There is no folder"),
        ("file", "cannot be read: Not a directory"),
        ("", "folder=''"),
    ):
        assert run([action, "--folder", str(tmp_path / name) if name else ""]) == 2
        assert words in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert run(["clear", "--folder", str(folder)]) == 1
    assert "cannot be deleted: Permission denied." in capsys.readouterr().err


def test_ctrl_c_is_130(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(folder: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "clear_caches", interrupt)
    assert run(["clear", "--folder", str(folder)]) == 130
    assert "Interrupted." in capsys.readouterr().err


def test_a_name_cannot_colour_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = list_caches(folder)[0].path
    write_status(status_path(path), CacheStatus("\x1b[31m[red]cats", "train"))
    assert run(["list", "--folder", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "[red]cats" in said


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["clear"], ["clear", "--json"]])
def test_without_a_standard_output_there_is_nothing_to_tell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run([*words, "--folder", str(folder)]) == 0
    assert len(list_caches(folder)) == (0 if words[0] == "clear" else 2)


@pytest.mark.parametrize("words", [["list"], ["list", "--json"]])
def test_an_output_that_is_full_is_a_failure_that_says_so(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def refuse(text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.stdout, "write", refuse)
    assert run([*words, "--folder", str(folder)]) == 1
    assert "this cannot be printed: No space left on device." in capfd.readouterr().err
