"""LoaderMetrics: what a loader has delivered and what its processes have told, over all of their lives."""

import time
from collections import Counter

from tfds_torch.runtime.loader_stats import LoaderStats, WorkerStats
from tfds_torch.runtime.metrics import StageMetrics

_OF_WORKER = ("read", "decode", "transform", "fetch", "collate", "hand_over")


class LoaderMetrics:
    """Counts deliveries and adds up the stages of its processes, of which every pool has sums of its own."""

    def __init__(self) -> None:
        self.num_batches = self.num_examples = 0
        self._stages: StageMetrics | None = None
        self._ended: Counter[str] = Counter()  # Stage -> seconds, of the pools before.
        self._num_replaced = 0  # By the pools before.
        self._waiting_s = self._consumer_s = 0.0
        self._left_at: float | None = None

    def use(self, stages: StageMetrics) -> None:
        """Goes on with the stages of another pool of processes."""
        if self._stages is not None and self._stages is not stages:
            for row in range(self._stages.num_workers + 1):
                self._ended.update(self._stages.seconds(row))
                self._num_replaced += self._stages.num_replaced(row)
        self._stages = stages

    def add(self, stage: str, seconds: float) -> None:
        """Adds the time of a stage of the training process."""
        if self._stages is not None:
            self._stages.add(stage, seconds)

    def note_iteration(self) -> None:
        """Notes that the training loop begins, or ends, an iteration: the time since the last batch is not its work."""
        self._left_at = None

    def enter(self) -> float:
        """Returns the time at which the training loop asks for a batch."""
        now = time.monotonic()
        if self._left_at is not None:
            self._consumer_s += now - self._left_at
        return now

    def leave(self, asked_at: float, num_examples: int) -> None:
        """Counts a batch that the training loop gets now."""
        self._left_at = time.monotonic()
        self._waiting_s += self._left_at - asked_at
        self.num_batches += 1
        self.num_examples += num_examples

    def add_waiting(self, asked_at: float) -> None:
        """Counts the time in which no batch came."""
        self._left_at = None
        self._waiting_s += time.monotonic() - asked_at

    def stats(self) -> LoaderStats:
        """Returns all of it."""
        seconds, num_replaced = Counter(self._ended), self._num_replaced
        metrics, workers = self._stages, []
        if metrics is not None:
            for row in range(metrics.num_workers + 1):
                seconds.update(metrics.seconds(row))
                num_replaced += metrics.num_replaced(row)
            workers = [_stats_of(metrics, worker) for worker in range(metrics.num_workers)]
        busy_s = self._waiting_s + self._consumer_s
        return LoaderStats(
            batches=self.num_batches,
            examples=self.num_examples,
            examples_per_s=self.num_examples / busy_s if busy_s else 0.0,
            **{f"{stage}_s": seconds[stage] for stage in (*_OF_WORKER, "device_copy")},
            waiting_s=self._waiting_s,
            consumer_s=self._consumer_s,
            replaced=num_replaced,
            workers=tuple(workers),
        )


def _stats_of(metrics: StageMetrics, worker: int) -> WorkerStats:
    (batches, examples), seconds = metrics.counts(worker), metrics.seconds(worker)
    return WorkerStats(
        worker, metrics.pid(worker), batches, examples, **{f"{stage}_s": seconds[stage] for stage in _OF_WORKER}
    )
