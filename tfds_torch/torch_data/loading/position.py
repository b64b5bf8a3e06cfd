"""Where the iterations of a loader begin, and what it has delivered: the training process says, the workers obey."""

import random
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.utils.data

from tfds_torch.images.preprocess import height_and_width
from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.state import LoaderState
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.storage.source import FieldSpec
from tfds_torch.runtime.shared_slots import SharedMemory
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.iteration import is_position

_NUM_REMEMBERED = 8
_OTHER_SLOTS = 6
_MOST_CHANNELS = 4


class IterationStarts:
    """Where each iteration of a loader over an ImageDataset begins, in memory that its workers share. Picklable.

    A worker looks up its n-th iteration by n: one that begins late begins where it should, whatever has happened since.

    Args:
        seed: of the generators of its workers; None: they are left as torch seeds them.
        memory: for the images of whole batches; None: workers take memory of their own.
    """

    def __init__(self, seed: int | None, memory: SharedMemory | None) -> None:
        self.seed, self.memory = seed, memory
        self._numbers: Any = get_context("spawn").RawArray("q", 2 * _NUM_REMEMBERED)

    def write(self, number: int, epoch: int, start_batch: int) -> None:
        """Says where an iteration begins; before it does."""
        slot = 2 * (number % _NUM_REMEMBERED)
        self._numbers[slot : slot + 2] = [epoch, start_batch]

    def read(self, dataset: ImageDataset, number: int, metrics: StageMetrics) -> Iterator[Any]:
        """Yields what this process reads of an iteration that was written: a worker, or the only reader."""
        slot = 2 * (number % _NUM_REMEMBERED)
        epoch, start_batch = self._numbers[slot : slot + 2]
        worker = torch.utils.data.get_worker_info()
        if worker is not None and self.seed is not None:
            seed_generators(self.seed, epoch, start_batch, dataset.find_rank().rank, worker.id)
        return dataset.read(epoch, start_batch, metrics, self.memory)


def seed_generators(*numbers: int) -> None:
    """Seeds `random`, `numpy.random` and torch of this process with a few integers >= 0."""
    words = np.random.SeedSequence(numbers).generate_state(8)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:6])
    torch.manual_seed(int(words[6]) << 32 | int(words[7]))


class Position:
    """How far a loader over an ImageDataset is: what was delivered, not what was read.

    The dataset is the one that is told of epochs and states, by the loader's user or directly. The loader's processes
    are told by an `IterationStarts`.

    Args:
        dataset: the user's.
        num_workers: of the loader, 0 for none.
    """

    def __init__(self, dataset: ImageDataset, num_workers: int) -> None:
        self.dataset, self.num_workers = dataset, num_workers
        self.began: LoaderState | None = None  # The latest iteration.
        self.num_delivered = 0  # Of it.
        self._loaded: LoaderState | None = None

    def make_memory(self, prefetch_batches: int) -> SharedMemory | None:
        """Returns memory for the images of whole batches; None where a worker takes its own for each.

        Args:
            prefetch_batches: that a worker has on their way.
        """
        parser = self.dataset.parser
        size = _image_size(parser) if self.dataset.is_batched else None
        if not self.num_workers or size is None or parser.batch_size is None:
            return None
        batch_bytes = parser.batch_size * size[0] * size[1] * _MOST_CHANNELS
        try:
            # Those that are transformed, those on their way, and some that the training loop holds.
            return SharedMemory(self.num_workers, prefetch_batches + _OTHER_SLOTS, batch_bytes)
        except (AttributeError, OSError):  # Another system than Linux.
            return None

    def begin(self) -> LoaderState:
        """Returns where an iteration begins that begins now: the next epoch, or where a loaded state goes on.

        Raises:
            StateMismatchError: a loaded state goes on with other workers only.
        """
        self.began = self.dataset.begin_elsewhere(self.num_workers)
        self._loaded, self.num_delivered = None, 0
        return self.began

    def state(self) -> LoaderState:
        """Returns how far the loader is."""
        progress = self.dataset.progress
        if self.began is not None and progress.num_workers is not None:
            return self.began.at(self.began.batches_delivered + self.num_delivered)
        if self._loaded is not None and (progress.epoch, progress.start_batch) == (
            self._loaded.epoch,
            self._loaded.batches_delivered,
        ):
            return self._loaded
        return LoaderState.from_dict(self.dataset.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on where a state was taken.

        Raises:
            StateMismatchError: as `ImageDataset.load_state_dict`, or it is the position of one worker.
        """
        if is_position(state):
            LoaderState.from_dict(state)  # Says what it is instead.
        self.dataset.load_state_dict(state)
        self._loaded = LoaderState.from_dict(state)


def _image_size(parser: Parser) -> tuple[int, int] | None:
    """Returns height and width of the images of whole batches; None: they are only known when they are read."""
    if parser.preprocess is not None:
        return height_and_width(parser.preprocess.size)
    spec = parser.element_spec.fields.get("image")
    height, width, _ = spec.shape if isinstance(spec, FieldSpec) and len(spec.shape) == 3 else (None, None, None)
    return None if height is None or width is None else (height, width)
