"""ForeignReader: datasets that are not ours, read by torch's DataLoader over its public interface, and watched."""

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_convert

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.plan.cursor import Start
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.pickling import unpicklable
from tfds_torch.runtime.processes import interrupts_held
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.spawned_process import with_reports
from tfds_torch.runtime.watchdog import Watchdog
from tfds_torch.runtime.worker_faults import ReadingNames, WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.torch_data.default_collation import DefaultCollation
from tfds_torch.torch_data.foreign_processes import ForeignWorkers, silence_torch
from tfds_torch.torch_data.foreign_worker import (
    Delivery,
    MeasuredIterable,
    MeasuredMap,
    PackingCollate,
    WorkerContext,
    WorkerStart,
)
from tfds_torch.torch_data.loader_options import LoaderOptions, is_iterable

_LARGEST_BATCH_BYTES = 1 << 27  # Of address space, not of memory; torch carries larger ones.
_OTHER_SLOTS = 6  # Batches on their way, and some that the training loop holds.


class ForeignReader:
    """Reads the batches of a dataset that is not an ImageDataset, as `PoolReader`. For one thread.

    torch's loader waits for a batch without a limit, looks for dead workers every five seconds, raises RuntimeError for
    them wherever the main thread is, and waits five seconds for each worker that does not end. Here, a watchdog limits
    the waiting and looks every second, torch's signal handler is silent about these workers, and those that do not end
    within a second are killed.

    Args:
        dataset: map-style, an IterableDataset, or a plain iterable (without workers).
        options: how it is read; `check_dataset` has compared them with the dataset.
        num_workers: processes that read; 0: this process does.
        generator: draws what torch draws, over all iterations; None: torch's own.

    Raises:
        ConfigError: what the workers need cannot be pickled.
        WorkerError: a worker ended while they were started.
    """

    def __init__(
        self, dataset: Any, options: LoaderOptions, num_workers: int, generator: torch.Generator | None = None
    ) -> None:
        self.metrics = StageMetrics(num_workers)
        self._dataset, self._options, self._owner = dataset, options, os.getpid()
        self._is_closed, self._num_begun, self._asked_at = False, 0, 0.0
        self._processes: ForeignWorkers | None = None
        self._watchdog: Watchdog | None = None
        output, names, timeout_s = WorkerOutput(num_workers), ReadingNames(type(dataset).__name__), options.timeout_s
        context = WorkerContext(self.metrics, output, _make_slots(num_workers, options.prefetch_batches))
        if not num_workers:
            self._torch: list[Any] = [_make_torch_loader(dataset, options, context, generator, None)]
            if timeout_s is not None:
                faults = WorkerFaults(names, self.metrics, output, timeout_s, can_import_only=False)
                self._watchdog = Watchdog(timeout_s, faults.describe_own_stall)
            return
        start_context = _start_context(options.multiprocessing_context, output, num_workers)
        method = start_context.get_start_method() or ""
        faults = WorkerFaults(names, self.metrics, output, timeout_s, can_import_only=method != "fork")
        self._processes = workers = ForeignWorkers(start_context, faults)
        self._torch = workers.handles
        self._watchdog = Watchdog(timeout_s, workers.describe_waiting, workers.has_crashed)
        self._start(_make_torch_loader(dataset, options, context, generator, workers.context), method)

    def _start(self, loader: "DataLoader[Any]", method: str) -> None:
        """Starts the workers, by a method of multiprocessing."""
        options = self._options
        inputs = {"collate_fn": options.collate_fn, "worker_init_fn": options.worker_init_fn, "dataset": self._dataset}
        try:
            with warnings.catch_warnings(), interrupts_held(method):
                # torch's warning does not name the argument.
                warnings.filterwarnings("ignore", "Got pickle error when attempting to start", UserWarning)
                self._torch[:] = [loader, iter(loader)]
        except BaseException as error:
            _forget_frames(error)
            self.close()
            if isinstance(error, TfdsTorchError) or not isinstance(error, Exception):
                raise
            if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
                raise WorkerError(f"A worker ended while the others were started: {error}") from error
            named = {f"create_loader: {name}": value for name, value in inputs.items()}
            found = None if method == "fork" else unpicklable(named, error, repr(method))
            if found is None:
                raise
            raise found from error
        silence_torch()

    @property
    def pids(self) -> list[int]:
        """The worker processes, by the worker's number; empty where there are none."""
        return [] if self._processes is None or self._is_closed else self._processes.pids

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may begin: it is open, its workers live, and this is no forked process."""
        if self._is_closed or os.getpid() != self._owner:
            return False
        return self._processes is None or (self._options.persistent_workers and self._processes.are_alive)

    def begin(self, start: Start | None = None) -> Iterator[WorkerBatch]:
        """Begins an iteration; the one before is over. That of new workers began when they were started.

        Args:
            start: None: such a dataset plans no batches.

        Raises:
            as `next_batch`, but for the end.
        """
        if self._is_closed:
            raise WorkerError("This loader's processes have ended.")
        if self._num_begun or self._processes is None:
            self._watched(self._begin_again)
        if self._processes is not None:
            self._processes.num_received = 0
        self._num_begun += 1
        name, is_collated = type(self._dataset).__name__, _is_collated(self._options)
        return _Batches(self, _reported_length(self._dataset), name, is_collated)

    def next_batch(self) -> WorkerBatch:
        """Returns the next batch of the iteration.

        Raises:
            StopIteration: there is none.
            ConfigError: the reader was closed meanwhile.
            WorkerError: a worker died.
            StallError: it did not come in time.
            Exception: what was raised in a worker, as `Failure.to_error`; or here, without workers.
        """
        if self._is_closed:
            raise StopIteration
        found: Delivery = self._watched(self._take)
        if self._processes is not None:
            self._processes.num_received += 1
            worker = found.worker or 0
            if isinstance(found.batch, Failure):
                raise found.batch.to_error(f"worker {worker} (pid {self.metrics.pid(worker)})")
            self.metrics.add_hand_over(worker, max(0.0, found.received_at - max(found.ready_at, self._asked_at)))
        return WorkerBatch(found.batch, found.num_examples)

    def close(self) -> None:
        """Ends the workers; the reader cannot be used any more."""
        self._is_closed = True
        if self._watchdog is not None:
            self._watchdog.close()
        if self._processes is None:
            self._torch.clear()
        else:
            self._processes.end()

    def __del__(self) -> None:
        if hasattr(self, "_torch"):
            self.close()

    def _begin_again(self) -> None:
        self._torch[1:] = [iter(self._torch[0])]

    def _take(self) -> Any:
        return next(self._torch[1])

    def _watched(self, step: Callable[[], Any]) -> Any:
        """Returns what a step of torch's loader returns, within `timeout_s`."""
        self._asked_at = time.monotonic()
        try:
            return step() if self._watchdog is None else self._watchdog.run(step)
        except StopIteration:
            raise
        except BaseException as error:
            workers = self._processes
            if workers is None:
                raise
            _forget_frames(error)
            if not isinstance(error, Exception):  # Such as Ctrl-C.
                raise
            if self._is_closed:
                raise ConfigError("This Loader was closed while its batch was waited for.") from None
            dead = workers.find_dead(error)
            if not dead:
                raise
            raise WorkerError(workers.faults.describe_deaths(dead)) from error.with_traceback(None)


