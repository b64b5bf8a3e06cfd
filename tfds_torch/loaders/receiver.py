"""One iteration of a loader: its items in order, a dead or stuck worker as an error, and how much the loop took."""

import hashlib
import logging
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfds_torch.errors import ConfigError, StallError, WorkerError
from tfds_torch.loaders.pool import WorkerPool
from tfds_torch.loaders.transport import END, FAILURE, Message, ProtocolError
from tfds_torch.loaders.wire_items import ItemWriter
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.plan.cursor import Position
from tfds_torch.runtime.metrics import LoaderMetrics
from tfds_torch.runtime.one_thread import close_iterator
from tfds_torch.runtime.worker_faults import WorkerFaults

_LOOK_S = 0.2
_DYING_S = 1.0
_SLOW_START_S = 5.0
_NUM_COMPARED = 3  # Of each worker's first items.
_MOST_COMPARED = 1 << 12  # Of an array's first values.

_logger = logging.getLogger(__name__)


class ItemReceiver(Iterator[WorkerBatch]):
    """Yields the items of an iteration of a pool that has just begun, to one thread.

    Workers take turns; without `in_order`, items come as they arrive. `num_planned` counts the items of each worker,
    where that is known; `repeated` looks at the items of a source that may give them to several workers.
    """

    def __init__(
        self,
        pool: WorkerPool,
        iteration: int,
        faults: WorkerFaults,
        *,
        in_order: bool = True,
        num_planned: Mapping[int, int] | None = None,
        repeated: "RepeatedItems | None" = None,
    ) -> None:
        self._pool, self._iteration, self._faults, self._in_order = pool, iteration, faults, in_order
        self._num_planned, self._repeated = num_planned, repeated
        self._turns = deque(range(pool.num_workers))  # The workers that have not ended.
        self._num_came = dict.fromkeys(self._turns, 0)
        self._began_at = self._asked_at = time.monotonic()
        self._is_slow_start_reported = False
        self._is_closed = False

    def __next__(self) -> WorkerBatch:
        self._asked_at = looked_at = time.monotonic()
        while self._turns:
            self._check_open()
            received = self._take()
            if received is not None:
                if received.kind == END:
                    self._end(received.worker)
                    continue
                self._is_slow_start_reported = True
                return self._deliver(received)
            now = time.monotonic()
            if now - looked_at >= _LOOK_S:
                self._look()
                looked_at = now
            self._pool.transport.wait(self._awaited(), _LOOK_S)
        raise StopIteration

    def close(self) -> None:
        """End the waiting for items; the pool lives on."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("This loader was closed while its batch was waited for.")

    def _awaited(self) -> list[int]:
        return [self._turns[0]] if self._in_order else list(self._turns)

    def _take(self) -> Message | None:
        """Return the next message of this iteration, if it has come."""
        for worker in self._awaited():
            while (received := self._receive(worker)) is not None:
                if received.iteration == self._iteration:
                    return self._checked(received)
                del received  # Of an iteration that was broken off; its slots are free again.
        return None

    def _receive(self, worker: int) -> Message | None:
        try:
            return self._pool.transport.receive(worker)
        except EOFError:
            self._check_open()
            dead = self._pool.find_dead({worker}, _DYING_S)
            if dead:
                raise WorkerError(self._faults.describe_deaths(dead)) from None
            raise self._protocol_error(worker, "has closed its end of the pipe") from None
        except ProtocolError as reason:
            raise self._protocol_error(worker, f"sent {reason}") from None

    def _checked(self, received: Message) -> Message:
        came = self._num_came[received.worker]
        if received.number != came and received.kind != FAILURE:
            raise self._protocol_error(received.worker, f"sent item {received.number} after {came} items")
        return received

    def _end(self, worker: int) -> None:
        came = self._num_came[worker]
        if self._num_planned is not None and came != self._num_planned[worker]:
            raise self._protocol_error(
                worker, f"ended after {came} batches, and {self._num_planned[worker]} were planned"
            )
        self._turns.remove(worker)

    def _deliver(self, received: Message) -> WorkerBatch:
        worker, now = received.worker, time.monotonic()
        if received.kind == FAILURE:
            raise received.item.to_error(f"worker {worker} (pid {self._pool.pids[worker]})")
        self._num_came[worker] += 1
        self._pool.allow_more(worker, self._iteration)
        self._pool.context.metrics.add_hand_over(worker, max(received.ready_at, self._asked_at), now)
        self._turns.remove(worker)  # The worker that has just delivered is asked last.
        self._turns.append(worker)
        if self._repeated is not None:
            self._repeated.add(worker, received.item)
        return WorkerBatch(received.item, received.num_examples)

    def _look(self) -> None:
        """Check the workers while nothing comes."""
        dead = self._pool.find_dead(set(self._turns))
        if dead:
            raise WorkerError(self._faults.describe_deaths(dead))
        now, limit_s = time.monotonic(), self._faults.timeout_s
        if not self._is_slow_start_reported and now - self._began_at >= _SLOW_START_S:
            self._is_slow_start_reported = True
            _logger.info("%s", self._faults.describe_slow_start(_SLOW_START_S))
        if limit_s is not None and now - self._asked_at >= limit_s:
            raise StallError(self._faults.describe_stall(self._pool.pids, sum(self._num_came.values())))

    def _protocol_error(self, worker: int, what: str) -> WorkerError:
        return WorkerError(self._faults.describe_protocol_error(worker, self._pool.pids[worker], what))


class RepeatedItems:
    """Warns once where two workers begin with the same items, one after the other. For one thread.

    Args:
        name: the name of the source.
        advice: a sentence that says how each worker can read its own share.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self._first: dict[int, list[bytes]] = {}  # Worker -> digests of its first items.
        self._is_over = False

    def add(self, worker: int, item: Any) -> None:
        """Take the next item of a worker."""
        own = self._first.setdefault(worker, [])
        if self._is_over or len(own) == _NUM_COMPARED:
            return
        try:
            own.append(_digest(item))
        except ConfigError:  # Its content is not looked into.
            self._is_over = True
            return
        same = [other for other, digests in self._first.items() if other != worker and digests == own]
        if same and len(set(own)) == _NUM_COMPARED:  # Items that are all alike tell nothing.
            self._is_over = True
            warnings.warn(
                f"Workers {same[0]} and {worker} began with the same {_NUM_COMPARED} items of {self._name}: where "
                f"each of them reads all of it, every item comes as many times as there are workers. {self._advice}",
                UserWarning,
                stacklevel=5,
            )


