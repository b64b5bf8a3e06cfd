import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tfds_fixtures import frame_record, record_offsets

from demo.conftest import PHOTOS
from tfds_torch.demo import prepare
from tfds_torch.demo.preparation import check_files
from tfds_torch.errors import CorruptRecordError, ShardError

SHARD = "photos-train.tfrecord-00002-of-00005"
NUM_IN_SHARD = 7


@pytest.fixture
def folder(demo_root: Path, tmp_path: Path) -> Path:
    """The version directory of a copy of `photos`."""
    shutil.copytree(demo_root / "photos", tmp_path / "copy" / "photos")
    return tmp_path / "copy" / "photos" / "1.0.0"


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def grow(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def exchange(path: Path) -> None:
    """With a shard of another length: each is whole, but here is too little."""
    other = path.with_name(SHARD.replace("00002", "00001"))
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("do", "kind", "facts"),
    [
        (lambda path: cut(path, path.stat().st_size - 1), CorruptRecordError, ["it was cut", "inside record 6"]),
        (lambda path: cut(path, record_offsets(path)[6]), ShardError, [f"holds 6 of {NUM_IN_SHARD} examples"]),
        (lambda path: cut(path, 0), ShardError, [f"holds 0 of {NUM_IN_SHARD} examples"]),
        (Path.unlink, ShardError, ["missing"]),
        (lambda path: grow(path, frame_record(b"one too many")), ShardError, [f"holds 8 of {NUM_IN_SHARD} examples"]),
        (lambda path: grow(path, b"?"), CorruptRecordError, ["inside record 7"]),
        (exchange, ShardError, [f"holds 8 of {NUM_IN_SHARD} examples"]),
        (lambda path: path.rename(f"{path}-of-before"), ShardError, ["missing"]),
    ],
    ids=["a byte cut", "a record cut", "emptied", "deleted", "a record more", "a byte more", "exchanged", "renamed"],
)
def test_the_damaged_shard_is_named(
    folder: Path, do: Callable[[Path], None], kind: type[ShardError], facts: list[str]
) -> None:
    check_files(folder)
    do(folder / SHARD)
    with pytest.raises(ShardError) as caught:
        check_files(folder)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert message.startswith(f"The demo dataset in {folder} is damaged: ")
    assert str(folder / SHARD) in message
    assert message.endswith("Delete that folder and prepare the dataset again.")
    assert message.lower().count("prepare the dataset again") == 1
    for fact in facts:
        assert fact in message
    with pytest.raises(kind, match=SHARD):
        prepare("photos", root=folder.parents[1], **PHOTOS)


def test_a_shard_of_other_bytes_and_as_many_records_is_damage(folder: Path) -> None:
    offsets = record_offsets(folder / SHARD)
    records = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(records[: offsets[6]] + frame_record(b"another"))
    with pytest.raises(ShardError, match=r"split 'train' has 5 shard\(s\) with \d+ bytes, and should have 5 with \d+"):
        check_files(folder)


def test_a_shard_that_does_not_belong_is_named(folder: Path) -> None:
    shutil.copy(folder / SHARD, folder / "photos-train.tfrecord-00005-of-00006")
    with pytest.raises(ShardError, match=r"photos-train\.tfrecord-00005-of-00006 does not belong to it"):
        check_files(folder)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"name": "photos", "splits": [{}]}'])
def test_a_dataset_info_that_cannot_be_read_is_damage(folder: Path, text: str | None) -> None:
    info = folder / "dataset_info.json"
    info.unlink() if text is None else info.write_text(text)
    with pytest.raises(ShardError, match=r"is damaged: dataset_info\.json cannot be read \(.*\)\. Delete that folder"):
        check_files(folder)
