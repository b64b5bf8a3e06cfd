"""The figures of a competitor, and the columns that show them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.tables import Column, Ratio
from benchmarks.task import OURS, TIMM, Peer
from tfds_torch.runtime.metrics import EpochTimes


@dataclass(frozen=True)
class EpochFigures:
    """One epoch of a competitor.

    Attributes:
        times: durations inside the training process.
        num_examples: how many images really came.
        start_s: from the start of the competitor's process to its first batch; None in later epochs.
        waiting_cpu_s: processor time that its processes used since its epoch before, while others had their turns;
            None in a process's first epoch.
        cpu_s: processor time of the processes that live on after the epoch; None in a process's first epoch.
        disk_bytes: read from disks, not from the page cache, by these processes; None in a process's first epoch.
        report: what its loader has to say about the epoch, where it has a `report`.
    """

    times: EpochTimes
    num_examples: int
    start_s: float | None = None
    waiting_cpu_s: float | None = None
    cpu_s: float | None = None
    disk_bytes: int | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def examples_per_s(self) -> float:
        """Of the whole epoch, its beginning and its tail included."""
        return self.num_examples / self.times.whole_s

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures as JSON has them, without what its loader reports."""
        figures = asdict(replace(self, report={}))
        del figures["report"]
        return {**figures.pop("times"), **figures, "examples_per_s": self.examples_per_s}


@dataclass
class Outcome:
    """All figures of one competitor.

    Attributes:
        peer: the competitor.
        warm_ups: the first epoch of each of its processes; no speed is judged by them.
        epochs: the measured epochs.
        memory_bytes: PSS of the training process and of each process that it started, when their sum was greatest in
            an epoch of its own; empty: not measured.
        missing: why there are no figures to compare; None: there are some.
    """

    peer: Peer
    warm_ups: list[EpochFigures] = field(default_factory=list)
    epochs: list[EpochFigures] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    missing: str | None = None

    def samples(self) -> dict[str, Any]:
        """Returns column's key -> values, turn by turn; nothing when it is missing."""
        if self.missing is not None:
            return {}
        epochs, megabytes = self.epochs, [size / 1e6 for size in self.memory_bytes]
        found: dict[str, Any] = {
            "examples_per_s": [epoch.examples_per_s for epoch in epochs],
            "examples_per_s_without_tail": [
                epoch.num_examples / (epoch.times.whole_s - epoch.times.tail_s) for epoch in epochs
            ],
            "first_batch_s": [epoch.times.first_batch_s for epoch in epochs],
            "tail_s": [epoch.times.tail_s for epoch in epochs],
            "cpu_us": [epoch.cpu_s and epoch.cpu_s * 1e6 / epoch.num_examples for epoch in epochs],
            "disk_mb": [None if epoch.disk_bytes is None else epoch.disk_bytes / 1e6 for epoch in epochs],
            "num_examples": [epoch.num_examples for epoch in epochs],
            "start_s": [epoch.start_s for epoch in self.warm_ups],
            "very_first_batch_s": [epoch.times.first_batch_s for epoch in self.warm_ups],
        }
        if megabytes:
            found |= {"memory_mb": [sum(megabytes)], "training_mb": megabytes[:1]}
            found["memory_parts"] = " + ".join(f"{part:,.0f}" for part in megabytes)
        return found


SPEED = Column("examples_per_s", "examples/s")
SPEED_WITHOUT_TAIL = Column("examples_per_s_without_tail", "examples/s without tail", has_spread=False)
OURS_BY_IT = Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio(SPEED.key, of=OURS))
BY_TIMM = Column("by_timm", "x timm", "{:.2f}", has_spread=False, ratio=Ratio(SPEED.key, by=TIMM))
START = Column("start_s", "process start to first batch, s", "{:.2f}")
VERY_FIRST_BATCH = Column("very_first_batch_s", "its first epoch to first batch, s", "{:.2f}")
FIRST_BATCH = Column("first_batch_s", "first batch of a later epoch, s", "{:.2f}")
TAIL = Column("tail_s", "tail, s", "{:.3f}")
CPU = Column("cpu_us", "processor time of an example, us")
DISK = Column("disk_mb", "MB from disk")
NUM_EXAMPLES = Column("num_examples", "examples an epoch", has_spread=False)
MEMORY = (
    Column("memory_mb", "memory, MB", has_spread=False),
    Column("memory_by_timm", "x timm's", "{:.2f}", has_spread=False, ratio=Ratio("memory_mb", by=TIMM)),
    Column("training_mb", "of it, training process, MB", has_spread=False),
    Column("memory_parts", "training process + others, MB"),
)
