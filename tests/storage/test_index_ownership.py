"""Indexes and counts in the user's cache folder: what another user may have put there is not read or written."""

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from foreign_folders import TRAPS
from storage.tfrecord_writer import boundaries, write
from storage.webdataset.made_tars import write_samples

from tfds_torch.errors import ShardError
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord.index import RecordIndex
from tfds_torch.storage.tfrecord.shard_counts import check_shards
from tfds_torch.storage.webdataset.tar_index import open_index

DATASET = "fake/plain:1.0.0"
RECORDS = [b"first", b"second", b"third"]
Open = Callable[[], object]


@pytest.fixture(params=["records", "tars"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path, cache_home: Path) -> Open:
    """Opens an index, and returns what it says."""
    if request.param == "records":
        shard = str(write(tmp_path / "data" / "shard", RECORDS))
        table = InstructionTable([FileInstruction(shard, 0, 3, 0, 3)], DATASET)
        return lambda: RecordIndex.open(table).locate(np.arange(len(table))).offset.tolist()
    tar = write_samples(tmp_path / "a.tar", [{"__key__": "a", "txt": b"text"}, {"__key__": "b", "txt": b"more"}])
    return lambda: open_index([str(tar)], [stamp_of(tar.stat())], DATASET).offset.tolist()


def index_file(cache_home: Path) -> Path:
    (path,) = (cache_home / "tfds_torch" / "record_index").glob("*.index")
    return path


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("trap", TRAPS)
def test_an_index_in_a_folder_that_is_not_this_users_own_is_neither_read_nor_written(
    trap: str, open_one: Open, cache_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = open_one()
    folder = cache_home / "tfds_torch" / "record_index"
    index_file(cache_home).unlink()
    words, set_trap = TRAPS[trap]
    set_trap(folder, monkeypatch)
    before = os.listdir(folder)
    assert open_one() == wanted
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        rf"The index of {DATASET} cannot be kept in {re.escape(str(folder))} \({words}\): this process builds one of "
        rf"its own, and so will every other\.",
        line,
    )
    assert os.listdir(folder) == before


def test_the_folder_of_an_index_is_this_users_alone(open_one: Open, cache_home: Path) -> None:
    umask = os.umask(0)
    try:
        open_one()
    finally:
        os.umask(umask)
    folder = cache_home / "tfds_torch" / "record_index"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


# Counts of records


@pytest.fixture
def counts(tmp_path: Path, cache_home: Path) -> tuple[dict[str, int], Path]:
    """A shard whose records were counted, and the file of the counts."""
    path = write(tmp_path / "data" / "shard", RECORDS)
    check_shards({str(path): 3}, DATASET)
    (kept,) = (cache_home / "tfds_torch" / "shard_counts").glob("*.json")
    return {str(path): 3}, kept


def plant_counts(shards: dict[str, int], kept: Path) -> None:
    """Cuts the shard on a record boundary, and lets the counts that are kept hide it."""
    (path,) = shards
    os.truncate(path, boundaries(RECORDS)[2])
    kept.write_text(json.dumps({path: [*stamp_of(os.stat(path)), 3]}))


@pytest.mark.parametrize("trap", TRAPS)
def test_planted_counts_do_not_hide_a_shard_that_was_cut(
    trap: str, counts: tuple[dict[str, int], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shards, kept = counts
    plant_counts(shards, kept)
    check_shards(shards, DATASET)  # The counts are believed where they are this user's own.
    words, set_trap = TRAPS[trap]
    set_trap(kept.parent, monkeypatch)
    planted = kept.read_bytes()
    with pytest.raises(ShardError, match="holds 2 of 3 examples"):
        check_shards(shards, DATASET)
    (line,) = lines_of(caplog)
    start = f"Shard records are counted again: their counts are kept in {kept.parent}, which is not this user's own: "
    assert re.fullmatch(rf"{re.escape(start)}{words}\.", line)
    assert kept.read_bytes() == planted
