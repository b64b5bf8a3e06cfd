"""What a loader has delivered, and where its time went: plain values."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerStats:
    """What one worker process has done.

    Attributes:
        worker: its number.
        pid: its process; None where it has not begun.
        batches: that it has made.
        examples: in them.
        read_s: reading encoded examples, seconds, all threads together.
        decode_s: decoding them, likewise.
        transform_s: in the transform and target_transform of an ImageDataset.
        fetch_s: in its dataset, waiting for its threads included.
        collate_s: putting batches together, and into shared memory.
        hand_over_s: batches of it on their way, while the training process waited for them.
    """

    worker: int
    pid: int | None
    batches: int
    examples: int
    read_s: float
    decode_s: float
    transform_s: float
    fetch_s: float
    collate_s: float
    hand_over_s: float


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done since it was made; durations in seconds.

    Attributes:
        batches: delivered to the training loop.
        examples: in them.
        examples_per_s: of the time in which the loop was waiting or at work; 0 before the first batch.
        read_s, decode_s, transform_s, fetch_s, collate_s, hand_over_s: sums over all processes that have worked, as in
            `WorkerStats`; those of workers that have ended included.
        device_copy_s: copying to the device and normalising.
        waiting_s: the training loop waited for a batch.
        consumer_s: the training loop was at work, between a batch and its asking for the next one.
        replaced: damaged examples that others took the place of.
        workers: the processes of the latest iteration; empty where the training process reads by itself.
    """

    batches: int
    examples: int
    examples_per_s: float
    read_s: float
    decode_s: float
    transform_s: float
    fetch_s: float
    collate_s: float
    hand_over_s: float
    device_copy_s: float
    waiting_s: float
    consumer_s: float
    replaced: int = 0
    workers: tuple[WorkerStats, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as a dict of plain values."""
        return asdict(self) | {"workers": [asdict(worker) for worker in self.workers]}

    def __str__(self) -> str:
        return (
            f"{self.batches} batches, {self.examples} examples, {self.examples_per_s:.0f} examples/s; seconds: "
            f"waiting {self.waiting_s:.2f}, loop {self.consumer_s:.2f}, fetch {self.fetch_s:.2f} (read "
            f"{self.read_s:.2f}, decode {self.decode_s:.2f}, transform {self.transform_s:.2f}), collate "
            f"{self.collate_s:.2f}, hand-over {self.hand_over_s:.2f}, device copy {self.device_copy_s:.2f}"
        ) + (f"; {self.replaced} damaged examples replaced" if self.replaced else "")
