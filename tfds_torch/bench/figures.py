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
        cpu_s: processor time that the processes used which live on after the epoch; None as above.
        disk_bytes: what these processes had the system read from disks, not from its page cache; None as above.
    """

    times: EpochTimes
    num_examples: int
    start_s: float | None = None
    waiting_cpu_s: float | None = None
    cpu_s: float | None = None
    disk_bytes: int | None = None

    @property
    def examples_per_s(self) -> float:
        """Of the whole epoch, its beginning and its tail included."""
        return self.num_examples / self.times.whole_s

    @property
    def examples_per_s_without_tail(self) -> float:
        """From asking for the epoch's iterator to asking for one batch more than there is."""
        return self.num_examples / (self.times.whole_s - self.times.tail_s)


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


def examples_per_s_without_tail(outcome: Outcome) -> Spread | None:
    """Of measured epochs until their last batch has been used."""
    return Spread.of(epoch.examples_per_s_without_tail for epoch in outcome.epochs)


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


def first_epoch_batch_s(outcome: Outcome) -> Spread | None:
    """From asking a fresh process's loader for its first epoch to the first batch, seconds."""
    return Spread.of(epoch.times.first_batch_s for epoch in outcome.warm_ups)


def cpu_us_per_example(outcome: Outcome) -> Spread | None:
    """Processor time of a measured epoch by its examples, microseconds: it hardly depends on what else runs."""
    return Spread.of(e.cpu_s and e.cpu_s * 1e6 / e.num_examples for e in outcome.epochs)


def disk_megabytes(outcome: Outcome) -> Spread | None:
    """What a measured epoch read from disks, MB."""
    return Spread.of(None if e.disk_bytes is None else e.disk_bytes / 1e6 for e in outcome.epochs)


def speed_ratio(outcome: Outcome, other: Outcome) -> Spread | None:
    """Examples per second of one contestant by another's, turn by turn: a drift of the machine hits both of a turn."""
    pairs = zip(outcome.epochs, other.epochs, strict=False)  # One that fails has fewer.
    return Spread.of(ours.examples_per_s / theirs.examples_per_s for ours, theirs in pairs)
