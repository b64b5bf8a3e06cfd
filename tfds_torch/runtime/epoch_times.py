"""How long an epoch takes to begin, to run and to end."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class EpochTimes:
    """Durations of one epoch of a loader, seconds.

    Attributes:
        first_batch_s: from asking for an iterator to its first batch; of an epoch without batches: to its end.
        tail_s: from asking for one more batch than there is, to the end of the iteration with its iterator released.
        whole_s: the whole epoch, with both of these and with the consumer's own time.
        num_batches: how many batches came.
    """

    first_batch_s: float
    tail_s: float
    whole_s: float
    num_batches: int


class EpochTimer:
    """Keeps the times of the epochs that were iterated through it.

    An epoch that is broken off, or ends in an error, is not kept. For one thread.
    """

    def __init__(self) -> None:
        self.epochs: list[EpochTimes] = []

    def time(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields what a loader yields in one epoch, and appends the epoch's times to `epochs` at its end."""
        started = asked = time.perf_counter()
        first_batch_s = None
        num_batches = 0
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            if first_batch_s is None:
                first_batch_s = time.perf_counter() - started
            num_batches += 1
            yield batch
            del batch  # A batch that is still held would outlive the iteration that it belongs to.
            asked = time.perf_counter()
        del batches
        ended = time.perf_counter()
        whole_s = ended - started
        self.epochs.append(
            EpochTimes(whole_s if first_batch_s is None else first_batch_s, ended - asked, whole_s, num_batches)
        )
