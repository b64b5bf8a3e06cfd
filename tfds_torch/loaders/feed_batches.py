"""FeedBatches: the batches of a Feeder's source, for any number of training loops."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.feed_run import FeedRun

FedBatch = dict[str, Any]

_logger = logging.getLogger(__name__)


class FeedBatches(Iterable[FedBatch]):
    """The batches of a source; every iteration is a training loop of its own, and all of them share the source.

    A batch is a dictionary: name -> array. Each row comes once, to one of the iterations that are under way; up to four
    batches are made ahead for each, and what an iteration leaves goes to the next one, in its old order. Iterations may
    run in different threads.

    Args:
        source: its name.
        names: of the arrays.
        find_run: returns the run of the source that is under way; raises ConfigError where there is none.
    """

    def __init__(self, source: str, names: tuple[str, ...], find_run: Callable[[], FeedRun]) -> None:
        self.source, self.names = source, names
        self._find_run = find_run
        self._seen = threading.local()  # By each thread.

    def __iter__(self) -> "FeedIteration":
        run = self._find_run()
        if run.queue.is_drained and not run.queue.is_over:
            text = (
                f"Source {self.source!r} has ended, and all of its batches were taken. Call start() for another pass, "
                f"or add it with at_end='cycle'."
            )
            if run is getattr(self._seen, "end_of", None):
                raise ConfigError(text)
            _logger.warning("%s This iteration is empty.", text)  # The loops of other threads were faster.
        return FeedIteration(run, self)

    def note_end(self, run: FeedRun) -> None:
        """Notes that an iteration in this thread has seen the end of a run."""
        self._seen.end_of = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, names={list(self.names)})"

    def __reduce__(self) -> Any:
        raise not_picklable(f"The batches of source {self.source!r}")


class FeedIteration(Iterator[FedBatch]):
    """One training loop's batches. Dropping or closing it gives back what was made ahead.

    Args:
        run: of the source.
        batches: what is iterated; it keeps the Feeder alive.
    """

    def __init__(self, run: FeedRun, batches: FeedBatches) -> None:
        self._run, self._batches = run, batches
        self._consumer = run.open_consumer()

    def __next__(self) -> FedBatch:
        """Returns the next batch: name -> array.

        Raises:
            StopIteration: the source has ended.
            StallError: no batch came within `timeout_s`.
            ConfigError: the source was stopped, or this is another process.
            TfdsTorchError: a fetcher failed: the error that it raised where that is one of ours, else a WorkerError.
        """
        if not self._run.is_of_this_process:
            raise ConfigError(
                f"This iteration of source {self._batches.source!r} began in another process, whose threads this one "
                f"does not have. Make a Feeder here; with create_loader, use num_workers=0."
            )
        try:
            batch: FedBatch = self._run.queue.next_batch(self._consumer)
        except StopIteration:
            self._batches.note_end(self._run)
            raise
        return batch

    def close(self) -> None:
        """Ends the iteration."""
        if self._run.is_of_this_process:
            self._run.queue.close_consumer(self._consumer)

    def __del__(self) -> None:
        if hasattr(self, "_consumer"):
            self.close()


def not_picklable(what: str) -> ConfigError:
    """Returns the error for what cannot leave its process."""
    return ConfigError(
        f"{what} cannot go to another process: threads do not travel. Make a Feeder there; with create_loader, use "
        f"num_workers=0, as the Feeder's threads read ahead by themselves."
    )
