"""MultiOptions: how a MultiLoader reads; PoolSetup: how its workers are started over its source."""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.base_loader import PoolReader
from tfds_torch.loaders.pool import WorkerPool, find_start_method
from tfds_torch.loaders.receiver import RepeatedItems
from tfds_torch.loaders.transport import PipeTransport, Transport
from tfds_torch.loaders.wire import ItemCodec
from tfds_torch.loaders.worker import PoolContext
from tfds_torch.loaders.worker_sources import ParserSource, source_of
from tfds_torch.loaders.zmq_transport import ZmqTransport, check_socket_folder, import_zmq
from tfds_torch.parsers.protocol import Parser, error_context_of, has_windows, members_of
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_choice, check_flag, check_integer, check_seconds
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.worker_faults import ErrorContext, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.storage.source import FieldSpec

_MOST_WORKERS = _MOST_PREFETCHED = 1024
_LARGEST_ITEM_BYTES = 1 << 27  # Of address space, not of memory; larger ones go through the pipe.
_REST_BYTES = 1 << 20  # What comes with the images.
_MOST_CHANNELS = 4
_IMAGE_AXES = 3
_OTHER_SLOTS = 6  # Of items that are on their way, and of some that the loop holds.
_TO_DEAL_OUT = (
    "Give a function that takes a World and returns the items of that worker, or an iterable that looks at WORKER and "
    "NUM_WORKERS in the environment; or use one worker."
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MultiOptions:
    """The arguments of a `MultiLoader`, which describes them, without the source."""

    num_workers: int = 4
    in_order: bool = True
    timeout_s: float | None = 300.0
    world: World | None = None
    persistent_workers: bool = False
    concurrent: bool = False
    start_method: str | None = None
    socket_dir: str | os.PathLike[str] | None = None
    transport: str = "auto"
    prefetch_batches: int = 2
    verbose: bool = False
    fields: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, most in (("num_workers", _MOST_WORKERS), ("prefetch_batches", _MOST_PREFETCHED)):
            object.__setattr__(self, name, check_integer(f"MultiLoader: {name}", getattr(self, name), 1, most))
        for name in ("in_order", "persistent_workers", "concurrent", "verbose"):
            check_flag(f"MultiLoader: {name}", getattr(self, name))
        check_seconds("MultiLoader: timeout_s", self.timeout_s, can_be_none=True)
        if not isinstance(self.world, World | None):
            raise ConfigError(
                f"MultiLoader: world={self.world!r} must be a World(rank=..., num_replicas=...), or None."
            )
        check_choice("MultiLoader: transport", self.transport, ("auto", "shared", "zmq"))
        if self.start_method is not None:
            check_choice("MultiLoader: start_method", self.start_method, get_all_start_methods())
        if self.concurrent and self.persistent_workers:
            raise ConfigError(
                "MultiLoader: concurrent=True and persistent_workers=True exclude each other: iterations that live "
                "side by side have workers of their own."
            )
        self._check_sockets()

    @property
    def log_level(self) -> int:
        """The level at which workers' starts and epochs are logged."""
        return logging.INFO if self.verbose else logging.DEBUG

    def _check_sockets(self) -> None:
        if self.transport == "zmq":
            import_zmq()
        if self.socket_dir is None:
            return
        if not isinstance(self.socket_dir, str | os.PathLike):
            raise ConfigError(f"MultiLoader: socket_dir={self.socket_dir!r} must be the path of a folder, or None.")
        if self.transport == "shared":
            raise ConfigError("MultiLoader: socket_dir has no effect with transport='shared', which has no sockets.")
        check_socket_folder(Path(self.socket_dir))


class PoolSetup:
    """How the workers of a loader are started, and what they read."""

    def __init__(self, source: Any, options: MultiOptions) -> None:
        self.options = options
        self.rank = rank = World.from_environ(os.environ) if options.world is None else options.world
        self.source = source_of(source, options.fields)
        self.parser = parser = self.source.parser if isinstance(self.source, ParserSource) else None
        self._repeated: RepeatedItems | None = None
        if parser is None:
            self._repeated = RepeatedItems(self.source.name, _TO_DEAL_OUT)
            return
        if parser.batch_size is None and options.num_workers > 1:
            raise ConfigError(
                f"MultiLoader: the parser of {parser.dataset_name} has no batch_size, and {options.num_workers} "
                f"workers need one: each must know which batches are its own. Give it one, or use num_workers=1."
            )
        parser.read_mode(rank.at_worker(0, options.num_workers))  # It may not be readable so.

    def start(self) -> PoolReader:
        """Start workers, and return the reader that uses them."""
        options, parser = self.options, self.parser
        transport, slots = self._make_transport()
        method, reason = find_start_method(options.start_method)
        metrics, output = StageMetrics(options.num_workers, members_of(parser)), WorkerOutput(options.num_workers)
        seed = 0 if parser is None else parser.plan(self.rank).seed
        context = PoolContext(self.source, self.rank, seed, metrics, output, slots)
        pool = WorkerPool(context, transport, method)
        _logger.log(
            options.log_level,
            "%s: %d workers, pids %s, transport %r. %s",
            self.source.name,
            options.num_workers,
            pool.pids,
            transport.name,
            reason,
        )
        names = ErrorContext(self.source.name, start_argument="start_method")
        if parser is not None:
            names = error_context_of(parser, "MultiLoader", "start_method")
        return PoolReader(
            pool,
            WorkerFaults(names, metrics, output, options.timeout_s, pool.method != "fork"),
            options.prefetch_batches,
            in_order=options.in_order,
            num_planned=self._num_planned,
            repeated=self._repeated,
        )

    def _num_planned(self, start: Start) -> dict[int, int] | None:
        """Return how many items each worker has in an iteration; None: unknown."""
        if self.parser is None:
            return None
        worlds = [self.rank.at_worker(worker, self.options.num_workers) for worker in range(self.options.num_workers)]
        plans = [self.parser.plan(world, first_example=start.first_example) for world in worlds]
        return {plan.world.worker: len(plan.worker_batches(start.start_batch)) for plan in plans}

    def _make_transport(self) -> tuple[Transport, SharedSlots | None]:
        """Return the transport of a pool's items, and the memory in which its batches are made, if it has one."""
        options, codec = self.options, ItemCodec(self.parser)
        if options.transport != "zmq":
            try:
                slots = make_slots(options.num_workers, options.prefetch_batches, self.parser)
            except (AttributeError, OSError, ValueError) as error:
                if options.transport == "shared":
                    raise ConfigError(
                        f"MultiLoader: transport='shared' needs shared memory, and this system has none "
                        f"({type(error).__name__}: {error}): use transport='zmq'."
                    ) from error
            else:
                return PipeTransport(slots, options.num_workers, codec), slots
        folder = None if options.socket_dir is None else Path(options.socket_dir)
        return ZmqTransport(options.num_workers, folder, codec), None


def make_slots(num_workers: int, prefetch_batches: int, parser: Parser | None) -> SharedSlots:
    """Return shared memory for the batches of a pool; a parser's whole batches fit into a slot."""
    image_bytes = 0 if parser is None else _image_bytes_of_batch(parser)
    slot_bytes = max(_LARGEST_ITEM_BYTES, image_bytes + _REST_BYTES)
    return SharedSlots(num_workers, prefetch_batches + _OTHER_SLOTS, slot_bytes)


def _image_bytes_of_batch(parser: Parser) -> int:
    """Return how many bytes the images of a whole batch take at most, as far as it is known before they are read."""
    specs = parser.element_spec.fields
    sizes = [_image_bytes(spec) for name, spec in specs.items() if name != "image"] if has_windows(parser) else []
    if parser.preprocess is not None:
        sizes.append(parser.preprocess.num_pixels * _MOST_CHANNELS)
    elif "image" in specs:
        sizes.append(_image_bytes(specs["image"]))
    return (parser.batch_size or 0) * sum(sizes)


def _image_bytes(spec: Any) -> int:
    """Return the bytes of images of a FieldSpec, [H, W, C], or [C, H, W] or [T, C, H, W] of a camera; 0: unknown."""
    if not isinstance(spec, FieldSpec) or spec.dtype != np.uint8 or len(spec.shape) < _IMAGE_AXES:
        return 0
    sizes = list(spec.shape)
    if len(sizes) == _IMAGE_AXES and sizes[-1] in (None, 1, 2, 3):  # Of the field `image`, in any mode.
        sizes[-1] = _MOST_CHANNELS
    return math.prod(size or 0 for size in sizes)
