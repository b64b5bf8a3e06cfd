"""A worker of a MultiLoader: it is told where to begin, reads, and sends as much as it is allowed to."""

import os
import select
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.loaders.transport import Outlet
from tfds_torch.loaders.wire import MalformedMessage, Outgoing
from tfds_torch.loaders.wire_items import ItemWriter
from tfds_torch.loaders.worker_shares import Share, Start, count_examples, take_apart
from tfds_torch.plan.world import World
from tfds_torch.runtime.allocator import keep_freed_memory
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, seed_random_and_numpy, stagger_first_batch

BEGIN, MORE, END = range(3)
ORDER = struct.Struct("<Bqqqq")
"""An order: its kind, and the iteration. BEGIN: epoch, first batch, items allowed. MORE: items allowed in addition.
END: there will be no more."""


@dataclass(frozen=True)
class PoolContext:
    """What the processes of a pool share. Travels to workers.

    Attributes:
        share: what they read.
        rank: and the number of ranks.
        seed: of `random` and `numpy.random`, with epoch, first batch, rank and worker.
        metrics: what they report to.
        output: what they write to standard error.
        slots: in which arrays are handed over; None: there are none.
    """

    share: Share
    rank: World
    seed: int
    metrics: StageMetrics
    output: WorkerOutput
    slots: SharedSlots | None


def work(context: PoolContext, worker: int, orders: Connection, outlet: Outlet) -> None:
    """Is a worker, until the orders end.

    Args:
        context: of the pool.
        worker: which one.
        orders: the reading end of its pipe; first comes the transport's key.
        outlet: where items go.
    """
    init_worker(worker, context.metrics, context.output, context.slots)
    keep_freed_memory()
    num_workers = context.metrics.num_workers
    os.environ["WORKER"], os.environ["NUM_WORKERS"] = str(worker), str(num_workers)  # As WebDataset names them.
    try:
        outlet.open(orders.recv_bytes())
        queue = _Orders(orders)
        while (begin := queue.next_begin()) is not None:
            start = Start(context.rank.at_worker(worker, num_workers), begin.epoch, begin.start_batch)
            _Iteration(context, start, begin.iteration, outlet, queue).run()
    except (EOFError, _NobodyWaitsError):
        pass
    outlet.close()


class _NobodyWaitsError(Exception):
    """The training process has gone, or has ended the pool."""


@dataclass(frozen=True)
class _Begin:
    iteration: int
    epoch: int
    start_batch: int


class _Orders:
    """What the training process wants of this worker.

    Args:
        connection: from which it comes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._begin: _Begin | None = None
        self._iteration, self._num_allowed, self._has_ended = -1, 0, False

    def next_begin(self) -> _Begin | None:
        """Waits for an iteration to begin; None: there will be none."""
        while self._begin is None and not self._has_ended:
            self._read()
        begin, self._begin = self._begin, None
        return None if self._has_ended else begin

    def may_send(self, iteration: int) -> bool:
        """Waits until an item may be sent; False: the iteration is over."""
        while True:
            while self._poll.poll(0) and not self._has_ended:
                self._read()
            if self._has_ended or self._iteration != iteration:
                return False
            if self._num_allowed:
                self._num_allowed -= 1
                return True
            self._read()

    def _read(self) -> None:
        read = os.read(self._connection.fileno(), ORDER.size)
        if not read:
            self._has_ended = True
            return
        kind, iteration, *numbers = ORDER.unpack(read)
        if kind == END:
            self._has_ended = True
        elif kind == BEGIN:
            self._begin = _Begin(iteration, *numbers[:2])
            self._iteration, self._num_allowed = iteration, numbers[2]
        elif iteration == self._iteration:
            self._num_allowed += numbers[0]


class _Iteration:
    """One iteration in a worker."""

    def __init__(self, context: PoolContext, start: Start, iteration: int, outlet: Outlet, orders: _Orders) -> None:
        self._context, self._start, self._outlet, self._orders = context, start, outlet, orders
        self._iteration, self._num_sent = iteration, 0

    def run(self) -> None:
        """Sends all items, and that they have ended; or what has failed."""
        context, metrics, start = self._context, self._context.metrics, self._start
        items: Iterator[Any] | None = None
        try:
            seed_random_and_numpy(context.seed, start.epoch, start.start_batch, start.world.rank, start.world.worker)
            items = context.share.items(start, context.slots, metrics)
            metrics.note_begun()
            stagger_first_batch(metrics, start.world.worker)
            if self._send_all(items):
                metrics.note_started()
                metrics.note_done()
                self._send("end", None)
        except _NobodyWaitsError:
            raise
        except Exception as error:
            self._fail(error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _send_all(self, items: Iterator[Any]) -> bool:
        """Sends items; returns whether all of them were wanted."""
        metrics = self._context.metrics
        while self._orders.may_send(self._iteration):
            begun_at = time.monotonic()
            try:
                item = next(items)
            except StopIteration:
                return True
            finally:
                metrics.add("fetch", time.monotonic() - begun_at)
            self._send_item(item)
            del item  # Its memory may be used for the next one.
            self._num_sent += 1
        return False

    def _send_item(self, item: Any) -> None:
        begun_at, writer, kind = time.monotonic(), ItemWriter(), "item"
        num_examples = count_examples(item)
        if isinstance(item, Batch):
            kind, item = "batch", take_apart(item, self._context.share.parser is not None)
        tree = writer.write(item)
        try:
            self._send(kind, tree, num_examples, writer.parts)
        except MalformedMessage as error:
            raise ConfigError(
                f"{self._context.share.name}: item {self._num_sent} of worker {self._start.world.worker} cannot be "
                f"handed over: {error}."
            ) from None
        metrics = self._context.metrics
        metrics.add("collate", time.monotonic() - begun_at)
        metrics.add_batch(num_examples)

    def _send(self, kind: str, tree: Any, num_examples: int = 0, parts: Any = ()) -> None:
        worker, now = self._start.world.worker, time.monotonic()
        try:
            self._outlet.send(Outgoing(kind, worker, self._iteration, self._num_sent, num_examples, now, tree, parts))
        except BrokenPipeError:  # Told apart from one that the source raises.
            raise _NobodyWaitsError from None

    def _fail(self, error: Exception) -> None:
        """Sends an exception that is being handled, as text."""
        self._context.metrics.note_started()
        failure, writer = Failure.of(error), ItemWriter()
        told = {name: getattr(failure, name) for name in ("module", "name", "message", "trace")}
        self._send("failure", writer.write(told), 0, writer.parts)
