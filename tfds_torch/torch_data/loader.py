"""Loader and create_loader: any dataset's batches, watched, measured, on their device; ours resume exactly."""

import logging
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import torch

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.receiver import WorkerBatch
from tfds_torch.parsers.reading_names import name_of, names_of
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.delivered import DeliveredBatches
from tfds_torch.plan.state import LoaderState
from tfds_torch.runtime.exit_closing import close_at_exit
from tfds_torch.runtime.loader_iteration import LoaderIteration
from tfds_torch.runtime.loader_metrics import LoaderMetrics
from tfds_torch.runtime.loader_stats import LoaderStats
from tfds_torch.runtime.pickling import unpicklable_is_named
from tfds_torch.runtime.worker_faults import ReadingNames
from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher
from tfds_torch.torch_data.foreign import ForeignReader, count_batches
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader_advice import find_num_workers, warn_of_foreign, warn_of_memory, warn_of_ranks
from tfds_torch.torch_data.loader_options import LoaderOptions
from tfds_torch.torch_data.loading.source import BatchSource, _start_method
from tfds_torch.torch_data.loading.torch_loader import TorchLoaderSetup
from tfds_torch.torch_data.loading.worker import WorkerContext
from tfds_torch.torch_data.own_iteration import is_position
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import is_distributed
from tfds_torch.torch_data.wrapped_datasets import unwrap

_RANKS_TIMEOUT_S = 60.0

_logger = logging.getLogger(__name__)


