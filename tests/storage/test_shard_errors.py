"""shard_status: what is not a file is said, and is not opened."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from storage.made_shards import DATASET, write_shards

from tfds_torch.errors import ShardError
from tfds_torch.storage.shard_errors import shard_status
from tfds_torch.storage.tfrecord.framing import count_records, read_records
from tfds_torch.storage.tfrecord.index import RecordIndex
from tfds_torch.storage.tfrecord.shard_counts import check_shards
from tfds_torch.storage.tfrecord.source import TfrecordReader


def make_socket(path: Path) -> None:
    # The path may be longer than a socket's may be.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_is_named_without_being_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    KINDS[kind](path)
    for use in (shard_status, count_records, lambda path: list(read_records(path)), lambda path: check(str(path))):
        with pytest.raises(ShardError) as caught:
            use(path)
        assert str(caught.value) == (f"The shard file {path} is {kind}, not a regular file. Prepare the dataset again.")


def check(path: str) -> None:
    check_shards({path: 3}, DATASET)


def test_a_file_or_a_link_to_one_is_well(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("shard")
    assert shard_status(tmp_path / "link").st_size == shard_status(tmp_path / "shard").st_size == 3


def test_a_missing_file_is_a_shard_error(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"^The shard file .*/shard is missing\. Prepare the dataset again\.$"):
        shard_status(tmp_path / "shard")


def test_a_fifo_in_a_shards_place_holds_nobody_up(tmp_path: Path, cache_home: Path) -> None:
    split = write_shards(tmp_path / "data", [3])
    reader = TfrecordReader(RecordIndex.open(split.table))
    path = split.instructions[0].path
    os.remove(path)
    os.mkfifo(path)
    for use in (lambda: reader.read(np.array([1])), lambda: RecordIndex.open(split.table)):
        with pytest.raises(ShardError, match=f"The shard file {path} is a FIFO, not a regular file"):
            use()
