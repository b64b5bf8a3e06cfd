"""What a Feeder has delivered, and where its threads' time went: plain values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FetcherStats:
    """What one thread that fetches has done.

    Attributes:
        worker: its id, which no other thread of this process has.
        chunks: that it has put into the queue.
        examples: rows of these.
        fetch_s: in the source's fetch function or iterable, seconds.
        enqueue_s: putting chunks into the queue, waiting for room included.
    """

    worker: int
    chunks: int
    examples: int
    fetch_s: float
    enqueue_s: float


@dataclass(frozen=True)
class SourceStats:
    """What a source has done since it was started; durations in seconds.

    The queue lies between the threads that fetch and the training loops. An occupancy of 0 means that it is empty: the
    loops wait for data, and faster or more fetchers would help. An occupancy of 1 means that it is full: the fetchers
    wait for the loops, and data is no bottleneck.

    Attributes:
        source: its name.
        elapsed_s: since it was started.
        chunks: put into the queue by all fetchers.
        examples: rows of these.
        batches: taken by training loops.
        examples_per_s: put into the queue, in all of the elapsed time.
        recent_examples_per_s: likewise, since the latest status line.
        queue_size: chunks in the queue now.
        queue_occupancy: that, as a share of what it may hold, 0 to 1.
        mean_occupancy: the same, a mean over the elapsed time.
        ready_batches: made ahead for training loops.
        fetch_s: all fetchers together, as in `FetcherStats`.
        enqueue_s: likewise.
        waiting_s: training loops waited for a batch, all of them together.
        workers: each fetcher.
    """

    source: str
    elapsed_s: float
    chunks: int
    examples: int
    batches: int
    examples_per_s: float
    recent_examples_per_s: float
    queue_size: int
    queue_occupancy: float
    mean_occupancy: float
    ready_batches: int
    fetch_s: float
    enqueue_s: float
    waiting_s: float
    workers: tuple[FetcherStats, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as a dict of plain values."""
        return asdict(self) | {"workers": [asdict(worker) for worker in self.workers]}

    def __str__(self) -> str:
        return (
            f"source {self.source!r}: {self.recent_examples_per_s:.0f} examples/s, queue size {self.queue_size} "
            f"({self.queue_occupancy:.0%} full), {self.examples} examples in {self.elapsed_s:.0f} s; seconds: fetch "
            f"{self.fetch_s:.2f}, enqueue {self.enqueue_s:.2f}, loop waiting {self.waiting_s:.2f}"
        )


@dataclass(frozen=True)
class FeederStats:
    """What the sources of a Feeder have done.

    Attributes:
        sources: name -> stats, of the sources that were started.
    """

    sources: Mapping[str, SourceStats]

    def __getitem__(self, name: str) -> SourceStats:
        """Returns the stats of a source."""
        return self.sources[name]

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as plain values: name of the source -> its figures."""
        return {name: stats.to_dict() for name, stats in self.sources.items()}

    def __str__(self) -> str:
        return "; ".join(map(str, self.sources.values()))
