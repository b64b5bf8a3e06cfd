"""ImageDataset of whole batches, behind torch's and torchdata's loaders, with and without workers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids.fleet import Fleet
from tfds_fixtures import has_tensorflow

from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, TrainPreprocess, World
from tfds_torch.errors import ConfigError
from torch_data import batched
from torch_data.batched import FIELDS, Look

slow, campaign = pytest.mark.slow, pytest.mark.campaign

NUM_EXAMPLES = 41
PREPROCESS = batched.Shade(size=(8, 6), scale=(0.3, 1.0))


def dataset_of(root: str, fields: tuple[str, ...] = FIELDS, world: World | None = None, **changes: Any) -> ImageDataset:
    batched = changes.pop("batched", None)
    arguments: dict[str, Any] = {
        "name": "numbered",
        "is_training": True,
        "batch_size": 12,
        "preprocess": PREPROCESS,
    } | changes
    return ImageDataset(ParserTfds(root, **arguments), fields=fields, world=world, batched=batched)


def looks(size: int, height: int = 8, width: int = 6, *, is_shared: bool = False) -> list[Look]:
    """Returns what the fields `FIELDS` of a batch look like where it was made."""
    return [
        Look("torch.uint8", (size, 3, height, width), True, is_shared),
        Look("torch.int64", (size,)),
        Look("torch.bool", (size,)),
        Look("torch.int64", (size,)),
        Look("list", (size,)),
    ]


# What a batch is


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [12, 12, 12, 12]),
        ({"remainder": "drop"}, [12, 12, 12]),
        ({"is_training": False}, [12, 12, 12, 5]),
        ({"is_training": False, "remainder": "pad"}, [12, 12, 12, 12]),
    ],
    ids=["wrap", "drop", "keep", "pad"],
)
def test_whole_batches_have_the_planned_sizes_and_len_counts_them(
    changes: dict[str, Any], sizes: list[int], numbered_root: str
) -> None:
    dataset = dataset_of(numbered_root, **changes)
    assert dataset.is_batched
    assert len(dataset) == len(sizes)
    came, *lengths = batched.look_at_batches(dataset)
    assert came == [(tuple, looks(size)) for size in sizes]
    assert lengths == [len(sizes)] * 2


def test_padding_is_marked(numbered_root: str) -> None:
    dataset = dataset_of(numbered_root, is_training=False, remainder="pad")
    batches = batched.read_batches(dataset)
    _, label, valid, index, ids = batches[-1]
    assert valid.tolist() == [True] * 5 + [False] * 7
    assert index.tolist() == [36, 37, 38, 39, 40, 0, 1, 2, 3, 4, 5, 6]
    assert label.tolist() == [36, 37, 38, 39, 40, *[-100] * 7]
    assert ids[5] == "numbered-train.tfrecord-00000-of-00009__0"
    assert np.concatenate([batch[1] for batch in batches]).tolist()[:NUM_EXAMPLES] == list(range(NUM_EXAMPLES))


def test_in_workers_the_images_lie_in_shared_memory_when_they_are_made(fleet: Fleet, numbered_root: str) -> None:
    dataset = dataset_of(numbered_root)
    ((made, arrived, is_shared),) = fleet.call(batched.look_at_batches_of_workers, dataset, 2)
    assert made == [(tuple, looks(12, is_shared=True))] * 4
    assert [[(look.kind, look.shape, look.is_channels_last) for look in fields] for _, fields in arrived] == [
        [(look.kind, look.shape, look.is_channels_last) for look in looks(12)]
    ] * 4
    assert is_shared


def test_images_are_not_copied_on_their_way_from_the_buffer(numbered_root: str) -> None:
    dataset = dataset_of(numbered_root, ("image",), preprocess=TrainPreprocess(size=8))
    buffers, tensors = batched.compare_addresses(dataset)
    assert buffers == tensors
    assert len(set(tensors)) == 4, "batches that are still held share no memory"


def test_other_features_and_masks_come_along(data_root: Path) -> None:
    parser = ParserTfds(data_root, "photos", batch_size=5, preprocess=EvalPreprocess(size=16))
    dataset = ImageDataset(parser, fields=("file_name", "image"))
    (names, images), *_ = batched.read_batches(dataset, 1)
    assert names == parser.filenames()[:5]
    assert images.shape == (5, 3, 16, 16)


def test_gray_images_have_one_channel(data_root: Path) -> None:
    for preprocess in (EvalPreprocess(size=12), None):
        parser = ParserTfds(
            data_root, "digits", "test", batch_size=7, image_mode="L", preprocess=preprocess, remainder="drop"
        )
        dataset = ImageDataset(parser, fields=("image",), batched=True)
        ((image,),) = batched.read_batches(dataset, 1)
        side = 12 if preprocess else 8
        assert (image.shape, image.dtype) == ((7, 1, side, side), np.uint8)


# The same everywhere


@pytest.mark.parametrize(
    ("num_workers", "method"),
    [
        pytest.param(1, "fork", marks=slow),
        (3, "fork"),
        pytest.param(2, "spawn", marks=campaign),
        pytest.param(2, "forkserver", marks=slow),
    ],
)
def test_workers_give_the_batches_that_a_process_gives_alone(
    num_workers: int, method: str, fleet: Fleet, numbered_root: str
) -> None:
    alone = batched.read_batches(dataset_of(numbered_root))
    (came,) = fleet.call(batched.read_in_workers, dataset_of(numbered_root), num_workers, method, deadline_s=120)
    assert_same_batches(came, alone)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=slow)])
def test_an_evaluation_in_inference_mode_reads_what_any_other_does(
    num_workers: int, fleet: Fleet, numbered_root: str
) -> None:
    alone = batched.read_batches(dataset_of(numbered_root))
    (came,) = fleet.call(batched.read_in_inference_mode, dataset_of(numbered_root), num_workers, deadline_s=120)
    assert_same_batches(came, alone)


def assert_same_batches(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for our, their in zip(one, other, strict=True):
            np.testing.assert_array_equal(our, their)


def test_ranks_share_out_the_global_batches(numbered_root: str) -> None:
    alone = batched.read_batches(dataset_of(numbered_root))
    ranks = [batched.read_batches(dataset_of(numbered_root, batch_size=4, world=World(rank, 3))) for rank in range(3)]
    joined = [
        tuple(np.concatenate(values) for values in zip(*parts, strict=True)) for parts in zip(*ranks, strict=True)
    ]
    assert_same_batches(joined, alone)


@pytest.mark.parametrize(
    "method",
    [*(pytest.param(method, marks=slow) for method in ("fork", "spawn")), pytest.param("forkserver", marks=campaign)],
)
def test_with_workers_the_training_process_loads_no_tensorflow(method: str, numbered_root: str) -> None:
    indices, has_loaded = batched.train_without_tensorflow(numbered_root, method)
    assert len(indices) == 48
    assert set(indices) == set(range(NUM_EXAMPLES))
    assert not has_loaded
    assert not has_tensorflow()


# Without a preprocess


def test_images_of_one_size_may_come_in_whole_batches_as_they_are(numbered_root: str) -> None:
    dataset = dataset_of(numbered_root, preprocess=None, batched=True)
    assert dataset.is_batched
    assert len(dataset) == 4
    came, *_ = batched.look_at_batches(dataset)
    assert came == [(tuple, looks(12, 8, 8))] * 4
    single = dataset_of(numbered_root, preprocess=None)
    assert not single.is_batched
    assert len(single) == 48


def test_images_of_different_sizes_are_refused_with_ids_and_sizes(data_root: Path) -> None:
    dataset = ImageDataset(ParserTfds(data_root, "photos", batch_size=8), batched=True)
    with pytest.raises(ConfigError) as refused:
        batched.read_batches(dataset)
    text = str(refused.value)
    one = r"\[(\d+), (\d+), 3\]"
    message = rf"\d+-of-00008__\d+ is of another one .* has \[H, W, C\] = {one}, and the first {one}\."
    sizes = re.search(rf"photos-train\.tfrecord-{message}", text)
    assert sizes, text
    assert sizes.groups()[:2] != sizes.groups()[2:]
    assert "Give the parser a preprocess, such as TrainPreprocess(size=224), or leave out batched=True." in text


# What is refused


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"batched": False}, "batched=False, and the parser has Shade(size=(8, 6)"),
        ({}, {"batched": 1}, "batched=1 must be True, False or None (where the parser has a preprocess)."),
        ({}, {"transform": len}, "transform is called with single examples, and this dataset yields whole batches."),
        (
            {"preprocess": None},
            {"target_transform": len, "batched": True},
            "target_transform is called with single examples, and this dataset yields whole batches.",
        ),
        (
            {"preprocess": None, "batch_size": None, "is_training": False},
            {"batched": True},
            "batched=True needs the parser's batch_size: it is the size of the batches.",
        ),
    ],
)
def test_what_cannot_work_with_whole_batches_is_refused_at_once(
    changes: dict[str, Any], arguments: dict[str, Any], message: str, numbered_root: str
) -> None:
    of_parser: dict[str, Any] = {
        "name": "numbered",
        "is_training": True,
        "batch_size": 12,
        "preprocess": PREPROCESS,
    } | changes
    parser = ParserTfds(numbered_root, **of_parser)
    with pytest.raises(ConfigError, match=re.escape(message)):
        ImageDataset(parser, **arguments)
