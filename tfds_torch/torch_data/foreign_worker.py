"""The parts that a ForeignReader hands to torch's DataLoader: worker start, a measured dataset, packed batches."""

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_convert

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots, SlotPacking
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, stagger_first_batch
from tfds_torch.torch_data.default_collation import DefaultCollation
from tfds_torch.torch_data.loader_options import LoaderOptions, is_iterable
from tfds_torch.torch_data.nested import count_examples
from tfds_torch.torch_data.tensor_codec import pack
from tfds_torch.torch_data.worker_info import call_worker_init, fill_worker_info

_LARGEST_BATCH_BYTES = 1 << 27  # Of address space, not of memory; torch carries larger ones.
_OTHER_SLOTS = 6  # Batches on their way, and some that the training loop holds.
_LONGEST_MESSAGE = 2048  # Bytes. A pipe takes that whole: a worker that is killed leaves no half of one.


@dataclass(frozen=True)
class WorkerContext:
    """Everything that the processes of a reader share. Travels to workers."""

    metrics: StageMetrics
    output: WorkerOutput
    slots: SharedSlots | None  # In which batches travel.

    @classmethod
    def of(cls, num_workers: int, prefetch_batches: int = 0) -> "WorkerContext":
        """Return the context of a new reader; the arguments are those of LoaderOptions."""
        slots = None
        if num_workers:
            with suppress(AttributeError, OSError, ValueError):  # Not Linux, or no address space for so much.
                slots = SharedSlots(num_workers, prefetch_batches + _OTHER_SLOTS, _LARGEST_BATCH_BYTES)
        return cls(StageMetrics(num_workers), WorkerOutput(num_workers), slots)


def make_torch_loader(
    options: LoaderOptions,
    context: WorkerContext,
    generator: torch.Generator | None = None,
    start_context: BaseContext | None = None,
) -> "DataLoader[Any]":
    """Return torch's loader, whose items are `Delivery` objects; without a context of multiprocessing, no workers."""
    batching: dict[str, Any] = {"batch_sampler": options.batch_sampler}
    if options.batch_sampler is None:
        batching = {
            "batch_size": options.batch_size,
            "shuffle": options.shuffle or None,
            "sampler": options.sampler,
            "drop_last": options.drop_last,
        }
    of_workers: dict[str, Any] = {}
    if start_context is not None:
        of_workers = {
            "num_workers": context.metrics.num_workers,
            "prefetch_factor": options.prefetch_batches,
            "persistent_workers": options.persistent_workers,
            "multiprocessing_context": start_context,
            "worker_init_fn": partial(_start_worker, context, options.worker_init_fn),
        }
    dataset = options.dataset
    measured = MeasuredIterable if is_iterable(dataset) else MeasuredMap
    is_batching = is_collated(options)
    collate = options.collate or (DefaultCollation(dataset) if is_batching else default_convert)
    return DataLoader(
        measured(dataset, context.metrics),
        **batching,
        collate_fn=PackingCollate(collate, is_batching, context),
        generator=generator,
        **of_workers,
    )


def reported_length(dataset: Any) -> int | None:
    """Return the `len` of an IterableDataset; None where it has none, or for another kind of dataset."""
    if isinstance(dataset, IterableDataset):
        with suppress(TypeError, NotImplementedError, AttributeError):
            return len(dataset)  # type: ignore[arg-type] # It need not have one.
    return None


def is_collated(options: LoaderOptions) -> bool:
    """Return whether batches are made of the dataset's items; else these come as they are."""
    return options.batch_size is not None or options.batch_sampler is not None


def _start_worker(context: WorkerContext, initialise: Callable[[int], None] | None, worker: int) -> None:
    """Prepare this process, a worker of that number: the `worker_init_fn` of torch's loader."""
    init_worker(worker, context.metrics, context.output, context.slots)
    info = torch.utils.data.get_worker_info()
    if info is not None and isinstance(info.dataset, MeasuredMap | MeasuredIterable):
        fill_worker_info(info.id, info.num_workers, info.seed, info.dataset.dataset)
    call_worker_init(initialise, worker)


