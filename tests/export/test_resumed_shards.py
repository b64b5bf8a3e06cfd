"""Exports of shards that go on with what is there, meet another export, are refused, or are verified."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.exports import PATHS, contents, export
from export.made_sources import Numbered, fail
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.command import main
from tfds_torch.export.folder import verify_shards
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.array_record import package


@pytest.fixture
def photos(exported_root: Path) -> ParserTfds:
    return ParserTfds(exported_root, "photos")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 4}, r"num_shards is 4, not 5\. Give the same options to go on"),
        ({"num_shards": None, "max_count": 8}, "num_shards is null, not 5; max_count is 8, not null"),
        ({"key": "id"}, 'key is "id", not "number"'),
        ({"shuffle_seed": 1}, "shuffle_seed is 1, not null"),
        ({"indices": [1, 2, 3, 4, 5]}, "indices is .*, not null"),
        ({"fields": {"file_name": None}}, "fields is "),
        ({"format": "tfrecord"}, 'format is "tfrecord", not "webdataset"'),
    ],
)
def test_other_options_are_refused_and_named(
    photos: ParserTfds, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    export(photos, out)
    before = contents(out)
    with pytest.raises(ConfigError, match=message):
        export(photos, out, **options)
    assert contents(out) == before


def test_a_source_whose_files_have_changed_is_another_one(exported_root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported_root / "photos" / "1.0.0", tmp_path / "photos" / "1.0.0"))
    out = tmp_path / "out"
    export(ParserTfds(copy, "photos"), out)
    shard = sorted(copy.glob("*.tfrecord*"))[0]
    os.utime(shard, ns=(1, 1))
    with pytest.raises(ConfigError, match=r"source files is .*, not "):
        export(ParserTfds(copy, "photos"), out)


def test_a_log_that_a_full_disk_has_cut_loses_no_other_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="the lost key"):
        export(Numbered(at=25, act=fail), out, num_workers=1)
    log = out / ".export-all.log"
    lines = [line for line in log.read_bytes().splitlines() if line]
    assert len(lines) == 3
    log.write_bytes(lines[0] + b"\n" + lines[1][:20] + b"\n" + lines[2] + b"\n{}\n7\n")
    assert export(Numbered(), out).num_kept == 2


def test_a_folder_with_other_files_is_never_written_to(photos: ParserTfds, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds files that are not of an export, such as 'mine\.txt'"):
        export(photos, tmp_path)
    with pytest.raises(ConfigError, match="is a file: the shards of an export need a folder"):
        export(photos, tmp_path / "mine.txt")
    with pytest.raises(ConfigError, match="is the source of this export: nothing there is written to"):
        export(photos, Path(photos.data_dir))
    assert contents(tmp_path) == {"mine.txt": b"mine"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"The folder .*file/out cannot be made: Not a directory"):
        export(Numbered(), tmp_path / "file" / "out")


def test_a_folder_of_another_dataset_takes_no_split_of_this_one(exported_root: Path, tmp_path: Path) -> None:
    export(ParserTfds(exported_root, "photos"), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"holds photos:1\.0\.0 as webdataset: choose another folder for digits"):
        export(ParserTfds(exported_root, "digits", "test"), tmp_path / "out")


def test_what_can_only_be_iterated_is_refused(tmp_path: Path) -> None:
    class Iterated:
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            yield {"label": 1}

    with pytest.raises(ConfigError, match=r"Iterated can only be iterated, .*format='beton' takes iterables"):
        export(Iterated(), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"WebDatasetShards can only be iterated.*ParserWebDataset reads them by"):
        export(WebDatasetShards(str(tmp_path / "a.tar")), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_place_on_another_machine_is_refused(tmp_path: Path) -> None:
    for file_format in ("webdataset", "beton"):
        with pytest.raises(ConfigError, match="gs://bucket/out is on another machine"):
            export_dataset(Numbered(), "gs://bucket/out", format=file_format)


def test_records_with_new_labels_are_refused(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "photos", class_map={0: 1, 1: 0})
    with pytest.raises(ConfigError, match="class_map would not be in them"):
        export(parser, tmp_path / "out", format="tfrecord")
    export(parser, tmp_path / "tars")
    with pytest.raises(ConfigError, match="source class_map is "):
        export(ParserTfds(exported_root, "photos"), tmp_path / "tars")
    assert (
        json.loads((tmp_path / "tars" / "export-train.json").read_text())["plan"]["options"]["fields"]["label"] == "cls"
    )


def test_a_missing_package_is_named(photos: ParserTfds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tfds-torch\[array-record\]'"):
        export(photos, tmp_path / "out", format="array_record")


LIMITED = """
import resource, sys
from tfds_torch.errors import ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.tfds.parser import ParserTfds
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    export_dataset(ParserTfds(sys.argv[1], "photos"), sys.argv[2], format=sys.argv[3], num_shards=2, num_workers=2)
except ExportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "file_format",
    ["webdataset", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tfrecord", "array_record"))],
)
def test_a_shard_that_is_larger_than_a_file_may_be_is_reported_with_what_to_do(
    exported_root: Path, tmp_path: Path, run_python: Callable[..., Any], file_format: str
) -> None:
    done = run_python("-c", LIMITED, str(exported_root), str(tmp_path / "out"), file_format, env=PATHS)
    assert "failed: File too large. No file of that size is allowed there" in done.stdout, done.stderr
    assert "smaller shards (--max-count) to another folder" in done.stdout
    assert sorted(os.listdir(tmp_path / "out")) == ["export-train.json"]


