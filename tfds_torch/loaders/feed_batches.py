"""The batches of a Feeder, for any number of training loops: those of a source, or of several, drawn by weight."""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.feed_run import FeedRun
from tfds_torch.plan.order import draw_uniforms
from tfds_torch.runtime.arguments import check_choice, check_integer, did_you_mean

FedBatch = dict[str, Any]
Weights = Mapping[str, float] | Sequence[float]

_DRAWS = 1024  # At a time.

_logger = logging.getLogger(__name__)


class FeedBatches(Iterable[FedBatch]):
    """The batches of a source; every iteration is a separate training loop, and all of them share the source.

    A batch is a dictionary: name -> array. Each row comes once, to one of the iterations that are under way. Up to four
    batches are made ahead of all of them: an iteration that ends leaves none behind. Iterations may run in different
    threads.
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
        run.start_maker()
        return FeedIteration(run, self)

    def note_end(self, run: FeedRun) -> None:
        """Note that an iteration in this thread has seen the end of a run."""
        self._seen.end_of = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, names={list(self.names)})"

    def __reduce__(self) -> Any:
        raise not_picklable(f"The batches of source {self.source!r}")


class FeedIteration(Iterator[FedBatch]):
    """One training loop's batches. It keeps the Feeder alive."""

    def __init__(self, run: FeedRun, batches: FeedBatches) -> None:
        self._run, self._batches, self._is_closed = run, batches, False

    def __next__(self) -> FedBatch:
        """Return the next batch: name -> array.

        Raises:
            StopIteration: the source has ended.
            StallError: no batch came within `timeout_s`.
            ConfigError: the source was stopped, or this is another process.
            TfdsTorchError: a fetcher failed: its own error where that is one of this package, else a WorkerError.
        """
        self._run.check_process()
        try:
            batch: FedBatch = self._run.queue.next_batch(lambda: self._is_closed)
        except StopIteration:
            self._batches.note_end(self._run)
            raise
        return batch

    def close(self) -> None:
        """End the iteration, also where another thread waits for its next batch."""
        self._is_closed = True
        if self._run.is_of_this_process:
            self._run.queue.wake()


class MixedBatches(Iterable[FedBatch]):
    """Batches of several sources: the source of each is drawn by weight, from (seed, number of the batch) alone.

    A batch holds rows of one source. Every iteration draws the same sequence of sources; each source decides the order
    of its rows.
    """

    def __init__(
        self, batches: Mapping[str, FeedBatches], weights: Mapping[str, float], seed: int, stop: str = "first"
    ) -> None:
        check_choice("mix: stop", stop, ("first", "last"))
        self._seed, self._stop = check_integer("mix: seed", seed, 0), stop
        self._batches, self._weights = dict(batches), dict(weights)
        first, *others = self._batches.values()
        for other in others:
            if set(other.names) != set(first.names):
                raise ConfigError(
                    f"mix: the sources have different names: {first.source!r} has {sorted(first.names)}, "
                    f"{other.source!r} has {sorted(other.names)}. Batches of a mixture must be alike."
                )
        self.names = first.names

    def __iter__(self) -> Iterator[FedBatch]:
        return self._mix({name: iter(batches) for name, batches in self._batches.items()})

    def _mix(self, live: dict[str, FeedIteration]) -> Iterator[FedBatch]:
        try:
            for draw in self._draws():
                while True:
                    name = _choose(draw, {name: self._weights[name] for name in live})
                    batch = next(live[name], None)
                    if batch is not None:
                        yield batch
                        break
                    live.pop(name).close()
                    if self._stop == "first" or not live:
                        return
        finally:
            for iteration in live.values():
                iteration.close()

    def _draws(self) -> Iterator[float]:
        """Yield a number in [0, 1) for each batch, endlessly."""
        start = 0
        while True:
            yield from draw_uniforms(np.arange(start, start + _DRAWS), self._seed, 1)[:, 0].tolist()
            start += _DRAWS

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._weights}, seed={self._seed}, stop={self._stop!r})"


def _choose(draw: float, weights: Mapping[str, float]) -> str:
    """Return the name whose share of the weights a number in [0, 1) falls into."""
    left = draw * sum(weights.values())
    for name, weight in weights.items():
        left -= weight
        if left < 0:
            return name
    return name


def find_weights(weights: Weights, sources: Sequence[str]) -> dict[str, float]:
    """Return the sources that are drawn, in the order in which they were added, with weights > 0."""
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in sources:
                raise ConfigError(
                    f"mix: weights has {name!r}, and the sources are {', '.join(map(repr, sources))}."
                    f"{did_you_mean(name, sources)}"
                )
        given = {name: weights[name] for name in sources if name in weights}
    elif isinstance(weights, list | tuple | np.ndarray):
        if len(weights) != len(sources):
            raise ConfigError(
                f"mix: weights={list(weights)!r} are {len(weights)}, and there are {len(sources)} sources "
                f"({', '.join(map(repr, sources))}): give one for each, or a dictionary of some."
            )
        given = dict(zip(sources, weights, strict=True))
    else:
        raise ConfigError(f"mix: weights={weights!r} must be a list with one number for each source, or a dictionary.")
    for name, weight in given.items():
        is_number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise ConfigError(f"mix: the weight {weight!r} of source {name!r} must be a number >= 0.")
    found = {name: float(weight) for name, weight in given.items() if weight > 0}
    if not found:
        raise ConfigError(f"mix: weights={weights!r} sum to zero: no source could be drawn.")
    return found


def not_picklable(what: str) -> ConfigError:
    """Return the error for an object that cannot leave its process."""
    return ConfigError(
        f"{what} cannot go to another process: threads do not travel. Make a Feeder there; with create_loader, use "
        f"num_workers=0, as the Feeder's threads read ahead by themselves."
    )
