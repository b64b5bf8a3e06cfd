"""Reading an ImageDataset for a Loader: by a pool of workers, or by the training process itself."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_start_method
from typing import Any

import torch

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.base_loader import PoolReader, Reader
from tfds_torch.loaders.pool import WorkerPool
from tfds_torch.loaders.pool_setup import make_slots
from tfds_torch.loaders.transport import PipeTransport
from tfds_torch.loaders.worker import PoolContext, WorkerBatch
from tfds_torch.parsers.protocol import error_context_of, members_of, name_of
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.watchdog import Watchdog
from tfds_torch.runtime.worker_faults import WorkerFaults
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.runtime.worker_start import seed_random_and_numpy
from tfds_torch.torch_data.batches import collate_items, take_batches
from tfds_torch.torch_data.default_collation import DefaultCollation
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader_options import LoaderOptions
from tfds_torch.torch_data.tensor_codec import TensorCodec
from tfds_torch.torch_data.worker_info import call_worker_init, fill_worker_info


def make_generator(options: LoaderOptions) -> torch.Generator | None:
    """Return the generator of orders and workers' seeds over all iterations of a loader; None: torch's own."""
    seed = options.seed if options.planned is None else _seed_of(options, options.planned)
    return None if seed is None else torch.Generator().manual_seed(seed % 2**63)


def make_reader(
    dataset: ImageDataset, options: LoaderOptions, num_workers: int, generator: torch.Generator | None
) -> Reader:
    """Return the reader of an ImageDataset for a loader, with workers or without."""
    collate = options.collate
    if collate is None and dataset.is_collated:
        collate = DefaultCollation(dataset, are_rows=dataset.find_fused() is not None)
    base_seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
    source = DatasetSource(dataset, collate, options.worker_init_fn, _seed_of(options, dataset), base_seed)
    if not num_workers:
        return OwnReader(source, options.timeout_s)
    return _pool_reader(source, num_workers, options)


def _seed_of(options: LoaderOptions, dataset: ImageDataset) -> int:
    return dataset.parser.plan(World()).seed if options.seed is None else options.seed


@dataclass(frozen=True)
class DatasetSource:
    """The batches that the parser of an ImageDataset plans, as a loader delivers them.

    `seed` is that of the workers' generators, with epoch, first batch, rank and worker; `base_seed` plus the
    number of the worker is `get_worker_info().seed`.
    """

    dataset: ImageDataset
    collate: Callable[[Any], Any] | None
    initialise: Callable[[int], None] | None
    seed: int
    base_seed: int

    @property
    def name(self) -> str:
        """The source's name, for messages."""
        return name_of(self.dataset.parser)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The arguments of `create_loader` that workers get, for the message where one cannot be pickled."""
        own = self.dataset.users_own
        inputs = {"dataset": own, "collate_fn": self.collate, "worker_init_fn": self.initialise}
        return {f"create_loader: {name}": value for name, value in inputs.items()}

    def prepare(self, worker: int, num_workers: int) -> None:
        """Prepare a worker's process as torch's DataLoader does."""
        seed = self.base_seed + worker
        fill_worker_info(worker, num_workers, seed, self.dataset.users_own)
        torch.manual_seed(seed_random_and_numpy(seed))
        call_worker_init(self.initialise, worker)

    def items(  # noqa: D102
        self, world: World, start: Start, slots: SharedSlots | None, metrics: StageMetrics
    ) -> Generator[WorkerBatch, None, None]:
        items = self.dataset.read(world, start, metrics, slots, self.seed)
        batch_size = None if self.dataset.is_batched else self.dataset.parser.batch_size or 1
        return collate_items(items, batch_size, self.collate, metrics)


def _pool_reader(source: DatasetSource, num_workers: int, options: LoaderOptions) -> PoolReader:
    """Start the workers of a loader, and return the reader that uses them."""
    dataset = source.dataset
    metrics, output = StageMetrics(num_workers, members_of(dataset.parser)), WorkerOutput(num_workers)
    # A user's items may be of any size, and this process looks at none of them.
    has_images = dataset.is_batched and not dataset.is_collated
    try:
        slots = make_slots(num_workers, options.prefetch_batches, dataset.parser if has_images else None)
    except (AttributeError, OSError, ValueError):  # Another system than Linux, or too little address space.
        slots = None
    pool = WorkerPool(
        PoolContext(source, dataset.find_rank(), source.seed, metrics, output, slots),
        PipeTransport(slots, num_workers, TensorCodec()),
        options.multiprocessing_context or get_start_method(),
    )
    names = error_context_of(dataset.parser, "Loader", "multiprocessing_context")
    faults = WorkerFaults(names, metrics, output, options.timeout_s, pool.method != "fork")
    return PoolReader(pool, faults, options.prefetch_batches)


class OwnReader:
    """Reads an ImageDataset in the training process; a watchdog limits how long a batch takes."""

    pids: Sequence[int] = ()

    def __init__(self, source: DatasetSource, timeout_s: float | None) -> None:
        self._source: DatasetSource | None = source
        self._owner = os.getpid()
        self.metrics = StageMetrics(0, members_of(source.dataset.parser))
        names = error_context_of(source.dataset.parser, "Loader", "multiprocessing_context")
        faults = WorkerFaults(names, self.metrics, WorkerOutput(0), timeout_s, can_import_only=False)
        self._watchdog = None if timeout_s is None else Watchdog(timeout_s, faults.describe_own_stall)

    @property
    def is_usable(self) -> bool:  # noqa: D102
        return self._source is not None and os.getpid() == self._owner

    def begin(self, start: Start) -> Iterator[WorkerBatch]:  # noqa: D102
        if self._source is None:
            raise ConfigError("This Loader is closed: make a new one.")
        self.metrics.note_begun()
        rank = self._source.dataset.find_rank()
        run = (lambda step: step()) if self._watchdog is None else self._watchdog.run
        batches = run(partial(self._source.items, rank, start, None, self.metrics))
        return take_batches(batches, run, self.metrics)

    def close(self) -> None:  # noqa: D102
        self._source = None
        if self._watchdog is not None:
            self._watchdog.close()
