"""WorkerOrder: the examples of one worker of one rank in index mode, one after the other."""

from dataclasses import dataclass

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.assignment import pipeline_counts
from tfds_torch.plan.epoch import EpochPlan, PlannedBatch, Remainder
from tfds_torch.plan.order import Int64Array


@dataclass(frozen=True)
class WorkerOrder:
    """What one worker of one rank delivers of an epoch, from a batch on, in order of delivery.

    It is arithmetic: nothing is listed before it is asked for, whatever the size of the dataset.

    Attributes:
        plan: the epoch plan; its world names the worker.
        epoch: which epoch, >= 0.
        start_batch: the rank's batch at which this iteration of the epoch begins, 0 <= start_batch <= num_batches.

    Raises:
        ConfigError: there is no such epoch or batch.
    """

    plan: EpochPlan
    epoch: int
    start_batch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch", check_integer("epoch", self.epoch, 0))
        self.plan.worker_batches(self.start_batch)

    @property
    def numbers(self) -> range:
        """The numbers of the rank's batches that this worker delivers."""
        return self.plan.worker_batches(self.start_batch)

    def __len__(self) -> int:
        """Examples that this worker delivers; wrapped and padded ones count."""
        return sum(pipeline_counts(self.plan, self.start_batch))

    @property
    def num_valid(self) -> int:
        """Of these, the leading ones that are no padding."""
        num_own, num_fill = pipeline_counts(self.plan, self.start_batch)
        return num_own if self.plan.remainder is Remainder.PAD else num_own + num_fill

    def examples(self, start: int, stop: int) -> Int64Array:
        """Returns the examples at positions start..stop-1 of this worker's deliveries.

        Returns:
            int64 [stop - start].

        Raises:
            ConfigError: the positions are not within 0..len.
        """
        return self.planned(start, stop).index

    def sample_keys(self, start: int, stop: int) -> Int64Array:
        """Returns the sample keys of the same examples: `pass_number * num_examples + index`, int64 [stop - start].

        Raises:
            ConfigError: the positions are not within 0..len.
        """
        planned = self.planned(start, stop)
        return planned.pass_number * self.plan.num_examples + planned.index

    def planned(self, start: int, stop: int) -> PlannedBatch:
        """Returns the same examples together with the pass of each and whether it is valid.

        Raises:
            ConfigError: the positions are not within 0..len.
        """
        if not 0 <= start <= stop <= len(self):
            raise ConfigError(
                f"WorkerOrder: positions {start}:{stop} must lie within 0..{len(self)}, the examples that worker "
                f"{self.plan.world.worker} of rank {self.plan.world.rank} delivers from batch {self.start_batch} on."
            )
        numbers, batch_size = self.numbers, self.plan.batch_size
        own, offsets = np.divmod(np.arange(start, stop, dtype=np.int64), batch_size)
        first = self.plan.world.rank * batch_size
        slots = (numbers.start + own * numbers.step) * self.plan.global_batch_size + first + offsets
        return self.plan.at_slots(self.epoch, slots)
