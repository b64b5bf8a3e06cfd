"""The ids that must come are those of `dataset_info.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from image_folder_fixtures import NUM_TEST, NUM_TRAIN, write_image_folder
from tensorflow_datasets.core import naming

from tfds_torch.check.expected_ids import expected_ids, is_image_folder
from tfds_torch.errors import ShardError
from tfds_torch.parsers.tfds.folder import Folder
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.source import FileInstruction

TRAIN, TEST = (3, 0, 2), (2,)


def write_info(folder: Path, template: str | None = None, **changes: Any) -> Path:
    splits = [
        {"name": name, "shardLengths": [str(n) for n in lengths]} | ({"filepathTemplate": template} if template else {})
        for name, lengths in (("train", TRAIN), ("test", TEST))
    ]
    info = {"name": "shapes", "fileFormat": "tfrecord", "splits": splits} | changes
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def run(file: str, skip: int, take: int, first_index: int = 0) -> FileInstruction:
    return FileInstruction(f"/far/away/{file}", skip, take, first_index, 5)


TRAIN_IDS = [
    "shapes-train.tfrecord-00000-of-00003__0",
    "shapes-train.tfrecord-00000-of-00003__1",
    "shapes-train.tfrecord-00000-of-00003__2",
    "shapes-train.tfrecord-00002-of-00003__0",
    "shapes-train.tfrecord-00002-of-00003__1",
]
TEST_IDS = ["shapes-test.tfrecord-00000-of-00001__0", "shapes-test.tfrecord-00000-of-00001__1"]


@pytest.mark.parametrize(
    ("split", "ids"),
    [
        ("train", TRAIN_IDS),
        ("test", TEST_IDS),
        ("train+test", TRAIN_IDS + TEST_IDS),
        ("test + train", TEST_IDS + TRAIN_IDS),
        ("test+test", TEST_IDS + TEST_IDS),
    ],
)
def test_whole_splits_and_their_sums_are_known_without_any_instructions(
    tmp_path: Path, split: str, ids: Sequence[str]
) -> None:
    """Whatever the reading side believes: it is not asked."""
    lies = [run("shapes-train.tfrecord-00000-of-00003", 0, 1)]
    for instructions in ([], lies):
        assert list(expected_ids(Folder(str(write_info(tmp_path))), split, instructions)) == ids


def test_a_slice_is_what_tfds_says_within_what_the_file_has(tmp_path: Path) -> None:
    first = run("shapes-train.tfrecord-00000-of-00003", 1, 2)
    second = run("shapes-train.tfrecord-00002-of-00003", 0, 1)
    assert list(expected_ids(Folder(str(write_info(tmp_path))), "train[1:4]", [first, second])) == TRAIN_IDS[1:4]


def test_an_id_is_found_at_its_first_index_and_nowhere_else(tmp_path: Path) -> None:
    ids = expected_ids(Folder(str(write_info(tmp_path))), "train+test+train", [])
    assert [ids.find(id) for id in ids] == [*range(7), *range(5)]
    assert [ids.is_at(index, TRAIN_IDS[1]) for index in (-1, 0, 1, 8, 12)] == [False, False, True, True, False]
    unknown = ("", "x", TRAIN_IDS[2] + "0", "shapes-train.tfrecord-00000-of-00003__-1", "shapes-train.tfrecord-9__0")
    assert [ids.find(id) for id in unknown] == [None] * 5
    sliced = expected_ids(Folder(str(tmp_path)), "train[1:2]", [run("shapes-train.tfrecord-00000-of-00003", 1, 1)])
    assert [sliced.find(id) for id in TRAIN_IDS[:3]] == [None, 0, None]
    with pytest.raises(IndexError):
        ids[12]


def test_an_empty_split_has_no_ids(tmp_path: Path) -> None:
    write_info(tmp_path, splits=[{"name": "train", "shardLengths": ["0", "0"]}, {"name": "test"}])
    assert len(expected_ids(Folder(str(tmp_path)), "train", [])) == 0
    assert list(expected_ids(Folder(str(tmp_path)), "test", [])) == []


def test_a_format_other_than_the_usual_is_part_of_the_names(tmp_path: Path) -> None:
    assert expected_ids(Folder(str(write_info(tmp_path, fileFormat="riegeli"))), "test", [])[0] == (
        "shapes-test.riegeli-00000-of-00001__0"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}-of-{NUM_SHARDS}",
        "my_{DATASET}.{SPLIT}.{SHARD_INDEX}",
        "{SPLIT}/data.{FILEFORMAT}-{SHARD_X_OF_Y}",
    ],
)
def test_shards_are_named_as_tfds_names_them(tmp_path: Path, template: str) -> None:
    files = naming.ShardedFileTemplate(
        data_dir=tmp_path, template=template, dataset_name="shapes", split="train", filetype_suffix="tfrecord"
    )
    names = [files.sharded_filepath(shard_index=i, num_shards=len(TRAIN)).name for i in range(len(TRAIN))]
    ids = [f"{name}__{i}" for name, length in zip(names, TRAIN, strict=True) for i in range(length)]
    write_info(tmp_path, template)
    assert list(expected_ids(Folder(str(tmp_path)), "train", [])) == ids
    assert list(expected_ids(Folder(str(tmp_path)), "train[:2]", [run(names[0], 0, 2)])) == ids[:2]


def test_very_many_shards_are_named_as_tfds_names_them(tmp_path: Path) -> None:
    num = 100_001
    write_info(tmp_path, splits=[{"name": "train", "shardLengths": ["1"] * num}])
    ids = expected_ids(Folder(str(tmp_path)), "train", [])
    files = naming.ShardedFileTemplate(
        data_dir=tmp_path, dataset_name="shapes", split="train", filetype_suffix="tfrecord"
    )
    assert ids[7] == f"{files.sharded_filepath(shard_index=7, num_shards=num).name}__0"


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            run("shapes-train.tfrecord-00000-of-00003", 1, 3),
            "reads examples 1..3 of shapes-train.tfrecord-00000-of-00003, and dataset_info.json gives it 3 examples",
        ),
        (
            run("shapes-train.tfrecord-00001-of-00003", 0, 1),
            "reads examples 0..0 of shapes-train.tfrecord-00001-of-00003, and dataset_info.json gives it 0 examples",
        ),
        (
            run("shapes-train.tfrecord-00000-of-00009", 0, 1),
            "reads examples 0..0 of shapes-train.tfrecord-00000-of-00009, and dataset_info.json gives it 0 examples",
        ),
    ],
    ids=["more than the shard has", "an empty shard", "an unknown shard"],
)
def test_records_that_do_not_exist_are_an_error(tmp_path: Path, instruction: FileInstruction, message: str) -> None:
    with pytest.raises(ShardError) as caught:
        expected_ids(Folder(str(write_info(tmp_path))), "train[:50%]", [instruction])
    assert message in str(caught.value)
    assert "'train[:50%]'" in str(caught.value)


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
            f"Split 'test[:50%]' reads examples 0..{NUM_TEST} of {folder}, and the folder holds {number} examples."
        )


def test_only_what_has_no_dataset_info_is_an_image_folder(tmp_path: Path) -> None:
    assert is_image_folder(Folder(str(tmp_path)))
    assert not is_image_folder(Folder(str(write_info(tmp_path))))
