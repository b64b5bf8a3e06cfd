"""What the workers of the tests read; importable, so that spawned workers find it."""

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch import World

NUM_ITEMS = 12


def numbers(world: World) -> Iterator[int]:
    """A worker's share of 0..11, so that all of them together yield these in order."""
    yield from range(world.worker, NUM_ITEMS, world.num_workers)


def numbers_after(file: Path, world: World) -> Iterator[int]:
    """As numbers; all but the first of the last worker come when the file is there."""
    is_last = world.worker == world.num_workers - 1
    for count, number in enumerate(numbers(world)):
        while is_last and count and not file.exists():
            time.sleep(0.01)
        yield number


def places(world: World) -> Iterator[tuple[tuple[int, int, int, int], str, str]]:
    """The place in the world, and what the environment says of it."""
    yield (
        (world.rank, world.num_replicas, world.worker, world.num_workers),
        os.environ["WORKER"],
        os.environ["NUM_WORKERS"],
    )


def endless(world: World) -> Iterator[dict[str, Any]]:
    """Arrays that are too large for a pipe, for ever."""
    number = world.worker
    while True:
        yield {"number": number, "array": np.full((100, 100), number, np.int32)}
        number += world.num_workers


def draws(world: World) -> Iterator[tuple[float, float]]:
    yield random.random(), float(np.random.random())


def failing(world: World) -> Iterator[int]:
    yield world.worker
    raise KeyError("no such thing")


def with_a_set(world: World) -> Iterator[Any]:
    yield {"fine": 1, "bad": [{1, 2}]}


class Whole:
    """An iterable that every worker reads whole."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Open:
    """A source that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, world: World) -> Iterator[int]:
        return iter(())


def every_kind() -> list[Any]:
    """Items with all that may travel."""
    return [
        {"image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "label": np.int64(3), "name": "n", 7: None},
        (1, 2.5, float("inf"), True, b"bytes", "text" * 1000, (), [], {}),
        [np.zeros((0, 3), np.float16), np.ones((), bool), np.array(["a", "bc"]), np.array([1 + 2j])],
        [np.full((n, 2), n, ">f4") for n in range(20)],
        [f"id {n}" for n in range(300)],
        tuple(bytes([n]) * n for n in range(9)),
        list(range(100)),
        [0.5] * 50,
        [True] * 9,
        np.arange(60_000, dtype=np.int32)[::2],
        np.asfortranarray(np.arange(40_000.0).reshape(200, 200)),
        2**70,
        "ä\udcff",
    ]


def all_kinds(world: World) -> Iterator[Any]:
    yield from every_kind()


def equal(one: Any, other: Any) -> bool:
    """Whether two items are equal, types and dtypes included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
