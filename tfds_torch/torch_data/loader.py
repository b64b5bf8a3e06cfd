"""Loader and create_loader: any dataset's batches, watched, measured, on their device; ours resume exactly."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal

import torch

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.base_loader import BaseLoader, Reader
from tfds_torch.loaders.worker import WorkerBatch
from tfds_torch.parsers.advice import describe_padding
from tfds_torch.parsers.protocol import name_of
from tfds_torch.plan.cursor import Position, Start
from tfds_torch.plan.state import LoaderState
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher
from tfds_torch.torch_data.foreign import ForeignReader, count_batches
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
from tfds_torch.torch_data.loader_advice import advise_loader, find_num_workers, plan_rows
from tfds_torch.torch_data.loader_options import LoaderOptions
from tfds_torch.torch_data.plain_dataloader import is_position
from tfds_torch.torch_data.planned_reader import make_generator, make_reader
from tfds_torch.torch_data.profiling import OnCpu, ProfiledIterator
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import is_distributed
from tfds_torch.torch_data.wrapped_datasets import unwrap

_RANKS_TIMEOUT_S = 60.0
_OF_TORCH = ("generator", "in_order", "pin_memory", "prefetch_factor", "timeout")
"""Further attributes of torch's DataLoader, which nothing here looks at."""


@explain_keywords
def create_loader(
    dataset: Any,
    num_workers: int | str = 0,
    device: str | torch.device | None = None,
    mean: float | Iterable[float] | None = None,
    std: float | Iterable[float] | None = None,
    dtype: torch.dtype | str | None = None,
    prefetch_batches: int = 2,
    timeout_s: float | None = 300.0,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    sampler: Any = None,
    batch_sampler: Any = None,
    drop_last: bool = False,
    collate_fn: Callable[[Any], Any] | Literal["list"] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    persistent_workers: bool = True,
    multiprocessing_context: Any = None,
    seed: int | None = None,
    check_ranks: bool = True,
    log_every: int | None = None,
    channels_last: bool = True,
) -> "Loader":
    """Return a Loader over an ImageDataset, or over any other dataset.

    Examples:
        >>> from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, create_loader, demo
        >>> preprocess = EvalPreprocess(size=8, crop_pct=1)
        >>> parser = ParserTfds(demo.prepare("digits"), "digits", batch_size=64, preprocess=preprocess)
        >>> with create_loader(ImageDataset(parser), num_workers=2) as loader:
        ...     images, labels = next(iter(loader))
        ...     print(len(loader), images.shape)
        23 torch.Size([64, 3, 8, 8])

    Args:
        dataset: an ImageDataset; a map-style dataset, or a dictionary of columns, which is read in the order of a plan
            where you give a batch_size and no sampler, batch_sampler or collate_fn; an IterableDataset; or any other
            iterable that can be read anew in every epoch, like `feeder.batches(name)`, which this process reads
            (`num_workers=0`).
        num_workers: processes that read; 0: this process does; "auto": by cores, ranks and memory.
        device: where batches go, `prefetch_batches` ahead on CUDA; None: they stay as they come, on the CPU.
        mean: of each channel, or a number for one channel, where images go from 0 to 1; `DevicePrefetcher` normalises
            with it. None: that of the Normalize with which the transform of an ImageDataset ends, where the decoder
            does all of the transform (see `fuse` there) but layout, scale and Normalize, and you give no collate_fn.
        std: likewise.
        dtype: of the images, as in `DevicePrefetcher`.
        prefetch_batches: batches that each worker reads ahead, >= 1, and batches ahead on the device.
        timeout_s: how long the training loop waits for a batch, seconds, worker start included; None: for ever. Without
            workers, and outside of the main thread, waiting in native code is logged and continues.
        batch_size: examples of a batch. None: the parser's, for an ImageDataset; another dataset's items come as they
            are.
        shuffle: whether a map-style dataset is shuffled anew in every epoch, by `seed`; an ImageDataset's parser plans
            its order.
        sampler: as in torch's DataLoader, for a map-style dataset.
        batch_sampler: likewise, in place of batch_size, shuffle, sampler and drop_last.
        drop_last: whether a short last batch is left out; an ImageDataset's parser has `remainder` for that.
        collate_fn: makes a batch of a list of examples; without batch_size (and for whole batches of an ImageDataset)
            it gets each item that the dataset yields. "list" makes a list of the values of each field, as they are.
        worker_init_fn: called in each worker with its number, before it reads.
        persistent_workers: whether workers live from epoch to epoch, until `close`.
        multiprocessing_context: how workers start: "fork", "spawn", "forkserver" or a context; None: Python's default.
        seed: of `random`, `numpy.random` and torch in transforms and workers, and of `shuffle`; None: an ImageDataset's
            own seed, 42 where a map-style dataset is planned, else torch's generator. Transforms of an ImageDataset are
            seeded by (seed, pass, example), workers of a plan anew in every epoch by (seed, epoch, first batch, rank,
            worker), others when they start. The training process's generators are left alone.
        check_ranks: whether the ranks of torch.distributed compare what they read before the first batch.
        log_every: batches after which a line of `stats()` is logged, level INFO; None: never.
        channels_last: whether normalised or moved images lie in channels_last memory.

    Raises:
        ConfigError: an argument that cannot work, alone or with the dataset.
    """
    return Loader(
        LoaderOptions(
            dataset,
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
            seed=seed,
            check_ranks=check_ranks,
            log_every=log_every,
            channels_last=channels_last,
        )
    )


