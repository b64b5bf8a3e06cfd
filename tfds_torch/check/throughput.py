"""RankReading: the speed and memory of one rank, and the batches it got after states were loaded."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfds_torch.check.resume import Resumed
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats

STAGES = ("read", "download", "decode", "fetch", "collate", "hand_over", "waiting")
"""Of `LoaderStats`, those that show what a loop waited for; `download` of object stores only."""


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
        first_stages: the same of the first epoch of remote files, where it is not timed; else empty.
        networks: what each epoch took from object stores, for all processes that share a fetcher; empty where all files
            are local.
        resumed: what came after states that were taken in these epochs, with the same workers; in mode `index` only.
    """

    rank: int
    times: Sequence[EpochTimes]
    num_examples: Sequence[int]
    memory: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    first_stages: Mapping[str, float] = field(default_factory=dict)
    networks: Sequence[NetworkStats] = ()
    resumed: Sequence[Resumed] = ()

    @property
    def first_batch_s(self) -> float:
        """The time to the first batch of epoch 0, in which the workers start."""
        return self.times[0].first_batch_s

    @property
    def later_first_batch_s(self) -> float | None:
        """The median time to the first batch of a later epoch; None after a single epoch."""
        return statistics.median(times.first_batch_s for times in self.times[1:]) if self.times[1:] else None

    @property
    def examples_per_s(self) -> float:
        """The median rate of the timed epochs, from asking for the first batch to the end of the loop."""
        rates = [number / times.whole_s for number, times in zip(self.num_examples, self.times, strict=True)]
        return statistics.median(rates[1:] or rates)

    @property
    def tail_s(self) -> float:
        """The longest time from the last batch of an epoch to its end."""
        return max(times.tail_s for times in self.times)

    @property
    def timed(self) -> Sequence[EpochTimes]:
        """The epochs after the first one; epoch 0 where there is no other."""
        return self.times[1:] or self.times

    @property
    def num_batches(self) -> int:
        """The number of batches in the timed epochs."""
        return sum(times.num_batches for times in self.timed)

    @property
    def timed_s(self) -> float:
        """The duration of the timed epochs."""
        return sum(times.whole_s for times in self.timed)
