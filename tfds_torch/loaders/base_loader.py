"""BaseLoader: the code that Loader and MultiLoader share, from an iteration's start to the end of its processes."""

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg
from tfds_torch.loaders.pool import GRACE_S, WorkerPool
from tfds_torch.loaders.receiver import ItemReceiver, LoaderIteration, RepeatedItems
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import Parser
from tfds_torch.plan.cursor import Position, Start
from tfds_torch.runtime.metrics import LoaderMetrics, LoaderStats, StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.processes import close_at_exit
from tfds_torch.runtime.worker_faults import WorkerFaults
from tfds_torch.storage.network import Network, NetworkStats, total_stats

_logger = logging.getLogger(__name__)

_SHOWN = ("options", "dataset", "source", "num_workers", "world")
"""Arguments of loaders that are their attributes."""


class Reader(Protocol):
    """Reads the iterations of a loader, one after the other, by processes or not. For one thread."""

    metrics: StageMetrics

    @property
    def pids(self) -> Sequence[int]:
        """The worker processes, by the worker's number; empty where none run."""

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it is open, its workers live, and this is not a forked process."""

    def begin(self, start: Start) -> Iterator[WorkerBatch]:
        """Begin an iteration; the one before is over."""

    def close(self) -> None:
        """End the processes; the reader cannot be used any more."""


class PoolReader:
    """Reads by a pool of workers, which begin when this is made.

    Every iteration raises WorkerError for a worker that died, StallError for a batch that did not come in time, and
    the source's own error. `close` waits `grace_s` seconds for workers.
    """

    def __init__(
        self,
        pool: WorkerPool,
        faults: WorkerFaults,
        prefetch_batches: int,
        *,
        in_order: bool = True,
        num_planned: Callable[[Start], Mapping[int, int] | None] = lambda start: None,
        repeated: RepeatedItems | None = None,
    ) -> None:
        self.pool, self.metrics, self.grace_s = pool, pool.context.metrics, GRACE_S
        self._faults, self._prefetch_batches = faults, prefetch_batches
        self._in_order, self._num_planned, self._repeated = in_order, num_planned, repeated

    @property
    def pids(self) -> Sequence[int]:  # noqa: D102
        return self.pool.pids if self.pool.is_open else []

    @property
    def is_usable(self) -> bool:  # noqa: D102
        return self.pool.is_usable

    def begin(self, start: Start) -> Iterator[WorkerBatch]:  # noqa: D102
        number = self.pool.begin(start, self._prefetch_batches)
        num_planned = self._num_planned(start)
        return ItemReceiver(
            self.pool,
            number,
            self._faults,
            in_order=self._in_order,
            num_planned=num_planned,
            repeated=self._repeated,
        )

    def close(self) -> None:  # noqa: D102
        self.pool.end(self.grace_s)


_Reader = TypeVar("_Reader", bound=Reader)


class BaseLoader(Iterable[Any], Generic[_Reader]):
    """Begins the iterations of a loader, keeps their reader or ends it, and measures them. For one thread.

    Args:
        name: of the source, for the log.
        keeps_reader: whether a reader serves one iteration after the other, until `close`.
        is_concurrent: whether iterations live side by side; else a new one ends the one before.
        log_every: number of batches after which `stats()` is logged; None: never.
    """

    _fixed: ClassVar[frozenset[str]] = frozenset()
    """The arguments of a loader, which are looked at when it is made."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and (name in vars(self) or name not in _SHOWN):
            raise ConfigError(
                f"{type(self).__name__}.{name} cannot be set: what a loader reads, and how, is fixed when it is made, "
                f"and an assignment would have no effect. Make a new one, with {name}={quoted(value)}."
            )
        super().__setattr__(name, value)

    def __init__(
        self, name: str, *, keeps_reader: bool, is_concurrent: bool = False, log_every: int | None = None
    ) -> None:
        self._name, self._keeps_reader, self._is_concurrent = name, keeps_reader, is_concurrent
        self._log_every = log_every
        self._kept: _Reader | None = None
        self._live: weakref.WeakKeyDictionary[LoaderIteration, _Reader] = weakref.WeakKeyDictionary()
        self._is_closed = False
        self._metrics = LoaderMetrics()
        self._jpeg_decoder: str | None = None  # The choice of the Parser whose images are read; None: none are.
        self._networks: Collection[Network] = ()
        self._network_before: NetworkStats | None = None
        close_at_exit(self)

    def _note_parser(self, parser: Parser, fields: Collection[str]) -> None:
        """Note the parser whose examples are read, for `stats`."""
        if "image" in fields:
            self._jpeg_decoder = parser.read.jpeg_decoder
        self._networks = parser.source.networks if isinstance(parser, DatasetParser) else ()
        self._network_before = total_stats(self._networks)

    def _begin(self) -> tuple[Position, int | None]:
        """Return where an iteration begins, and how many batches it must have; None: unknown."""
        raise NotImplementedError

    def _make_reader(self) -> _Reader:
        raise NotImplementedError

    def _staged(self, batches: Iterator[WorkerBatch]) -> Iterator[tuple[Any, int]]:
        """Return the batches of a reader on their last way to the training loop."""
        return batches

    def _note_epoch_end(self) -> None:
        """Note that a batch was asked for after the epoch's last one; does nothing here."""

    @property
    def worker_pids(self) -> list[int]:
        """The processes that read, by the worker's number, of one iteration after the other; empty where none run."""
        return [pid for reader in self._readers for pid in reader.pids]

    def __iter__(self) -> Iterator[Any]:
        if self._is_closed:
            raise ConfigError(f"This {type(self).__name__} is closed: make a new one.")
        if not self._is_concurrent:
            self._end_live()
        position, num_expected = self._begin()
        reader = self._take_reader()
        try:
            batches = reader.begin(position.start)
        except BaseException:
            self._end_reader(reader, can_go_on=False)
            raise
        iteration = LoaderIteration(
            self._staged(batches),
            self._metrics,
            position,
            num_expected,
            partial(self._end_reader, reader),
            None if self._log_every is None else self._log_progress,
            self._note_epoch_end,
        )
        self._live[iteration] = reader
        return iteration

    def stats(self) -> LoaderStats:
        """Return how much was delivered since the loader was made, and where the time went, by stage and worker.

        Where iterations live side by side, the workers and their stages are those of the latest one.
        """
        decoder = None if self._jpeg_decoder is None else jpeg.describe(self._jpeg_decoder)
        downloaded = 0
        if self._network_before is not None and (now := total_stats(self._networks)) is not None:
            downloaded = max(0, (now - self._network_before).bytes_fetched)  # A killed fetcher counts anew.
        return replace(self._metrics.stats(), jpeg_decoder=decoder, downloaded_bytes=downloaded)

    def close(self) -> None:
        """End all iterations and all processes; the loader cannot be iterated any more."""
        self._is_closed = True
        self._end_live()
        if self._kept is not None:
            self._end_reader(self._kept, can_go_on=False)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_kept", None) is not None:
            self.close()

    @property
    def _readers(self) -> list[_Reader]:
        readers = list(self._live.values())
        return readers if self._kept is None or self._kept in readers else [*readers, self._kept]

    def _take_reader(self) -> _Reader:
        """Return the reader of the iteration that begins now: the one that was kept, if it is still usable."""
        if self._kept is not None:
            if self._kept.is_usable:
                return self._kept
            self._end_reader(self._kept, can_go_on=False)
        reader = self._make_reader()
        self._metrics.use(reader.metrics)
        if self._keeps_reader:
            self._kept = reader
        return reader

    def _end_reader(self, reader: _Reader, can_go_on: bool) -> None:
        """End the processes of an iteration, unless they are to be used again."""
        if can_go_on and reader is self._kept and not self._is_closed and reader.is_usable:
            return
        reader.close()
        if self._kept is reader:
            self._kept = None

    def _end_live(self) -> None:
        for iteration in list(self._live):
            iteration.replace()

    def _log_progress(self) -> None:
        # Over epochs: an epoch may have fewer batches.
        if self._log_every is not None and self._metrics.num_batches % self._log_every == 0:
            workers = f"; workers' pids {', '.join(map(str, self.worker_pids))}" if self.worker_pids else ""
            _logger.info("%s: %s%s", self._name, self.stats(), workers)
