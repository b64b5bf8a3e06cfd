"""Boxes and their labels in whole batches: lists, or padded tensors with their lengths, in every loader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parsers.boxed_pictures import record, write_boxed
from torch.utils.data import DataLoader

from tfds_torch import (
    ImageDataset,
    MultiLoader,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    TrainPreprocess,
    create_loader,
)
from tfds_torch.engines.padding import Padded
from tfds_torch.errors import ConfigError

FIELDS = ("objects/bbox", "image", "label")
PAD = {"objects/bbox": 0.0, "label": -100}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxed(tmp_path_factory.mktemp("padded"))


def open_parser(root: Path, **changes: Any) -> ParserTfds:
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 5, "target_key": "objects/label"}
    arguments["preprocess"] = TrainPreprocess(size=32, scale=(0.3, 1.0))
    return ParserTfds(root, "boxed", **arguments | changes)


def assert_padded(batch: Any, wanted: Any) -> None:
    """A batch holds what the parser gives, padded."""
    boxes, images, labels = batch
    assert (type(boxes), type(labels)) == (Padded, Padded)
    for came, name in ((boxes, "objects/bbox"), (labels, "label")):
        values, lengths = came
        assert (lengths.dtype, lengths.tolist()) == (torch.int64, [len(one) for one in wanted.features[name]])
        assert values.shape[:2] == (len(wanted), max(lengths))
        for row, one in enumerate(wanted.features[name]):
            np.testing.assert_array_equal(values[row, : len(one)].numpy(), one)
            assert (values[row, len(one) :] == PAD[name]).all()
    assert (boxes.values.dtype, labels.values.dtype) == (torch.float32, torch.int64)
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), wanted.image)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_loader_pads_what_it_is_asked_to(num_workers: int, device: str | None, root: Path) -> None:
    parser = open_parser(root)
    dataset = ImageDataset(parser, fields=FIELDS, pad=PAD)
    with create_loader(dataset, num_workers, device=device) as loader:
        came = list(loader)
        assert loader.stats().examples == 15
    for batch, wanted in zip(came, parser.batches(fields=FIELDS), strict=True):
        assert_padded(batch, wanted)


def test_a_plain_dataloader_does_so_too(root: Path) -> None:
    parser = open_parser(root)
    dataset = ImageDataset(parser, fields=FIELDS, pad=PAD)
    for batch, wanted in zip(DataLoader(dataset, batch_size=None), parser.batches(fields=FIELDS), strict=True):
        assert_padded(batch, wanted)


def test_other_fields_stay_lists(root: Path) -> None:
    parser = open_parser(root)
    (boxes, _, labels), *_ = ImageDataset(parser, fields=FIELDS, pad={"label": -1})
    assert isinstance(boxes, list)
    assert isinstance(labels, Padded)


def test_fields_that_vary_are_lists_in_every_batch(tmp_path: Path) -> None:
    """Of ten examples the first five have two boxes each, the others one to three."""
    boxes = [np.tile(np.array([0.1, 0.1, 0.9, 0.9], np.float32), (2 if n < 5 else n % 3 + 1, 1)) for n in range(10)]
    root = write_boxed(tmp_path, [record(n, boxes=one) for n, one in enumerate(boxes)])
    parser = open_parser(root, is_training=False, preprocess=None)
    fields = ("objects/bbox", "label", "codes")
    mixture = ParserMixture({"a": parser, "b": parser}, weights={"a": 1, "b": 1}, batch_size=5, is_training=True)
    for one in (parser, mixture):
        with MultiLoader(one, 1, fields=fields) as loader:
            batches = list(loader)
        assert {type(batch.features[name]) for batch in batches for name in fields} == {list}
        dataset = ImageDataset(one, fields=fields, batched=True)
        with create_loader(dataset, 1) as torch_loader:
            assert {type(values) for batch in torch_loader for values in batch} == {list}


def test_batches_of_numpy_pad_by_themselves(root: Path) -> None:
    parser = open_parser(root)
    with MultiLoader(parser, 1, fields=FIELDS) as loader:
        for batch, wanted in zip(loader, parser.batches(fields=FIELDS), strict=True):
            (values, lengths), (ours, own) = (one.padded("objects/bbox") for one in (batch, wanted))
            np.testing.assert_array_equal(values, ours)
            assert lengths.tolist() == own.tolist()


def test_padding_of_single_examples_is_refused(root: Path) -> None:
    message = r"pad=\{'label': 0\} is for whole batches, and this dataset yields single examples: give it batched=True"
    with pytest.raises(ConfigError, match=message):
        ImageDataset(open_parser(root, preprocess=None), fields=FIELDS, pad={"label": 0})
    with pytest.raises(ConfigError, match="names 'mask', whose values are of one size"):
        ImageDataset(
            open_parser(root, preprocess=TrainPreprocess(size=8, also=("mask",))),
            fields=("image", "mask"),
            pad={"mask": 0},
        )
    labelled = ParserMapStyle([{"x": 1, "label": 2}] * 4, batch_size=2)
    with pytest.raises(ConfigError, match="names 'label', whose values are of one size"):
        ImageDataset(labelled, fields=("x", "label"), pad={"label": 0}, batched=True)


def test_lists_of_whole_batches_are_refused() -> None:
    dataset = ImageDataset(ParserMapStyle([{"x": 1}] * 4, batch_size=2), fields=("x",), as_dict=True, batched=True)
    with pytest.raises(ConfigError, match=r"collate_fn='list' .* this dataset yields whole batches. .* batched=False"):
        create_loader(dataset, collate_fn="list")
