"""What is there already stays: another export of the split, and files that are not of an export."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from export.exports import contents, export
from export.made_sources import Numbered, fail
from tfds_torch.errors import ConfigError
from tfds_torch.export.folder import verify_shards
from tfds_torch.parsers.tfds.parser import ParserTfds

OLD, NEW = 4, 5


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a complete export, with a foreign file; nothing else is in the folder above."""
    folder = tmp_path / "place" / "out"
    export(Numbered(), folder, num_shards=OLD)
    (folder / "notes.txt").write_text("notes")
    return folder


def test_another_export_is_refused_and_the_commands_that_replace_it_work(out: Path, tmp_path: Path) -> None:
    before = contents(out)
    with pytest.raises(ConfigError) as caught:
        export(Numbered(at=25, act=fail), out, num_shards=NEW)
    assert str(caught.value) == (
        f"{out} holds an export with other options, which stays: num_shards is 5, not 4. Give the same options to go "
        f"on with it, or choose another folder. To replace it, move the folder away (mv {out} {out}.old), give this "
        f"command again, and then remove it (rm -r {out}.old)."
    )
    assert contents(out) == before
    out.rename(f"{out}.old")
    export(Numbered(), out, num_shards=NEW)
    shutil.rmtree(f"{out}.old")
    export(Numbered(), tmp_path / "new", num_shards=NEW)
    assert contents(out) == contents(tmp_path / "new")


def test_other_splits_of_the_folder_stay_and_open(exported_root: Path, tmp_path: Path) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    for file_format in ("tfrecord", "webdataset"):
        export(train, tmp_path / file_format, format=file_format, num_shards=OLD)
        (tmp_path / file_format / "mine.labels.txt").write_text("mine")
        before = contents(tmp_path / file_format)
        export(test, tmp_path / file_format, format=file_format, num_shards=2)
        unchanged = {name: content for name, content in before.items() if name != "dataset_info.json"}
        assert unchanged.items() <= contents(tmp_path / file_format).items()
        verify_shards(tmp_path / file_format)
    for parser in (train, test):
        again = ParserTfds(tmp_path / "tfrecord", "digits", parser.split)
        assert [again[n].label for n in (0, 50)] == [parser[n].label for n in (0, 50)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"metadata": 7}, "metadata is not a list of names"),
        ({"metadata": [1]}, "metadata is not a list of names"),
        ({"metadata": {"a": 1}}, "metadata is not a list of names"),
        ({}, "an earlier version of tfds_torch wrote it): choose another folder, or remove this one."),
    ],
)
def test_a_manifest_without_names_of_metadata_is_refused(out: Path, other: dict[str, Any], message: str) -> None:
    manifest = out / "export-all.json"
    values = json.loads(manifest.read_text())
    del values["metadata"]
    manifest.write_text(json.dumps(values | other))
    with pytest.raises(ConfigError, match=rf"cannot be read as the manifest .*{re.escape(message)}"):
        export(Numbered(), out, num_shards=OLD)


def test_a_foreign_file_that_would_be_written_over_is_named_before_any_work(
    exported_root: Path, tmp_path: Path
) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    out = tmp_path / "out"
    export(test, out, num_shards=2)
    name = "digits-train-000004.tar"
    (out / name).write_text("foreign")
    before = contents(out)
    with pytest.raises(ConfigError, match=rf"{name} is not of an export, and this one would write over it\. Move it"):
        export(train, out)
    assert contents(out) == before
