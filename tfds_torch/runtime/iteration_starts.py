"""IterationStarts: where the iterations of a loader begin; the training process says it, the workers look it up."""

from multiprocessing import get_context
from typing import Any

_NUM_REMEMBERED = 8


class IterationStarts:
    """Epoch and first batch of each iteration, in memory that a loader shares with its workers. Picklable.

    A worker looks up its n-th iteration by n: one that begins late begins where it should, whatever has happened since.
    """

    def __init__(self) -> None:
        self._numbers: Any = get_context("spawn").RawArray("q", 2 * _NUM_REMEMBERED)

    def write(self, number: int, epoch: int, start_batch: int) -> None:
        """Says where an iteration begins; before it does."""
        slot = 2 * (number % _NUM_REMEMBERED)
        self._numbers[slot : slot + 2] = [epoch, start_batch]

    def read(self, number: int) -> tuple[int, int]:
        """Returns epoch and first batch of an iteration that was written."""
        slot = 2 * (number % _NUM_REMEMBERED)
        epoch, start_batch = self._numbers[slot : slot + 2]
        return epoch, start_batch
