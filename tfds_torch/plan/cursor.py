"""Where an iteration of a loader begins."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """Where an iteration begins, on every rank.

    Attributes:
        epoch: which one, >= 0.
        start_batch: the rank's batch at which to begin, counted from `first_example` on.
        first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
            size; batches are dealt and counted from there on.
    """

    epoch: int
    start_batch: int = 0
    first_example: int = 0
