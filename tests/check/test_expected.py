"""The ids that must come are those of `dataset_info.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from image_folder_fixtures import NUM_TEST, NUM_TRAIN, write_image_folder
from tensorflow_datasets.core import naming

from tfds_torch.check.expected import expected_ids
from tfds_torch.errors import ShardError
from tfds_torch.parsers.tfds.folder import Folder
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.source import FileInstruction

TRAIN, TEST = (3, 0, 2), (2,)


def write_info(folder: Path, **changes: Any) -> Path:
    splits = [
        {"name": name, "shardLengths": [str(n) for n in lengths]}
        for name, lengths in (("train", TRAIN), ("test", TEST))
    ]
    info = {"name": "shapes", "fileFormat": "tfrecord", "splits": splits} | changes
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def run(file: str, skip: int, take: int, first_index: int = 0) -> FileInstruction:
    return FileInstruction(f"/far/away/{file}", skip, take, first_index, 5)


FIRST, EMPTY, LAST = (f"shapes-train.tfrecord-{shard:05}-of-00003" for shard in range(3))
TRAIN_IDS = [*(f"{FIRST}__{number}" for number in range(3)), *(f"{LAST}__{number}" for number in range(2))]
TEST_IDS = [f"shapes-test.tfrecord-00000-of-00001__{number}" for number in range(2)]
NONE = {"splits": [{"name": "train", "shardLengths": ["0", "0"]}, {"name": "test"}]}


@pytest.mark.parametrize(
    ("split", "changes", "ids"),
    [
        ("train", {}, TRAIN_IDS),
        ("test", {}, TEST_IDS),
        ("train+test", {}, TRAIN_IDS + TEST_IDS),
        ("test + train", {}, TEST_IDS + TRAIN_IDS),
        ("test+test", {}, TEST_IDS + TEST_IDS),
        ("train", NONE, []),
        ("test", NONE, []),
        ("test", {"fileFormat": "riegeli"}, [f"shapes-test.riegeli-00000-of-00001__{number}" for number in range(2)]),
    ],
)
def test_whole_splits_and_their_sums_are_known_without_any_instructions(
    tmp_path: Path, split: str, changes: dict[str, Any], ids: Sequence[str]
) -> None:
    """Whatever the reading side believes: it is not asked."""
    folder = Folder(str(write_info(tmp_path, **changes)))
    for instructions in ([], [run(FIRST, 0, 1)]):
        assert list(expected_ids(folder, split, instructions)) == ids


def test_an_id_is_found_at_its_first_index_and_nowhere_else(tmp_path: Path) -> None:
    folder = Folder(str(write_info(tmp_path)))
    ids = expected_ids(folder, "train+test+train", [])
    assert [ids.find(id) for id in ids] == [*range(7), *range(5)]
    assert [ids.is_at(index, TRAIN_IDS[1]) for index in (-1, 0, 1, 8, 12)] == [False, False, True, True, False]
    unknown = ("", "x", TRAIN_IDS[2] + "0", f"{FIRST}__-1", "shapes-train.tfrecord-9__0")
    assert [ids.find(id) for id in unknown] == [None] * 5
    sliced = expected_ids(folder, "train[1:4]", [run(FIRST, 1, 2), run(LAST, 0, 1)])
    assert list(sliced) == TRAIN_IDS[1:4]
    assert [sliced.find(id) for id in TRAIN_IDS] == [None, 0, 1, 2, None]
    with pytest.raises(IndexError):
        ids[12]


@pytest.mark.parametrize(
    ("template", "lengths"),
    [
        ("{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", TRAIN),
        ("{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}-of-{NUM_SHARDS}", TRAIN),
        ("my_{DATASET}.{SPLIT}.{SHARD_INDEX}", TRAIN),
        ("{SPLIT}/data.{FILEFORMAT}-{SHARD_X_OF_Y}", TRAIN),
        ("{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", (1,) * 100_001),
    ],
)
def test_shards_are_named_as_tfds_names_them(tmp_path: Path, template: str, lengths: Sequence[int]) -> None:
    files = naming.ShardedFileTemplate(
        data_dir=tmp_path, template=template, dataset_name="shapes", split="train", filetype_suffix="tfrecord"
    )
    names = [files.sharded_filepath(shard_index=i, num_shards=len(lengths)).name for i in range(3)]
    ids = [f"{name}__{i}" for name, length in zip(names, lengths, strict=False) for i in range(length)]
    split = {"name": "train", "shardLengths": list(map(str, lengths)), "filepathTemplate": template}
    folder = Folder(str(write_info(tmp_path, splits=[split])))
    found = expected_ids(folder, "train", [])
    assert [found[i] for i in range(len(ids))] == ids
    assert list(expected_ids(folder, "train[:1]", [run(names[0], 0, 1)])) == ids[:1]


@pytest.mark.parametrize(
    ("instruction", "records", "number"), [(run(FIRST, 1, 3), "1..3", 3), (run(EMPTY, 0, 1), "0..0", 0),
    (run("shapes-train.tfrecord-00000-of-00009", 0, 1), "0..0", 0)],
    ids=["more than the shard has", "an empty shard", "an unknown shard"],
)  # fmt: skip
def test_records_that_do_not_exist_are_an_error(
    tmp_path: Path, instruction: FileInstruction, records: str, number: int
) -> None:
    with pytest.raises(ShardError) as caught:
        expected_ids(Folder(str(write_info(tmp_path))), "train[:50%]", [instruction])
    assert str(caught.value) == (
        f"Split 'train[:50%]' reads examples {records} of {Path(instruction.path).name}, and dataset_info.json gives "
        f"it {number} examples. Prepare the dataset again."
    )


# Image folders


@pytest.mark.parametrize(
    "split", ["train", "test", "train+test", "test + train", "empty+test", "train[10:20]+test[3:]"]
)
def test_the_ids_of_an_image_folder_are_found_without_the_parser(tmp_path: Path, split: str) -> None:
    """That the parser's own order is TFDS's is tested with the parser."""
    parser = ParserTfds(write_image_folder(tmp_path / "root"), "image_folder", split)
    ids = expected_ids(Folder(str(tmp_path / "root")), split, parser.files)
    assert list(ids) == parser.filenames()
    assert [ids.find(id) for id in ids] == list(range(len(ids)))
    assert ids.find("train/circle/nowhere.jpg") is None


def test_images_are_expected_that_the_parser_does_not_know(tmp_path: Path) -> None:
    root = write_image_folder(tmp_path / "root")
    parser = ParserTfds(root, "image_folder", "train+test")
    (root / "train" / "circle" / "new.jpg").touch()
    ids = expected_ids(Folder(str(root)), "train+test", parser.files)
    assert len(ids) == NUM_TRAIN + NUM_TEST + 1
    assert set(ids) - set(parser.filenames()) == {"train/circle/new.jpg"}


def test_images_that_do_not_exist_are_an_error(tmp_path: Path) -> None:
    root = write_image_folder(tmp_path / "root")
    for folder, number in (("test", NUM_TEST), ("notes", 0), ("nowhere", 0)):
        instruction = FileInstruction(str(root / folder), 0, NUM_TEST + 1, 0, NUM_TEST + 1)
        with pytest.raises(ShardError) as caught:
            expected_ids(Folder(str(root)), "test[:50%]", [instruction])
        assert str(caught.value) == (
            f"Split 'test[:50%]' reads examples 0..{NUM_TEST} of {folder}, and the folder holds {number} examples. "
            f"Images were removed after the parser had listed them: make the parser anew."
        )