def create_loader(
    dataset: Any,
    num_workers: int | str = 0,
    device: str | torch.device | None = None,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
    dtype: torch.dtype | str | None = None,
    prefetch_batches: int = 2,
    timeout_s: float | None = 300.0,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: Any = None,
    drop_last: bool = False,
    collate_fn: Callable[[Any], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    persistent_workers: bool = True,
    multiprocessing_context: Any = None,
    in_order: bool = True,
    seed: int | None = None,
    check_ranks: bool = True,
    log_every: int | None = None,
    channels_last: bool = True,
) -> "Loader":
    """Returns a Loader over an ImageDataset, or over any other dataset of torch.

    Args:
        dataset: an ImageDataset, a map-style Dataset, an IterableDataset, or any iterable that can be read anew in
            every epoch, such as a Feeder's source; this process reads that (`num_workers=0`).
        num_workers: processes that read; 0: this process does; "auto": by cores, ranks and memory.
        device: where batches go, `prefetch_batches` ahead on CUDA; None: they stay as they come, on the CPU.
        mean: of each channel, where images go from 0 to 1; `DevicePrefetcher` normalises with it.
        std: likewise.
        dtype: of the images, as in `DevicePrefetcher`.
        prefetch_batches: batches that each worker reads ahead, >= 1, and batches ahead on the device.
        timeout_s: how long the training loop waits for a batch, seconds, worker start included; None: for ever. Without
            workers, and outside of the main thread, what waits in native code is logged and goes on.
        batch_size: None: the parser's, for an ImageDataset; another dataset's items come as they are.
        shuffle: whether a map-style dataset is shuffled anew in every epoch; an ImageDataset's parser plans its order.
        sampler: as in torch's DataLoader, for a map-style dataset.
        batch_sampler: as in torch's DataLoader, for a map-style dataset: the indices of every batch, in place of
            batch_size, shuffle, sampler and drop_last.
        drop_last: whether a short last batch is left out; an ImageDataset's parser has `remainder` for that.
        collate_fn: makes a batch of a list of examples; without batch_size (and for whole batches of an ImageDataset)
            gets what the dataset yields.
        worker_init_fn: called in each worker with its number, before it reads.
        persistent_workers: whether workers live from epoch to epoch, until `close`.
        multiprocessing_context: how workers start: "fork", "spawn", "forkserver" or a context; None: Python's default.
        in_order: must be True.
        seed: of `random`, `numpy.random` and torch in the workers, and of `shuffle`; None: an ImageDataset's own seed,
            else torch's generator. Workers over an ImageDataset are seeded anew in every epoch by (seed, epoch, first
            batch, rank, worker), others when they start. The training process's generators are left alone.
        check_ranks: whether the ranks of torch.distributed compare what they read before the first batch.
        log_every: batches after which a line of `stats()` is logged, level INFO; None: never.
        channels_last: whether normalised or moved images lie in channels_last memory.

    Raises:
        ConfigError: an argument that cannot work, alone or with the dataset.
    """
    options = LoaderOptions(
        num_workers=num_workers,
        device=device,
        mean=mean,
        std=std,
        dtype=dtype,
        prefetch_batches=prefetch_batches,
        timeout_s=timeout_s,
        batch_size=batch_size,
        shuffle=shuffle,
        sampler=sampler,
        batch_sampler=batch_sampler,
        drop_last=drop_last,
        collate_fn=collate_fn,
        worker_init_fn=worker_init_fn,
        persistent_workers=persistent_workers,
        multiprocessing_context=multiprocessing_context,
        in_order=in_order,
        seed=seed,
        check_ranks=check_ranks,
        log_every=log_every,
        channels_last=channels_last,
    )
    return Loader(dataset, options)


class Loader(Iterable[Any]):
    """Batches, for training loops: every `for` is an epoch.

    Over an ImageDataset its length is exact, its state counts what was delivered, and a state taken anywhere goes on
    exactly. Over any dataset, a worker that dies is a WorkerError within seconds, and a batch that does not come a
    StallError after `timeout_s`. What fails in a worker is raised here: with its own type where that needs no import
    (else a WorkerError), and with the worker's traceback.

    Every iteration is an epoch, also one that is broken off; over an ImageDataset, one of which no batch was taken is
    begun again. Batches of workers lie in memory that processes share: copy one before you fork a process that keeps
    it.

    One iteration at a time: a new one ends the one before. One that is broken off, dropped or failed leaves no process,
    but persistent workers, which `close`, the end of a `with` block, or dropping the loader ends. Workers end by
    themselves when this process is gone. Not thread-safe: iterate in one thread.

    Args:
        dataset: as in `create_loader`.
        options: how it is read.

    Raises:
        ConfigError: the options do not fit the dataset.
    """

    def __init__(self, dataset: Any, options: LoaderOptions = LoaderOptions()) -> None:  # noqa: B008 (frozen)
        self._source: Any = None
        self._iteration: Callable[[], LoaderIteration | None] = _nothing
        self._context: WorkerContext | None = None
        self._is_closed = False
        self.dataset = dataset
        self.options = options
        self.num_workers, self.num_workers_reason = find_num_workers(options.num_workers)
        self._setup = TorchLoaderSetup.of(dataset, options)
        self._delivered = DeliveredBatches()
        self._metrics = LoaderMetrics()
        self._must_check_ranks = options.check_ranks
        if options.has_device_stage:
            self._on_device(())  # What cannot work is said now.
        warn_of_foreign(dataset, options, self.num_workers)
        self._has_ranks = warn_of_ranks(dataset, options)
        warn_of_memory(dataset, self.num_workers, options.prefetch_batches)
        close_at_exit(self)

    @property
    def batch_size(self) -> int | None:
        """Examples of a batch; None: the dataset's items come as they are, or a batch sampler deals them out."""
        return self._setup.batch_size

    @property
    def worker_pids(self) -> list[int]:
        """The processes that read, by the worker's number; empty where none run."""
        return [] if self._source is None else self._source.pids

    def __len__(self) -> int:
        """Batches of an epoch: exact for an ImageDataset, else as torch's DataLoader says.

        Raises:
            TypeError: an IterableDataset without a length.
        """
        if self._is_ours:
            return int(self.dataset.plan().num_batches)
        return count_batches(self.dataset, self.options)

    def __iter__(self) -> Iterator[Any]:
        if self._is_closed:
            raise ConfigError("This Loader is closed: make a new one.")
        if (earlier := self._iteration()) is not None:
            earlier.replace()
        if not self._has_ranks:  # torch.distributed may have been initialised meanwhile.
            self._has_ranks = warn_of_ranks(self.dataset, self.options, stacklevel=3)
        self._check_ranks()
        began = self._begin_epoch()
        source = self._begin_source(began)
        batches = source.batches()
        num_expected = None if began is None else began.num_batches - began.batches_delivered
        iteration = LoaderIteration(
            iter(self._on_device(batches)) if self.options.has_device_stage else batches,
            source.examples,
            self._metrics,
            num_expected,
            self._note_delivery,
            self._note_end,
            partial(self._end_source, source),
        )
        self._iteration = weakref.ref(iteration)
        return iteration

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come: of the dataset, those within it, and a sampler that has epochs.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        batch_sampler = self.options.batch_sampler
        samplers = (self.options.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        for owner in (*unwrap(self.dataset), *samplers):
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns where training is: a small dictionary of plain values, for JSON or `torch.save`.

        A batch counts as soon as the training loop has got it: from the device, when there is one.

        Raises:
            ConfigError: the dataset is not an ImageDataset.
        """
        dataset = self._own_dataset()
        state = self._delivered.state(dataset.progress)
        return dataset.state_dict() if state is None else state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on where a state was taken; later ones are the following epochs.

        As `ImageDataset.load_state_dict`: in mode `index` the numbers of workers and ranks may be others, as long as
        the global batch is the same; a state of an epoch's end makes the first iteration empty.

        Raises:
            ConfigError: the dataset is not an ImageDataset.
            StateMismatchError: the state is damaged, or not of this dataset, split, plan or world; nothing is changed.
        """
        dataset = self._own_dataset()
        if is_position(state):
            LoaderState.from_dict(state)  # Says what it is instead.
        dataset.load_state_dict(state)

    def stats(self) -> LoaderStats:
        """Returns what was delivered since the loader was made, and where the time went, by stage and worker."""
        return self._metrics.stats()

    def close(self) -> None:
        """Ends the iteration under way and all processes; the loader cannot be iterated any more."""
        self._is_closed = True
        if (iteration := self._iteration()) is not None:
            iteration.replace()
        if self._source is not None:
            self._end_source(self._source, can_go_on=False)

    def __repr__(self) -> str:
        options = self.options
        device = "" if options.device is None else f", device={str(options.device)!r}"
        return f"{type(self).__name__}({self.dataset!r}, num_workers={self.num_workers}{device})"

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc] # Another process has processes of its own.

    def __del__(self) -> None:
        if getattr(self, "_source", None) is not None:
            self.close()

    def _begin_epoch(self) -> LoaderState | None:
        """Returns where an iteration over an ImageDataset begins that begins now."""
        if not self._is_ours:
            return None
        return self._delivered.begin(self.dataset.progress, partial(self.dataset.begin, self.num_workers))

    def _begin_source(self, began: LoaderState | None) -> Any:
        """Returns the source of an iteration that begins now."""
        source, context = self._source, self._context
        if not self._is_ours:
            return self._begin_foreign(source)
        if source is None or context is None or not source.is_usable:
            if source is not None:
                source.close()
            context = self._context = self._setup.make_context(self.dataset, self.num_workers)
            self._metrics.use(context.metrics)
            _write_start(context, 0, began)
            loader = self._setup.torch_loader(self.dataset, context, self.num_workers)
            options, method = self.options, _start_method(loader) if self.num_workers else "fork"
            parts = {"collate_fn": options.collate_fn, "worker_init_fn": options.worker_init_fn}
            parts["dataset"] = self.dataset
            with warnings.catch_warnings(), unpicklable_is_named("create_loader", parts, method):
                warnings.filterwarnings("ignore", "Got pickle error when attempting to start", UserWarning)
                source = self._source = BatchSource(loader, context, self._names(), self.options.timeout_s)
        else:
            _write_start(context, source.num_begun, began)
        try:
            source.begin()
        except BaseException:
            self._end_source(source, can_go_on=False)
            raise
        return source

    def _begin_foreign(self, source: Any) -> Any:
        """Returns the source of an iteration over a dataset that is not ours."""
        if source is None or not source.is_usable:
            if source is not None:
                source.close()
            reader = ForeignReader(self.dataset, self.options, self.num_workers, self._setup.generator)
            source = self._source = _ForeignSource(reader)
            self._metrics.use(reader.metrics)
        try:
            source.begin()
        except BaseException:
            self._end_source(source, can_go_on=False)
            raise
        return source

    def _end_source(self, source: BatchSource, can_go_on: bool) -> None:
        """Ends the processes of an iteration, unless they are to be used again."""
        is_kept = self.num_workers > 0 and self.options.persistent_workers and not self._is_closed
        if can_go_on and is_kept and source.is_usable:
            return
        source.close()
        if self._source is source:
            self._source = None

    def _note_delivery(self, number: int) -> None:
        self._delivered.number = number
        if self.options.log_every is not None and number % self.options.log_every == 0:
            workers = f"; workers' pids {', '.join(map(str, self.worker_pids))}" if self.worker_pids else ""
            _logger.info("%s: %s%s", self._name, self.stats(), workers)

    def _note_end(self) -> None:
        self._delivered.has_ended = True

    def _on_device(self, batches: Iterable[Any]) -> DevicePrefetcher:
        options = self.options
        return DevicePrefetcher(
            batches,
            "cpu" if options.device is None else options.device,
            mean=options.mean,
            std=options.std,
            dtype=options.dtype,
            channels_last=options.channels_last,
            prefetch_batches=options.prefetch_batches,
            metrics=self._metrics,
        )

    def _check_ranks(self) -> None:
        """Compares the ranks once, where there are several: before one of them waits for ever for another."""
        if not self._must_check_ranks or not self._is_ours or not is_distributed():
            return
        if self.dataset.find_rank().num_replicas > 1:
            more = {**self.dataset.progress.facts, "num_workers": self.num_workers}
            check_ranks(self.dataset.parser, self.dataset.find_rank, _RANKS_TIMEOUT_S, more)
        self._must_check_ranks = False

    @property
    def _is_ours(self) -> bool:
        return isinstance(self.dataset, ImageDataset)

    def _own_dataset(self) -> ImageDataset:
        if not isinstance(self.dataset, ImageDataset):
            raise ConfigError(
                f"A Loader has a state over an ImageDataset only: {self._name} does not say which examples come after "
                f"which. Keep the state of its sampler or batch sampler, or read it as an ImageDataset."
            )
        return self.dataset

    @property
    def _name(self) -> str:
        if not self._is_ours:
            return type(self.dataset).__name__
        return name_of(self.dataset.parser)

    def _names(self) -> ReadingNames:
        if not self._is_ours:
            return ReadingNames(self._name)
        return names_of(self.dataset.parser, "Loader", "multiprocessing_context")


class _ForeignSource:
    """A ForeignReader as a BatchSource: the examples of its batches go beside them."""

    def __init__(self, reader: ForeignReader) -> None:
        self.reader, self.examples = reader, deque[int]()

    @property
    def pids(self) -> list[int]:
        return self.reader.pids

    @property
    def is_usable(self) -> bool:
        return self.reader.is_usable

    def begin(self) -> None:
        self.examples.clear()
        self._found = self.reader.begin()

    def batches(self) -> Iterator[Any]:
        return map(self._split, self._found)

    def _split(self, found: WorkerBatch) -> Any:
        self.examples.append(found.num_examples)
        return found.batch

    def close(self) -> None:
        self.reader.close()


def _nothing() -> None:
    return None


def _write_start(context: WorkerContext, number: int, began: LoaderState | None) -> None:
    """Tells workers where an iteration over an ImageDataset begins."""
    if context.starts is not None and began is not None:
        context.starts.write(number, began.epoch, began.batches_delivered)
