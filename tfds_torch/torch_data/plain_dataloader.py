"""The parts of an ImageDataset that only plain DataLoaders and torchdata's StatefulDataLoader need.

These loaders report nothing to a dataset: the process that reads counts the items that it yields.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.parsers.protocol import Parser, state_at
from tfds_torch.plan.cursor import Position
from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.state import WorkerPosition
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.torch_data.plain_epochs import PlainCount, PlainEpochs


@dataclass
class Iteration:
    """Counts the examples that one worker has yielded since the loader's iteration began."""

    plan: EpochPlan
    began: WorkerPosition
    num_examples: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_examples = self.began.batches * self.plan.batch_size + self.began.examples

    def position(self) -> WorkerPosition:
        """Return how far this worker is."""
        began_at = self.began.began_at
        order = WorkerOrder(self.plan, began_at.epoch, began_at.batches)
        batches, examples = divmod(self.num_examples, self.plan.batch_size)
        if self.num_examples >= len(order):  # The last batch may be a short one.
            batches, examples = len(order.numbers), 0
        return WorkerPosition(self.began.worker, self.began.num_workers, batches, examples, began_at)


class PlainIterations:
    """The iterations over one dataset: their epochs, and the iteration of a plain DataLoader that this process counts.

    torchdata's StatefulDataLoader saves and loads the position of each worker, in the worker; without workers, that of
    its own process. A copy of a dataset continues where the original would; a spawned worker does not.
    """

    def __init__(self) -> None:
        self.epochs = PlainEpochs()
        self._iteration: Iteration | None = None
        self._restored: WorkerPosition | None = None
        self._restored_by: int | None = os.getpid()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iterations to come."""
        self.epochs.set_epoch(epoch)
        if self._restored is not None and self._restored.began_at.epoch != epoch:
            self._restored = None

    def restore(self, position: WorkerPosition | None) -> None:
        """Let the next iteration of this process continue at a position; None: at no certain one."""
        self._restored, self._restored_by, self._iteration = position, os.getpid(), None

    def begin(self, parser: Parser, rank: World) -> Iteration:
        """Return an iteration of this process, a worker or not, that begins now."""
        worker = get_worker_info()
        world, loader_seed, num_workers = rank, None, 0
        if worker is not None:
            num_workers, loader_seed = worker.num_workers, worker.seed - worker.id
            world = rank.at_worker(worker.id, num_workers)
        began = self._take_restored(self.epochs.fixed_epoch(loader_seed))
        if began is None:
            start = self.epochs.begin(loader_seed, num_workers, world.worker)
            began_at = state_at(parser, rank, start, num_workers)
            began = WorkerPosition(world.worker, world.num_workers, 0, 0, began_at)
        else:
            start = began.began_at.start
            self.epochs.begin_at(loader_seed, num_workers, start, world.worker)
        self._iteration = Iteration(parser.plan(world, first_example=start.first_example), began)
        return self._iteration

    def begin_of_loader(self, num_workers: int, earlier: Position | None) -> Position:
        """Return the position of an iteration of a Loader that begins now, as `Cursor.begin`."""
        if self._restored is not None:
            raise StateMismatchError(
                "The dataset was given the position of one worker, and a Loader goes on between batches only: load a "
                "state of a Loader, or of LoaderState.from_stateful."
            )
        self._iteration = None
        return self.epochs.begin_of_loader(num_workers, earlier)

    def state(self, parser: Parser, rank: World, batches_delivered: int | None, is_read_ahead: bool) -> dict[str, Any]:
        """Return where training is; in a worker, the worker's position.

        `batches_delivered` is the user's count; `is_read_ahead`: whether something in between fetches ahead.
        """
        is_worker, count = get_worker_info() is not None, self.epochs.current()
        latest = count.position()
        is_local = self._iteration is not None and (is_worker or (count.has_begun and latest.num_workers == 0))
        position = self._iteration.position() if self._iteration is not None and is_local else self._restored
        if position is not None and batches_delivered is None and (is_worker or not is_read_ahead):
            if is_worker or position.examples:
                return position.to_dict()
            return position.began_at.at(position.next_batch).to_dict()
        state = state_at(parser, rank, latest.now, latest.num_workers)
        delivered = _check_delivered(batches_delivered, count, state.num_batches, parser.batch_size)
        return state.at(state.batches + delivered).to_dict()

    def _take_restored(self, fixed_epoch: int | None) -> WorkerPosition | None:
        """Return, once, where an iteration that begins now continues."""
        position, self._restored = self._restored, None
        if position is None:
            return None
        if self._restored_by != os.getpid():
            raise StateMismatchError(
                f"The state was taken after {position.examples} examples of a batch, by a process that read without "
                f"workers. It goes on without workers only: use num_workers=0, or take states between batches."
            )
        if fixed_epoch in (None, position.began_at.epoch):
            return position
        if position.is_underway:
            raise StateMismatchError(
                f"The loader's state is within epoch {position.began_at.epoch}, and set_epoch({fixed_epoch}) was "
                f"called. Begin with set_epoch({position.began_at.epoch}), or do not load the state."
            )
        return None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_iteration": None}
        return state if get_spawning_popen() is not None else state | {"_restored_by": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._restored_by is None:  # A copy continues where the original would; a worker of spawn does not.
            self._restored_by = os.getpid()


def is_position(state: object) -> bool:
    """Return whether a state is that of a worker rather than of a loader."""
    return isinstance(state, Mapping) and "began_at" in state


def _check_delivered(
    num_batches: int | None, count: PlainCount, num_batches_of_epoch: int, batch_size: int | None
) -> int:
    """Return how many batches have been delivered since an iteration began, or raise ConfigError."""
    latest = count.position()
    start, num_workers = latest.start, latest.num_workers or 0
    if num_batches is None:
        if not count.has_begun:
            return 0
        who = f"{num_workers} workers read" if num_workers else "Another loader reads"
        raise ConfigError(
            f"{who} ahead of the training loop, so that only you know how many batches came: "
            f"state_dict(batches_delivered=n), with n counted since iter(loader), as enumerate(loader, 1) does. "
            f"torchdata's StatefulDataLoader counts by itself: ask it, not the dataset."
        )
    num_batches = check_integer("batches_delivered", num_batches, 0)
    most, num_read = num_batches_of_epoch - start.start_batch, count.num_produced - start.start_batch
    reason = ""
    if num_batches and batch_size is None:
        reason = (
            "the parser has no batch_size, so that the dataset does not know how large the loader's batches are. Give "
            "it the loader's."
        )
    elif count.has_begun and count.knows_delivered and num_workers:
        reason = (
            "the loader went on from a state of its own, so that the dataset does not know where this iteration began. "
            "Ask the loader for its state."
        )
    elif num_batches > most:
        reason = (
            f"the iteration of epoch {start.epoch} began at batch {start.start_batch} of {num_batches_of_epoch} and "
            f"has {most}. Count from iter(loader) on."
        )
    elif count.has_begun and num_batches > num_read:
        reason = (
            f"only {num_read} batches have been read since the iteration of epoch {start.epoch} began, at batch "
            f"{start.start_batch}. Count from iter(loader) on: what came before the state that was loaded is added "
            f"here."
        )
    elif count.has_begun and num_batches == 0 < most and num_workers and num_read >= most:
        reason = (
            f"all of epoch {start.epoch} has been read, and the dataset cannot know whether you mean its beginning or "
            f"that of epoch {start.epoch + 1}. Call set_epoch first, or take the state after a batch."
        )
    if reason:
        raise ConfigError(f"batches_delivered={num_batches}: {reason}")
    return num_batches


def no_collation(loader: str) -> ConfigError:
    """Return the error for a loader that would have to make batches of PIL images."""
    return ConfigError(
        f"{loader} cannot make batches of PIL images with torch's default collation: give the dataset a transform that "
        f"ends in tensors (such as torchvision's ToTensor()), the loader a collate_fn, the parser a preprocess, or "
        f"batched=True where all images are of one size."
    )


def make_plain_loader(
    dataset: IterableDataset[Any],
    batch_size: int | None,
    num_workers: int,
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None,
) -> "DataLoader[Any]":
    """Return torch's own DataLoader, as the commands use it: its workers live from epoch to epoch."""
    with warnings.catch_warnings():
        # The commands warn themselves, once, where a loader would in every rank.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        return DataLoader(
            dataset, batch_size, num_workers=num_workers, persistent_workers=num_workers > 0, collate_fn=collate_fn
        )
