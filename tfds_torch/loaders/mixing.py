"""MixedBatches: batches of several sources, each drawn by weight."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.feed_batches import FedBatch, FeedBatches, FeedIteration
from tfds_torch.plan.arguments import check_choice, check_integer, did_you_mean
from tfds_torch.plan.order import draw_uniforms

Weights = Mapping[str, float] | Sequence[float]

_DRAWS = 1024  # At a time.


def find_weights(weights: Weights, sources: Sequence[str]) -> dict[str, float]:
    """Returns the sources that are drawn, in their order, with weights > 0.

    Args:
        weights: one for each source in the order in which they were added, or name -> weight.
        sources: all names, in that order.

    Raises:
        ConfigError: weights that cannot be meant.
    """
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


class MixedBatches(Iterable[FedBatch]):
    """Batches of several sources: the source of each is drawn by weight, from (seed, number of the batch) alone.

    A batch holds rows of one source. Every iteration draws the same sequence of sources; of which rows the batches
    consist is the sources' own order.

    Args:
        batches: of each source that may be drawn.
        weights: name of the source -> its weight, > 0.
        seed: of the draws, >= 0.
        stop: "first": the mixture ends where a source is drawn that has ended; "last": the others go on, by their
            weights, until all have ended.

    Raises:
        ConfigError: a seed or stop that cannot be meant, or sources with different names.
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
        """Yields a number in [0, 1) for each batch, without an end."""
        start = 0
        while True:
            yield from draw_uniforms(np.arange(start, start + _DRAWS), self._seed, 1)[:, 0].tolist()
            start += _DRAWS

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._weights}, seed={self._seed}, stop={self._stop!r})"


def _choose(draw: float, weights: Mapping[str, float]) -> str:
    """Returns the name whose share of the weights a number in [0, 1) falls into."""
    left = draw * sum(weights.values())
    names: list[Any] = list(weights)
    for name in names:
        left -= weights[name]
        if left < 0:
            break
    return str(name)
