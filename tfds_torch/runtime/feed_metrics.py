"""What a Feeder's sources deliver and where the time of their threads goes: reported, and read as plain values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FetcherStats:
    """Counts and times of one thread that fetches. All times are in seconds.

    Attributes:
        worker: id of the thread, which no other thread of this process has.
        chunks: number of chunks that it has put into the queue.
        examples: number of rows of these chunks.
        fetch_s: time in the source's fetch function or iterable.
        enqueue_s: time to put chunks into the queue, with the wait for room.
    """

    worker: int
    chunks: int
    examples: int
    fetch_s: float
    enqueue_s: float


@dataclass(frozen=True)
class SourceStats:
    """Counts and times of a source since it was started. All times are in seconds.

    The queue lies between the threads that fetch and the training loops. An occupancy of 0 means that it is empty: the
    loops wait for data, and faster or more fetchers would help. An occupancy of 1 means that it is full: the fetchers
    wait for the loops, and data is not the bottleneck.

    Attributes:
        source: name of the source.
        elapsed_s: time since the source was started.
        chunks: number of chunks that all fetchers have put into the queue.
        examples: number of rows of these chunks.
        batches: number of batches that training loops have taken.
        examples_per_s: examples put into the queue per second of the elapsed time.
        recent_examples_per_s: examples put into the queue per second since the latest status line.
        queue_size: number of chunks in the queue now.
        queue_occupancy: `queue_size` as a share of the chunks that the queue may hold, 0 to 1.
        mean_occupancy: mean of the occupancy over the elapsed time, 0 to 1.
        ready_batches: number of batches that are made ahead for training loops.
        fetch_s: sum of `FetcherStats.fetch_s` over all fetchers.
        enqueue_s: sum of `FetcherStats.enqueue_s` over all fetchers.
        waiting_s: time in which training loops waited for a batch, all loops together.
        workers: the stats of each fetcher.
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
        """Return the figures as a dict of plain values."""
        return asdict(self) | {"workers": [asdict(worker) for worker in self.workers]}

    def __str__(self) -> str:
        return (
            f"source {self.source!r}: {self.recent_examples_per_s:.0f} examples/s, queue size {self.queue_size} "
            f"({self.queue_occupancy:.0%} full), {self.examples} examples in {self.elapsed_s:.0f} s; seconds: fetch "
            f"{self.fetch_s:.2f}, enqueue {self.enqueue_s:.2f}, loop waiting {self.waiting_s:.2f}"
        )


@dataclass(frozen=True)
class FeederStats:
    """Counts and times of the sources of a Feeder. All times are in seconds.

    Attributes:
        sources: name of the source -> its stats.
    """

    sources: Mapping[str, SourceStats]

    def __getitem__(self, name: str) -> SourceStats:
        """Return the stats of a source."""
        return self.sources[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values: name of the source -> its figures."""
        return {name: stats.to_dict() for name, stats in self.sources.items()}

    def __str__(self) -> str:
        return "; ".join(map(str, self.sources.values()))


class FetcherMetrics:
    """Counts and seconds of one thread that fetches; only this thread reports to it."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.fetching_since: float | None = None  # None: it is not fetching.
        self._chunks = self._examples = 0
        self._fetch_s = self._enqueue_s = 0.0

    def add_fetch(self, seconds: float) -> None:
        """Add the time of a call of the fetch function."""
        self._fetch_s += seconds

    def add_chunk(self, num_examples: int, enqueue_s: float) -> None:
        """Count a chunk that is in the queue now, and add the time that it took to put it there."""
        self._chunks += 1
        self._examples += num_examples
        self._enqueue_s += enqueue_s

    def stats(self) -> FetcherStats:
        """Return the stats so far."""
        return FetcherStats(self.worker, self._chunks, self._examples, self._fetch_s, self._enqueue_s)


class FeedMetrics:
    """Counts of one source, whose queue may hold `capacity` chunks; the threads that fetch report for themselves.

    The caller sees to it that one thread at a time reports.
    """

    def __init__(
        self, source: str, workers: Sequence[FetcherMetrics], capacity: int, clock: Callable[[], float]
    ) -> None:
        self.workers = workers
        self._source, self._capacity, self._clock = source, capacity, clock
        self._began_at = self._recent_since = self._sized_at = clock()
        self._size = self._recent_examples = self._num_batches = 0
        self._occupied_s = self._waiting_s = 0.0
        self._ended_at: float | None = None

    def note_queue(self, size: int) -> None:
        """Note how many chunks are in the queue from now on."""
        now = self._now()
        self._occupied_s += self._occupancy * (now - self._sized_at)
        self._size, self._sized_at = size, now

    def add_batch(self, waiting_s: float) -> None:
        """Count a batch that a training loop has got, and add the time for which the loop waited."""
        self._num_batches += 1
        self._waiting_s += waiting_s

    def add_waiting(self, waiting_s: float) -> None:
        """Add time in which a training loop waited and got nothing."""
        self._waiting_s += waiting_s

    def begin_interval(self) -> None:
        """Begin the interval of the recent examples per second now."""
        self._recent_examples = sum(worker.stats().examples for worker in self.workers)
        self._recent_since = self._now()

    def end(self) -> None:
        """Empty the queue, and stop the time."""
        self.note_queue(0)
        self._ended_at = self._now()

    def describe_fetchers(self, now: float) -> str:
        """Return which threads are in the fetch function, and for how long."""
        busy = [
            f"worker {worker.worker} has been in fetch for {now - since:.0f} s"
            for worker in self.workers
            if (since := worker.fetching_since) is not None
        ]
        return ", ".join(busy) or "no worker is in fetch"

    def stats(self, num_ready: int) -> SourceStats:
        """Return the stats so far; `num_ready` batches are made ahead."""
        self.note_queue(self._size)
        now, workers = self._sized_at, tuple(worker.stats() for worker in self.workers)
        elapsed_s, recent_s = now - self._began_at, now - self._recent_since
        num_examples = sum(worker.examples for worker in workers)
        return SourceStats(
            source=self._source,
            elapsed_s=elapsed_s,
            chunks=sum(worker.chunks for worker in workers),
            examples=num_examples,
            batches=self._num_batches,
            examples_per_s=num_examples / elapsed_s if elapsed_s else 0.0,
            recent_examples_per_s=(num_examples - self._recent_examples) / recent_s if recent_s else 0.0,
            queue_size=self._size,
            queue_occupancy=self._occupancy,
            mean_occupancy=self._occupied_s / elapsed_s if elapsed_s else self._occupancy,
            ready_batches=num_ready,
            fetch_s=sum(worker.fetch_s for worker in workers),
            enqueue_s=sum(worker.enqueue_s for worker in workers),
            waiting_s=self._waiting_s,
            workers=workers,
        )

    def _now(self) -> float:
        return self._clock() if self._ended_at is None else self._ended_at

    @property
    def _occupancy(self) -> float:
        return min(1.0, self._size / self._capacity)  # A batch of more chunks than that is let in.
