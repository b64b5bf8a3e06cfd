"""Warnings about a split that is smaller than a batch; those about boxes are in `test_moving_boxes`."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parsers.cached_pictures import NUM_EXAMPLES, write_small
from tfds_torch import (
    ImageDataset,
    MultiLoader,
    ParserTfds,
    ReadOptions,
    World,
    create_loader,
)

READERS: dict[str, Callable[..., Any]] = {
    "ImageDataset": lambda parser, world, fields: ImageDataset(parser, world=world, fields=fields),
    "MultiLoader": lambda parser, world, fields: MultiLoader(parser, 1, world=world, fields=fields),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("advice"))


def warnings_of(make: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(one.category is UserWarning and one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("split", "batch_size", "num_replicas", "said"),
    [
        (
            "train[:10]",
            64,
            1,
            "has 10 examples, fewer than a batch of 64: each comes 6 or 7 times in the one batch",
        ),
        ("train[:10]", 64, 1, " of an epoch. Use batch_size=10 or less, or a larger split."),
        ("train[:10]", 20, 1, "each comes 2 times in"),
        (
            "train",
            40,
            2,
            f"has {NUM_EXAMPLES} examples, fewer than a batch of 80 (2 ranks x batch_size 40): each ",
        ),
        ("train", 40, 2, "each comes 1 or 2 times in the one batch of an epoch. Use batch_size=30 or less"),
        ("train[:2]", 1, 3, "Use a larger split, or fewer ranks."),
    ],
)
def test_a_training_split_that_does_not_fill_a_batch_is_a_warning(
    reader: str, split: str, batch_size: int, num_replicas: int, said: str, root: Path
) -> None:
    parser = ParserTfds(root, "pictures", split, is_training=True, batch_size=batch_size)
    world = World(0, num_replicas)
    (text,) = warnings_of(lambda: READERS[reader](parser, world, ("label",)))
    assert text.startswith(f"pictures:1.0.0, split {split!r}, has ")
    assert said in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": NUM_EXAMPLES, "is_training": True},
        {"batch_size": NUM_EXAMPLES - 1, "is_training": True},
        {"batch_size": 4 * NUM_EXAMPLES, "is_training": True, "repeats": 4},
        {"batch_size": 4 * NUM_EXAMPLES},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_meant_is_not_warned_of(reader: str, arguments: dict[str, Any], root: Path) -> None:
    parser = ParserTfds(root, "pictures", **arguments)
    assert warnings_of(lambda: READERS[reader](parser, None, ("label",))) == []


def test_it_is_said_once_and_the_batches_are_as_planned(root: Path) -> None:
    parser = ParserTfds(root, "pictures", "train[:10]", is_training=True, batch_size=64)
    datasets: list[ImageDataset] = []
    assert len(warnings_of(lambda: datasets.append(ImageDataset(parser, fields=("index",), batched=True)))) == 1
    with create_loader(datasets[0], 1) as loader:
        for _ in range(2):
            ((index,),) = loader
            assert sorted({index.tolist().count(i) for i in range(10)}) == [6, 7]


def test_the_environment_says_how_large_a_global_batch_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=40)
    assert warnings_of(lambda: ImageDataset(parser)) == []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (text,) = warnings_of(lambda: ImageDataset(parser))
    assert "(2 ranks x batch_size 40)" in text


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("batch_size", "num_replicas", "said"),
    [
        (3, 2, "block_groups=4 does not divide the global batch of 6 (2 ranks x batch_size 3), so that every rank"),
        (3, 2, "Use batch_size=2 or 4, or other block_groups."),
        (1, 3, "Use batch_size=4, or other block_groups."),
        (2, 2, ""),
        (3, 1, ""),
    ],
)
def test_ranks_that_share_groups_of_blocks_are_a_warning(
    root: Path, reader: str, batch_size: int, num_replicas: int, said: str
) -> None:
    read = ReadOptions(block_records=4, block_groups=4)
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=batch_size, read=read)
    world = World(num_replicas=num_replicas)
    found = warnings_of(lambda: READERS[reader](parser, world, ("label",)))
    assert [said in one for one in found] == ([True] if said else [])
