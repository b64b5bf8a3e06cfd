"""What a loader iterates, where other datasets are asked for one example after the other."""

from collections.abc import Iterable
from typing import Any

from torch.utils.data import Dataset, IterableDataset


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is iterated: an IterableDataset, or any other iterable without `__getitem__`."""
    return isinstance(dataset, IterableDataset) or is_plain_iterable(dataset)


def is_plain_iterable(dataset: Any) -> bool:
    """Whether it is an iterable that has nothing to do with torch, as a Feeder's source; only this process reads it."""
    return isinstance(dataset, Iterable) and not (isinstance(dataset, Dataset) or hasattr(dataset, "__getitem__"))
