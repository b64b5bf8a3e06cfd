"""What a loader's worker does: it gets ready, and reads a dataset, measured and with errors that can leave it."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils import worker as torch_worker

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.iteration_starts import IterationStarts
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import init_worker, seed_random_and_numpy, stagger_first_batch
from tfds_torch.torch_data.image_dataset import ImageDataset


@dataclass(frozen=True)
class WorkerContext:
    """What the processes of a loader share. Travels to workers.

    Attributes:
        metrics: what they report to.
        output: what they write to standard error.
        slots: in which batches are handed over; None: there are none.
        starts: where the iterations of an ImageDataset begin; None for another dataset.
        seed: of the generators of workers over an ImageDataset; None: they are left as torch seeds them.
    """

    metrics: StageMetrics
    output: WorkerOutput
    slots: SharedSlots | None
    starts: IterationStarts | None
    seed: int | None


class WorkerStart:
    """What a worker does before it reads; the `worker_init_fn` of torch's loader. Picklable.

    Args:
        context: of the loader.
        initialise: the user's own function, called last with the worker's number.
    """

    def __init__(self, context: WorkerContext, initialise: Callable[[int], None] | None) -> None:
        self.context, self.initialise = context, initialise

    def __call__(self, worker: int) -> None:
        """Prepares this process, a worker of that number."""
        init_worker(worker, self.context.metrics, self.context.output, self.context.slots)
        _show_own_dataset()
        if self.initialise is None:
            return
        try:
            self.initialise(worker)
        except Exception as error:
            failure = Failure.of(error)
            raise WorkerError(
                f"worker_init_fn failed in worker {worker} (pid {os.getpid()}): {failure.message}\n{failure.trace}"
            ) from None


def _show_own_dataset() -> None:
    """Lets `get_worker_info().dataset` be the user's dataset; torch has no public way."""
    info = torch_worker._worker_info
    if info is not None and isinstance(info.dataset, TimedMap | TimedIterable):
        fields = {name: getattr(info, name) for name in ("id", "num_workers", "seed")}
        torch_worker._worker_info = type(info)(**fields, dataset=info.dataset.dataset)


class TimedMap(torch.utils.data.Dataset[Any]):
    """A map-style dataset whose fetching is measured, and whose errors come as `Failure` out of workers."""

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


class TimedIterable(torch.utils.data.IterableDataset[Any]):
    """An iterable dataset whose fetching is measured, and whose errors come as `Failure` out of workers.

    Args:
        dataset: what is iterated; an ImageDataset where the context has starts.
        context: of the loader.
    """

    def __init__(self, dataset: Any, context: WorkerContext) -> None:
        self.dataset, self.context = dataset, context
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        number, self._num_begun = self._num_begun, self._num_begun + 1
        metrics = self.context.metrics
        is_worker = torch.utils.data.get_worker_info() is not None
        try:
            # At once, not with the first item: by then, another iteration may have begun.
            items = self._begin(number)
        except Exception as error:
            if not is_worker:
                raise
            items = iter([Failure.of(error)])
        metrics.note_begun()
        return _InWorker(items, metrics) if is_worker else _Timed(items, metrics)

    def _begin(self, number: int) -> Iterator[Any]:
        """Returns what this process reads of an iteration."""
        context = self.context
        if context.starts is None:
            return iter(self.dataset)
        dataset: ImageDataset = self.dataset
        epoch, start_batch = context.starts.read(number)
        worker = torch.utils.data.get_worker_info()
        if worker is not None and context.seed is not None:
            seed_generators(context.seed, epoch, start_batch, dataset.find_rank().rank, worker.id)
        return dataset.read(epoch, start_batch, context.metrics, context.slots)


class _Timed(Iterator[Any]):
    """Yields the items of an iterator; dropping it drops that."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics) -> None:
        self._items, self._metrics = items, metrics

    def __next__(self) -> Any:
        start = time.monotonic()
        try:
            return next(self._items)
        finally:
            self._metrics.add("fetch", time.monotonic() - start)


class _InWorker(_Timed):
    """Yields them in a worker, where an error is an item that comes again and again: it must fill a batch."""

    _failure: Failure | None = None
    _is_first = True

    def __next__(self) -> Any:
        if self._is_first:
            self._is_first = False
            if (info := torch.utils.data.get_worker_info()) is not None:
                stagger_first_batch(self._metrics, info.id)
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


def seed_generators(*numbers: int) -> None:
    """Seeds `random`, `numpy.random` and torch of this process with a few integers >= 0."""
    torch.manual_seed(seed_random_and_numpy(*numbers))
