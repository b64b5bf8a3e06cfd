"""Worker main loop: a worker gets commands, reads items, and sends as many as it is allowed to."""

import math
import os
import select
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.images.fast_resize import FastArrayBuffer
from tfds_torch.loaders.transport import END, FAILURE, ITEM, Message, ProtocolError, Sender
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.world import World
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.one_thread import close_iterator
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.tensor_type import is_tensor
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import (
    init_worker,
    keep_freed_memory,
    seed_random_and_numpy,
    stagger_first_batch,
    use_one_thread_of_torch,
)

BEGIN, CREDIT, STOP = range(3)
COMMAND = struct.Struct("<Bqqqqq")
"""A command: its kind, and the iteration. BEGIN: epoch, start_batch, first_example, items allowed. CREDIT: more items
that are allowed. STOP: there will be no more commands."""


class WorkerBatch(NamedTuple):
    """An item in the form that the training loop gets, except for the device, and the number of its examples."""

    batch: Any
    num_examples: int


class WorkerSource(Protocol):
    """The source that workers read. It travels to them."""

    @property
    def name(self) -> str:
        """The source's name, for messages."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Name -> what the user gave, for the message where it cannot be pickled."""

    def prepare(self, worker: int, num_workers: int) -> None:
        """Prepare a worker's process, once, before it reads."""

    def items(
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Iterator[WorkerBatch]:
        """Begin an iteration; `fetch` and the stages within it are reported to the metrics."""


@dataclass(frozen=True)
class PoolContext:
    """Everything that the processes of a pool share. Travels to workers.

    Attributes:
        source: the source that they read.
        rank: this rank, and the number of ranks.
        seed: seeds `random`, `numpy.random` and torch, together with epoch, first batch, rank and worker.
        metrics: receives their reports.
        output: receives their standard error.
        slots: the memory in which arrays are sent; None: there is none.
    """

    source: WorkerSource
    rank: World
    seed: int
    metrics: StageMetrics
    output: WorkerOutput
    slots: SharedSlots | None


def work(context: PoolContext, worker: int, commands: Connection, sender: Sender) -> None:
    """Run a worker until its commands, which come through a pipe, end."""
    init_worker(worker, context.metrics, context.output, context.slots)
    use_one_thread_of_torch()
    keep_freed_memory()
    world = context.rank.at_worker(worker, context.metrics.num_workers)
    os.environ["WORKER"], os.environ["NUM_WORKERS"] = str(worker), str(world.num_workers)  # As WebDataset names them.
    try:
        failure = _prepare(context, worker)
        reader = _CommandReader(commands)
        while (begin := reader.next_begin()) is not None:
            _Iteration(context, world, *begin, sender, reader).run(failure)
    except _ParentGoneError:
        pass
    sender.close()


def _prepare(context: PoolContext, worker: int) -> Failure | None:
    """Prepare the source, once in the life of a worker; return the failure, if there is one."""
    try:
        context.source.prepare(worker, context.metrics.num_workers)
    except Exception as error:
        return Failure.of(error)
    return None


class _ParentGoneError(Exception):
    """The training process has gone, or has ended the pool."""


class _CommandReader:
    """Reads the commands of the training process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._begin: tuple[int, Start] | None = None
        self._iteration, self._num_allowed, self._has_ended = -1, 0, False

    def next_begin(self) -> tuple[int, Start] | None:
        """Wait for an iteration to begin, and return its number and place; None: there will be none."""
        while self._begin is None and not self._has_ended:
            self._read()
        begin, self._begin = self._begin, None
        return None if self._has_ended else begin

    def may_send(self, iteration: int) -> bool:
        """Wait until an item may be sent; return False where the iteration is over."""
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
        read = os.read(self._connection.fileno(), COMMAND.size)
        if not read:
            self._has_ended = True
            return
        kind, iteration, *numbers = COMMAND.unpack(read)
        if kind == STOP:
            self._has_ended = True
        elif kind == BEGIN:
            self._begin = iteration, Start(*numbers[:3])
            self._iteration, self._num_allowed = iteration, numbers[3]
        elif iteration == self._iteration:
            self._num_allowed += numbers[0]


class _Iteration:
    """One iteration in a worker."""

    def __init__(
        self,
        context: PoolContext,
        world: World,
        iteration: int,
        start: Start,
        sender: Sender,
        commands: _CommandReader,
    ) -> None:
        self._context, self._world, self._sender, self._commands = context, world, sender, commands
        self._iteration, self._start = iteration, start
        self._num_sent = 0

    def run(self, failure: Failure | None) -> None:
        """Send all items and then their end; or the failure, that of the preparation or of now."""
        context, metrics = self._context, self._context.metrics
        items: Iterator[WorkerBatch] | None = None
        try:
            metrics.note_begun()
            if failure is not None:
                self._fail(failure)
                return
            self._seed()
            items = context.source.items(self._world, self._start, context.slots, metrics)
            stagger_first_batch(metrics, self._world.worker)
            if self._send_all(items):
                metrics.note_started()
                metrics.note_done()
                self._send(END, None)
        except _ParentGoneError:
            raise
        except Exception as error:
            self._fail(Failure.of(error))
        finally:
            close_iterator(items)

    def _seed(self) -> None:
        """Seed `random`, `numpy.random` and, where it is imported, torch."""
        start = self._start
        seed = seed_random_and_numpy(
            self._context.seed, start.epoch, start.start_batch, self._world.rank, self._world.worker
        )
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    def _send_all(self, items: Iterator[WorkerBatch]) -> bool:
        """Send items; return whether all of them were wanted."""
        while self._commands.may_send(self._iteration):
            try:
                batch = next(items)
            except StopIteration:
                return True
            self._send_item(batch)
            del batch  # Its memory may be used for the next one.
            self._num_sent += 1
        return False

    def _send_item(self, batch: WorkerBatch) -> None:
        begun_at, metrics = time.monotonic(), self._context.metrics
        try:
            self._send(ITEM, batch.batch, batch.num_examples)
        except ProtocolError as error:
            raise ConfigError(
                f"{self._context.source.name}: item {self._num_sent} of worker {self._world.worker} cannot be handed "
                f"over: {error}."
            ) from None
        metrics.add("collate", time.monotonic() - begun_at)
        metrics.add_batch(batch.num_examples)

    def _send(self, kind: int, item: Any, num_examples: int = 0) -> None:
        numbers = self._world.worker, self._iteration, self._num_sent, num_examples
        message = Message(kind, *numbers, time.monotonic(), item)
        try:
            self._sender.send(message)
        except BrokenPipeError:  # Not one that the source raises.
            raise _ParentGoneError from None

    def _fail(self, failure: Failure) -> None:
        self._context.metrics.note_started()
        self._send(FAILURE, failure)


class CountedItems(Iterator[WorkerBatch]):
    """Yields items with the number of examples in each, and reports how long each took."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics) -> None:
        self._items, self._metrics = items, metrics

    def __next__(self) -> WorkerBatch:
        begun_at = time.monotonic()
        try:
            item = next(self._items)
        finally:
            self._metrics.add("fetch", time.monotonic() - begun_at)
        return WorkerBatch(item, count_examples(item))

    def close(self) -> None:
        """End the iteration."""
        close_iterator(self._items)


class BatchMemory:
    """Makes the memory of a batch's images: in a free slot of this worker, else in separate memory."""

    def __init__(self, slots: SharedSlots | None) -> None:
        self._slots = slots

    def __call__(self, shape: tuple[int, int, int, int]) -> FastArrayBuffer:
        """Return a buffer of [B, H, W, C]."""
        memory = None if self._slots is None else self._slots.take(math.prod(shape))
        return FastArrayBuffer(np.empty(shape, np.uint8) if memory is None else memory.reshape(shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMemory, (None,)  # Memory is shared by inheritance only.


def count_examples(item: Any) -> int:
    """Return B of an item that is a batch: the length of its first array, or of its first list; else 1."""
    if isinstance(item, Batch):
        return len(item)
    values = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list | tuple) else [item]
    arrays = [value for value in values if isinstance(value, np.ndarray) or is_tensor(type(value))]
    sizes = [array.shape[0] for array in arrays if array.ndim]
    sizes = sizes or [len(value) for value in values if isinstance(value, list)]
    return sizes[0] if sizes else 1