class _Batches(Iterator[WorkerBatch]):
    """The batches of one iteration; it cannot be closed, as its reader may be used again.

    Args:
        reader: whose batches they are.
        length: that an IterableDataset has reported; more items are warned of once. None: it has reported none.
        name: of the dataset.
        is_collated: whether batches are made of the dataset's items; else they come as they are.
    """

    def __init__(self, reader: ForeignReader, length: int | None, name: str, is_collated: bool) -> None:
        self._reader, self._length, self._name, self._is_collated = reader, length, name, is_collated
        self._num_items = 0

    def __next__(self) -> WorkerBatch:
        found = self._reader.next_batch()
        if self._length is not None:
            self._num_items += found.num_examples if self._is_collated else 1
            if self._num_items > self._length:
                self._warn(self._length)
        return found

    def _warn(self, length: int) -> None:
        self._length, num_workers = None, self._reader.metrics.num_workers
        shares = (
            f" Each of the {num_workers} workers may read more than its share: the dataset's __iter__ must ask "
            f"torch.utils.data.get_worker_info() for it."
            if num_workers > 1
            else ""
        )
        warnings.warn(
            f"Length of IterableDataset {self._name} was reported to be {length} (by its __len__), but "
            f"{self._num_items} items have been fetched, and more may come. len(loader), and what counts with it, such "
            f"as progress bars and schedules, are too small.{shares}",
            UserWarning,
            stacklevel=4,
        )


def count_batches(dataset: Any, options: LoaderOptions) -> int:
    """Returns the batches of an epoch, as torch's DataLoader counts them.

    Raises:
        TypeError: an IterableDataset without a length.
    """
    context = WorkerContext(StageMetrics(0), WorkerOutput(0), None)
    return len(_make_torch_loader(dataset, options, context, None, None))


def _make_torch_loader(
    dataset: Any,
    options: LoaderOptions,
    context: WorkerContext,
    generator: torch.Generator | None,
    start_context: BaseContext | None,
) -> "DataLoader[Any]":
    """Returns torch's loader, whose items are `Delivery` objects.

    Args:
        dataset: that is read.
        options: of our loader.
        context: what its processes share.
        generator: draws what torch draws.
        start_context: that starts workers; None: without them.
    """
    is_collated = _is_collated(options)
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
            "worker_init_fn": WorkerStart(context, options.worker_init_fn),
        }
    measured = MeasuredIterable if is_iterable(dataset) else MeasuredMap
    collate = options.collate_fn or (DefaultCollation(dataset) if is_collated else default_convert)
    return DataLoader(
        measured(dataset, context.metrics),
        **batching,
        collate_fn=PackingCollate(collate, is_collated, context),
        generator=generator,
        **of_workers,
    )


def _is_collated(options: LoaderOptions) -> bool:
    """Whether batches are made of the dataset's items; else these come as they are."""
    return options.batch_size is not None or options.batch_sampler is not None


def _start_context(asked: Any, output: WorkerOutput, num_workers: int) -> BaseContext:
    """Returns the context of multiprocessing in which workers start."""
    context: BaseContext = asked if isinstance(asked, BaseContext) else get_context(asked)
    return with_reports(context, output, num_workers)


def _make_slots(num_workers: int, prefetch_batches: int) -> SharedSlots | None:
    """Returns slots for the batches of workers; None: there are no workers, or the system has no such memory."""
    if not num_workers:
        return None
    try:
        return SharedSlots(num_workers, prefetch_batches + _OTHER_SLOTS, _LARGEST_BATCH_BYTES)
    except (AttributeError, OSError, ValueError):  # Another system than Linux, or no address space for so much.
        return None


def _reported_length(dataset: Any) -> int | None:
    """Returns the `len` of an IterableDataset; None: it has none, or the dataset is of another kind."""
    if not isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)  # type: ignore[arg-type] # It need not have one.
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _forget_frames(error: BaseException | None) -> None:
    """Empties the frames of an error and of those behind it: they are torch's, and hold its iterator."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
