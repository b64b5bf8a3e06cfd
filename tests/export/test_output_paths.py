"""Paths that the system itself refuses are typed errors, whatever is to be written there."""

import os
from pathlib import Path

import pytest

from export.made_sources import Numbered
from tfds_torch.errors import ConfigError
from tfds_torch.export import shard_folder
from tfds_torch.export.exporting import export_dataset

FORMATS = ("beton", "webdataset")


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 256, "File name too long"),
        ("ä" * 128, "File name too long"),
        ("a\0b", "embedded null"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_a_path_that_the_system_refuses_is_named(tmp_path: Path, file_format: str, name: str, why: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=f"cannot be written to: .*{why}.* Choose another path"):
        export_dataset(Numbered(), tmp_path / name, format=file_format, num_workers=1)
    assert os.listdir(tmp_path) == ["loop"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_empty_path_is_not_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"out is empty: give the path of a file, or of a folder of shards\."):
        export_dataset(Numbered(), "", format=file_format, num_workers=1)
    assert os.listdir(tmp_path) == []


def test_a_link_to_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"link is a link to .*nowhere, which is not there: make that folder"):
        export_dataset(Numbered(), tmp_path / "link", format="webdataset", num_workers=1)
    (tmp_path / "nowhere").mkdir()
    export_dataset(Numbered(), tmp_path / "link", format="webdataset", num_workers=1)
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_folder_that_may_not_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    out, stat = tmp_path / "closed" / "out", os.stat

    def refuse(path: object, **options: object) -> os.stat_result:
        if str(path) == str(out):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", refuse)  # Permissions do not hold for root.
    with pytest.raises(ConfigError, match="closed/out' cannot be written to: Permission denied"):
        export_dataset(Numbered(), out, format=file_format, num_workers=1)


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(shard_folder, "manifests_in", refuse)
    with pytest.raises(ConfigError, match="cannot be looked into: Permission denied"):
        export_dataset(Numbered(), tmp_path, format="webdataset", num_workers=1)
