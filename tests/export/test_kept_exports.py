"""What is in a folder already: exports that go on with it, are refused because of it, keep it, or verify it."""

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
from tfds_torch.export.command import main
from tfds_torch.export.folder import verify_shards
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.array_record import package


@pytest.fixture
def photos(exported_root: Path) -> ParserTfds:
    return ParserTfds(exported_root, "photos")


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"num_shards": 4}, r"num_shards is 4, not 5\. Give the same options to go on"),
    ({"num_shards": None, "max_count": 8}, "num_shards is null, not 5; max_count is 8, not null"),
    ({"key": "id"}, 'key is "id", not "number"'),
    ({"shuffle_seed": 1}, "shuffle_seed is 1, not null"),
    ({"indices": [1, 2, 3, 4, 5]}, "indices is .*, not null"),
    ({"fields": {"file_name": None}}, "fields is "),
    ({"rename": {"label": "class"}}, "fields is "),
    ({"format": "tfrecord"}, 'format is "tfrecord", not "webdataset"'),
]


def test_other_options_other_sources_and_other_datasets_are_refused_and_named(
    photos: ParserTfds, exported_root: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(exported_root / "photos" / "1.0.0", tmp_path / "photos" / "1.0.0"))
    out = tmp_path / "out"
    export(ParserTfds(copy, "photos"), out)
    os.utime(sorted(copy.glob("*.tfrecord*"))[0], ns=(1, 1))
    before = contents(out)
    changed = ParserTfds(copy, "photos")
    mapped = ParserTfds(exported_root, "photos", class_map={0: 1, 1: 0})
    digits = ParserTfds(exported_root, "digits", "test")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        *((photos, options, message) for options, message in OTHERS),
        (changed, {}, r"source files is .*, not "),
        (mapped, {}, "source class_map is "),
        (digits, {}, r"holds photos:1\.0\.0 as webdataset: choose another folder for digits"),
    ]
    for source, options, message in cases:
        with pytest.raises(ConfigError, match=message):
            export(source, out, **options)
    assert contents(out) == before
    with pytest.raises(ConfigError, match=r"transform= would not be in them. .*parser.as_stored\(\)"):
        export(photos.with_transform(dict), tmp_path / "records", format="tfrecord")
    with pytest.raises(ConfigError, match="class_map would not be in them"):
        export(mapped, tmp_path / "records", format="tfrecord")


def test_the_commands_that_replace_an_export_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(Numbered(), out, num_shards=4)
    with pytest.raises(ConfigError) as caught:
        export(Numbered(at=25, act=fail), out)
    assert str(caught.value) == (
        f"{out} holds an export with other options, which stays: num_shards is 5, not 4. Give the same options to go "
        f"on with it, or choose another folder. To replace it, move the folder away (mv {out} {out}.old), give this "
        f"command again, and then remove it (rm -r {out}.old)."
    )
    out.rename(f"{out}.old")
    export(Numbered(), out)
    shutil.rmtree(f"{out}.old")
    export(Numbered(), tmp_path / "new")
    assert contents(out) == contents(tmp_path / "new")


def test_a_log_that_a_full_disk_has_cut_loses_no_other_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="the lost key"):
        export(Numbered(at=25, act=fail), out, num_workers=1)
    log = out / ".export-all.log"
    lines = [line for line in log.read_bytes().splitlines() if line]
    assert len(lines) == 3
    log.write_bytes(lines[0] + b"\n" + lines[1][:20] + b"\n" + lines[2] + b"\n{}\n7\n")
    assert export(Numbered(), out).num_kept == 2


