"""torch's own DataLoader over an ImageDataset, as the commands use it."""

import warnings
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from tfds_torch.torch_data.image_dataset import ImageDataset


def make_plain_loader(
    dataset: ImageDataset, num_workers: int, collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None
) -> "DataLoader[Any]":
    """Returns a DataLoader with the parser's batches, and workers that live from epoch to epoch.

    Args:
        dataset: what is loaded.
        num_workers: loader processes; 0 reads in this process.
        collate_fn: makes a batch of a list of examples; None: they come as whole batches.
    """
    with warnings.catch_warnings():
        # The commands say so themselves, once, where a loader would in every rank.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        return DataLoader(
            dataset,
            # As it is planned; None would mean no batches.
            batch_size=None if dataset.is_batched else dataset.parser.batch_size or 1,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=collate_fn,
        )
