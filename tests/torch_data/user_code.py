"""What users run in the workers of a Loader over an ImageDataset: transforms, collate_fn, worker_init_fn."""

import datetime
import os
import random
import signal
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

from tfds_torch import EvalPreprocess

Named = namedtuple("Named", ["label", "index"])


class Info:
    """A target transform: what torch tells of the worker, beside the label."""

    def __call__(self, label: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        kind, name = type(info.dataset).__name__, info.dataset.parser.dataset_name
        return label, (info.id, info.num_workers, info.seed, kind, name, os.getpid())


class Draws:
    """A target transform: a number of each generator."""

    def __call__(self, label: Any) -> Any:
        return random.random(), float(np.random.random()), torch.rand(()).item()


def fail_at_2(label: int) -> int:
    """A target transform that fails for one label."""
    return 1 // (label - 2)


@dataclass(frozen=True)
class EndsAt:
    """A target transform, or a function of pixels, that ends or stops its process at one number."""

    number: int
    how: str = "kill"

    def __call__(self, label: Any) -> Any:
        if int(label) == self.number:
            if self.how == "wait":
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGKILL)
        return label


@dataclass(frozen=True)
class HarmedItems(Dataset[int]):
    """A map-style dataset of numbers, of which one ends or stops the process."""

    size: int
    harm: EndsAt

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        return int(self.harm(number))


@dataclass(frozen=True)
class HarmedPictures(Dataset[tuple[np.ndarray[Any, Any], int]]):
    """A map-style dataset of pictures [8, 8, 3], all of whose pixels are the item's number, and of these numbers."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[np.ndarray[Any, Any], int]:
        return np.full((8, 8, 3), number, np.uint8), number


@dataclass(frozen=True)
class EndsAtPixel(EvalPreprocess):
    """A preprocess that ends the process at images of one value."""

    harm: EndsAt = EndsAt(-1)

    def augment(self, images: Any, random: Any) -> None:
        for image in images:
            self.harm(image[0, 0, 0])


@dataclass(frozen=True)
class DrawnItems(Dataset[tuple[int, float]]):
    """A map-style dataset of pairs: the item's number, and numbers of each generator."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[int, float]:
        return number, random.random() + float(np.random.random()) + torch.rand(()).item()


@dataclass
class Drawn:
    """A batch of a type of the user's own.

    Attributes:
        labels: int64 [B].
        note: whatever else.
    """

    labels: torch.Tensor
    note: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Drawn) and torch.equal(self.labels, other.labels) and self.note == other.note


@dataclass(frozen=True)
class Collate:
    """A collate_fn that makes a certain kind of batch."""

    kind: str

    def __call__(self, rows: Sequence[Any]) -> Any:
        return BATCHES[self.kind]([int(label) for label, _ in rows])


BATCHES: dict[str, Callable[[list[int]], Any]] = {
    "own type": lambda labels: Drawn(torch.tensor(labels), {"at": datetime.date(2020, 1, 2), "of": frozenset(labels)}),
    "set": set,
    "named tuple": lambda labels: Named(labels, tuple(labels)),
    "nested": lambda labels: {"a": [torch.tensor(labels), ("text", None)], 3: complex(1, labels[0])},
    "image": lambda labels: Image.new("L", (3, 2), labels[0]),
    "structured": lambda labels: np.array([(label, 0.5) for label in labels], [("label", "i8"), ("weight", "f4")]),
    "objects": lambda labels: np.array([slice(0, label) for label in labels], object),
    "none": lambda labels: None,
    "large": lambda labels: {label: bytes(100_000) for label in labels},
    "large tensor": lambda labels: torch.full((500_000,), labels[0]),
}
"""Kind -> a batch of examples with these labels."""


def are_equal(one: Any, other: Any) -> bool:
    """Whether two batches are equal, with their types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, Image.Image):
        return one.mode == other.mode and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other)


@dataclass(frozen=True)
class NoteStart:
    """A worker_init_fn that makes a file, named by the worker and its process."""

    folder: str

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert info.id == worker
        (Path(self.folder) / f"{worker} {os.getpid()}").touch(exist_ok=False)


def fail(worker: int) -> None:
    """A worker_init_fn that fails in one worker."""
    if worker == 1:
        raise ZeroDivisionError(f"no start of {worker}")
