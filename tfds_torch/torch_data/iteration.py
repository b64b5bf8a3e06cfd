"""One iteration of a dataset in one process: where it began, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.state import WorkerPosition
from tfds_torch.plan.worker_order import WorkerOrder
from tfds_torch.torch_data.shared_progress import Progress


@dataclass
class Iteration:
    """Counts what an iteration of one worker hands over.

    Attributes:
        plan: of the epoch; its world names the worker.
        began: where the loader's iteration began, and what this worker had handed over of it before it was restored.
        num_examples: handed over since the loader's iteration began, those before a restoration included.
    """

    plan: EpochPlan
    began: WorkerPosition
    num_examples: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_examples = self.began.batches * self.plan.batch_size + self.began.examples

    def position(self) -> WorkerPosition:
        """Returns how far this worker is."""
        began_at = self.began.began_at
        order = WorkerOrder(self.plan, began_at.epoch, began_at.batches_delivered)
        batches, examples = divmod(self.num_examples, self.plan.batch_size)
        if self.num_examples >= len(order):  # The last batch may be a short one.
            batches, examples = len(order.numbers), 0
        return WorkerPosition(self.began.worker, self.began.num_workers, batches, examples, began_at)


def is_position(state: object) -> bool:
    """Whether a state is that of a worker rather than of a loader."""
    return isinstance(state, Mapping) and "began_at" in state


def check_delivered(num_batches: int, progress: Progress, num_batches_of_epoch: int) -> None:
    """Raises ConfigError where so many batches cannot have been delivered since an iteration began."""
    most = num_batches_of_epoch - progress.start_batch
    if num_batches > most:
        raise ConfigError(
            f"batches_delivered={num_batches}: the iteration of epoch {progress.epoch} began at batch "
            f"{progress.start_batch} of {num_batches_of_epoch} and has {most}. Count from iter(loader) on."
        )
    if progress.num_workers is None:
        return
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
