"""The iterations that one process counts itself: those of a plain DataLoader, or of one worker for torchdata."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import get_spawning_popen
from typing import Any

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.shared_progress import Progress
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.worker_order import WorkerOrder
from tfds_torch.plan.worker_position import WorkerPosition


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


class OwnIterations:
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
    if progress.is_counted_elsewhere and progress.num_workers:
        raise ConfigError(
            f"batches_delivered={num_batches}: the loader went on from a state of its own, so that the dataset does "
            f"not know where this iteration began. Ask the loader for its state."
        )
    most = num_batches_of_epoch - progress.start_batch
    if num_batches > most:
        raise ConfigError(
            f"batches_delivered={num_batches}: the iteration of epoch {progress.epoch} began at batch "
            f"{progress.start_batch} of {num_batches_of_epoch} and has {most}. Count from iter(loader) on."
        )
    if progress.num_workers is None:
        return num_batches
    if num_batches > progress.num_produced - progress.start_batch:
        raise ConfigError(
            f"batches_delivered={num_batches}: only {progress.num_produced - progress.start_batch} batches have been "
            f"read since the iteration of epoch {progress.epoch} began, at batch {progress.start_batch}. Count from "
            f"iter(loader) on: what came before the state that was loaded is added here."
        )
    if num_batches == 0 < most and progress.num_workers and progress.num_produced >= num_batches_of_epoch:
        raise ConfigError(
            f"batches_delivered=0: all of epoch {progress.epoch} has been read, and the dataset cannot know whether "
            f"you mean its beginning or that of epoch {progress.epoch + 1}. Call set_epoch first, or take the state "
            f"after a batch."
        )
    return num_batches
