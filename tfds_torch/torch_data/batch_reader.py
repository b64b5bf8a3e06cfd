"""BatchReader: where a Loader's batches come from."""

from collections.abc import Iterator
from typing import Protocol

from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.plan.cursor import Start
from tfds_torch.runtime.metrics import StageMetrics


class BatchReader(Protocol):
    """Reads the batches of one dataset, an iteration after the other, with processes of its own or without any.

    Making one starts its processes. Every iteration raises WorkerError for a worker that died, StallError for a batch
    that did not come in time, and what the dataset raised. For one thread.
    """

    metrics: StageMetrics

    @property
    def pids(self) -> list[int]:
        """The worker processes, by the worker's number; empty where there are none."""

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it is open, its workers live, and this is no forked process."""

    def begin(self, start: Start | None) -> Iterator[WorkerBatch]:
        """Begins an iteration; the one before is over.

        Args:
            start: where to begin; None for a dataset that plans no batches.
        """

    def close(self) -> None:
        """Ends the processes; the reader cannot be used any more."""
