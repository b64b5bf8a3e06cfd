"""The files of a dataset against its dataset_info.json: where they lie, what they hold, how they are stored."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import (
    GAP_TRAIN_SHARDS,
    NUM_TRAIN,
    Datasets,
    call_reader,
    change_format,
    edited_info,
    replace_bytes_feature,
    shard_files,
    write_shard,
)

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.tfrecord.framing import read_records

MODES = ("index", pytest.param("examples", marks=pytest.mark.slow))
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@pytest.fixture
def own(datasets: Datasets, tmp_path: Path) -> Path:
    """A version directory of shapes that may be changed."""
    return Path(shutil.copytree(datasets.shapes, tmp_path / "shapes" / "1.0.0"))


@pytest.fixture
def own_gaps(datasets: Datasets, tmp_path: Path) -> Path:
    """A version directory of shapes with empty shards that may be changed."""
    return Path(shutil.copytree(datasets.gaps / "shapes" / "1.0.0", tmp_path / "shapes" / "1.0.0"))


def error_of(directory: str, mode: str, split: str = "train") -> tuple[str, str]:
    """Returns type and text of what reading a dataset raises; a stream loads tensorflow."""
    parser = ParserTfds(None, directory, split, batch_size=8, read=ReadOptions(mode=mode, num_threads=1))
    try:
        list(parser.batches(fields=("label",)))
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


# Where they lie


@pytest.mark.parametrize(
    ("folder", "is_refused"),
    [("../elsewhere", True), ("../../..", True), ("{elsewhere}", True), ("../1.0.0x", True), ("inside", False)],
)
def test_only_files_of_the_version_directory_are_read(folder: str, is_refused: bool, own: Path) -> None:
    folder = folder.format(elsewhere=own.parent / "elsewhere")
    there = Path(os.path.normpath(own / folder))
    there.mkdir(exist_ok=True)
    for path in shard_files(own, "train"):
        path.rename(there / path.name)
    with edited_info(own) as info:
        (train,) = (split for split in info["splits"] if split["name"] == "train")
        train["filepathTemplate"] = f"{folder}/{TEMPLATE}"
    if not is_refused:
        assert [example.index for example in ParserTfds(None, own)[:3]] == [0, 1, 2]
        return
    with pytest.raises(ConfigError) as caught:
        ParserTfds(None, own)
    assert str(caught.value) == (
        f"shapes:1.0.0: dataset_info.json in {own} names the file {there}/shapes-train.tfrecord-00000-of-00007, which "
        f"does not lie there. Only files of the dataset's own directory are read: check its filepathTemplate."
    )
    assert ParserTfds(None, own, "test")[0].index == 0


def test_an_empty_shard_elsewhere_is_refused_as_well(own_gaps: Path) -> None:
    with edited_info(own_gaps) as info:
        for split in info["splits"]:
            split["filepathTemplate"] = f"../{TEMPLATE}"
    with pytest.raises(ConfigError, match="check its filepathTemplate"):
        ParserTfds(None, own_gaps, "test[:0]")


def test_a_dataset_behind_a_link_is_read(own: Path, tmp_path: Path) -> None:
    (tmp_path / "linked" / "shapes").mkdir(parents=True)
    (tmp_path / "linked" / "shapes" / "1.0.0").symlink_to(own)
    assert ParserTfds(tmp_path / "linked", "shapes")[0].index == 0


@pytest.mark.parametrize("root", ["", "shapes/1.0.0"])
@pytest.mark.parametrize("name", ["shapes", "{}/shapes/1.0.0"])
def test_a_relative_path_is_the_same_after_a_change_of_the_working_directory(
    root: str, name: str, datasets: Datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absolute = ParserTfds(datasets.root, "shapes", "train+test")
    monkeypatch.chdir(datasets.root.parent)
    there = datasets.root.name
    parser = ParserTfds(Path(there, root), name.format(there), "train+test", batch_size=16)
    monkeypatch.chdir(tmp_path)
    assert parser.data_dir == datasets.shapes
    assert parser.fingerprint == absolute.fingerprint
    assert [batch.index.tolist() for batch in parser.batches(fields=("label",))][-1][-1] == len(absolute) - 1
    assert parser[5].id == absolute[5].id
    assert parser.filenames(absolute=True) == absolute.filenames(absolute=True)
    assert parser.with_read(ReadOptions(verify_checksums=False))[0].index == 0


def test_a_relative_image_folder_is_the_same_after_a_change_of_the_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    parser = ParserTfds(folder.name, "image_folder")
    monkeypatch.chdir(tmp_path)
    assert parser.data_dir == folder
    assert parser[7].image is not None
    assert all(Path(path).is_file() for path in parser.filenames(absolute=True))


# What they hold


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", ["train", "train[:10]"])
def test_a_shard_that_is_promised_to_be_empty_and_holds_records_is_an_error(
    mode: str, split: str, own_gaps: Path
) -> None:
    empty, whole = (shard_files(own_gaps, "train")[number] for number in (3, 1))
    assert (GAP_TRAIN_SHARDS[3], GAP_TRAIN_SHARDS[1]) == (0, 70)
    write_shard(empty, list(read_records(whole))[:16])
    kind, text = call_reader(error_of, str(own_gaps), mode, split)
    assert kind == "ShardError"
    assert text.startswith(f"{empty} holds 16 of 0 examples: dataset_info.json of shapes:1.0.0 promises 0. ")
    with pytest.raises(ShardError, match="holds 16 of 0 examples"):
        ParserTfds(None, own_gaps)[0]
    assert ParserTfds(None, own_gaps, "test")[0].index == 0


@pytest.mark.parametrize("mode", MODES)
def test_shard_lengths_that_hide_a_shard_are_an_error(mode: str, own: Path) -> None:
    with edited_info(own) as info:
        (train,) = (split for split in info["splits"] if split["name"] == "train")
        train["shardLengths"][1] = "0"
    kind, text = call_reader(error_of, str(own), mode)
    assert kind == "ShardError"
    assert text.startswith(f"{shard_files(own, 'train')[1]} holds 3 of 0 examples")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["", "missing"])
def test_an_empty_shard_may_be_an_empty_file_or_none(what: str, mode: str, own_gaps: Path) -> None:
    if what == "missing":
        shard_files(own_gaps, "train")[3].unlink()
    assert call_reader(error_of, str(own_gaps), mode) == ("", "")
    assert len(ParserTfds(None, own_gaps)) == NUM_TRAIN


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_fifo_in_a_shards_place_is_an_error_and_blocks_nobody(mode: str, number: int, own_gaps: Path) -> None:
    path = shard_files(own_gaps, "train")[number]
    path.unlink()
    os.mkfifo(path)
    wanted = ("ShardError", f"The shard file {path} is a FIFO, not a regular file. Prepare the dataset again.")
    assert call_reader(error_of, str(own_gaps), mode) == wanted


@pytest.mark.parametrize("verify_checksums", [True, False])
def test_a_message_claims_no_more_of_a_checksum_than_was_verified(verify_checksums: bool, own: Path) -> None:
    path = shard_files(own, "train")[0]
    records = list(read_records(path))
    records[7] = replace_bytes_feature(records[7], "image", lambda _: b"not an image")
    write_shard(path, records)
    parser = ParserTfds(None, own, read=ReadOptions(verify_checksums=verify_checksums))
    with pytest.raises(CorruptRecordError, match="record 7 ") as caught:
        parser[7]
    assert ("though its checksum is right" in str(caught.value)) == verify_checksums
    assert ("Its checksum was not verified" in str(caught.value)) != verify_checksums


# How they are stored


@pytest.mark.parametrize(
    ("file_format", "facts"),
    [
        ("parquet", ["TFDS 4.9.10 writes them with records missing", "file_format='tfrecord').download_and_prepare()"]),
        ("riegeli", ["they have no random access", "tfds convert_format", "--out_file_format=tfrecord"]),
    ],
)
@pytest.mark.parametrize("form", ["name", "directory", "root"])
def test_files_of_another_format_are_refused_with_what_to_do(
    file_format: str, facts: list[str], form: str, own: Path
) -> None:
    change_format(own, file_format)
    for path in own.glob("*.tfrecord*"):
        path.rename(path.with_name(path.name.replace("tfrecord", file_format)))
    arguments: dict[str, tuple[Any, Any]] = {
        "name": (own.parents[1], "shapes"),
        "directory": (None, own),
        "root": (own, "shapes"),
    }
    with pytest.raises(ConfigError) as caught:
        ParserTfds(*arguments[form])
    assert str(caught.value).startswith(f"shapes:1.0.0 in {own}: Files of the format ")
    for fact in (f"Files of the format {file_format!r} are not read", "'tfrecord' and 'array_record'", *facts):
        assert fact in str(caught.value)
