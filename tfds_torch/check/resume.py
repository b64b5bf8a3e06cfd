"""Where a reading is saved, and what comes when another one goes on from there."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from tfds_torch.check.ledger import Entry
from tfds_torch.check.loaded import explained
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.torch_data.image_dataset import ImageDataset

NUM_AFTER = 3
"""How many batches are read after a state was loaded."""
_NUM_RANDOM_POINTS = 3

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class ResumePoint:
    """A point between two batches of a rank.

    Attributes:
        epoch: which epoch.
        num_delivered: batches of it that came before.
    """

    epoch: int
    num_delivered: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.num_delivered}"


@dataclass(frozen=True)
class Resumed:
    """What came after a state was loaded.

    Attributes:
        point: where the state was taken.
        state: the state as JSON; empty where none could be taken.
        iterations: the `NUM_AFTER` batches that came then, fewer at the end of the last epoch; a list for each
            iteration of the loader.
        error: why the state could not be taken or loaded; else empty.
    """

    point: ResumePoint
    state: str
    iterations: list[list[list[Entry]]]
    error: str = ""


def choose_points(plan: EpochPlan, num_epochs: int) -> list[ResumePoint]:
    """Returns points in the epochs 0..num_epochs-1, in order; the same for the same seed.

    Among them are those before the first batch, before the last one and at the end of epoch 0.
    """
    last = plan.num_batches
    points = {ResumePoint(0, 0), ResumePoint(0, max(0, last - 1)), ResumePoint(0, last)}
    if last > 1:
        numbers = np.random.default_rng(plan.seed)
        epochs = numbers.integers(num_epochs, size=_NUM_RANDOM_POINTS)
        delivered = numbers.integers(1, last, size=_NUM_RANDOM_POINTS)
        points |= {ResumePoint(*point) for point in zip(epochs.tolist(), delivered.tolist(), strict=True)}
    return sorted(points)


def take_state(dataset: ImageDataset, point: ResumePoint, states: dict[ResumePoint, Resumed]) -> None:
    """Takes the state of a dataset whose loader is at a point, and adds it to `states` with nothing read yet."""
    try:
        # Before the first batch nobody counts: that is also where a program saves that was just started.
        state = dataset.state_dict(point.num_delivered or None)
        states[point] = Resumed(point, json.dumps(state), [])
    except ConfigError as error:
        states[point] = Resumed(point, "", [], str(error))


def read_on(dataset: ImageDataset, loader: Iterable[list[Entry]], saved: Resumed, num_epochs: int) -> Resumed:
    """Returns what a loader yields after its dataset has loaded a state.

    Args:
        dataset: the loader's.
        loader: of batches of entries.
        saved: the state.
        num_epochs: epochs that may be read; where one ends, the next one goes on.

    Raises:
        TfdsTorchError: as reading raises it.
    """
    if saved.error:
        return saved
    try:
        dataset.load_state_dict(json.loads(saved.state))
    except StateMismatchError as error:
        return Resumed(saved.point, saved.state, [], str(error))
    iterations: list[list[list[Entry]]] = []
    num_missing = NUM_AFTER
    for _ in range(saved.point.epoch, num_epochs):
        if num_missing:
            iterations.append(list(islice(explained(iter(loader)), num_missing)))
            num_missing -= len(iterations[-1])
    return Resumed(saved.point, saved.state, iterations)


def uninterrupted(epochs: Sequence[Sequence[T]], point: ResumePoint) -> list[list[T]]:
    """Returns the batches that must come after a point, as `Resumed.iterations` has them.

    Args:
        epochs: the batches of a reading that was not interrupted, by epoch.
        point: where it goes on.
    """
    iterations: list[list[T]] = []
    num_missing = NUM_AFTER
    for epoch in range(point.epoch, len(epochs)):
        if num_missing:
            first = point.num_delivered if epoch == point.epoch else 0
            iterations.append(list(epochs[epoch][first : first + num_missing]))
            num_missing -= len(iterations[-1])
    return iterations
