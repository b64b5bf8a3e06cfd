"""Compares what an IterableDataset yields with the length that it reports."""

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from tfds_torch.loaders.worker_sources import WorkerBatch


def reported_length(dataset: Any) -> int | None:
    """Returns the `len` of an IterableDataset; None: it has none, or the dataset is of another kind."""
    if not isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)  # type: ignore[arg-type] # It need not have one.
    except (TypeError, NotImplementedError, AttributeError):
        return None


class CountedBatches(Iterator[WorkerBatch]):
    """Yields the batches of an iteration, and warns once where they hold more than the dataset has reported.

    Args:
        batches: of the iteration.
        is_collated: whether the loader makes batches of the dataset's items; else they come as they are.
        name: of the dataset.
        length: that it reports.
        num_workers: of the loader.
    """

    def __init__(
        self,
        batches: Iterator[WorkerBatch],
        is_collated: bool,
        name: str,
        length: int,
        num_workers: int,
    ) -> None:
        self._batches, self._is_collated = batches, is_collated
        self._name, self._length, self._num_workers = name, length, num_workers
        self._num_items, self._is_told = 0, False

    def __next__(self) -> WorkerBatch:
        batch = next(self._batches)
        self._num_items += batch.num_examples if self._is_collated else 1
        if self._num_items > self._length and not self._is_told:
            self._is_told = True
            shares = (
                f" Each of the {self._num_workers} workers may read more than its share: the dataset's __iter__ must "
                f"ask torch.utils.data.get_worker_info() for it."
                if self._num_workers > 1
                else ""
            )
            warnings.warn(
                f"Length of IterableDataset {self._name} was reported to be {self._length} (by its __len__), but "
                f"{self._num_items} items have been fetched, and more may come. len(loader), and what counts with it, "
                f"such as progress bars and schedules, are too small.{shares}",
                UserWarning,
                stacklevel=3,
            )
        return batch
