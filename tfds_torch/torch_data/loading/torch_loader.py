"""TorchLoaderSetup: how torch's DataLoader is put together over a dataset, ours or another one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.batch_bytes import image_bytes_of_batch
from tfds_torch.plan.world import World
from tfds_torch.runtime.iteration_starts import IterationStarts
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_process import with_reports
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loading.iterables import is_iterable, is_plain_iterable
from tfds_torch.torch_data.loading.options import LoaderOptions
from tfds_torch.torch_data.loading.sending import SendingCollate
from tfds_torch.torch_data.loading.worker import TimedIterable, TimedMap, WorkerContext, WorkerStart
from tfds_torch.torch_data.torch_fetch import no_collation

_LARGEST_BATCH_BYTES = 1 << 27  # Of address space, not of memory; larger ones are handed over by torch.
_REST_BYTES = 1 << 20  # What comes with the images.
_OTHER_SLOTS = 6


@dataclass(frozen=True)
class TorchLoaderSetup:
    """What all iterations of a loader have in common.

    Attributes:
        options: as the user gave them.
        batch_size: of a batch; None: the dataset's items come as they are.
        is_collated: whether torch makes batches of examples; else the dataset does, or nobody.
        seed: of the workers and of `shuffle`; None: torch's own.
        generator: draws what torch's DataLoader draws, over all iterations.
    """

    options: LoaderOptions
    batch_size: int | None
    is_collated: bool
    seed: int | None
    generator: torch.Generator | None

    @classmethod
    def of(cls, dataset: Any, options: LoaderOptions) -> "TorchLoaderSetup":
        """Returns the setup for a dataset.

        Raises:
            ConfigError: the options do not fit it.
        """
        batch_size, seed, is_collated = options.batch_size, options.seed, options.batch_size is not None
        if isinstance(dataset, ImageDataset):
            batch_size, is_collated = _planned_batch_size(dataset, options), not dataset.is_batched
            seed = dataset.parser.plan(World()).seed if seed is None else seed
            if dataset.has_pil_images and options.collate_fn is None:
                raise no_collation("create_loader")
        elif is_iterable(dataset) and (options.shuffle or options.sampler is not None):
            raise ConfigError(
                f"create_loader: {type(dataset).__name__} is an iterable, which has an order of its own: shuffle= and "
                f"sampler= are for map-style datasets."
            )
        elif isinstance(dataset, type | Iterator) or not (hasattr(dataset, "__getitem__") or is_iterable(dataset)):
            raise ConfigError(
                f"create_loader: {_kind_of(dataset)} is not a dataset: it must be an ImageDataset, a "
                f"torch.utils.data.IterableDataset, have __getitem__ and __len__, or be an iterable that can be read "
                f"anew in every epoch."
            )
        elif is_plain_iterable(dataset) and options.num_workers != 0:
            raise ConfigError(
                f"create_loader: num_workers={options.num_workers!r}, and {type(dataset).__name__} is no dataset of "
                f"torch but an iterable, which each worker would read whole: use num_workers=0, or make it a "
                f"torch.utils.data.IterableDataset that gives every worker its share."
            )
        generator = None if seed is None else torch.Generator().manual_seed(seed % 2**63)
        return cls(options, batch_size, is_collated, seed, generator)

    def make_context(self, dataset: Any, num_workers: int) -> WorkerContext:
        """Returns what the processes of a loader share.

        Args:
            dataset: that is read.
            num_workers: processes, 0 for none.
        """
        is_ours = isinstance(dataset, ImageDataset)
        return WorkerContext(
            metrics=StageMetrics(num_workers),
            output=WorkerOutput(num_workers),
            slots=_make_slots(dataset, num_workers, self.options.prefetch_batches),
            starts=IterationStarts() if is_ours else None,
            seed=self.seed if is_ours else None,
        )

    def torch_loader(self, dataset: Any, context: WorkerContext, num_workers: int) -> "DataLoader[Any]":
        """Returns a DataLoader whose items are `Sent` batches.

        Args:
            dataset: that is read.
            context: what its processes share.
            num_workers: processes, 0 for none.
        """
        options = self.options
        collate = options.collate_fn or self._default_collate(dataset)
        of_workers: dict[str, Any] = {}
        if num_workers:
            of_workers = {
                "prefetch_factor": options.prefetch_batches,
                "persistent_workers": options.persistent_workers,
                "multiprocessing_context": _start_context(options.multiprocessing_context, context.output, num_workers),
                "worker_init_fn": WorkerStart(context, options.worker_init_fn),
            }
        return DataLoader(
            TimedIterable(dataset, context) if is_iterable(dataset) else TimedMap(dataset, context.metrics),
            batch_size=self.batch_size if self.is_collated else None,
            shuffle=options.shuffle or None,
            sampler=options.sampler,
            drop_last=options.drop_last,
            num_workers=num_workers,
            collate_fn=SendingCollate(collate, self.is_collated, context.metrics, context.slots),
            generator=self.generator,
            **of_workers,
        )

    def _default_collate(self, dataset: Any) -> Callable[[Any], Any] | None:
        if self.is_collated:
            return default_collate
        return None if isinstance(dataset, ImageDataset) else default_convert


def _start_context(asked: Any, output: WorkerOutput, num_workers: int) -> BaseContext:
    """Returns the context of multiprocessing in which workers start."""
    context = asked if isinstance(asked, BaseContext) else get_context(asked)
    return with_reports(context, output, num_workers)


def _planned_batch_size(dataset: ImageDataset, options: LoaderOptions) -> int:
    planned = dataset.parser.batch_size or 1  # As the plan counts without one.
    if options.batch_size not in (None, planned):
        raise ConfigError(
            f"create_loader: batch_size={options.batch_size}, and the parser of {dataset.parser.dataset_name} plans "
            f"batch_size={dataset.parser.batch_size}. Leave it out here, and give ParserTfds the one that is wanted."
        )
    for name in ("shuffle", "sampler", "drop_last"):
        if getattr(options, name) not in (None, False):
            raise ConfigError(
                f"create_loader: {name}={getattr(options, name)!r} is not for an ImageDataset, whose order and last "
                f"batch its parser plans: give ParserTfds shuffle= or remainder= instead."
            )
    return planned


def _kind_of(dataset: Any) -> str:
    return f"the class {dataset.__name__}" if isinstance(dataset, type) else type(dataset).__name__


def _make_slots(dataset: Any, num_workers: int, prefetch_batches: int) -> SharedSlots | None:
    """Returns slots for the batches of a loader; None where there are no workers, or the system has no such memory."""
    if not num_workers:
        return None
    slot_bytes = _LARGEST_BATCH_BYTES
    if isinstance(dataset, ImageDataset) and dataset.is_batched:
        slot_bytes = max(slot_bytes, (image_bytes_of_batch(dataset.parser) or 0) + _REST_BYTES)
    try:
        # Batches that are transformed, those on their way, and some that the training loop holds.
        return SharedSlots(num_workers, prefetch_batches + _OTHER_SLOTS, slot_bytes)
    except (AttributeError, OSError, ValueError):  # Another system than Linux, or no address space for so much.
        return None
