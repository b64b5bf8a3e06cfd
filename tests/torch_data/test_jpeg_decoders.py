"""Whatever decodes JPEG: the batches are the same, behind every loader, and each one says what decodes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_images import JPEG_DECODERS
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    MultiLoader,
    ParserTfds,
    ReadOptions,
    TrainPreprocess,
    World,
    create_loader,
)
from tfds_torch.images.decoders import jpeg
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.torch_data.rank_check import find_differences

OTHER_DECODERS = [one for one in JPEG_DECODERS if one.values != ("pillow",)]
PREPROCESSES: dict[str, Preprocess] = {
    "training": TrainPreprocess(64),
    "bicubic training": TrainPreprocess(96, interpolation="bicubic", scale=(0.02, 0.2)),
    "padded crops of training": TrainPreprocess(64, crop_padding=4),
    "evaluation": EvalPreprocess(64),
    "squashed evaluation": EvalPreprocess(48, crop_mode="squash"),
}


def make_parser(root: Path, jpeg_decoder: str, preprocess: Preprocess = PREPROCESSES["training"]) -> ParserTfds:
    is_training = isinstance(preprocess, TrainPreprocess)
    read = ReadOptions(jpeg_decoder=jpeg_decoder)
    return ParserTfds(
        root, "photos", "train[:20]", is_training=is_training, batch_size=8, preprocess=preprocess, read=read
    )


@pytest.mark.parametrize("jpeg_decoder", OTHER_DECODERS)
@pytest.mark.parametrize("name", PREPROCESSES)
def test_batches_are_those_of_pillows_decoder(name: str, jpeg_decoder: str, data_root: Path) -> None:
    expected = make_parser(data_root, "pillow", PREPROCESSES[name]).batches(World(), epoch=1)
    found = make_parser(data_root, jpeg_decoder, PREPROCESSES[name]).batches(World(), epoch=1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.index, other.index)
        np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.parametrize("jpeg_decoder", OTHER_DECODERS)
def test_whole_images_are_those_of_pillows_decoder(jpeg_decoder: str, data_root: Path) -> None:
    expected, found = (make_parser(data_root, name)[:8] for name in ("pillow", jpeg_decoder))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.image, other.image)


def batches_of_loader(dataset: ImageDataset) -> Iterator[Any]:
    with create_loader(dataset, num_workers=2) as loader:
        yield from (images for images, _ in loader)


def batches_without_workers(dataset: ImageDataset) -> Iterator[Any]:
    yield from (images for images, _ in create_loader(dataset, num_workers=0))


def batches_of_plain_dataloader(dataset: ImageDataset) -> Iterator[Any]:
    yield from (images for images, _ in DataLoader(dataset, batch_size=None, num_workers=1))


def batches_of_multi_loader(dataset: ImageDataset) -> Iterator[Any]:
    with MultiLoader(dataset.parser, num_workers=2) as loader:
        yield from (batch.image for batch in loader)


def as_array(images: Any) -> NDArray[np.uint8]:
    return images.permute(0, 2, 3, 1).numpy() if isinstance(images, torch.Tensor) else np.asarray(images)


@pytest.mark.parametrize("jpeg_decoder", OTHER_DECODERS)
@pytest.mark.parametrize(
    "batches",
    [batches_of_loader, batches_without_workers, batches_of_plain_dataloader, batches_of_multi_loader],
    ids=lambda one: one.__name__,
)
def test_every_loader_delivers_the_same(
    batches: Callable[[ImageDataset], Iterator[Any]], jpeg_decoder: str, data_root: Path
) -> None:
    parsers = [make_parser(data_root, name, EvalPreprocess(64)) for name in (jpeg_decoder, "pillow")]
    found, expected = ([as_array(images).copy() for images in batches(ImageDataset(one))] for one in parsers)
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("jpeg_decoder", [*JPEG_DECODERS, pytest.param("auto")])
def test_stats_say_what_decodes(jpeg_decoder: str, data_root: Path) -> None:
    loader = create_loader(ImageDataset(make_parser(data_root, jpeg_decoder)), num_workers=0)
    next(iter(loader))
    stats = loader.stats()
    assert stats.jpeg_decoder == jpeg.describe(jpeg_decoder)
    assert str(stats).endswith(f"; JPEG by {stats.jpeg_decoder}")
    assert json.loads(json.dumps(stats.to_dict()))["jpeg_decoder"] == stats.jpeg_decoder


def test_where_no_images_are_read_nothing_decodes_them(data_root: Path) -> None:
    parser = ParserTfds(data_root, "photos", batch_size=8)
    loader = create_loader(ImageDataset(parser, fields=("label", "index")), num_workers=0)
    assert loader.stats().jpeg_decoder is None
    assert "JPEG" not in str(loader.stats())


def test_a_decoder_is_no_part_of_the_order(data_root: Path) -> None:
    fingerprints = {make_parser(data_root, name).fingerprint for name in ("auto", "simplejpeg", "pillow")}
    assert len(fingerprints) == 1


def test_ranks_with_different_decoders_are_told_what_to_do() -> None:
    ranks = [
        {"jpeg_decoder": name, "num_replicas": 2, "rank": rank}
        for rank, name in enumerate(("turbojpeg (libjpeg-turbo 3.0.4)", "simplejpeg 1.9.0"))
    ]
    assert find_differences(ranks) == [
        "jpeg_decoder is turbojpeg (libjpeg-turbo 3.0.4) on rank 0, 'simplejpeg 1.9.0' on rank 1 (install the same "
        "one everywhere, or choose ReadOptions(jpeg_decoder='simplejpeg'))"
    ]
