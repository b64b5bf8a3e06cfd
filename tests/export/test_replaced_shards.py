"""Exports that replace another one (`overwrite`): the old or the new one is there, whole, and foreign files survive."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from export.exports import contents, export, run_script
from export.made_sources import Numbered, fail
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export import shard_folder
from tfds_torch.export.plan import ShardSizes
from tfds_torch.export.samples import NumberedSamples
from tfds_torch.export.shard_folder import ShardFolder, verify_shards
from tfds_torch.export.sharded_export import ShardedExport, ShardRequest
from tfds_torch.export.write_shards import WriteShards
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.runtime import atomic_folder
from tfds_torch.runtime.metrics import StageMetrics

OLD, NEW = 4, 5
SLOW = pytest.mark.slow


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a complete export, with foreign files; nothing else is in the folder above."""
    folder = tmp_path / "place" / "out"
    export(Numbered(), folder, num_shards=OLD)
    (folder / "notes.txt").write_text("notes")
    (folder / "Numbered-all-000007.tar").write_text("not in the manifest")
    (folder / ".a.0123456789abcdef.tmp").write_text("of another program")
    (folder / "link").symlink_to("notes.txt")
    (folder / "more").mkdir()
    (folder / "more" / "inner.txt").write_text("inner")
    return folder


def num_shards_in(folder: Path) -> int:
    """Returns the number of an export's shards, which are verified."""
    verify_shards(folder)
    return len(json.loads((folder / "export-all.json").read_text())["shards"])


def replaced(old: dict[str, bytes], new: Path) -> dict[str, bytes]:
    """Returns the contents of the old folder with the export of a new one in the place of its own."""
    own = {f"Numbered-all-{number:06d}.tar" for number in range(OLD)} | {"export-all.json"}
    return {name: content for name, content in old.items() if name not in own} | contents(new)


def test_an_export_that_fails_leaves_the_one_that_it_would_replace_and_the_same_command_goes_on(
    out: Path, tmp_path: Path
) -> None:
    before = contents(out)
    with pytest.raises(ExportError, match="the lost key") as caught:
        export(Numbered(at=25, act=fail), out, overwrite=True)
    new = out.parent / ".out.new"
    assert (
        f"What was there before is as it was. New shards that are complete stay in {new}: the same command goes on "
        f"with the others." in str(caught.value)
    )
    assert contents(out) == before
    assert num_shards_in(out) == OLD
    assert export(Numbered(), out, overwrite=True).num_kept == 3
    export(Numbered(), tmp_path / "new")
    assert contents(out) == replaced(before, tmp_path / "new")
    assert os.readlink(out / "link") == "notes.txt"
    assert os.listdir(out.parent) == ["out"]


REFUSED = ("pwrite", "fsync", "replace", "link", "mkdir", "rmdir", "unlink")


