"""What a ForeignReader's workers run within torch's DataLoader: their start, a measured dataset, packed batches."""

import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots, SlotPacking
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, stagger_first_batch
from tfds_torch.torch_data.nested import count_examples
from tfds_torch.torch_data.tensor_codec import pack
from tfds_torch.torch_data.worker_info import fill_worker_info

_LONGEST_MESSAGE = 2048  # Bytes. A pipe takes that whole: a worker that is killed leaves no half of one.


@dataclass(frozen=True)
class WorkerContext:
    """What the processes of a reader share. Travels to workers.

    Attributes:
        metrics: to which they report.
        output: what they write to standard error.
        slots: in which batches travel; None: there are none.
    """

    metrics: StageMetrics
    output: WorkerOutput
    slots: SharedSlots | None


class WorkerStart:
    """What a worker does before it reads; the `worker_init_fn` of torch's loader. Picklable.

    Args:
        context: of the reader.
        initialise: the user's own function, called last with the worker's number.
    """

    def __init__(self, context: WorkerContext, initialise: Callable[[int], None] | None) -> None:
        self.context, self.initialise = context, initialise

    def __call__(self, worker: int) -> None:
        """Prepares this process, a worker of that number.

        Raises:
            WorkerError: the user's function failed.
        """
        init_worker(worker, self.context.metrics, self.context.output, self.context.slots)
        info = torch.utils.data.get_worker_info()
        if info is not None and isinstance(info.dataset, MeasuredMap | MeasuredIterable):
            fill_worker_info(info.id, info.num_workers, info.seed, info.dataset.dataset)
        if self.initialise is None:
            return
        try:
            self.initialise(worker)
        except Exception as error:
            failure = Failure.of(error)
            raise WorkerError(
                f"worker_init_fn failed in worker {worker} (pid {os.getpid()}): {failure.message}\n{failure.trace}"
            ) from None


class MeasuredMap(torch.utils.data.Dataset[Any]):
    """A map-style dataset whose fetching is measured, and whose errors leave workers as `Failure`."""

    def __init__(self, dataset: Any, metrics: StageMetrics) -> None:
        self.dataset, self.metrics = dataset, metrics

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._fetch(lambda: self.dataset[index])

    def __getitems__(self, indices: list[Any]) -> Any:
        """Returns a batch's examples; torch calls it."""
        fetch_all = getattr(self.dataset, "__getitems__", None)
        if fetch_all:
            found = self._fetch(lambda: fetch_all(indices))
        else:
            found = self._fetch(lambda: [self.dataset[index] for index in indices])
        return [found] if isinstance(found, Failure) else found

    def _fetch(self, fetch: Callable[[], Any]) -> Any:
        start = time.monotonic()
        try:
            return fetch()
        except StopIteration as error:  # It would pass for the end of the epoch.
            if torch.utils.data.get_worker_info() is None:
                raise WorkerError(f"{type(self.dataset).__name__} raised StopIteration for an index it has.") from error
            return Failure.of(error)
        except Exception as error:
            if torch.utils.data.get_worker_info() is None:
                raise
            return Failure.of(error)
        finally:
            self.metrics.add("fetch", time.monotonic() - start)


class MeasuredIterable(torch.utils.data.IterableDataset[Any]):
    """An iterable dataset whose fetching is measured, and whose errors leave workers as `Failure`."""

    def __init__(self, dataset: Any, metrics: StageMetrics) -> None:
        self.dataset, self.metrics = dataset, metrics

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        try:
            items = iter(self.dataset)
        except Exception as error:
            if info is None:
                raise
            items = iter([Failure.of(error)])
        self.metrics.note_begun()
        return _Items(items, self.metrics) if info is None else _WorkerItems(items, self.metrics, info.id)