class MeasuredMap(Dataset[Any]):
    """A map-style dataset whose fetching is measured, and whose errors leave workers as `Failure`."""

    def __init__(self, dataset: Any, metrics: StageMetrics) -> None:
        self.dataset, self.metrics = dataset, metrics

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._fetch(lambda: self.dataset[index])

    def __getitems__(self, indices: list[Any]) -> Any:
        """Return a batch's examples; torch calls it."""
        fetch = getattr(self.dataset, "__getitems__", None) or (lambda numbers: [self.dataset[n] for n in numbers])
        found = self._fetch(lambda: fetch(indices))
        return [found] if isinstance(found, Failure) else found

    def _fetch(self, fetch: Callable[[], Any]) -> Any:
        start = time.monotonic()
        try:
            return fetch()
        except Exception as error:
            if torch.utils.data.get_worker_info() is not None:
                return Failure.of(error)
            if isinstance(error, StopIteration):  # It would pass for the end of the epoch.
                raise WorkerError(f"{type(self.dataset).__name__} raised StopIteration for an index it has.") from error
            raise
        finally:
            self.metrics.add("fetch", time.monotonic() - start)


class MeasuredIterable(IterableDataset[Any]):
    """An iterable dataset whose fetching is measured, and whose errors leave workers as `Failure`."""

    def __init__(self, dataset: Any, metrics: StageMetrics) -> None:
        self.dataset, self.metrics = dataset, metrics

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        if info is not None:
            return self._items_of_worker(info.id)
        items = iter(self.dataset)
        self.metrics.note_begun()
        return self._measured(items)

    def _measured(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield items, and measure how long each one takes."""
        while True:
            start = time.monotonic()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.metrics.add("fetch", time.monotonic() - start)
            yield item

    def _items_of_worker(self, worker: int) -> Iterator[Any]:
        """Yield the items in a worker, where an error is an item that comes again and again: it must fill a batch."""
        self.metrics.note_begun()
        stagger_first_batch(self.metrics, worker)
        failure = None
        try:
            yield from self._measured(iter(self.dataset))
        except Exception as error:
            failure = Failure.of(error)
        self.metrics.note_started()
        while failure is not None:
            yield failure
        self.metrics.note_done()


@dataclass(slots=True)
class Delivery:
    """A batch, and how it came.

    Attributes:
        batch: the batch, or the `Failure` in its place.
        worker: the number of the worker that made it; None: this process.
        num_examples: how many examples it has.
        ready_at: when it was ready, by the machine's clock, seconds.
        received_at: when it arrived, likewise.
    """

    batch: Any
    worker: int | None
    num_examples: int
    ready_at: float = 0.0
    received_at: float = 0.0


class PackingCollate:
    """Collates, measures, and packs a worker's batches; the `collate_fn` of torch's loader. Picklable."""

    def __init__(self, collate: Callable[[Any], Any], is_batching: bool, context: WorkerContext) -> None:
        self.collate, self.is_batching = collate, is_batching
        self.metrics, self.slots = context.metrics, context.slots

    def __call__(self, rows: Any) -> Any:
        """Return a `Delivery`, packed where this is a worker."""
        info = torch.utils.data.get_worker_info()
        if info is None:
            return self._deliver(rows, None)
        failure = rows[-1] if self.is_batching and isinstance(rows, list) and rows else rows
        if not isinstance(failure, Failure):
            try:
                return _Packed(self._deliver(rows, info.id), self.slots)
            except Exception as error:
                failure = Failure.of(error)
        return _Packed(Delivery(failure, info.id, 0, time.monotonic()), self.slots)

    def _deliver(self, rows: Any, worker: int | None) -> Delivery:
        start = time.monotonic()
        try:
            batch = self.collate(rows)
        except StopIteration as error:  # It would pass for the end of the epoch.
            raise WorkerError(f"The collate_fn {self.collate!r} raised StopIteration.") from error
        num_examples, ready_at = len(rows) if self.is_batching else count_examples(batch), time.monotonic()
        self.metrics.add("collate", ready_at - start)
        self.metrics.add_batch(num_examples)
        return Delivery(batch, worker, num_examples, ready_at)


class _Packed:
    """A batch on its way. It is pickled here, where an error can still be reported: torch's queue would drop it."""

    def __init__(self, delivery: Delivery, slots: SharedSlots | None) -> None:
        packing = SlotPacking(slots)
        pickled = pack(delivery, packing)
        place = packing.place(pickled.nbytes) if pickled.nbytes > _LONGEST_MESSAGE else None
        content: bytes | tuple[int, int, int]
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
    """Return the Delivery of pickled bytes, or of their place in a slot; `numbers` are the slots of its tensors."""
    # All of them first: none is free before the whole batch is there.
    received = {slot: SharedSlots.named(name).receive(slot) for slot in numbers}
    if not isinstance(content, bytes):
        slot, offset, size = content
        content = bytes(received[slot][offset : offset + size].data)
    delivery: Delivery = pickle.loads(content)  # noqa: S301 (from our own worker, over a private pipe)
    delivery.received_at = time.monotonic()
    return delivery
