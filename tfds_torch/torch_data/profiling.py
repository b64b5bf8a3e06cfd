"""The steps of a loader in the training process: by name in torch.profiler, and on the CPU."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from tfds_torch.runtime.one_thread import close_iterator

T = TypeVar("T")

_NOTHING = nullcontext()


def stage(name: str) -> AbstractContextManager[Any]:
    """Return a context that torch.profiler shows as `tfds_torch.<name>`, an empty one where no profiler runs.

    `record_function` costs some microseconds also without a profiler.
    """
    # Of this thread, and also true where a schedule has begun to record in the middle of an epoch.
    return record_function(f"tfds_torch.{name}") if torch._C._autograd._profiler_enabled() else _NOTHING


class ProfiledIterator(Iterator[T]):
    """Yields the items of another iterator, and shows each step of it as a stage."""

    def __init__(self, items: Iterator[T], name: str) -> None:
        self._items, self._name = items, name

    def __next__(self) -> T:
        with stage(self._name):
            return next(self._items)

    def close(self) -> None:
        """End the other iterator."""
        close_iterator(self._items)


class OnCpu(Iterator[T]):
    """Yields the items of another iterator, each step with the CPU as torch's default device."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def __next__(self) -> T:
        with torch.device("cpu"):
            return next(self._items)

    def close(self) -> None:
        """End the other iterator."""
        close_iterator(self._items)
