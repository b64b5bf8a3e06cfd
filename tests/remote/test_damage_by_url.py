"""Objects that are missing, cut, exchanged or damaged are errors that name URL and record, or are fetched again."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.faulty_server import Fault, FaultyFolder
from tfds_fixtures import record_offsets

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.remote.stored_blocks import remove_block, stored_blocks
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
SHARD = "numbered-train.tfrecord-00003-of-00009"  # 5 records.
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 41, "preprocess": TrainPreprocess(size=8)}


def open_far(url: str, **options: Any) -> ParserTfds:
    read = ReadOptions(block_records=4, shuffle_buffer=8, **options)
    return ParserTfds(url, "numbered:1.0.0", read=read, **TRAINING)


def read(parser: ParserTfds) -> list[int]:
    (batch,) = parser.batches(fields=("label",))
    found: list[int] = sorted(batch.label.tolist())
    return found


def shard(server: FaultyFolder) -> Path:
    (path,) = server.folder.rglob(SHARD)
    return path


def remove_blocks(parser: ParserTfds) -> None:
    """Leaves nothing of the cache, as a fetcher that needs room does."""
    for block in stored_blocks(str(parser.source.files.store.options.folder)):
        assert remove_block(block)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_missing_shard_is_named(serve: Serve, faulty_server: FaultyFolder, numbered_root: str) -> None:
    url = serve(numbered_root)
    shard(faulty_server).unlink()
    with pytest.raises(ShardError, match=rf"{url}/numbered/1\.0\.0/{SHARD}"):
        read(open_far(url))


@pytest.mark.parametrize("ends_at", ["a record", "the middle of a record"])
def test_a_shard_that_was_cut_is_named(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str, ends_at: str
) -> None:
    url = serve(numbered_root)
    path = shard(faulty_server)
    os.truncate(path, record_offsets(path)[3] + (0 if ends_at == "a record" else 20))
    with pytest.raises((ShardError, CorruptRecordError), match=rf"{url}/numbered/1\.0\.0/{SHARD}.* (3 of 5|record 3)"):
        read(open_far(url))


def test_a_byte_that_was_damaged_on_the_way_is_fetched_again(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str
) -> None:
    url = serve(numbered_root)
    assert read(open_far(url)) == list(range(41))  # Indexed, in blocks of the order.
    damaged = record_offsets(shard(faulty_server))[2] + 40
    parser = open_far(url)
    remove_blocks(parser)
    faulty_server.fault(f"*{SHARD}", Fault(flipped_byte=damaged), times=1, method="GET")
    assert read(parser) == list(range(41))


def test_a_byte_that_is_damaged_there_is_named_with_its_record(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str
) -> None:
    url = serve(numbered_root)
    flip(shard(faulty_server), record_offsets(shard(faulty_server))[2] + 40)
    with pytest.raises(CorruptRecordError, match=rf"{url}/numbered/1\.0\.0/{SHARD}: record 2 at offset .* checksum"):
        read(open_far(url))
    parser = open_far(url, on_error="replace")
    assert sorted(set(read(parser))) == sorted(set(range(41)) - {9})


def test_a_byte_that_was_damaged_in_the_cache_is_fetched_again(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str
) -> None:
    url = serve(numbered_root)
    assert read(open_far(url)) == list(range(41))
    parser = open_far(url)
    blocks = list(parser.source.files.store.options.folder.glob("objects/*/*-*"))
    assert blocks
    for block in blocks:
        flip(block, 60)
    assert read(parser) == list(range(41))


def test_an_object_that_changed_is_an_error_and_no_mixture(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str
) -> None:
    url = serve(numbered_root)
    parser = open_far(url)
    assert parser[9].label == 9
    path = shard(faulty_server)
    records = record_offsets(path)
    content = path.read_bytes()
    path.write_bytes(content[records[1] :] + content[: records[1]])  # The same size, and the same records.
    remove_blocks(parser)
    with pytest.raises(ShardError, match=rf"{SHARD} changed"):
        read(parser)
    assert read(open_far(url)) == list(range(41)), "a new parser reads the new object"


def test_errors_come_out_of_workers(serve: Serve, faulty_server: FaultyFolder, numbered_root: str) -> None:
    url = serve(numbered_root)
    flip(shard(faulty_server), record_offsets(shard(faulty_server))[2] + 40)
    dataset = ImageDataset(open_far(url))
    with (
        create_loader(dataset, num_workers=2) as loader,
        pytest.raises(CorruptRecordError, match=rf"{SHARD}: record 2"),
    ):
        list(loader)
