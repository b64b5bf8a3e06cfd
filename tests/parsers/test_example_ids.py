"""Which example an index or an id means, and what is said of those that there are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folder_fixtures import NUM_TRAIN as NUM_IMAGES
from tfds_fixtures import NUM_TRAIN, SPLITS, Datasets, Ledger

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.parsers.tfds.parser import ParserTfds


def find(parser: ParserTfds, *keys: Any) -> list[int]:
    return [example.index for example in parser.examples_by_index(keys, ("id",))]


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
        shapes.examples_by_index(keys)


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
        (
            "train",
            f"{shard(7)}__0",
            "no example of a shard with this name. Did you mean 'shapes-train.tfrecord-0000",
        ),
        ("test", f"{shard(0)}__0", "the split has no example of a shard with this name."),
        ("train[:43]", f"{shard(2)}__0", "the split has no example of a shard with this name."),
        ("train[:42]", f"{shard(1)}__2", "the split has the records 0 to 1 of this shard."),
    ],
)
def test_an_id_that_does_not_exist_says_why_and_names_the_split(
    datasets: Datasets, split: str, key: str, reason: str
) -> None:
    with pytest.raises(ExampleNotFoundError) as caught:
        find(ParserTfds(datasets.root, "shapes", split), key)
    assert str(caught.value).startswith(f"shapes:1.0.0, split {split!r}: there is no example {key!r}: ")
    assert reason in str(caught.value)


def test_a_path_that_does_not_exist_says_why_and_names_the_split(folder: Path) -> None:
    with pytest.raises(ExampleNotFoundError) as caught:
        find(ParserTfds(folder, "image_folder", "test"), "train/circle/a 0.png")
    assert str(caught.value) == (
        "image_folder:1.0.0, split 'test': there is no example 'train/circle/a 0.png': the image is there, but outside "
        "the split."
    )