def test_a_folder_with_other_files_or_that_cannot_be_is_never_written_to(photos: ParserTfds, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    cases: list[tuple[Path, type[Exception], str]] = [
        (tmp_path, ConfigError, r"holds files that are not of an export, such as 'mine\.txt'"),
        (tmp_path / "mine.txt", ConfigError, "is a file: the shards of an export need a folder"),
        (tmp_path / "mine.txt" / "out", ExportError, "The folder .*mine.txt/out cannot be made: Not a directory"),
        (Path(photos.data_dir), ConfigError, "is the source of this export: nothing there is written to"),
    ]
    for place, kind, message in cases:
        with pytest.raises(kind, match=message):
            export(photos, place)
    assert contents(tmp_path) == {"mine.txt": b"mine"}


def test_a_foreign_file_that_would_be_written_over_is_named_before_any_work(
    exported_root: Path, tmp_path: Path
) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    out, name = tmp_path / "out", "digits-train-000004.tar"
    export(test, out, num_shards=2)
    (out / name).write_text("foreign")
    before = contents(out)
    with pytest.raises(ConfigError, match=rf"{name} is not of an export, and this one would write over it\. Move it"):
        export(train, out)
    assert contents(out) == before


@pytest.mark.parametrize("file_format", ["tfrecord", "webdataset"])
def test_other_splits_of_the_folder_stay_and_open(exported_root: Path, tmp_path: Path, file_format: str) -> None:
    train, test = (ParserTfds(exported_root, "digits", split) for split in ("train", "test"))
    export(train, tmp_path, format=file_format, num_shards=4)
    (tmp_path / "mine.labels.txt").write_text("mine")
    before = contents(tmp_path)
    export(test, tmp_path, format=file_format, num_shards=2)
    unchanged = {name: content for name, content in before.items() if name != "dataset_info.json"}
    assert unchanged.items() <= contents(tmp_path).items()
    verify_shards(tmp_path)
    for parser in (train, test) if file_format == "tfrecord" else ():
        again = ParserTfds(tmp_path, "digits", parser.split)
        assert [again[n].label for n in (0, 50)] == [parser[n].label for n in (0, 50)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"metadata": 7}, "metadata is not a list of names"),
        ({"metadata": {"a": 1}}, "metadata is not a list of names"),
        ({}, "an earlier version of tfds_torch wrote it): choose another folder, or remove this one."),
    ],
)
def test_a_manifest_without_names_of_metadata_is_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    export(Numbered(), tmp_path / "out")
    manifest = tmp_path / "out" / "export-all.json"
    values = json.loads(manifest.read_text())
    del values["metadata"]
    manifest.write_text(json.dumps(values | other))
    with pytest.raises(ConfigError, match=rf"cannot be read as the manifest .*{re.escape(message)}"):
        export(Numbered(), tmp_path / "out")


def test_a_missing_package_is_named(photos: ParserTfds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tfds-torch\[array-record\]'"):
        export(photos, tmp_path / "out", format="array_record")


LIMITED = """
import resource, sys
from tfds_torch import ParserTfds, errors, export_dataset
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    export_dataset(ParserTfds(sys.argv[1], "photos"), sys.argv[2], format=sys.argv[3], num_shards=2, num_workers=2)
except errors.ExportError as error:
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
    for name in ("nowhere", shard.name, "a\0b", "x" * 300):
        with pytest.raises(ConfigError, match="cannot be read as a folder of an export"):
            verify_shards(out / name)


def export_labels(labels: list[int], out: Path) -> int:
    """Exports a dataset without a fingerprint, and returns how many of its shards were kept."""
    samples = [{"label": label} for label in labels]
    return int(export(samples, out, num_shards=None, max_count=2).num_kept)


def test_the_same_samples_keep_their_shards_and_others_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_labels([0, 1, 2, 3, 4], out)
    assert export_labels([0, 1, 2, 3, 4], out) == 3
    (out / "list-all-000000.tar").write_bytes(b"damaged")
    for changed in ([9, 1, 2, 3, 4], [0, 1, 9, 3, 4], [0, 1, 2, 3, 9]):
        with pytest.raises(ConfigError, match="which stays: source samples is"):
            export_labels(changed, out)


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
