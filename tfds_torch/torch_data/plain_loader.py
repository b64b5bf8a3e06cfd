"""torch's own DataLoader over an ImageDataset, as the commands use it."""

import warnings
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from tfds_torch.torch_data.image_dataset import ImageDataset


def make_plain_loader(
    dataset: ImageDataset, num_workers: int, collate_fn: Callable[[list[tuple[Any, ...]]], Any]
) -> "DataLoader[Any]":
    """Returns a DataLoader with the parser's batch size, and workers that live from epoch to epoch.

    It is the only loader that `check` reads through: what it promises is promised of this one.

    Args:
        dataset: what is loaded.
        num_workers: loader processes; 0 reads in this process.
        collate_fn: makes a batch of a list of examples.
    """
    with warnings.catch_warnings():
        # The commands say so themselves, once, where a loader would in every rank.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        return DataLoader(
            dataset,
            batch_size=dataset.parser.batch_size or 1,  # As it is planned; None would mean no batches.
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=collate_fn,
        )


def image_size(image: Any) -> tuple[int, int]:
    """Stands for a PIL image that was decoded: only its (width, height) travels to the parent."""
    return image.size  # type: ignore[no-any-return]
