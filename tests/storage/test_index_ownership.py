"""Indexes and counts in the user's cache folder: what another user may have put there is not read or written."""

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from foreign_files import OTHER_USER, TRAPS, give_away
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
def test_a_planted_index_is_built_again_with_a_warning(
    trap: str,
    open_one: Open,
    cache_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted, elsewhere = open_one(), tmp_path / "elsewhere"
    path = index_file(cache_home)
    planted = path.read_bytes()
    words, set_trap = TRAPS[trap]
    set_trap(path, elsewhere, monkeypatch)
    assert open_one() == wanted
    (line,) = lines_of(caplog)
    start = f"The index {path} of {DATASET} is built again: it is not this user's own: "
    assert re.fullmatch(rf"{re.escape(start)}{words}\.", line)
    assert (path.is_symlink(), path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (False, planted, 0o600)
    caplog.clear()
    assert open_one() == wanted
    assert lines_of(caplog) == []
    if trap == "link":
        assert elsewhere.read_bytes() == planted


@pytest.mark.parametrize("trap", ["another owner", "link to another's"])
def test_an_index_in_a_folder_of_another_user_is_neither_read_nor_written(
    trap: str,
    open_one: Open,
    cache_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = open_one()
    index_file(cache_home).unlink()
    folder = cache_home / "tfds_torch" / "record_index"
    if trap == "link to another's":
        folder.rename(tmp_path / "theirs")
        folder.symlink_to(tmp_path / "theirs")
    give_away(folder.resolve(), monkeypatch)
    before = os.listdir(folder)
    assert open_one() == wanted
    (line,) = lines_of(caplog)
    assert line == (
        f"The index of {DATASET} cannot be kept in {folder} (it belongs to user {OTHER_USER}, and this process runs as "
        f"user {os.geteuid()}): this process builds one of its own, and so will every other."
    )
    assert os.listdir(folder) == before


def test_the_folder_of_an_index_is_this_users_alone_also_where_it_was_open_to_a_group(
    open_one: Open, cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    umask = os.umask(0)
    try:
        wanted = open_one()
    finally:
        os.umask(umask)
    folder = cache_home / "tfds_torch" / "record_index"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    folder.chmod(0o775)
    assert open_one() == wanted
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert lines_of(caplog) == []


@pytest.mark.parametrize("trap", TRAPS)
def test_a_lock_that_is_a_trap_is_replaced(
    trap: str, open_one: Open, cache_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = open_one()
    path, elsewhere = index_file(cache_home), tmp_path / "elsewhere"
    path.unlink()
    lock = path.with_name(f"{path.name}.lock")
    lock.write_bytes(b"theirs")
    TRAPS[trap][1](lock, elsewhere, monkeypatch)
    assert open_one() == wanted
    assert path.exists()
    assert stat.S_ISREG(lock.lstat().st_mode)
    assert not lock.lstat().st_mode & 0o022
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"theirs"


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


@pytest.mark.parametrize("trap", [*TRAPS, "folder"])
def test_planted_counts_do_not_hide_a_shard_that_was_cut(
    trap: str,
    counts: tuple[dict[str, int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shards, kept = counts
    plant_counts(shards, kept)
    check_shards(shards, DATASET)  # The counts are believed where they are this user's own.
    if trap == "folder":
        give_away(kept.parent, monkeypatch)
    else:
        TRAPS[trap][1](kept, tmp_path / "elsewhere", monkeypatch)
    with pytest.raises(ShardError, match="holds 2 of 3 examples"):
        check_shards(shards, DATASET)
    (line,) = lines_of(caplog)
    found = kept.parent if trap == "folder" else kept
    assert line.startswith(
        f"Shard records are counted again: their counts are kept in {found}, which is not this user's"
    )


@pytest.mark.parametrize("trap", TRAPS)
def test_planted_counts_are_replaced(
    trap: str, counts: tuple[dict[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, kept = counts
    before, elsewhere = kept.read_bytes(), tmp_path / "elsewhere"
    TRAPS[trap][1](kept, elsewhere, monkeypatch)
    check_shards(shards, DATASET)
    assert (kept.is_symlink(), kept.read_bytes(), stat.S_IMODE(kept.stat().st_mode)) == (False, before, 0o600)
    assert elsewhere.exists() == (trap == "link")