@pytest.mark.parametrize("call", ["rename", *(pytest.param(call, marks=SLOW) for call in REFUSED)])
def test_whatever_the_system_refuses_the_old_or_the_new_export_is_there(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    if call == "rename":  # Of two, where folders cannot be exchanged by one call.
        monkeypatch.setattr(atomic_folder, "_exchanging_call", lambda: None)
    before, original = contents(out), getattr(os, call)
    export(Numbered(), tmp_path / "new")
    after = replaced(before, tmp_path / "new")
    left = 0

    def refuse(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(*arguments, **options)

    refusals = 0
    for at in range(100):
        left = at
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            there = before
            with suppress(ExportError):
                export(Numbered(), out, overwrite=True)
                there = after
        found = {name: content for name, content in contents(out).items() if name != atomic_folder.MARKER}
        assert there.items() <= (found | {"more/inner.txt": b"inner"}).items()
        assert num_shards_in(out) == (OLD if there is before else NEW)
        if left >= 0:
            break
        refusals += 1
        export(Numbered(), out, overwrite=True)
        assert contents(out) == after
        assert os.listdir(out.parent) == ["out"]
        export(Numbered(), out, num_shards=OLD, overwrite=True)
    assert refusals > 0


def test_other_splits_of_the_folder_stay_and_open(exported_root: Path, tmp_path: Path) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    for file_format in ("tfrecord", "webdataset"):
        for folder, shards in ((tmp_path / file_format, OLD), (tmp_path / f"{file_format} new", NEW)):
            export(train, folder, format=file_format, num_shards=shards)
            export(test, folder, format=file_format, num_shards=2)
        (tmp_path / file_format / "mine.labels.txt").write_text("mine")
        export(train, tmp_path / file_format, format=file_format, overwrite=True)
        expected = contents(tmp_path / f"{file_format} new") | {"mine.labels.txt": b"mine"}
        assert contents(tmp_path / file_format) == expected
        verify_shards(tmp_path / file_format)
    for parser in (train, test):
        again = ParserTfds(tmp_path / "tfrecord", "digits", parser.split)
        assert [again[n].label for n in (0, 50)] == [parser[n].label for n in (0, 50)]


def test_metadata_of_the_replaced_export_goes_with_it_and_foreign_files_like_it_stay(
    exported_root: Path, tmp_path: Path
) -> None:
    parser, out = ParserTfds(exported_root, "digits"), tmp_path / "out"
    export(parser, out, format="tfrecord")
    (out / "mine.labels.txt").write_text("mine")
    export(parser, out, overwrite=True)
    export(parser, tmp_path / "new")
    assert contents(out) == contents(tmp_path / "new") | {"mine.labels.txt": b"mine"}


def test_a_manifest_of_an_older_version_names_no_metadata_and_its_export_is_replaced(
    exported_root: Path, tmp_path: Path
) -> None:
    parser, out = ParserTfds(exported_root, "digits"), tmp_path / "out"
    export(parser, out, format="tfrecord", num_shards=OLD)
    manifest = out / "export-train.json"
    values = json.loads(manifest.read_text())
    del values["metadata"]
    manifest.write_text(json.dumps(values))
    export(parser, out, format="tfrecord", overwrite=True)
    export(parser, tmp_path / "new", format="tfrecord")
    assert contents(out) == contents(tmp_path / "new")


def test_a_manifest_with_other_metadata_than_names_is_refused(out: Path) -> None:
    manifest = out / "export-all.json"
    values = json.loads(manifest.read_text())
    for metadata in (7, [1], {"a": 1}):
        manifest.write_text(json.dumps(values | {"metadata": metadata}))
        with pytest.raises(ConfigError, match=r"cannot be read as the manifest .*metadata is not a list of names"):
            export(Numbered(), out, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_file_that_would_be_written_over_is_named_before_any_work(
    exported_root: Path, tmp_path: Path, overwrite: bool
) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    out = tmp_path / "place" / "out"
    export(test, out, num_shards=2)
    if overwrite:
        export(train, out, num_shards=OLD)
    name = "digits-train-000004.tar"
    (out / name).write_text("foreign")
    before = contents(out)
    with pytest.raises(ConfigError, match=rf"{name} is not of an export, and this one would write over it\. Move it"):
        export(train, out, overwrite=overwrite)
    assert contents(out) == before
    assert os.listdir(out.parent) == ["out"]


def test_foreign_metadata_is_not_written_over(exported_root: Path, tmp_path: Path) -> None:
    parser, out = ParserTfds(exported_root, "digits"), tmp_path / "out"
    export(parser, out)
    (out / "dataset_info.json").write_text("foreign")
    with pytest.raises(ConfigError, match=r"dataset_info\.json is not of an export, and this one would write over it"):
        export(parser, out, format="tfrecord", overwrite=True)
    assert (out / "dataset_info.json").read_text() == "foreign"


class Meanwhile(Numbered):
    """A dataset at one of whose samples a file appears in a folder."""

    def __init__(self, place: Path) -> None:
        super().__init__(at=38)
        self.place = place

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number == self.at:
            self.place.write_text("meanwhile")
        return super().__getitem__(number)


def test_a_file_that_appears_meanwhile_survives(out: Path) -> None:
    export(Meanwhile(out / "later.txt"), out, overwrite=True)
    assert (out / "later.txt").read_text() == "meanwhile"


def test_a_file_that_takes_the_name_of_a_shard_meanwhile_is_not_written_over(out: Path) -> None:
    before = contents(out)
    place = out / "Meanwhile-all-000004.tar"
    with pytest.raises(ConfigError, match=r"Meanwhile-all-000004\.tar is not of an export"):
        export(Meanwhile(place), out, overwrite=True)
    assert contents(out) == before | {place.name: b"meanwhile"}


def test_an_export_by_another_plan_replaces_what_a_failed_one_has_left(out: Path) -> None:
    with pytest.raises(ExportError, match="the lost key"):
        export(Numbered(at=25, act=fail), out, overwrite=True)
    assert export(Numbered(), out, num_shards=6, overwrite=True).num_kept == 0
    assert num_shards_in(out) == 6
    with pytest.raises(ExportError, match="the lost key"):
        export(Numbered(at=25, act=fail), out, overwrite=True)
    assert export(Numbered(), out, num_shards=6).num_kept == 6
    assert os.listdir(out.parent) == ["out"]


def test_a_link_to_the_folder_stays_and_the_folder_keeps_its_mode(out: Path, tmp_path: Path) -> None:
    out.chmod(0o750)
    link = tmp_path / "link"
    link.symlink_to(out)
    export(Numbered(), link, overwrite=True)
    assert link.is_symlink()
    assert num_shards_in(link) == num_shards_in(out) == NEW
    assert stat.S_IMODE(out.stat().st_mode) == 0o750


def test_a_folder_that_cannot_be_exchanged_is_named_before_any_work(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(out)
    for name, act, message in (
        ("access", lambda path, mode: False, "the new folder is written beside it, and .*/place may not be written"),
        ("path.ismount", lambda path: True, "out is a mount point, .*: choose a folder inside of it"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{name}", act)
            with pytest.raises(ConfigError, match=message):
                export(Numbered(at=25, act=fail), out, overwrite=True)
        assert contents(out) == before
        assert os.listdir(out.parent) == ["out"]


def test_an_exchange_that_the_system_refuses_is_an_error_and_the_old_export_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(out)

    def refuse(one: Path, other: Path) -> bool:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_folder, "exchange", refuse)
        with pytest.raises(ExportError, match=r"failed: Operation not permitted\. What was there before is as it was"):
            export(Numbered(), out, overwrite=True)
    assert contents(out) == before
    assert export(Numbered(), out, overwrite=True).num_kept == NEW


def test_a_foreign_folder_of_the_name_of_the_new_one_is_named_and_stays(out: Path) -> None:
    new = out.parent / ".out.new"
    new.mkdir()
    (new / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"\.out\.new is in the way, which was not left by an export"):
        export(Numbered(), out, overwrite=True)
    assert contents(new) == {"mine.txt": b"mine"}
    assert export(Numbered(), out, num_shards=OLD).num_kept == OLD


def test_a_folder_without_hard_links_has_its_files_moved(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    before = contents(out)
    monkeypatch.setattr(os, "link", refuse)
    export(Numbered(), out, overwrite=True)
    found = contents(out)
    assert {name: found[name] for name in before if not name.startswith(("Numbered-all-00000", "export-"))} == {
        name: content for name, content in before.items() if not name.startswith(("Numbered-all-00000", "export-"))
    }
    assert (out / "Numbered-all-000007.tar").read_text() == "not in the manifest"


class OneByOne:
    """In the place of Beam: shards are written in this process, and noted as many machines note them."""

    name = "one by one"

    def write(self, job: WriteShards, progress: Any) -> list[Any]:
        done: list[Any] = [job(number, StageMetrics(0)) for number in range(job.plan.num_shards)]
        assert [(job.folder.noted(number), False) for number in range(job.plan.num_shards)] == done
        return done


def test_an_export_of_many_machines_replaces_another_one_alike(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    before = contents(out)
    runner: Any = OneByOne()
    ShardedExport(NumberedSamples(Numbered()), "out", 1, runner).run(
        ShardRequest("webdataset", ShardSizes(num_shards=NEW)), True, None
    )
    export(Numbered(), tmp_path / "new")
    assert contents(out) == replaced(before, tmp_path / "new")
    assert os.listdir(out.parent) == ["out"]


def test_a_folder_that_is_replaced_before_it_is_locked_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, locked = tmp_path / "out", list[int]()
    out.mkdir()
    take = shard_folder._take

    def replace_first(descriptor: int) -> bool:
        if not locked:
            out.rename(tmp_path / "other")
            out.mkdir()
        locked.append(os.fstat(descriptor).st_ino)
        return take(descriptor)

    monkeypatch.setattr(shard_folder, "_take", replace_first)
    with ShardFolder(out, "train").locked():
        assert len(locked) == 2
        assert locked[1] == out.stat().st_ino != locked[0]


@pytest.mark.parametrize("file_format", ["webdataset", "tfrecord"])
def test_a_reader_opens_a_folder_whose_replacement_was_killed_between_two_renames(
    exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    parser, out = ParserTfds(exported_root, "digits"), tmp_path / "out"
    export(parser, out, format=file_format, num_shards=2)
    whole = atomic_folder.AtomicFolder(out)
    whole.begin("train")
    for path in out.iterdir():
        shutil.copy(path, whole.new)
    out.rename(whole.old)
    if file_format == "tfrecord":
        again: Any = ParserTfds(out, "digits")
    else:
        again = ParserWebDataset(f"{out}/digits-train-{{000000..000001}}.tar")
    assert len(again) == len(parser)
    verify_shards(out)
    export(parser, out, format=file_format, num_shards=2)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("file_format", "exchange"),
    [
        pytest.param("webdataset", "call", marks=SLOW),
        pytest.param("tfrecord", "renames", marks=SLOW),
        pytest.param("webdataset", "renames", marks=pytest.mark.campaign),
        pytest.param("tfrecord", "call", marks=pytest.mark.campaign),
    ],
)
def test_a_kill_before_any_change_leaves_the_old_or_the_new_export_and_the_next_run_completes_it(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, file_format: str, exchange: str
) -> None:
    counts = run_script(run_python, "killed_replacements.py", exported_root, tmp_path, file_format, exchange)
    assert {name: counts[name] for name in ("broken", "lost", "rewritten", "wrong")} == dict.fromkeys(
        ("broken", "lost", "rewritten", "wrong"), 0
    )
    assert counts["absent"] == (exchange == "renames")
    assert counts["old"] > 20
    assert counts["new"] > 10
