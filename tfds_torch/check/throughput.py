"""What is known of a rank once it has read: how fast, in how much memory, and what came after states were loaded."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfds_torch.check.resume import Resumed
from tfds_torch.runtime.metrics import EpochTimes

STAGES = ("read", "decode", "fetch", "collate", "hand_over", "waiting")
"""Of `LoaderStats`, those that show what a loop waited for."""


@dataclass(frozen=True)
class RankReading:
    """The reading of one rank: alone on the machine, or with the others at the same time.

    Attributes:
        times: how long each epoch took.
        num_examples: of each epoch.
        memory: pid -> proportional set size, bytes, in the middle of epoch 0: the process that read first, then its
            children; empty where the system does not report it.
        stages: stage -> seconds in the timed epochs, as in `LoaderStats`, all workers and threads together; empty where
            the loader does not report them.
        resumed: what came after states that were taken in these epochs, with the same workers; in mode `index` only.
    """

    rank: int
    times: Sequence[EpochTimes]
    num_examples: Sequence[int]
    memory: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    resumed: Sequence[Resumed] = ()

    @property
    def first_batch_s(self) -> float:
        """To the first batch of epoch 0: the workers start."""
        return self.times[0].first_batch_s

    @property
    def later_first_batch_s(self) -> float | None:
        """To the first batch of a later epoch, median; None when there was one epoch only."""
        return statistics.median(times.first_batch_s for times in self.times[1:]) if self.times[1:] else None

    @property
    def examples_per_s(self) -> float:
        """Of whole epochs, from asking for the first batch to the end of the loop: the median of the timed ones."""
        rates = [number / times.whole_s for number, times in zip(self.num_examples, self.times, strict=True)]
        return statistics.median(rates[1:] or rates)

    @property
    def tail_s(self) -> float:
        """From the last batch to the end of the epoch, the longest."""
        return max(times.tail_s for times in self.times)

    @property
    def timed(self) -> Sequence[EpochTimes]:
        """The epochs after the first one; epoch 0 when there was no other."""
        return self.times[1:] or self.times

    @property
    def num_batches(self) -> int:
        """Of the timed epochs."""
        return sum(times.num_batches for times in self.timed)

    @property
    def timed_s(self) -> float:
        """How long the timed epochs took."""
        return sum(times.whole_s for times in self.timed)