def _digest(item: Any) -> bytes:
    """Return a digest of an item's values, of large arrays the first ones; raise ConfigError for other values."""
    writer = ItemWriter()
    digest = hashlib.blake2b(repr(writer.write(item)).encode("utf-8", "surrogatepass"), digest_size=16)
    for part in writer.parts:
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        for piece in part.pieces:
            digest.update(piece.flat[:_MOST_COMPARED].tobytes())
    return digest.digest()


class LoaderIteration(Iterator[Any]):
    """Yields batches, and counts those that the training loop has got.

    Args:
        batches: yielded one by one; each comes with the number of its examples.
        metrics: counts examples and times.
        position: where the iteration began; counts the batches of the iteration.
        num_expected: batches of an exact plan; None: unknown.
        on_end: called once: True where a new iteration may use the same processes.
        on_delivery: called after each batch, once it is counted; None: nothing is.
        on_exhausted: called when the last batch has been delivered and another one is asked for.
    """

    def __init__(
        self,
        batches: Iterator[tuple[Any, int]],
        metrics: LoaderMetrics,
        position: Position,
        num_expected: int | None,
        on_end: Callable[[bool], None],
        on_delivery: Callable[[], None] | None,
        on_exhausted: Callable[[], None],
    ) -> None:
        self._batches: Iterator[tuple[Any, int]] | None = batches
        self._metrics, self._owner = metrics, os.getpid()
        self._position, self._num_expected = position, num_expected
        self._on_end, self._on_delivery, self._on_exhausted = on_end, on_delivery, on_exhausted
        self._is_replaced = False
        metrics.note_iteration()

    def __next__(self) -> Any:
        if self._batches is None:
            if self._is_replaced:
                raise ConfigError(
                    "This iteration ended when another one of the same loader began, or when it was closed. A loader "
                    "has one iteration at a time: make a second loader for a second one."
                )
            raise StopIteration
        if os.getpid() != self._owner:
            raise ConfigError(
                f"This iteration belongs to the process that began it (pid {self._owner}), and this one (pid "
                f"{os.getpid()}) was forked from it: it would take batches away from it. Begin another iteration "
                f"here, with iter(loader)."
            )
        asked_at = self._metrics.enter()
        try:
            batch, num_examples = next(self._batches)
        except StopIteration:
            self._metrics.add_waiting(asked_at)
            self._end(can_go_on=True)
            self._position.has_ended = True
            self._on_exhausted()
            if self._num_expected not in (None, self._position.delivered):
                raise WorkerError(
                    f"The workers ended after {self._position.delivered} batches, and {self._num_expected} were "
                    f"planned. A transform or collate_fn that drops examples cannot be used with an ImageDataset."
                ) from None
            raise
        except BaseException:
            self._metrics.add_waiting(asked_at)
            self._end(can_go_on=False)
            raise
        self._position.delivered += 1
        self._metrics.leave(asked_at, num_examples)
        if self._on_delivery is not None:
            self._on_delivery()
        return batch

    def replace(self) -> None:
        """End the iteration because another one begins."""
        if self._batches is not None:
            self._is_replaced = True
            self._end(can_go_on=True)

    def close(self) -> None:
        """End the iteration; batches that were read ahead are dropped."""
        self._end(can_go_on=True)

    def _end(self, can_go_on: bool) -> None:
        batches, self._batches = self._batches, None
        if batches is None:
            return
        self._metrics.note_iteration()
        try:
            close_iterator(batches)
        finally:
            self._on_end(can_go_on)

    def __del__(self) -> None:
        if hasattr(self, "_is_replaced"):
            self._end(can_go_on=True)