class _Items(Iterator[Any]):
    """Yields the items of an iterator, and measures how long each one takes."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics) -> None:
        self._items, self._metrics = items, metrics

    def __next__(self) -> Any:
        start = time.monotonic()
        try:
            return next(self._items)
        finally:
            self._metrics.add("fetch", time.monotonic() - start)


class _WorkerItems(_Items):
    """Yields them in a worker, where an error is an item that comes again and again: it must fill a batch."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics, worker: int) -> None:
        super().__init__(items, metrics)
        self._worker, self._is_first = worker, True
        self._failure: Failure | None = None

    def __next__(self) -> Any:
        if self._is_first:
            self._is_first = False
            stagger_first_batch(self._metrics, self._worker)
        if self._failure is None:
            try:
                item = super().__next__()
            except StopIteration:
                self._metrics.note_started()
                self._metrics.note_done()
                raise
            except Exception as error:
                item = Failure.of(error)
            if not isinstance(item, Failure):
                return item
            self._failure = item
            self._metrics.note_started()
        return self._failure


@dataclass(slots=True)
class Delivery:
    """A batch, and how it came.

    Attributes:
        batch: the batch, or the `Failure` in its place.
        worker: that made it; None: this process.
        num_examples: in it.
        ready_at: when it was ready, by the machine's clock, seconds.
        received_at: when it arrived, likewise.
    """

    batch: Any
    worker: int | None
    num_examples: int
    ready_at: float = 0.0
    received_at: float = 0.0


class PackingCollate:
    """Collates, measures, and packs a worker's batches; the `collate_fn` of torch's loader. Picklable.

    Args:
        collate: the user's, or torch's.
        is_batching: whether it gets lists of examples; else the dataset's items.
        context: of the reader.
    """

    def __init__(self, collate: Callable[[Any], Any], is_batching: bool, context: WorkerContext) -> None:
        self.collate, self.is_batching = collate, is_batching
        self.metrics, self.slots = context.metrics, context.slots

    def __call__(self, rows: Any) -> Any:
        """Returns a `Delivery`, packed where this is a worker."""
        info, start = torch.utils.data.get_worker_info(), time.monotonic()
        if info is None:
            return self._note_ready(self._collate(rows, None), start)
        failure = rows[-1] if self.is_batching and isinstance(rows, list) and rows else rows
        if not isinstance(failure, Failure):
            try:
                return _Packed(self._note_ready(self._collate(rows, info.id), start), self.slots)
            except Exception as error:
                failure = Failure.of(error)
        return _Packed(Delivery(failure, info.id, 0, time.monotonic()), self.slots)

    def _collate(self, rows: Any, worker: int | None) -> Delivery:
        try:
            batch = self.collate(rows)
        except StopIteration as error:  # It would pass for the end of the epoch.
            raise WorkerError(f"The collate_fn {self.collate!r} raised StopIteration.") from error
        return Delivery(batch, worker, len(rows) if self.is_batching else count_examples(batch))

    def _note_ready(self, delivery: Delivery, start: float) -> Delivery:
        delivery.ready_at = time.monotonic()
        self.metrics.add("collate", delivery.ready_at - start)
        self.metrics.add_batch(delivery.num_examples)
        return delivery


class _Packed:
    """A batch on its way. It is pickled here, where an error can still be reported: torch's queue would drop it.

    Args:
        delivery: the batch.
        slots: of the worker; None: there are none.
    """

    def __init__(self, delivery: Delivery, slots: SharedSlots | None) -> None:
        packing = SlotPacking(slots)
        pickled = pack(delivery, packing)
        place = packing.place(pickled.nbytes) if pickled.nbytes > _LONGEST_MESSAGE else None
        content: bytes | tuple[int, int, int] = (0, 0, 0)
        if slots is None or place is None:
            content = bytes(pickled)
        else:
            slot, offset = place
            slots.bytes_of(slot)[offset : offset + pickled.nbytes] = np.frombuffer(pickled, np.uint8)
            content = slot, offset, pickled.nbytes
        self._parts = content, packing.finish(), "" if slots is None else slots.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


def _unpack(content: bytes | tuple[int, int, int], numbers: tuple[int, ...], name: str) -> Delivery:
    """Returns what was packed: pickled bytes, or their place in a slot; and the slots of its tensors."""
    # All of them first: none is free before the whole batch is there.
    received = {slot: SharedSlots.named(name).receive(slot) for slot in numbers}
    if not isinstance(content, bytes):
        slot, offset, size = content
        content = bytes(received[slot][offset : offset + size].data)
    delivery: Delivery = pickle.loads(content)  # noqa: S301 (from our own worker, over a private pipe)
    delivery.received_at = time.monotonic()
    return delivery
