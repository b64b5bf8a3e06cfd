"""TorchLoaderSetup: how torch's DataLoader is put together over a dataset, ours or another one."""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader, default_convert

from tfds_torch.parsers.batch_bytes import image_bytes_of_batch
from tfds_torch.plan.world import World
from tfds_torch.runtime.iteration_starts import IterationStarts
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_process import with_reports
from tfds_torch.torch_data.default_collation import DefaultCollation
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader_options import LoaderOptions, check_dataset, is_iterable
from tfds_torch.torch_data.loading.sending import SendingCollate
from tfds_torch.torch_data.loading.worker import TimedIterable, TimedMap, WorkerContext, WorkerStart

_LARGEST_BATCH_BYTES = 1 << 27  # Of address space, not of memory; larger ones are handed over by torch.
_REST_BYTES = 1 << 20  # What comes with the images.
_OTHER_SLOTS = 6


@dataclass(frozen=True)
class TorchLoaderSetup:
    """What all iterations of a loader have in common.

    Attributes:
        options: as the user gave them.
        batch_size: of a batch; None: the dataset's items come as they are, or a batch sampler is given.
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
        check_dataset(dataset, options)
        batch_size, seed = options.batch_size, options.seed
        is_collated = batch_size is not None or options.batch_sampler is not None
        if isinstance(dataset, ImageDataset):
            batch_size, is_collated = dataset.parser.batch_size or 1, not dataset.is_batched
            seed = dataset.parser.plan(World()).seed if seed is None else seed
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
            **self._batching(),
            num_workers=num_workers,
            collate_fn=SendingCollate(collate, self.is_collated, context.metrics, context.slots),
            generator=self.generator,
            **of_workers,
        )

    def _batching(self) -> dict[str, Any]:
        """Returns torch's arguments that say which examples are in every batch."""
        options = self.options
        if options.batch_sampler is not None:
            return {"batch_sampler": options.batch_sampler}
        return {
            "batch_size": self.batch_size if self.is_collated else None,
            "shuffle": options.shuffle or None,
            "sampler": options.sampler,
            "drop_last": options.drop_last,
        }

    def _default_collate(self, dataset: Any) -> Callable[[Any], Any] | None:
        if self.is_collated:
            return DefaultCollation(dataset)
        return None if isinstance(dataset, ImageDataset) else default_convert


def _start_context(asked: Any, output: WorkerOutput, num_workers: int) -> BaseContext:
    """Returns the context of multiprocessing in which workers start."""
    context = asked if isinstance(asked, BaseContext) else get_context(asked)
    return with_reports(context, output, num_workers)


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
