"""What the tests read, in which process, and how it looks as plain values. Importable by every child."""

import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from threading import Thread
from typing import Any
from unittest import mock

import psutil
from PIL import Image
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, ParserTfds, World
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import worker_start

LEDGER = ("index", "label", "valid", "id")
"""Fields that default collation takes, and that tell examples and padding apart."""

MARK = "TFDS_TORCH_TEST_MARK"

Row = tuple[int, int, bool, str]
Rows = list[list[Row]]


def rows_of(loader: Iterable[Any]) -> Rows:
    """Returns the batches of a loader over the fields `LEDGER`, each as a list of rows."""
    return [_rows_of_batch(batch) for batch in loader]


def _rows_of_batch(batch: Any) -> list[Row]:
    index, label, valid, ids = batch
    return list(zip(index.tolist(), label.tolist(), valid.tolist(), ids, strict=True))


def planned_rows(parser: Any, world: World, num_workers: int, epoch: int) -> Rows:
    """Returns the batches that a rank's parser yields for its workers, taken from them in turn."""
    num_pipelines = max(1, num_workers)
    parts = [_batches(parser, world.at_worker(worker, num_pipelines), epoch) for worker in range(num_pipelines)]
    return [batch for turn in zip_longest(*parts) for batch in turn if batch is not None]


def _batches(parser: ParserTfds, world: World, epoch: int) -> Iterator[list[Row]]:
    for batch in parser.batches(world, epoch, fields=("label",)):
        columns = batch.index.tolist(), batch.label.tolist(), batch.valid.tolist(), batch.id
        yield list(zip(*columns, strict=True))


def planned_epochs(parser: ParserTfds, num_workers: int, num_epochs: int) -> list[Rows]:
    """Returns the planned batches of the first epochs of a single rank."""
    return [planned_rows(parser, World(), num_workers, epoch) for epoch in range(num_epochs)]


def read_loader(dataset: ImageDataset, batch_size: int, num_epochs: int = 1) -> tuple[list[Rows], int, int]:
    """Returns the epochs of a loader without workers, its length, and its dataset's."""
    loader = DataLoader(dataset, batch_size)
    return [rows_of(loader) for _ in range(num_epochs)], len(loader), len(dataset)


def read_examples(dataset: ImageDataset, num_examples: int | None = None) -> list[tuple[Any, ...]]:
    """Returns the first examples of an iteration."""
    return [example for _, example in zip(range(num_examples or len(dataset)), dataset, strict=False)]


def read_with_environment(dataset: ImageDataset, environment: dict[str, str]) -> tuple[list[Rows], int, int]:
    """Returns an epoch, as `read_loader`, under further environment variables."""
    with mock.patch.dict(os.environ, environment):
        return read_loader(dataset, dataset.parser.batch_size or 1)


def is_watching(image: Image.Image) -> bool:
    """A transform: whether this process watches that its parent is there."""
    return worker_start._watching_in == os.getpid()


def read_life(dataset: ImageDataset, batch_size: int) -> list[Rows]:
    """Returns epochs of one dataset: whole, broken off and begun anew, fixed twice by `set_epoch`."""
    loader = DataLoader(dataset, batch_size)
    epochs = [rows_of(loader)]
    next(iter(loader))
    epochs.append(rows_of(loader))
    for epoch in (5, 5):
        dataset.set_epoch(epoch)
        epochs.append(rows_of(loader))
    return epochs


def size_of(image: Image.Image) -> tuple[str, tuple[int, int]]:
    """A transform."""
    return image.mode, image.size


def name_of(label: Any) -> str:
    """A target transform."""
    return f"class {label}"


def take_from_two_threads(iterable: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Returns what the first thread got, and what another one was told that asked in the middle."""
    taken, told = [], []
    iterator = iter(iterable)

    def intrude() -> None:
        try:
            taken.append(next(iterator))
        except ConfigError as error:
            told.append(str(error))

    for number, item in enumerate(iterator):
        taken.append(item)
        if number == 1:
            thread = Thread(target=intrude)
            thread.start()
            thread.join()
    return taken, told


def marked_processes(mark: str) -> list[psutil.Process]:
    """Returns the running processes that inherited a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # Not ours, or gone.
            continue
    return found
