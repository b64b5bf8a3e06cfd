"""This package in sample mode: `ImageDataset` without a preprocess, behind torch's own DataLoader.

Configured: `is_training`, which shuffles (8,192 encoded examples, divided among the workers) and fills the last batch;
the shared transform; `persistent_workers`, as timm's loader has it. All else is a default: torch's collation, its
prefetch factor of 2, the start method of the system.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tfds_torch.bench.task import Task
from tfds_torch.bench.transform import RandomResizedCropFlip


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, 224, 224]."""
    from torch.utils.data import DataLoader

    from tfds_torch import ImageDataset, ParserTfds

    parser = ParserTfds(task.data_dir, "photos", is_training=True, batch_size=task.batch_size)
    dataset = ImageDataset(parser, transform=RandomResizedCropFlip())
    loader = DataLoader(
        dataset,
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (images for images, _ in loader)
