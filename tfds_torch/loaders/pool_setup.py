"""PoolSetup: how the workers of a MultiLoader are put together over its source."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.multi_options import MultiOptions
from tfds_torch.loaders.pool import WorkerPool, find_start_method
from tfds_torch.loaders.shared_transport import SharedTransport
from tfds_torch.loaders.transport import Transport
from tfds_torch.loaders.worker import PoolContext
from tfds_torch.loaders.worker_shares import Share, share_of
from tfds_torch.loaders.zmq_transport import ZmqTransport
from tfds_torch.parsers.batch_bytes import image_bytes_of_batch
from tfds_torch.parsers.parser import Parser
from tfds_torch.parsers.reading_names import names_of
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.worker_faults import ReadingNames, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput

_LARGEST_ITEM_BYTES = 1 << 27  # Of address space, not of memory; larger ones go through the pipe.
_REST_BYTES = 1 << 20  # What comes with the images.
_OTHER_SLOTS = 6

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PoolSetup:
    """What the workers of a loader read, and how.

    Attributes:
        share: what they read.
        options: of the loader.
        rank: of this process, and the number of ranks.
    """

    share: Share
    options: MultiOptions
    rank: World

    @classmethod
    def of(cls, source: Any, options: MultiOptions) -> "PoolSetup":
        """Returns how a source is read.

        Raises:
            ConfigError: it cannot be read so, or the environment makes no sense.
        """
        share = share_of(source, options.num_workers, options.fields)
        rank = World.from_environ(os.environ) if options.world is None else options.world
        if share.parser is not None:
            _check_parser(share.parser, rank, options.num_workers)
        return cls(share, options, rank)

    def start(self) -> WorkerPool:
        """Starts workers.

        Raises:
            ConfigError: the transport that was asked for is not to be had here, or the source cannot be pickled.
        """
        options, share = self.options, self.share
        transport, slots = _make_transport(options, self._slot_bytes())
        method, reason = find_start_method(options.start_method)
        context = PoolContext(
            share,
            self.rank,
            0 if share.parser is None else share.parser.plan(self.rank).seed,
            StageMetrics(options.num_workers),
            WorkerOutput(options.num_workers),
            slots,
        )
        pool = WorkerPool(context, transport, method)
        _logger.log(
            options.log_level,
            "%s: %d workers, pids %s, transport %r. %s",
            *(share.name, options.num_workers, pool.pids, transport.name, reason),
        )
        return pool

    def num_planned(self, start_batch: int) -> dict[int, int] | None:
        """Returns how many items each worker has, from a batch of the rank on; None: nobody knows."""
        parser, num_workers = self.share.parser, self.options.num_workers
        if parser is None:
            return None
        plans = [parser.plan(self.rank.at_worker(worker, num_workers)) for worker in range(num_workers)]
        return {worker: len(plan.worker_batches(start_batch)) for worker, plan in enumerate(plans)}

    def faults(self, pool: WorkerPool) -> WorkerFaults:
        """Returns what says what is wrong with the workers of a pool."""
        parser, context = self.share.parser, pool.context
        if parser is None:
            names = ReadingNames(self.share.name, start_argument="start_method")
        else:
            names = names_of(parser, "MultiLoader", "start_method")
        return WorkerFaults(names, context.metrics, context.output, self.options.timeout_s, pool.method != "fork")

    def _slot_bytes(self) -> int:
        """Returns how many bytes an item may have in shared memory."""
        parser = self.share.parser
        image_bytes = None if parser is None else image_bytes_of_batch(parser)
        return max(_LARGEST_ITEM_BYTES, (image_bytes or 0) + _REST_BYTES)


def _check_parser(parser: Parser, rank: World, num_workers: int) -> None:
    """Checks that workers can read a parser.

    Raises:
        ConfigError: they cannot.
    """
    if parser.batch_size is None and num_workers > 1:
        raise ConfigError(
            f"MultiLoader: the parser of {parser.dataset_name} has no batch_size, and {num_workers} workers need one: "
            f"each must know which batches are its own. Give it one, or use num_workers=1."
        )
    parser.read_mode(rank.at_worker(0, num_workers))


def _make_transport(options: MultiOptions, slot_bytes: int) -> tuple[Transport, SharedSlots | None]:
    """Returns what carries the items of a pool, and the memory in which its batches are made, if it has one.

    Args:
        options: of the loader.
        slot_bytes: of a whole item, at most, for shared memory.

    Raises:
        ConfigError: what was asked for is not to be had here.
    """
    if options.transport != "zmq":
        num_slots = options.prefetch_batches + _OTHER_SLOTS
        try:
            slots = SharedSlots(options.num_workers, num_slots, slot_bytes)
        except (AttributeError, OSError, ValueError) as error:  # No Linux, or no address space for so much.
            if options.transport == "shared":
                raise ConfigError(
                    f"MultiLoader: transport='shared' needs shared memory, and this system has none "
                    f"({type(error).__name__}: {error}): use transport='zmq'."
                ) from error
        else:
            return SharedTransport(slots, options.num_workers, num_slots), slots
    folder = None if options.socket_dir is None else Path(options.socket_dir)
    return ZmqTransport(options.num_workers, folder), None
