"""What is measured: figures of an epoch, memory of a process tree, and how they are summed up."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from tfds_torch.bench.task import Peer
from tfds_torch.runtime.epoch_times import EpochTimes


@dataclass(frozen=True)
class EpochFigures:
    """One epoch of a contestant.

    Attributes:
        times: durations inside the training process.
        num_examples: how many images really came.
        start_s: from the start of the contestant's process to its first batch; None in later epochs.
        waiting_cpu_s: processor time that its processes used since its epoch before, while others had their turns;
            None in a process's first epoch, and where the system does not tell.
    """

    times: EpochTimes
    num_examples: int
    start_s: float | None = None
    waiting_cpu_s: float | None = None

    @property
    def examples_per_s(self) -> float:
        """Of the whole epoch, its beginning and its tail included."""
        return self.num_examples / self.times.whole_s


@dataclass(frozen=True)
class Memory:
    """Proportional set sizes at the moment of an epoch at which their sum was largest.

    Attributes:
        training_bytes: of the training process.
        worker_bytes: of every process that it started.
        num_samples: how many moments were looked at.
    """

    training_bytes: int
    worker_bytes: tuple[int, ...]
    num_samples: int

    @property
    def total_bytes(self) -> int:
        """Of all processes together."""
        return self.training_bytes + sum(self.worker_bytes)


@dataclass
class Outcome:
    """All that one contestant did.

    Attributes:
        peer: who it is.
        warm_ups: the first epoch of each of its processes; no speed is judged by them.
        epochs: the measured epochs.
        memory: of an epoch of its own; None where it was not looked at.
        missing: why there are no figures to compare; None when there are.
    """

    peer: Peer
    warm_ups: list[EpochFigures] = field(default_factory=list)
    epochs: list[EpochFigures] = field(default_factory=list)
    memory: Memory | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Returns the spread of the values that are there; None when there are none."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


def examples_per_s(outcome: Outcome) -> Spread | None:
    """Of whole measured epochs."""
    return Spread.of(epoch.examples_per_s for epoch in outcome.epochs)


def first_batch_s(outcome: Outcome) -> Spread | None:
    """From the beginning of a measured epoch to its first batch, seconds."""
    return Spread.of(epoch.times.first_batch_s for epoch in outcome.epochs)


def tail_s(outcome: Outcome) -> Spread | None:
    """From a measured epoch's last batch to its end, seconds."""
    return Spread.of(epoch.times.tail_s for epoch in outcome.epochs)


def lost_s(outcome: Outcome) -> Spread | None:
    """What a measured epoch spends on its beginning and its tail, seconds."""
    return Spread.of(epoch.times.first_batch_s + epoch.times.tail_s for epoch in outcome.epochs)


def start_s(outcome: Outcome) -> Spread | None:
    """From the start of a fresh process to its first batch, seconds."""
    return Spread.of(epoch.start_s for epoch in outcome.warm_ups)
