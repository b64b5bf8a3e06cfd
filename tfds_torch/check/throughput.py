"""How fast a rank read. Pure."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfds_torch.check.reading import RankReading


@dataclass(frozen=True)
class Throughput:
    """The speed of one rank: alone on the machine, or with the others at the same time.

    Attributes:
        rank: which rank.
        first_batch_s: to the first batch of epoch 0: the workers start.
        later_first_batch_s: to the first batch of a later epoch, median; None when there was one epoch only.
        examples_per_s: of whole epochs, from asking for the first batch to the end of the loop: the median of the later
            ones, or that of epoch 0 when there was no other.
        tail_s: from the last batch to the end of the epoch, the longest.
        memory: pid -> proportional set size, bytes; the process that read first, then its children.
        num_batches: of the epochs of `stages`.
        timed_s: how long these took.
        stages: stage -> seconds in the epochs after the first one (of one epoch, in that), as in `LoaderStats`, all
            workers and threads together; empty where the loader does not tell.
    """

    rank: int
    first_batch_s: float
    later_first_batch_s: float | None
    examples_per_s: float
    tail_s: float
    memory: Mapping[int, int]
    num_batches: int = 0
    timed_s: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)


def measure(reading: RankReading) -> Throughput:
    """Returns the figures of a rank."""
    rates = [number / times.whole_s for number, times in zip(reading.num_examples, reading.times, strict=True)]
    later = reading.times[1:]
    timed = later or reading.times
    return Throughput(
        rank=reading.rank,
        first_batch_s=reading.times[0].first_batch_s,
        later_first_batch_s=statistics.median(times.first_batch_s for times in later) if later else None,
        examples_per_s=statistics.median(rates[1:] or rates),
        tail_s=max(times.tail_s for times in reading.times),
        memory=reading.memory,
        num_batches=sum(times.num_batches for times in timed),
        timed_s=sum(times.whole_s for times in timed),
        stages=reading.stages,
    )
