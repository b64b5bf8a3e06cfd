"""The cost of a loader alone: epochs of batches that need no work."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tfds_torch import create_loader


class ReadyBatches(Dataset[Any]):
    """The same batch again and again, with images uint8 of a shape."""

    def __init__(self, num_batches: int, shape: tuple[int, ...]) -> None:
        self._num_batches = num_batches
        self._batch = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape[0], dtype=torch.int64)

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> Any:
        return self._batch


def run_ready_epochs(
    num_batches: int, shape: tuple[int, ...], num_workers: tuple[int, ...], num_rounds: int
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yields epochs of both loaders, which take turns: `loader_<workers>` or `torch_<workers>`, and microseconds.

    `batch_us`: the training process waits for each batch, a mean without the first one. `hand_over_us`: a batch travels
    while the loop waits, where there are workers and the loader reports it.
    """
    dataset = ReadyBatches(num_batches, shape)
    for _ in range(num_rounds):
        for number in num_workers:
            with create_loader(dataset, num_workers=number) as loader:
                batch_us = _epoch_us(loader)
                hand_over_us = loader.stats().hand_over_s / num_batches * 1e6 if number else None
            yield f"loader_{number}", {"batch_us": batch_us, "hand_over_us": hand_over_us}
            yield f"torch_{number}", {"batch_us": _epoch_us(DataLoader(dataset, None, num_workers=number))}


def _epoch_us(loader: Any) -> float:
    batches = iter(loader)
    next(batches)
    began, number = time.perf_counter(), 0
    for _ in batches:
        number += 1
    return (time.perf_counter() - began) / number * 1e6
