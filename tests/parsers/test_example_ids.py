"""Which example an index or an id means, and what is said of those that there are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folder_fixtures import NUM_TRAIN as NUM_IMAGES
from tfds_fixtures import GAP_TRAIN_SHARDS, NUM_TEST, NUM_TRAIN, SPLITS, Datasets, Ledger

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.parsers.example_ids import find_examples
from tfds_torch.parsers.parser_tfds import ParserTfds


def find(parser: ParserTfds, *keys: Any) -> list[int]:
    found = find_examples(parser._stream.files, parser.split, keys)
    assert found.dtype == np.int64
    return found.tolist()


@pytest.fixture
def shapes(datasets: Datasets) -> ParserTfds:
    return ParserTfds(datasets.root, "shapes", "train")


def shard(number: int) -> str:
    return f"shapes-train.tfrecord-{number:05}-of-00007"


@pytest.mark.parametrize(("root", "split"), SPLITS)
def test_every_id_of_tfds_names_its_example(
    root: str, split: str, datasets: Datasets, ledgers: dict[tuple[str, str], Ledger]
) -> None:
    parser = ParserTfds(getattr(datasets, root), "shapes", split)
    assert find(parser, *ledgers[root, split].ids) == list(range(parser.num_examples))


def test_an_id_that_a_split_has_twice_is_its_first(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train[3:6]+train[:5]")
    assert find(parser, f"{shard(0)}__4", f"{shard(0)}__0") == [1, 3]


def test_indices_count_from_both_ends_and_may_be_numpys(shapes: ParserTfds) -> None:
    keys = [0, NUM_TRAIN - 1, -1, -NUM_TRAIN, np.int64(7), np.uint8(200), np.array(3), f"{shard(1)}__2"]
    assert find(shapes, *keys) == [0, 210, 210, 0, 7, 200, 3, 42]
    assert find(shapes) == []


def test_paths_of_an_image_folder_name_their_images(folder: Path) -> None:
    for split in ("train", "test", "train+test", "train[10:20]+test[3:]"):
        parser = ParserTfds(folder, "image_folder", split)
        ids = parser.ids(np.arange(parser.num_examples))
        assert find(parser, *ids) == list(range(parser.num_examples))
    assert len(ParserTfds(folder, "image_folder").ids(np.arange(NUM_IMAGES))) == NUM_IMAGES


def test_images_whose_names_lie_in_each_other_are_told_apart(tmp_path: Path) -> None:
    names = ["1.png", "11.png", "111.png", "ng1.png", "1.png1.png"]
    for label in ("a", "b", "1.png"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for name in names:
            (tmp_path / "train" / label / name).touch()
    parser = ParserTfds(tmp_path, "image_folder")
    ids = parser.ids(np.arange(15))
    assert len(set(ids)) == 15
    assert find(parser, *ids) == list(range(15))
    for absent in ("png", "11.png1.png", "2.png", "a/1.png"):
        with pytest.raises(ExampleNotFoundError):
            find(parser, f"train/b/{absent}")


@pytest.mark.parametrize("key", [True, np.bool_(False), 1.0, np.float32(2), None, b"x__1", (1,), slice(2)])
def test_what_is_no_index_and_no_id_is_refused(shapes: ParserTfds, key: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"shapes:1.0.0, split 'train': .* names no example: give its index"
    ) as caught:
        find(shapes, key)
    assert type(caught.value) is ConfigError


@pytest.mark.parametrize("keys", ["abc", b"abc", 3, None])
def test_a_key_alone_is_no_list(shapes: ParserTfds, keys: Any) -> None:
    with pytest.raises(ConfigError, match=r"by a list of indices and ids, not by .* alone"):
        find_examples(shapes._stream.files, "train", keys)


@pytest.mark.parametrize("key", [NUM_TRAIN, -NUM_TRAIN - 1, 2**63, -(2**80), np.uint64(2**64 - 1)])
def test_an_index_out_of_range_names_the_range(shapes: ParserTfds, key: Any) -> None:
    with pytest.raises(ExampleNotFoundError) as caught:
        find(shapes, 0, key)
    assert isinstance(caught.value, IndexError)
    assert str(caught.value) == (
        f"shapes:1.0.0, split 'train': there is no example {key}: its indices are 0 to 210, or -211 to -1 from the end."
    )


def test_an_empty_split_has_no_example(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train[:0]")
    with pytest.raises(ExampleNotFoundError, match=r"there is no example 0: it is empty\.$"):
        find(parser, 0)
    with pytest.raises(ExampleNotFoundError, match=r"'<shard file>__<record>'\.$"):
        find(parser, "x")


@pytest.mark.parametrize(
    ("split", "key", "reason"),
    [
        ("train", "", f"ids have the form '<shard file>__<record>', such as '{shard(0)}__0'."),
        ("train", f"{shard(0)}__07", "ids have the form"),
        ("train", f"{shard(0)}__-1", "ids have the form"),
        ("train", f"{shard(0)}__²", "ids have the form"),
        ("train", f"{shard(0)}__{'9' * 5000}", "ids have the form"),
        ("train", f"{shard(0)}__40", "the shard has the records 0 to 39."),
        ("train", f"{shard(7)}__0", "no such shard. Did you mean 'shapes-train.tfrecord-0000"),
        ("train", "nothing like it__0", "no such shard."),
        ("test", f"{shard(0)}__0", "the shard is there, but the split has no example of it."),
        ("train[:43]", f"{shard(2)}__0", "the shard is there, but the split has no example of it."),
        ("train[:42]", f"{shard(1)}__2", "there, but outside the split, which has the shard's records 0 to 1."),
        (
            "train[:2]+train[9:11]",
            f"{shard(0)}__5",
            "outside the split, which has the shard's records 0 to 1, 9 to 10.",
        ),
    ],
)
def test_an_id_that_does_not_exist_says_why(datasets: Datasets, split: str, key: str, reason: str) -> None:
    with pytest.raises(ExampleNotFoundError) as caught:
        find(ParserTfds(datasets.root, "shapes", split), key)
    assert str(caught.value).startswith(f"shapes:1.0.0, split {split!r}: there is no example {key!r}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("split", "key", "reason"),
    [
        ("train", "train/circle/nothing.jpg", "ids are paths below {root}, with '/', such as 'train/"),
        ("train", "a 0.png", "ids are paths below"),
        ("train", "train", "ids are paths below"),
        ("train", "trian/circle/a 0.png", "Did you mean 'train'?"),
        ("train", "train/circel/a 0.png", "Did you mean 'circle'?"),
        ("test", "train/circle/a 0.png", "the image is there, but outside the split."),
        ("train[:1]", None, "the image is there, but outside the split."),
    ],
)
def test_a_path_that_does_not_exist_says_why(folder: Path, split: str, key: str | None, reason: str) -> None:
    key = key or ParserTfds(folder, "image_folder", "train").ids(np.array([5]))[0]
    with pytest.raises(ExampleNotFoundError) as caught:
        find(ParserTfds(folder, "image_folder", split), key)
    assert str(caught.value).startswith(f"image_folder:1.0.0, split {split!r}: there is no example {key!r}: ")
    assert reason.format(root=folder) in str(caught.value)


def test_empty_shards_are_counted_over(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.gaps, "shapes", "train+test")
    assert find(parser, f"{shard(4)}__0") == [GAP_TRAIN_SHARDS[1]]
    assert parser.num_examples == NUM_TRAIN + NUM_TEST
