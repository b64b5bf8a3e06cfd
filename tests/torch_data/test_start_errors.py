"""What spawn and forkserver cannot pickle is named before any worker starts, and what they can still goes."""

import multiprocessing
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tfds_torch import ImageDataset, IndexedImageDataset, ParserTfds, create_loader
from tfds_torch.errors import ConfigError
from torch_data.loader_datasets import Squares

METHODS = ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)]


class Chain:
    """Applies steps."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __call__(self, value: Any) -> Any:
        for step in self.steps:
            value = step(value)
        return value


class Locking(Squares):
    """Has what can be pickled for a worker that is being started only."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.shared = multiprocessing.get_context("spawn").Array("q", 3)
        self.transform = transform

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.tensor(index + self.shared[0]))


def parser(root: Path) -> ParserTfds:
    return ParserTfds(root, "digits", "train[:64]", is_training=True, batch_size=32)


def local_dataset(root: Path) -> Any:
    class Local(Dataset[int]):
        def __len__(self) -> int:
            return 3

    return Local()


LOADERS: dict[str, tuple[str, Callable[[Path], Any], dict[str, Any]]] = {
    "transform": ("transform = ", lambda root: ImageDataset(parser(root), transform=lambda image: image), {}),
    "target_transform": (
        "target_transform = ",
        lambda root: IndexedImageDataset(parser(root), target_transform=lambda label: label),
        {},
    ),
    "a step of a transform": (
        "create_loader: dataset.transform.steps[1] = ",
        lambda root: ImageDataset(parser(root), transform=Chain(np.asarray, lambda image: image)),
        {},
    ),
    "collate_fn": ("create_loader: collate_fn = ", lambda root: Squares(), {"collate_fn": lambda rows: rows}),
    "part of collate_fn": (
        "create_loader: collate_fn.keywords['key'] = ",
        lambda root: Squares(),
        {"collate_fn": partial(sorted, key=lambda row: row)},
    ),
    "worker_init_fn": ("create_loader: worker_init_fn = ", lambda root: Squares(), {"worker_init_fn": lambda i: None}),
    "a local class": ("create_loader: dataset = a local_dataset.<locals>.Local ", local_dataset, {}),
    "beside locks": ("create_loader: dataset.transform = ", lambda root: Locking(lambda value: value), {}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LOADERS)
def test_what_cannot_be_pickled_is_named_and_no_worker_is_started(name: str, method: str, data_root: Path) -> None:
    begin, make, arguments = LOADERS[name]
    before = multiprocessing.active_children()
    dataset = make(data_root)
    if isinstance(dataset, ImageDataset):
        arguments = {"collate_fn": list, **arguments}
    with create_loader(dataset, 1, multiprocessing_context=method, **arguments) as loader:
        with pytest.raises(ConfigError) as caught:
            next(iter(loader))
        assert loader.worker_pids == []
    assert multiprocessing.active_children() == before
    text = str(caught.value)
    assert text.startswith(begin)
    assert re.search(r"cannot be pickled \((AttributeError|PicklingError): Can't pickle .*(<lambda>|\.Local)", text)
    assert f"workers that are started by {method!r} get it pickled. Use what a module defines at its top level" in text


@pytest.mark.parametrize("kind", [ImageDataset, IndexedImageDataset])
@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start a worker")
def test_a_plain_dataloader_gets_the_name_of_the_transform_too(kind: Any, data_root: Path) -> None:
    dataset = kind(parser(data_root), transform=lambda image: image)
    loader = DataLoader(dataset, 32, num_workers=1, multiprocessing_context="spawn", collate_fn=list)
    with pytest.raises(ConfigError, match=r"^transform = .*<lambda> cannot be pickled .*started by 'spawn'"):
        iter(loader)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_can_be_pickled_for_a_worker_only_still_goes(method: str) -> None:
    with create_loader(Locking(torch.neg), 1, batch_size=20, multiprocessing_context=method) as loader:
        assert [batch.tolist() for batch in loader] == [[-index for index in range(20)]]


def test_forked_workers_take_lambdas(data_root: Path) -> None:
    dataset = ImageDataset(parser(data_root), transform=lambda image: image.size)
    with create_loader(dataset, 1, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 2
