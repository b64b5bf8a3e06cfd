"""What is measured of a competitor: figures of an epoch, memory of its processes, and the samples of a table's row."""

from dataclasses import asdict, dataclass, field
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

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures as JSON has them."""
        figures = asdict(self)
        return {**figures.pop("times"), **figures, "examples_per_s": self.examples_per_s}


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
    """All that one competitor did.

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

    def samples(self) -> dict[str, Any]:
        """Returns column's key -> values, turn by turn; nothing when it is missing."""
        if self.missing is not None:
            return {}
        epochs, memory = self.epochs, self.memory
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
        if memory is not None:
            parts = (memory.training_bytes, *memory.worker_bytes)
            found |= {"memory_mb": [memory.total_bytes / 1e6], "training_mb": [memory.training_bytes / 1e6]}
            found["memory_parts"] = " + ".join(f"{part / 1e6:,.0f}" for part in parts)
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
