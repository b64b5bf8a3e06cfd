"""Datasets that are made up in memory, whole ones and ones that fail."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PAGE = 2**21
FORMATS = ("webdataset", "tfrecord", "array_record")
"""Of shards."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def image_of(number: int) -> Any:
    """Returns uint8 [h, w, 3] of a size of its own."""
    return np.random.default_rng(number).integers(0, 256, (4 + number % 3, 5, 3), dtype=np.uint8)


class Numbered:
    """A map-style dataset of (image, label); with something that happens at one number."""

    def __init__(self, num_samples: int = 40, at: int = -1, act: Callable[[], None] | None = None) -> None:
        self.num_samples, self.at, self.act = num_samples, at, act

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if not 0 <= number < self.num_samples:
            raise IndexError(number)
        if number == self.at and self.act is not None:
            self.act()
        return image_of(number), number % 7


class Slow(Numbered):
    """Takes long enough that workers can be killed amid it."""

    def __getitem__(self, number: int) -> tuple[Any, int]:
        time.sleep(0.02)
        return super().__getitem__(number)


def text_of(number: int) -> dict[str, Any]:
    return {"text": f"sample {number}", "score": number / 7, "label": number, "image": image_of(number)}


class Sized:
    """An iterable with a length, which need not be right."""

    def __init__(
        self, num_samples: int, promised: int | None = None, make: Callable[[int], dict[str, Any]] = text_of
    ) -> None:
        self.num_samples, self.make = num_samples, make
        self.promised = num_samples if promised is None else promised

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(self.make, range(self.num_samples))


def do_nothing() -> None:
    pass


def sleep() -> None:
    time.sleep(0.3)


def fail() -> None:
    raise KeyError("the lost key")


def die() -> None:
    os._exit(3)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(1000)


def be_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
