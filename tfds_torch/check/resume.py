"""Where a reading is saved, and which batches come when another one goes on from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfds_torch.check.ledger import Received
from tfds_torch.plan.epoch import EpochPlan

NUM_AFTER = 3
"""How many batches are read after a state was loaded."""
_NUM_RANDOM_POINTS = 3


class Point(NamedTuple):
    """A point between two batches of a rank, or the batch that follows it: `number` batches of `epoch` came before."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.number}"


@dataclass(frozen=True)
class Resumed:
    """What came after a state was loaded.

    Attributes:
        point: where the state was taken.
        state: the state as JSON; empty where none could be taken.
        iterations: a few batches that came then, a list for each iteration of the loader.
        error: why the state could not be taken or loaded; else empty.
    """

    point: Point
    state: str
    iterations: Sequence[Sequence[Received]] = ()
    error: str = ""


def choose_points(plan: EpochPlan, num_epochs: int) -> list[Point]:
    """Returns points in the epochs 0..num_epochs-1, in order; the same for the same seed.

    Among them are those before the first batch, before the last one and at the end of epoch 0.
    """
    last = plan.num_batches
    points = {Point(0, 0), Point(0, max(0, last - 1)), Point(0, last)}
    if last > 1:
        numbers = np.random.default_rng(plan.seed)
        epochs = numbers.integers(num_epochs, size=_NUM_RANDOM_POINTS)
        delivered = numbers.integers(1, last, size=_NUM_RANDOM_POINTS)
        points |= {Point(*point) for point in zip(epochs.tolist(), delivered.tolist(), strict=True)}
    return sorted(points)


def batches_after(point: Point, num_batches: int, num_epochs: int) -> list[list[Point]]:
    """Returns the next few batches that must come after a point, a list for each iteration of the loader.

    Where an epoch ends, the next one goes on; the iteration that goes on after an epoch's last batch is empty.
    """
    iterations: list[list[Point]] = []
    num_missing = NUM_AFTER
    for epoch in range(point.epoch, num_epochs):
        if num_missing:
            first = point.number if epoch == point.epoch else 0
            iterations.append([Point(epoch, number) for number in range(first, min(first + num_missing, num_batches))])
            num_missing -= len(iterations[-1])
    return iterations
