"""Deliveries: the items of one iteration, as they come from a pool of workers; a dead or stuck worker is an error."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tfds_torch.errors import ConfigError, StallError, WorkerError
from tfds_torch.loaders.pool import WorkerPool
from tfds_torch.loaders.transport import Incoming
from tfds_torch.loaders.wire import Header, MalformedMessage
from tfds_torch.loaders.wire_items import ItemReader
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.worker_faults import WorkerFaults

_LOOK_S = 0.2
_DYING_S = 1.0
_SLOW_START_S = 5.0

_logger = logging.getLogger(__name__)


class WorkerBatch(NamedTuple):
    """What a loader takes from its workers, or reads itself.

    Attributes:
        batch: as the training loop gets it, but for the device.
        num_examples: in it.
    """

    batch: Any
    num_examples: int


class Deliveries(Iterator[Any]):
    """Yields the items of an iteration that has just begun, to one thread.

    Args:
        pool: whose workers send them.
        iteration: its number in the pool.
        faults: says what is wrong with workers.
        rebuild: makes a Batch of what a worker has sent as one.
        in_order: whether workers take turns; else items come as they arrive.
        num_planned: items of each worker; None: nobody knows.
    """

    def __init__(
        self,
        pool: WorkerPool,
        iteration: int,
        faults: WorkerFaults,
        rebuild: Callable[[Any], Any],
        *,
        in_order: bool,
        num_planned: Mapping[int, int] | None,
    ) -> None:
        self.examples: deque[int] = deque()  # Of the items that were yielded, until the loader counts them.
        self._pool, self._iteration, self._faults = pool, iteration, faults
        self._rebuild, self._in_order, self._num_planned = rebuild, in_order, num_planned
        self._turns = deque(range(pool.num_workers))  # Of the workers that have not ended.
        self._num_came = dict.fromkeys(self._turns, 0)
        self._began_at = self._asked_at = time.monotonic()
        self._is_slow_start_told = False
        self._is_closed = False

    def __next__(self) -> Any:
        self._asked_at = looked_at = time.monotonic()
        while self._turns:
            self._check_open()
            incoming = self._take()
            if incoming is not None:
                header = incoming.header
                if header.kind == "end":
                    self._end(header)
                    continue
                self._is_slow_start_told = True
                return self._deliver(incoming)
            now = time.monotonic()
            if now - looked_at >= _LOOK_S:
                self._look()
                looked_at = now
            self._pool.transport.wait(self._awaited(), _LOOK_S)
        raise StopIteration

    def close(self) -> None:
        """Ends the waiting for items; the pool lives on."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("This MultiLoader was closed while its item was waited for.")
        self._pool.check_owner()

    def _awaited(self) -> list[int]:
        return [self._turns[0]] if self._in_order else list(self._turns)

    def _take(self) -> Incoming | None:
        """Returns the next message of this iteration, if it has come."""
        for worker in self._awaited():
            while (incoming := self._receive(worker)) is not None:
                if incoming.header.iteration == self._iteration:
                    return self._checked(worker, incoming)
                del incoming  # Of an iteration that was broken off; its slots are free again.
        return None

    def _receive(self, worker: int) -> Incoming | None:
        try:
            return self._pool.transport.receive(worker)
        except EOFError:
            self._check_open()
            dead = self._pool.find_dead({worker}, _DYING_S)
            if dead:
                raise WorkerError(self._faults.describe_deaths(dead)) from None
            raise self._lie(worker, "has closed its end and lives on") from None
        except MalformedMessage as reason:
            raise self._lie(worker, f"has sent something that is no message: {reason}") from None

    def _checked(self, worker: int, incoming: Incoming) -> Incoming:
        header = incoming.header
        if header.worker != worker:
            raise self._lie(worker, f"says that it is worker {header.worker}")
        came = self._num_came[worker]
        if header.number != came and header.kind != "failure":
            what = f"that its {header.number} items have all been sent" if header.kind == "end" else "otherwise"
            raise self._lie(worker, f"says {what}, and {came} have come")
        return incoming

    def _end(self, header: Header) -> None:
        worker = header.worker
        planned = None if self._num_planned is None else self._num_planned[worker]
        if planned is not None and header.number != planned:
            raise self._lie(worker, f"ended after {header.number} batches, and {planned} were planned")
        self._turns.remove(worker)

    def _deliver(self, incoming: Incoming) -> Any:
        header = incoming.header
        worker, now = header.worker, time.monotonic()
        try:
            item = ItemReader(incoming.buffers).read(header.tree)
            failure = _read_failure(item) if header.kind == "failure" else None
            if header.kind == "batch":
                item = self._rebuild(item)
        except (MalformedMessage, TypeError, KeyError) as reason:
            raise self._lie(worker, f"has sent something that is no item: {reason}") from None
        if failure is not None:
            raise failure.to_error(f"worker {worker} (pid {self._pool.pids[worker]})")
        self._num_came[worker] += 1
        self._pool.allow_more(worker, self._iteration)
        self._pool.context.metrics.add_hand_over(worker, max(0.0, now - max(header.ready_at, self._asked_at)))
        self.examples.append(header.num_examples)
        if self._in_order:
            self._turns.rotate(-1)
        else:  # Whoever has just delivered is asked last.
            self._turns.remove(worker)
            self._turns.append(worker)
        return item

    def _look(self) -> None:
        """Looks how the workers are while nothing comes.

        Raises:
            WorkerError: one has died.
            StallError: it has been too long.
        """
        dead = self._pool.find_dead(set(self._turns))
        if dead:
            raise WorkerError(self._faults.describe_deaths(dead))
        now, limit_s = time.monotonic(), self._faults.timeout_s
        if not self._is_slow_start_told and now - self._began_at >= _SLOW_START_S:
            self._is_slow_start_told = True
            _logger.info("%s", self._faults.describe_slow_start(_SLOW_START_S))
        if limit_s is not None and now - self._asked_at >= limit_s:
            raise StallError(self._faults.describe_stall(self._pool.pids, sum(self._num_came.values())))

    def _lie(self, worker: int, what: str) -> WorkerError:
        return WorkerError(self._faults.describe_lie(worker, self._pool.pids[worker], what))


def _read_failure(told: Any) -> Failure:
    if not isinstance(told, dict) or not all(isinstance(one, str) for one in told.values()):
        raise MalformedMessage("a failure says nothing")
    return Failure(**told)