class Loader(BaseLoader[Reader]):
    """Batches, for training loops: every `for` is an epoch.

    Over an ImageDataset, or a map-style dataset that it plans (see `create_loader`), its length is exact, its state
    counts the delivered batches, and a state taken anywhere continues exactly. Over any dataset, a worker that dies is
    a WorkerError within seconds, and a batch that does not come a StallError after `timeout_s`. An error in a worker is
    raised here: with its own type where that needs no import (else a WorkerError), and with the worker's traceback.

    One iteration at a time: a new one ends the one before, and is the next epoch; over an ImageDataset, an iteration of
    which no batch was taken begins again. Batches of workers lie in memory that processes share: copy one before you
    fork a process that keeps it. Persistent workers end by `close`, the end of a `with` block, when the loader is
    dropped, and when this process is gone; others with their iteration. Not thread-safe: iterate in one thread.

    Reading works on the CPU, whatever `torch.set_default_device` says when an iteration begins. The arguments of a
    Loader stay: an assignment like `loader.dataset = other` is a ConfigError.

    Args:
        options: the dataset and how it is read; `create_loader` makes them.
    """

    _fixed = frozenset(one.name for one in fields(LoaderOptions)) | {"options", *_OF_TORCH}

    def __init__(self, options: LoaderOptions) -> None:
        self.options = options
        self.dataset = options.dataset
        self._planned = planned = options.planned
        self.num_workers, self.num_workers_reason = find_num_workers(options.num_workers)
        name = type(self.dataset).__name__ if planned is None else name_of(planned.parser)
        keeps_reader = self.num_workers > 0 and options.persistent_workers
        super().__init__(name, keeps_reader=keeps_reader, log_every=options.log_every)
        self._generator = make_generator(options)
        self._position: Position | None = None  # Of the latest iteration over a dataset that plans.
        self._must_check_ranks = options.check_ranks
        if planned is not None:
            self._note_parser(planned.parser, planned.fields)
        if options.has_device_stage:
            self._device_stage()  # Impossible arguments are reported now.
        for text in advise_loader(options, self.num_workers):
            warnings.warn(text, UserWarning, stacklevel=4)
        self._has_ranks = False
        self._warn_of_padding()

    @property
    def batch_size(self) -> int | None:
        """Examples of a batch; None: the dataset's items come as they are, or a batch sampler deals them out."""
        return self.options.batch_size if self._planned is None else self._planned.parser.batch_size or 1

    @property
    def has_state(self) -> bool:
        """Whether it plans its batches, and so has a state: else torch's DataLoader does."""
        return self._planned is not None

    def __iter__(self) -> Iterator[Any]:
        self._is_elsewhere = torch.get_default_device().type != "cpu"
        if not self._is_elsewhere:
            return super().__iter__()
        with torch.device("cpu"):  # Forked workers inherit it.
            return super().__iter__()

    def __len__(self) -> int:
        """Batches of an epoch: exact for an ImageDataset, else as torch's DataLoader says.

        Raises:
            TypeError: an IterableDataset without a length.
        """
        if self._planned is not None:
            return self._planned.plan().num_batches
        return count_batches(self.options)

    def _begin(self) -> tuple[Position, int | None]:
        self._warn_of_padding()
        self._check_ranks()
        self.options.check_transform()
        if self._planned is None:
            for layer in unwrap(self.dataset):
                if isinstance(layer, IndexedImageDataset):
                    layer.begin_epoch()
            return Position(Start(0), self.num_workers), None
        self._position = position = self._planned.begin(self.num_workers, self._position)
        plan = self._planned.plan(first_example=position.start.first_example)
        return position, plan.num_batches - position.start.start_batch

    def _make_reader(self) -> Reader:
        if self._planned is not None:
            return make_reader(self._planned, self.options, self.num_workers, self._generator)
        return ForeignReader(self.options, self.num_workers, self._generator)

    def _staged(self, batches: Iterator[WorkerBatch]) -> Iterator[tuple[Any, int]]:
        received: Iterator[tuple[Any, int]] = ProfiledIterator(batches, "hand_over" if self.num_workers else "fetch")
        if self.options.has_device_stage:
            received = self._device_stage().iterate(received)
        staged = ProfiledIterator(received, "waiting")
        return OnCpu(staged) if self._is_elsewhere else staged

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iterations to come: of the dataset, those within it, and a sampler that has epochs.

        Args:
            epoch: number of the epoch, an integer >= 0.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        batch_sampler = self.options.batch_sampler
        samplers = (self.options.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        for owner in (*unwrap(self._planned or self.dataset), *samplers):
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is: a small dictionary of plain values, for JSON or `torch.save`.

        A batch counts as soon as the training loop has got it: from the device, when there is one.

        Raises:
            ConfigError: torch's DataLoader plans the batches.
        """
        dataset = self._dataset_with_state()
        if self._position is None or not dataset.has_begun:
            return dataset.state_dict()
        return dataset.state_of(self._position).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow_batch_change: bool = False) -> None:
        """Let the next iteration continue where a state was taken, as `ImageDataset.load_state_dict`.

        Args:
            state: what `state_dict` returned, here or on another rank. One of an epoch's end makes the first iteration
                empty.
            allow_batch_change: whether a state of another global batch is accepted, in mode `index`: the rest of the
                epoch is then dealt anew, each example exactly once. Give it on every rank.

        Raises:
            ConfigError: torch's DataLoader plans the batches.
            StateMismatchError: the state is damaged, or not of this dataset, split, plan or world; nothing is changed.
        """
        dataset = self._dataset_with_state()
        if is_position(state):
            LoaderState.from_dict(state)  # Its error describes the state.
        dataset.load_state_dict(state, allow_batch_change=allow_batch_change)

    def __repr__(self) -> str:
        options = self.options
        device = "" if options.device is None else f", device={str(options.device)!r}"
        return f"{type(self).__name__}({self.dataset!r}, num_workers={self.num_workers}{device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)  # Another process has its own processes.

    def _device_stage(self) -> DevicePrefetcher:
        options = self.options
        mean, std = options.scaling
        return DevicePrefetcher(
            self,  # It says where batches have their images; an iteration brings its own.
            "cpu" if options.device is None else options.device,
            mean=mean,
            std=std,
            dtype=options.dtype,
            channels_last=options.channels_last,
            prefetch_batches=options.prefetch_batches,
            metrics=self._metrics,
        )

    def _warn_of_padding(self) -> None:
        """Warn of rows that several ranks read twice, once several are known: torch.distributed may come later."""
        rows = None if self._has_ranks else plan_rows(self.options)
        if rows is None or rows[0].world.num_replicas == 1:
            return
        self._has_ranks = True
        if text := describe_padding(*rows):
            warnings.warn(text, UserWarning, stacklevel=5)

    def _check_ranks(self) -> None:
        """Compare the ranks once, where there are several, before the first batch."""
        dataset = self._planned
        if not self._must_check_ranks or dataset is None or not is_distributed():
            return
        if dataset.find_rank().num_replicas > 1:
            more = {**vars(dataset.start), "num_workers": self.num_workers}
            check_ranks(dataset.parser, dataset.find_rank, _RANKS_TIMEOUT_S, more)
        self._must_check_ranks = False

    def _dataset_with_state(self) -> ImageDataset:
        if self._planned is None:
            raise ConfigError(
                f"A Loader has a state over an ImageDataset, and over a map-style dataset with batch_size= and without "
                f"sampler=, batch_sampler= or collate_fn=: {self._name} does not say which examples come after which. "
                f"Keep the state of its sampler or batch sampler, or read it as an ImageDataset."
            )
        return self._planned
