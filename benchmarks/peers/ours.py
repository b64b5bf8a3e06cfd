"""This package in sample mode: `ImageDataset` without a preprocess, behind torch's own DataLoader; and at other levels.

Configured: `is_training`, which shuffles (8,192 encoded examples, divided among the workers) and fills the last batch;
the `ReadOptions` of the task; the shared transform; `persistent_workers`, as timm's loader has it. All else is a
default: torch's collation, its prefetch factor of 2, the start method of the system. `parser_level` is
`ParserTfds.batches` in one process: decoded images, and no torch. With `decoded`, only the size of every image travels
to the training process; `as_arrays` sends the pixels of images that are all of one size.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.task import Task
from benchmarks.transform import RandomResizedCropFlip

Epochs = Callable[[int], Iterable[Any]]


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, 224, 224]."""
    return _loader(task, RandomResizedCropFlip())


def parser_level(task: Task) -> Epochs:
    """Returns the function epoch -> lists of decoded images."""
    parser = _parser(task)
    return lambda epoch: (batch.image for batch in parser.batches(epoch=epoch))


def decoded(task: Task) -> Epochs:
    """Returns the function epoch -> batches of sizes, torch int64 [B, 2]."""
    return _loader(task, _size)


def as_arrays(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, H, W, 3]."""
    return _loader(task, _pixels)


def _parser(task: Task) -> Any:
    from tfds_torch import ParserTfds, ReadOptions

    options = ReadOptions(**task.read)
    return ParserTfds(
        task.data_dir, task.dataset, task.split, is_training=True, batch_size=task.batch_size, read=options
    )


def _loader(task: Task, transform: Callable[[Image.Image], Any]) -> Epochs:
    from torch.utils.data import DataLoader

    from tfds_torch import ImageDataset

    loader = DataLoader(
        ImageDataset(_parser(task), transform=transform),
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (images for images, _ in loader)


def _size(image: Image.Image) -> NDArray[np.int64]:
    return np.array(image.size, np.int64)


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image).copy()  # torch asks for memory that it may write to.
