"""Datasets of whole batches, and loaders over them as conformance.py drives them. Importable by every child."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from grids.fleet import Place
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, World
from tfds_torch.images.preprocess import ExampleRandom
from torch_data.resuming import MapStyleSetup, MixtureSetup, Setup

FIELDS = ("image", "label", "valid", "index", "id")


@dataclass(frozen=True)
class BatchedSetup(Setup):
    """A loader of whole batches, whose labels are the examples' indices."""

    def dataset(self, rank: int | None = 0) -> ImageDataset:
        """Returns the dataset of a rank."""
        parser = self.make_parser()
        world = None if rank is None else World(rank, self.num_replicas)
        return ImageDataset(parser, fields=FIELDS, world=world, batched=True)

    @property
    def loader_batch_size(self) -> int | None:
        return None

    @property
    def collate(self) -> Callable[[Any], Any]:
        return ledger_of


@dataclass(frozen=True)
class BatchedMixtureSetup(BatchedSetup, MixtureSetup):
    """The same, over a mixture."""


@dataclass(frozen=True)
class BatchedMapStyleSetup(BatchedSetup, MapStyleSetup):
    """The same, over a dataset of one's own."""


def ledger_of(batch: Any) -> list[tuple[Any, ...]]:
    """Returns a number for each example and its pixels, and `valid`, if the records are the right ones.

    In a worker the images must lie in shared memory, elsewhere they must not.
    """
    image, label, valid, index, ids = batch
    assert image.is_shared() == (torch.utils.data.get_worker_info() is not None)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert label.tolist() == [at if ok else -100 for at, ok in zip(index.tolist(), valid.tolist(), strict=True)]
    assert len(ids) == len(image) == len(index)
    pixels = [zlib.crc32(pixels.tobytes()) for pixels in image.numpy()]
    numbers = tuple(at << 32 | number for at, number in zip(index.tolist(), pixels, strict=True))
    return [numbers, tuple(valid.tolist())]


# What batches are


@dataclass(frozen=True)
class Look:
    """A field of a batch: of a tensor, its dtype, shape and so on; of anything else its type and length."""

    kind: str
    shape: tuple[int, ...]
    is_channels_last: bool = False
    is_shared: bool = False


def look_at(value: Any) -> Look:
    if not isinstance(value, torch.Tensor):
        return Look(type(value).__name__, (len(value),))
    is_last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)
    return Look(str(value.dtype), tuple(value.shape), is_last, value.is_shared())


def look_at_all(batch: Any) -> tuple[type, list[Look]]:
    """A collate_fn: looks at the fields where they are made."""
    return type(batch), list(map(look_at, batch))


def look_at_batches(dataset: ImageDataset) -> tuple[list[tuple[type, list[Look]]], int, int]:
    """Returns the looks of an epoch's batches, and the lengths of loader and dataset."""
    loader = DataLoader(dataset, batch_size=None, collate_fn=look_at_all)
    return list(loader), len(loader), len(dataset)


def look_at_batches_of_workers(_: Place, dataset: ImageDataset, num_workers: int) -> tuple[list[Any], list[Any], bool]:
    """Returns the looks of the batches in workers, and after they arrived, and whether they lie in shared memory."""
    arguments: dict[str, Any] = {"batch_size": None, "num_workers": num_workers}
    made = list(DataLoader(dataset, collate_fn=look_at_all, **arguments))
    dataset.set_epoch(0)
    arrived = list(DataLoader(dataset, **arguments))
    return made, [look_at_all(batch) for batch in arrived], all(batch[0].is_shared() for batch in arrived)


def read_batches(dataset: ImageDataset, num_batches: int | None = None) -> list[tuple[Any, ...]]:
    """Returns an epoch's batches in plain values, all of them held until the last one has come."""
    held = list(islice(DataLoader(dataset, batch_size=None), num_batches))
    return [tuple(to_plain(value) for value in batch) for batch in held]


def to_plain(value: Any) -> Any:
    return np.array(value.numpy()) if isinstance(value, torch.Tensor) else value


def read_in_workers(_: Place, dataset: ImageDataset, num_workers: int, method: str) -> list[tuple[Any, ...]]:
    """Returns the same, read by workers."""
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method)
    held = list(loader)
    return [tuple(to_plain(value) for value in batch) for batch in held]


def read_in_inference_mode(_: Place, dataset: ImageDataset, num_workers: int) -> list[tuple[Any, ...]]:
    """Returns the same, taken within `torch.inference_mode()`."""
    with torch.inference_mode():
        held = list(DataLoader(dataset, batch_size=None, num_workers=num_workers))
        return [tuple(to_plain(value) for value in batch) for batch in held]


def compare_addresses(dataset: ImageDataset) -> tuple[list[int], list[int]]:
    """Returns the addresses of all batches' images, of the parser's buffers and of the dataset's tensors, in order."""
    from unittest import mock

    from tfds_torch.torch_data import tensor_buffer

    made = []

    class Noting(tensor_buffer.TensorBuffer):
        def __init__(self, memory: torch.Tensor) -> None:
            super().__init__(memory)
            made.append(self.pixels.ctypes.data)

    with mock.patch.object(tensor_buffer, "TensorBuffer", Noting):
        came = [image for (image,) in dataset]
    return sorted(made), sorted(image.data_ptr() for image in came)


@dataclass(frozen=True)
class Shade(TrainPreprocess):
    """Gives the images, which are all the same, a grey level of their own."""

    def augment(self, images: np.ndarray, random: ExampleRandom) -> None:
        images += (random.uniforms(1) * 256).astype(np.uint8)[:, :, None, None]


def train_without_tensorflow(root: str, method: str) -> tuple[list[int], bool]:
    """Returns the indices of an epoch that a worker read, and whether this process has loaded tensorflow."""
    preprocess = Shade(size=8)
    parser = ParserTfds(root, "numbered", is_training=True, batch_size=8, preprocess=preprocess)
    dataset = ImageDataset(parser, fields=("image", "index"))
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
    indices = [at for image, index in loader for at in index.tolist() if image.shape == (8, 3, 8, 8)]
    return indices, "tensorflow" in sys.modules
