"""ImageDataset: a parser's examples as a torch IterableDataset."""

import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch.utils.data
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DEFAULT_FIELDS, LEDGER_FIELDS, Batch, Parser
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.world import World
from tfds_torch.runtime.one_thread import OneThreadIterator
from tfds_torch.torch_data.accelerate_hook import keep_own_shards, refuse_second_shards
from tfds_torch.torch_data.epoch_counter import EpochCounter
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import find_rank, is_distributed


class ImageDataset(torch.utils.data.IterableDataset[tuple[Any, ...]]):
    """Single examples, `(PIL.Image, int)` unless told otherwise, for `DataLoader(dataset, batch_size=B, ...)`.

    The loader then gives exactly the batches that the parser plans: use the parser's `batch_size` for both. PIL images
    have no default collation: end `transform` with a conversion to tensors, or give the loader a `collate_fn`.

    The epoch advances with every iteration of a loader (also one that is broken off) until `set_epoch` fixes it.
    `torch.manual_seed` with the same value before every epoch makes loaders indistinguishable: use `set_epoch` then.

    tensorflow is loaded where examples are read: in the loader's workers, or here when there are none. Under fork,
    spawn and forkserver workers, persistent or not, every rank and worker reads its own share. An iterator belongs to
    the thread that takes its first example.

    Args:
        parser: where the examples come from.
        transform: called with the PIL image; its result takes the image's place.
        target_transform: called with the label (0-based int, -100 for padding).
        fields: what an example consists of, in this order: `image`, `label`, `valid` (bool, False for padding),
            `index` (int), `id` (str, `<shard>__<record>`), or any feature of the dataset.
        world: rank and number of replicas; None: those of torch.distributed when it is initialised, else those of the
            environment (`RANK`, `WORLD_SIZE`), else one replica. Workers are found out by themselves.

    Raises:
        ConfigError: a field that does not exist, or no fields. An environment that makes no sense (`RANK` without
            `WORLD_SIZE`), or that contradicts torch.distributed, is reported by `len` and iteration, since the rank may
            become known after construction.
    """

    def __init__(
        self,
        parser: Parser,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        fields: Sequence[str] = DEFAULT_FIELDS,
        world: World | None = None,
    ) -> None:
        super().__init__()
        if isinstance(fields, str) or not fields:
            raise ConfigError(f"fields={fields!r} must be a sequence of field names, such as ('image', 'label').")
        if not isinstance(world, World | None):
            raise ConfigError(f"world={world!r} must be a World, for example World(rank=0, num_replicas=2), or None.")
        parser.check_fields(fields)
        self.parser = parser
        self.transform = transform
        self.target_transform = target_transform
        self.fields = tuple(fields)
        self.world = world
        self._parent_world: tuple[int, World] | None = None  # The process that resolved it, and what it found.
        self._epoch_counter = EpochCounter()
        keep_own_shards(ImageDataset)

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come, in this process and in workers that already run.

        Raises:
            ConfigError: epoch is no integer >= 0, or Accelerate deals out the share of this rank a second time.
        """
        refuse_second_shards(self)
        self._epoch_counter.set(epoch)

    def __len__(self) -> int:
        """Examples that this rank yields in an epoch; wrapped and padded ones count."""
        return len(self.plan())

    def plan(self) -> EpochPlan:
        """Returns the plan of an epoch for this rank.

        Raises:
            ConfigError: the rank is not clear, or the plan cannot work there.
        """
        return self.parser.plan(self.find_rank())

    def find_rank(self) -> World:
        """Returns the rank that this dataset reads as, and the number of ranks; the same in its workers.

        Raises:
            ConfigError: the environment makes no sense, or contradicts torch.distributed.
        """
        if self.world is not None:
            return self.world
        if self._parent_world is not None and torch.utils.data.get_worker_info() is not None:
            resolver, world = self._parent_world
            # A dataset may first have been handed to a training process, which then starts the workers.
            if (parent := parent_process()) is not None and parent.pid == resolver:
                return world
        return find_rank(os.environ)

    def check_ranks(self, timeout_s: float = 60.0) -> None:
        """Compares dataset, split, seed, batch size, remainder, read mode and number of ranks with the other ranks'.

        Every rank must call it. One rank by itself has nothing to compare. What a dataset cannot know of itself is the
        number of workers of its loader, which must also be the same on every rank.

        Args:
            timeout_s: how long to wait for the other ranks, seconds.

        Raises:
            ConfigError: the ranks differ: raised on every one of them, with the values. Or there are several ranks and
                torch.distributed is not initialised.
            StallError: not all ranks came within timeout_s.
        """
        check_ranks(self.parser, self.find_rank, timeout_s)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Returns a name for every example of the split, in the order of the field `index`.

        Args:
            basename: whether to leave out folders.
            absolute: whether to prefix the dataset's directory.

        Raises:
            ConfigError: the names cannot be read without tensorflow.
        """
        return self.parser.filenames(basename, absolute)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        worker = torch.utils.data.get_worker_info()
        world, loader_seed = self.find_rank(), None
        if worker is not None:
            world, loader_seed = world.at_worker(worker.id, worker.num_workers), worker.seed - worker.id
        examples = self._examples(world, self._epoch_counter.begin(loader_seed))
        return OneThreadIterator(examples, f"ImageDataset({self.parser.dataset_name}, {self.parser.split})")

    def _examples(self, world: World, epoch: int) -> Iterator[tuple[Any, ...]]:
        for batch in self.parser.batches(world, epoch, fields=self.fields, in_pieces=True):
            columns = [self._values(batch, field) for field in self.fields]
            yield from zip(*columns, strict=True)

    def _values(self, batch: Batch, field: str) -> Iterator[Any]:
        """Yields a field's values, one per example."""
        if field == "image":
            images = map(_to_pil, batch.image)
            yield from map(self.transform, images) if self.transform else images
        elif field == "label":
            targets = batch.features["label"] if batch.label is None else batch.label.tolist()
            yield from map(self.target_transform, targets) if self.target_transform else targets
        elif field in LEDGER_FIELDS:
            values = getattr(batch, field)
            yield from values if field == "id" else values.tolist()
        else:
            yield from batch.features[field]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if get_spawning_popen() is not None:  # A worker of spawn or forkserver inherits no process group.
            try:
                state["_parent_world"] = (os.getpid(), self.find_rank())
            except ConfigError:
                if is_distributed():
                    raise
                # Half an environment: a training process that is being started may yet learn its rank.
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keep_own_shards(ImageDataset)


def _to_pil(pixels: "np.ndarray[Any, np.dtype[np.uint8]]") -> Image.Image:
    """Returns an image of pixels uint8 [H, W, C], C in 1, 3, 4."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


IterableImageDataset = ImageDataset
"""timm's name for it."""
