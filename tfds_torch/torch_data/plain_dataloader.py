"""What only plain DataLoaders and torchdata's StatefulDataLoader need of an ImageDataset.

They tell a dataset nothing: the process that reads counts what it hands over, and looks at its callers' frames to find
out how its items are taken.
"""

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import get_spawning_popen
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.epoch import EpochPlan, WorkerOrder
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.worker_position import WorkerPosition
from tfds_torch.torch_data.plain_epochs import Progress


@dataclass
class Iteration:
    """Counts what an iteration of one worker hands over.

    Attributes:
        plan: of the epoch; its world names the worker.
        began: where the loader's iteration began, and what this worker had handed over of it before it was restored.
        num_examples: handed over since the loader's iteration began, those before a restoration included.
    """

    plan: EpochPlan
    began: WorkerPosition[LoaderState]
    num_examples: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_examples = self.began.batches * self.plan.batch_size + self.began.examples

    def position(self) -> WorkerPosition[LoaderState]:
        """Returns how far this worker is."""
        began_at = self.began.began_at
        order = WorkerOrder(self.plan, began_at.epoch, began_at.batches_delivered)
        batches, examples = divmod(self.num_examples, self.plan.batch_size)
        if self.num_examples >= len(order):  # The last batch may be a short one.
            batches, examples = len(order.numbers), 0
        return WorkerPosition(self.began.worker, self.began.num_workers, batches, examples, began_at)


class LocalIteration:
    """The latest iteration that this process counts, and where the next one goes on if it was told so.

    torchdata's StatefulDataLoader saves and loads the position of each worker, in the worker; without workers, that of
    its own process. A copy of a dataset goes on where the original would; a worker that is spawned does not.
    """

    def __init__(self) -> None:
        self._iteration: Iteration | None = None
        self._restored: WorkerPosition[LoaderState] | None = None
        self._restored_by: int | None = os.getpid()

    @property
    def is_restored(self) -> bool:
        """Whether the next iteration goes on where a worker, or a loader without workers, was."""
        return self._restored is not None

    def restore(self, position: WorkerPosition[LoaderState] | None) -> None:
        """Lets the next iteration of this process go on at a position; None: nowhere in particular."""
        self._restored, self._restored_by, self._iteration = position, os.getpid(), None

    def forget_other_epochs(self, epoch: int) -> None:
        """Lets the next iteration go on in an epoch only."""
        if self._restored is not None and self._restored.began_at.epoch != epoch:
            self._restored = None

    def begin(self, plan: EpochPlan, began: WorkerPosition[LoaderState]) -> Iteration:
        """Returns an iteration of this process that begins now."""
        self._iteration = Iteration(plan, began)
        return self._iteration

    def end(self) -> None:
        """Notes that somebody else counts the iteration that begins now."""
        self._iteration = None

    def position(self, can_see: bool) -> WorkerPosition[LoaderState] | None:
        """Returns how far the latest iteration is, or where the next one goes on; None: it is not known here.

        Args:
            can_see: whether the latest iteration is this process's own.
        """
        return self._iteration.position() if self._iteration is not None and can_see else self._restored

    def take_restored(self, fixed_epoch: int | None) -> WorkerPosition[LoaderState] | None:
        """Returns where an iteration that begins now goes on, once.

        Raises:
            StateMismatchError: the position is that of another process, or within another epoch than the one that is
                set by hand.
        """
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
        if self._restored_by is None:  # A copy goes on where the original would; a worker of spawn does not.
            self._restored_by = os.getpid()


def is_position(state: object) -> bool:
    """Whether a state is that of a worker rather than of a loader."""
    return isinstance(state, Mapping) and "began_at" in state


def check_delivered(
    num_batches: int | None, progress: Progress, num_batches_of_epoch: int, batch_size: int | None
) -> int:
    """Returns how many batches have been delivered since an iteration began.

    Args:
        num_batches: how many the user says; None: nothing was said.
        progress: how far the training process is.
        num_batches_of_epoch: of the whole epoch.
        batch_size: of the parser; None: it was not told.

    Raises:
        ConfigError: so many cannot have been delivered, or it is not known here.
    """
    start = progress.start
    if num_batches is None:
        if progress.num_workers is None:
            return 0
        who = f"{progress.num_workers} workers read" if progress.num_workers else "Another loader reads"
        raise ConfigError(
            f"{who} ahead of the training loop, so that only you know how many batches came: "
            f"state_dict(batches_delivered=n), with n counted since iter(loader), as enumerate(loader, 1) does. "
            f"torchdata's StatefulDataLoader counts by itself: ask it, not the dataset."
        )
    num_batches = check_integer("batches_delivered", num_batches, 0)
    if num_batches and batch_size is None:
        raise ConfigError(
            f"batches_delivered={num_batches}: the parser has no batch_size, so that the dataset does not know how "
            f"large the loader's batches are. Give it the loader's."
        )
    if progress.knows_delivered and progress.num_workers:
        raise ConfigError(
            f"batches_delivered={num_batches}: the loader went on from a state of its own, so that the dataset does "
            f"not know where this iteration began. Ask the loader for its state."
        )
    most = num_batches_of_epoch - start.start_batch
    if num_batches > most:
        raise ConfigError(
            f"batches_delivered={num_batches}: the iteration of epoch {start.epoch} began at batch "
            f"{start.start_batch} of {num_batches_of_epoch} and has {most}. Count from iter(loader) on."
        )
    if progress.num_workers is None:
        return num_batches
    if num_batches > progress.num_produced - start.start_batch:
        raise ConfigError(
            f"batches_delivered={num_batches}: only {progress.num_produced - start.start_batch} batches have been "
            f"read since the iteration of epoch {start.epoch} began, at batch {start.start_batch}. Count from "
            f"iter(loader) on: what came before the state that was loaded is added here."
        )
    if num_batches == 0 < most and progress.num_workers and progress.num_produced >= num_batches_of_epoch:
        raise ConfigError(
            f"batches_delivered=0: all of epoch {start.epoch} has been read, and the dataset cannot know whether "
            f"you mean its beginning or that of epoch {start.epoch + 1}. Call set_epoch first, or take the state "
            f"after a batch."
        )
    return num_batches


