"""Where the chunks of a source come from: a function, any iterable, or a Parser."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.loaders.feed_options import FeedOptions
from tfds_torch.parsers.protocol import Parser
from tfds_torch.plan.world import World
from tfds_torch.runtime.one_thread import close_iterator


class IterableReader:
    """Reads an iterable in one thread, and so in its order; raises StopIteration at the end of each pass."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._pass: Iterator[Any] | None = None

    def __call__(self, worker: int, batch_size: int) -> Any:  # noqa: D102
        if self._pass is None:
            self._pass = iter(self._items)
        try:
            return next(self._pass)
        except StopIteration:
            self._pass = None
            raise

    def close(self) -> None:
        """Close a generator that is not at its end."""
        close_iterator(self._pass)


Fetch = Callable[[int, int], Any] | IterableReader


class FetchSource:
    """The `fetch` of `add_source`, checked; every run of the source begins it anew."""

    def __init__(self, fetch: Any, options: FeedOptions) -> None:
        self.options, self._where = options, f"add_source({options.name!r})"
        self._fetch, self._was_begun = fetch, False
        is_known = isinstance(fetch, Parser | Iterable) or callable(fetch)
        if not is_known or isinstance(fetch, type | str | bytes | Mapping | np.ndarray):
            raise ConfigError(
                f"{self._where}: fetch={fetch!r} must be a function fetch(worker_id, batch_size), an iterable of "
                f"chunks, or a Parser."
            )
        if isinstance(fetch, Parser):
            fetch.check_fields(options.names)
            self._fetch = ParserPasses(fetch, options.names, World.from_environ(os.environ))
        elif isinstance(fetch, Iterator):
            if options.at_end == "cycle":
                raise ConfigError(
                    f"{self._where}: at_end='cycle' begins again at the end, and {type(fetch).__name__} is an "
                    f"iterator, which can be read once. Give an iterable that can be read anew, such as a list or an "
                    f"object whose __iter__ begins again."
                )
        elif not isinstance(fetch, Iterable):
            self._check_function(fetch)

    def begin(self) -> Fetch:
        """Return the function that a new run fetches from."""
        was_begun, self._was_begun = self._was_begun, True
        if isinstance(self._fetch, Iterator) and was_begun:
            raise ConfigError(
                f"{self._where}: it was given an iterator, which has been read: nothing is left for another run. Give "
                f"an iterable that can be read anew."
            )
        return IterableReader(self._fetch) if isinstance(self._fetch, Iterable) else self._fetch

    def _check_function(self, fetch: Any) -> None:
        try:
            signature = inspect.signature(fetch)
        except ValueError:  # A function in C may have none.
            return
        try:
            signature.bind(0, 1)
        except TypeError:
            raise ConfigError(
                f"{self._where}: fetch has the parameters {signature}: it is called as fetch(worker_id, batch_size). "
                f"A generator function must be called: what it returns is the iterable."
            ) from None


class ParserPasses(Iterable[dict[str, Any]]):
    """The batches of a Parser for a rank, as dictionaries of arrays; every iteration is the next epoch."""

    def __init__(self, parser: Parser, names: Iterable[str], rank: World) -> None:
        self._parser, self._names, self._rank = parser, tuple(names), rank
        self._epoch = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for batch in self._parser.batches(self._rank, epoch, fields=self._names):
            yield {name: _field_of(batch, name) for name in self._names}


def _field_of(batch: Batch, name: str) -> Any:
    """Return a field of a batch as an array [B, ...]."""
    values = batch.features[name] if name in batch.features else getattr(batch, name, None)
    if values is None or isinstance(values, np.ndarray):
        return values
    values = list(values)
    if all(isinstance(value, str) for value in values):
        return np.array(values)
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise WorkerError(
            f"field {name!r} has values of several shapes, such as {list(shapes[0])} and {list(shapes[1])}: they make "
            f"no array. Give the parser a preprocess, which makes images one size, or leave the field out."
        )
    return np.stack([np.asarray(value) for value in values])
