"""Datasets as a loader reads them: measured, and with errors that can leave a worker."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.machine_share import usable_cores
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.torch_data.loading.position import IterationStarts

_LONGEST_TURN_S = 2.0  # Whatever keeps the others.
_TURN_PERIOD_S = 0.005


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
        dataset: what is iterated.
        metrics: what is reported to.
        starts: where iterations of an ImageDataset begin; None for another dataset.
    """

    def __init__(self, dataset: Any, metrics: StageMetrics, starts: IterationStarts | None) -> None:
        self.dataset, self.metrics, self.starts = dataset, metrics, starts
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        number, self._num_begun = self._num_begun, self._num_begun + 1
        is_worker = torch.utils.data.get_worker_info() is not None
        try:
            # At once, not with the first item: by then, another iteration may have begun.
            if self.starts is not None:
                items = self.starts.read(self.dataset, number, self.metrics)
            else:
                items = iter(self.dataset)
        except Exception as error:
            if not is_worker:
                raise
            items = iter([Failure.of(error)])
        self.metrics.note_begun()
        return _InWorker(items, self.metrics) if is_worker else _Timed(items, self.metrics)


class _Timed(Iterator[Any]):
    """Yields the items of an iterator; closing it closes that."""

    def __init__(self, items: Iterator[Any], metrics: StageMetrics) -> None:
        self._items, self._metrics = items, metrics

    def __next__(self) -> Any:
        start = time.monotonic()
        try:
            return next(self._items)
        finally:
            self._metrics.add("fetch", time.monotonic() - start)


class _InWorker(_Timed):
    """The same in a worker, where an error is an item that comes again and again: it must fill a batch."""

    _failure: Failure | None = None
    _is_first = True

    def __next__(self) -> Any:
        if self._is_first:
            self._is_first = False
            wait_for_turn(self._metrics)
        if self._failure is None:
            try:
                item = super().__next__()
            except StopIteration:
                self._metrics.note_started()
                raise
            except Exception as error:
                item = Failure.of(error)
            if not isinstance(item, Failure):
                return item
            self._failure = item
            self._metrics.note_started()
        return self._failure


def wait_for_turn(metrics: StageMetrics) -> None:
    """Lets workers of lower numbers make their first batches first, where there are more workers than cores.

    The loop takes a batch of each worker in turn: where all share the cores from the start, the first batch is as late
    as the last one. The cores are busy all the while.
    """
    info = torch.utils.data.get_worker_info()
    num_cores, stop = usable_cores().number, time.monotonic() + _LONGEST_TURN_S
    if info is None or info.num_workers <= num_cores or metrics.has_started(info.id):
        return
    while time.monotonic() < stop and sum(not metrics.has_started(worker) for worker in range(info.id)) >= num_cores:
        time.sleep(_TURN_PERIOD_S)