@dataclass(frozen=True)
class Fetch:
    """How a DataLoader takes items.

    Attributes:
        batch_size: of its batches; None: items come as they are.
        is_default_collation: whether torch's own function makes batches of examples.
        dataset: the DataLoader's; another one may stand in it.
    """

    batch_size: int | None
    is_default_collation: bool
    dataset: Any


def find_fetch() -> Fetch | None:
    """Returns how the DataLoader whose `next` is under way takes items; None: there is none, or torch has changed.

    A dataset that is iterated has no other way to know: the caller's frames are looked at.
    """
    fetcher, asked = _find_fetcher()
    if fetcher is None:
        return None
    if not fetcher.auto_collation:
        return Fetch(None, False, fetcher.dataset)
    if not isinstance(asked, list):
        return None
    return Fetch(len(asked), fetcher.collate_fn is default_collate, fetcher.dataset)


def find_iteration() -> object | None:
    """Returns an object that stands for the iteration of the DataLoader whose `next` is under way; None: there is none.

    It is torch's fetcher, which every process that reads makes anew for every iteration.
    """
    iteration: object | None = _find_fetcher()[0]
    return iteration


def _find_fetcher() -> tuple[Any, Any]:
    """Returns torch's fetcher, and what it is asked for; None and None: there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fetch":
            fetcher = frame.f_locals.get("self")
            if hasattr(fetcher, "auto_collation") and hasattr(fetcher, "collate_fn"):
                return fetcher, frame.f_locals.get("possibly_batched_index")
        frame = frame.f_back
    return None, None


def no_collation(loader: str) -> ConfigError:
    """Returns the error for a loader that would have to make batches of PIL images."""
    return ConfigError(
        f"{loader} cannot make batches of PIL images with torch's default collation: give the dataset a transform that "
        f"ends in tensors (such as torchvision's ToTensor()), the loader a collate_fn, or the parser a preprocess."
    )


def check_fetch(dataset: object, batch_size: int | None, is_batched: bool, has_pil_images: bool) -> None:
    """Says what a plain DataLoader makes of a dataset's items, where that cannot be meant.

    Args:
        dataset: that is iterated. A dataset around it, such as timm's, may make tensors of PIL images.
        batch_size: of the parser.
        is_batched: whether the items are whole batches.
        has_pil_images: whether they are single examples with PIL images.

    Raises:
        ConfigError: torch's default collation would get PIL images.
    """
    fetch = find_fetch()
    if fetch is None:
        return
    if fetch.is_default_collation and has_pil_images and fetch.dataset is dataset:
        raise no_collation("The DataLoader")
    wanted = None if is_batched else batch_size
    if (is_batched or wanted is not None) and fetch.batch_size != wanted:
        items = "whole batches" if is_batched else "single examples"
        warnings.warn(
            f"DataLoader(batch_size={fetch.batch_size}) over an ImageDataset that yields {items}, of a parser with "
            f"batch_size={batch_size}: its batches are not those that the parser plans, and len() and states count "
            f"others. Use DataLoader(dataset, batch_size={wanted}, ...), or create_loader(dataset, ...).",
            UserWarning,
            stacklevel=2,
        )


def make_plain_loader(
    dataset: IterableDataset[Any],
    batch_size: int | None,
    num_workers: int,
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None,
) -> "DataLoader[Any]":
    """Returns torch's own DataLoader, as the commands use it: its workers live from epoch to epoch.

    Args:
        dataset: what is loaded.
        batch_size: examples of a batch; None: items come as they are.
        num_workers: loader processes; 0 reads in this process.
        collate_fn: makes a batch of a list of examples; None: torch's own.
    """
    with warnings.catch_warnings():
        # The commands say so themselves, once, where a loader would in every rank.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        return DataLoader(
            dataset, batch_size, num_workers=num_workers, persistent_workers=num_workers > 0, collate_fn=collate_fn
        )