def test_verify_reads_the_split_that_was_written_and_no_other(exported_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(ParserTfds(exported_root, "digits"), out, format="tfrecord", num_shards=2)
    shard = out / "digits-train.tfrecord-00001-of-00002"
    os.truncate(shard, 100)
    flags = ["--name", "digits", "--root", str(exported_root), "--format", "tfrecord", "--split", "test[:9]"]
    assert main([*flags, "--workers", "1", "--verify", str(out)]) == 0
    verify_shards(out, "test[:9]")
    for split in (None, "train"):
        with pytest.raises(ExportError, match=f"1 of 2 shards are damaged or missing, such as {shard.name}"):
            verify_shards(out, split)
    with pytest.raises(ConfigError, match="holds no export of the split 'validation'"):
        verify_shards(out, "validation")


@pytest.mark.parametrize("name", ["nowhere", "file", "a\0b", "x" * 300])
def test_what_is_not_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be read as a folder of an export"):
        verify_shards(tmp_path / name)


def export_labels(labels: list[int], out: Path) -> int:
    """Exports a dataset without a fingerprint, and returns how many of its shards were kept."""
    samples = [{"label": label} for label in labels]
    return int(export(samples, out, num_shards=None, max_count=2).num_kept)


def test_other_samples_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_labels([0, 1, 2, 3, 4], out)
    (out / "list-all-000000.tar").write_bytes(b"damaged")
    for changed in ([100, 101, 102, 103, 104], [9, 1, 2, 3, 4], [0, 1, 9, 3, 4], [0, 1, 2, 3, 9]):
        with pytest.raises(ConfigError, match="which stays: source samples is"):
            export_labels(changed, out)


def test_the_same_samples_keep_their_shards(tmp_path: Path) -> None:
    export_labels([0, 1, 2, 3, 4], tmp_path / "out")
    assert export_labels([0, 1, 2, 3, 4], tmp_path / "out") == 3


@pytest.mark.parametrize("file_format", ["webdataset", "tfrecord"])
def test_the_number_of_bytes_that_is_advised_is_the_least_that_works(
    exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    parser = ParserTfds(exported_root, "digits", "test[:20]")

    def export_with(max_bytes: int) -> None:
        export(parser, tmp_path / "out", format=file_format, num_shards=None, max_bytes=max_bytes)

    with pytest.raises(ConfigError, match="Allow ") as caught:
        export_with(100)
    advised = int(re.findall(r"Allow ([\d,]+) or more", str(caught.value))[0].replace(",", ""))
    with pytest.raises(ConfigError, match=f"Allow {advised:,} or more"):
        export_with(advised - 1)
    export_with(advised)
    assert max(path.stat().st_size for path in (tmp_path / "out").glob("digits-*")) <= advised
