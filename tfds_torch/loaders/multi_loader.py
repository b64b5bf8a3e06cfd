"""MultiLoader: worker processes read, and this one iterates; without torch."""

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.base_loader import BaseLoader, PoolReader
from tfds_torch.loaders.pool_setup import MultiOptions, PoolSetup
from tfds_torch.loaders.worker_sources import ParserSource
from tfds_torch.parsers.advice import advise_reading
from tfds_torch.parsers.protocol import Parser, state_at
from tfds_torch.plan.cursor import Cursor, Position, Start
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World
from tfds_torch.runtime.keyword_hints import explain_keywords

_logger = logging.getLogger(__name__)


@explain_keywords
class MultiLoader(BaseLoader[PoolReader]):
    """Batches or items that worker processes read, for loops without torch: JAX, numpy, services.

    Examples:
        >>> from tfds_torch import EvalPreprocess, MultiLoader, ParserTfds, demo
        >>> preprocess = EvalPreprocess(size=8, crop_pct=1)
        >>> parser = ParserTfds(demo.prepare("digits"), "digits", batch_size=64, preprocess=preprocess)
        >>> with MultiLoader(parser, num_workers=2) as loader:
        ...     print(len(loader), next(iter(loader)).image.shape)
        23 (64, 8, 8, 3)

    Every `for` is an epoch. Over a Parser, items are `Batch` in numpy, in the parser's order, the same for any number
    of workers; `len`, `set_epoch`, `state_dict` and `load_state_dict` are those of `Loader`. Over another source the
    workers may yield dicts, tuples and lists of numpy arrays, PIL images, numbers, str, bytes and None, nested, also
    with arrays of different shapes in a list. Items arrive with their types; arrays are C-contiguous. An
    image arrives as a plain `PIL.Image.Image` with its mode, pixels and palette; of its `info`, transparency, EXIF data
    and ICC profile come with it. A torch tensor on the CPU arrives as a numpy array; a tensor without an equal array
    (bfloat16, sparse, nested, quantized, with a gradient, on another device) is a ConfigError. Nothing that is received
    is unpickled.

    A worker that dies is a WorkerError within seconds, an item that does not come a StallError after `timeout_s`; both
    name the worker. An error in a worker is raised here, with its own type where that needs no import. Workers draw
    from `random` and `numpy.random` seeded by (seed of the parser, epoch, first batch, rank, worker), and find their
    number and the number of workers in the environment as `WORKER` and `NUM_WORKERS`.

    An iteration that is broken off, dropped or fails leaves no process, except persistent workers. Workers end by
    themselves when this process is gone. Arrays lie in memory that processes share, and that is used again when
    nothing refers to them any more: copy one before you fork a process that keeps it. Not thread-safe: iterate in one
    thread.

    Args:
        source: a Parser; a function that takes a World and returns the items of that worker; or an iterable, which
            every worker reads whole. Where workers are not forked it must be picklable.
        num_workers: processes that read, >= 1.
        in_order: whether workers take turns, so that the order is the same in every run; False: items come as they
            arrive, and there is no state.
        timeout_s: how long the loop waits for an item, seconds, worker start included; None: for ever.
        world: rank and number of replicas; None: `RANK` and `WORLD_SIZE` of the environment, else one replica.
        persistent_workers: whether workers live from epoch to epoch, until `close`.
        concurrent: whether iterations live side by side, each with its own workers; else a new one ends the one
            before.
        start_method: "fork", "spawn" or "forkserver"; None: fork on Linux, unless JAX has been imported.
        socket_dir: where the folder of the sockets is made (transport "zmq"); None: the system's for temporary files.
        transport: "shared" (shared memory and pipes; Linux) or "zmq" (ZeroMQ, extra `zmq`); "auto": the first that
            this system has.
        prefetch_batches: items that each worker reads ahead, >= 1.
        verbose: whether workers' starts and each epoch's `stats()` are logged at level INFO instead of DEBUG.
        fields: the fields of a Parser's batches; None: `image` and `label`, as far as it has them, else all; of windows
            all.

    Raises:
        ConfigError: an argument that cannot work, or an environment that makes no sense.
    """

    _fixed = frozenset(one.name for one in dataclass_fields(MultiOptions)) | {"source"}

    def __init__(
        self,
        source: Any,
        num_workers: int = 4,
        *,
        in_order: bool = True,
        timeout_s: float | None = 300,
        world: World | None = None,
        persistent_workers: bool = False,
        concurrent: bool = False,
        start_method: str | None = None,
        socket_dir: str | os.PathLike[str] | None = None,
        transport: str = "auto",
        prefetch_batches: int = 2,
        verbose: bool = False,
        fields: Sequence[str] | None = None,
    ) -> None:
        self._options = options = MultiOptions(
            num_workers,
            in_order,
            timeout_s,
            world,
            persistent_workers,
            concurrent,
            start_method,
            socket_dir,
            transport,
            prefetch_batches,
            verbose,
            fields,
        )
        self._setup = PoolSetup(source, options)
        super().__init__(
            self._setup.source.name, keeps_reader=options.persistent_workers, is_concurrent=options.concurrent
        )
        self._parser = self._setup.parser
        self.source, self.num_workers, self.world = source, options.num_workers, self._setup.rank
        self._cursor = Cursor(self.num_workers)
        if isinstance(read := self._setup.source, ParserSource):
            self._note_parser(read.parser, read.fields)
            for text in advise_reading(read.parser, read.fields, self.world, of_padding=False):
                warnings.warn(text, UserWarning, stacklevel=3)
        self._num_rejected = 0

    @property
    def num_rejected(self) -> int:
        """Messages and connections that were not of a worker, and were refused (transport "zmq")."""
        pools = [reader.pool for reader in self._readers if reader.pool.is_open]
        return self._num_rejected + sum(pool.transport.num_rejected for pool in pools)

    def __len__(self) -> int:
        """Batches of an epoch, exact.

        Raises:
            TypeError: the source is not a Parser.
        """
        if self._parser is None:
            raise TypeError(f"A MultiLoader over {self._name} has no length: only a Parser plans one.")
        return self._parser.plan(self.world).num_batches

    def _begin(self) -> tuple[Position, int | None]:
        earlier = None if self._options.concurrent or self._parser is None else self._cursor.position()
        return self._cursor.begin(self.num_workers, earlier), None  # The receiver counts the items of each worker.

    def _make_reader(self) -> PoolReader:
        return self._setup.start()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iterations to come: of a Parser's order, and of the seeds of workers.

        Args:
            epoch: number of the epoch, an integer >= 0.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        self._cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is: a small dictionary of plain values, for JSON.

        A batch counts as soon as the loop has got it. Where iterations live side by side (`concurrent`), the state is
        that of the one that began last.

        Raises:
            ConfigError: the source is not a Parser, or batches come in no fixed order.
        """
        parser, position = self._planned(), self._cursor.position()
        return state_at(parser, self.world, position.now, position.num_workers).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow_batch_change: bool = False) -> None:
        """Let the next iteration continue where a state was taken, by this or by torch's `Loader`.

        In mode `index` the numbers of workers and ranks may be others, as long as the global batch is the same; the
        first iteration after an epoch's end is empty.

        Args:
            state: what `state_dict` returned, here or on another rank.
            allow_batch_change: whether a state of another global batch is accepted, in mode `index`: the rest of the
                epoch is then dealt anew, each example exactly once. Give it on every rank.

        Raises:
            ConfigError: the source is not a Parser, or batches come in no fixed order.
            StateMismatchError: the state is damaged, or not of this dataset, split, plan or world; nothing is changed.
        """
        here = state_at(self._planned(), self.world, Start(0), self.num_workers)
        # Also of a stream: with as many workers as here.
        num_replicas = self.world.num_replicas
        loaded = LoaderState.load(state, here, allow_batch_change=allow_batch_change, num_replicas=num_replicas)
        self._cursor.load(loaded.start, loaded.num_workers)

    def kill(self) -> None:
        """End all iterations and all processes at once; a new iteration starts new ones."""
        for reader in self._readers:
            reader.grace_s = 0.0
            self._end_reader(reader, can_go_on=False)
        self._end_live()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name}, num_workers={self.num_workers})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.source, self._options)  # Another process has its own processes.

    def _end_reader(self, reader: PoolReader, can_go_on: bool) -> None:
        was_open = reader.pool.is_open
        super()._end_reader(reader, can_go_on)
        if was_open and not reader.pool.is_open:
            self._num_rejected += reader.pool.transport.num_rejected

    def _note_epoch_end(self) -> None:
        _logger.log(self._options.log_level, "%s: %s", self._name, self.stats())

    def _planned(self) -> Parser:
        """Return the parser whose batches come in their planned order.

        Raises:
            ConfigError: there is none, or they come in no fixed order.
        """
        if not self._options.in_order:
            raise ConfigError(
                "A MultiLoader with in_order=False has no state: it does not know which batches were delivered when "
                "the next one comes."
            )
        if self._parser is None:
            raise ConfigError(
                "A MultiLoader has a state over a Parser only: another source does not say which items come after "
                "which. Keep a state of your own, or read the dataset with a Parser."
            )
        return self._parser


def _make(source: Any, options: MultiOptions) -> MultiLoader:
    return MultiLoader(source, **vars(options))
