"""Shards that `dataset_info.json` promises empty are looked at by URL as local ones are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from servers.faulty_server import Fault, FaultyFolder
from servers.s3_server import S3Server
from tfds_fixtures import write_numbered

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.parsers.tfds.parser import ParserTfds

Serve = Callable[[Path | str], str]
LENGTHS = (3, 0, 4, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "own", {"train": LENGTHS})
    return tmp_path / "own"


def empty_shard(folder: Path) -> Path:
    (found,) = folder.rglob("numbered-train.tfrecord-00001-of-*")
    return found


def read(root: Path | str) -> list[int]:
    parser = ParserTfds(root, "numbered:1.0.0", batch_size=1)
    return [label for batch in parser.batches(fields=("label",)) for label in np.asarray(batch.label).tolist()]


def test_they_are_asked_for_once_and_hold_nothing(s3_server: S3Server, own_cache: Path, root: Path) -> None:
    assert read(s3_server.fill(root, "empty-shards")) == read(root) == list(range(7))


def test_each_is_one_request(serve: Serve, faulty_server: FaultyFolder, root: Path) -> None:
    parser = ParserTfds(serve(root), "numbered:1.0.0", batch_size=1)
    for epoch in range(2):
        list(parser.batches(epoch=epoch, fields=("label",)))
    asked = faulty_server.ledger().requests_by_path
    assert [asked[path] for path in asked if "-00001-of-" in path and not path.endswith(".index")] == [1]


def test_one_that_is_left_out_is_harmless(serve: Serve, root: Path) -> None:
    empty_shard(root).unlink()
    assert read(serve(root)) == read(root) == list(range(7))


def test_one_with_records_is_an_error_as_of_a_local_copy(serve: Serve, root: Path) -> None:
    (full,) = root.rglob("numbered-train.tfrecord-00000-of-*")
    empty_shard(root).write_bytes(full.read_bytes())
    url = serve(root)
    for where in (url, str(root)):
        with pytest.raises(ShardError, match=r"00001-of-00004 holds 3 of 0 examples") as caught:
            read(where)
        assert where in str(caught.value)


def test_one_that_is_not_a_shard_is_an_error(serve: Serve, root: Path) -> None:
    empty_shard(root).write_bytes(b"not a record" * 10)
    url = serve(root)
    for where in (url, str(root)):
        with pytest.raises(CorruptRecordError, match=r"00001-of-00004"):
            read(where)


def test_one_that_may_not_be_read_is_an_error(serve: Serve, faulty_server: FaultyFolder, root: Path) -> None:
    url = serve(root)
    faulty_server.fault("*-00001-of-00004", Fault(status=403))
    with pytest.raises(ShardError, match=r"00001-of-00004.*403"):
        read(url)
