"""EpochPlan: how many batches each rank yields, and which examples are in them.

An order is a row of slots, num_slots = N of them for a pass over N examples; R ranks, batch_size B per rank, global
batch G = R * B. An epoch is the next k * N slots (`repeats=k`); then, where the remainder asks for it, the fill of the
last global batch. Global batch g is slots g*G .. (g+1)*G - 1 of the epoch, and rank r takes its r-th slice of B. Where
the first `first_example` slots were delivered under another G, slots and batches are counted from there on. With groups
of blocks, of which a global batch has equal shares, it has the same slots, ordered by group.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array, Order
from tfds_torch.plan.passes import BatchGroups
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_choice, check_integer
from tfds_torch.runtime.cached_property import cached_property

PAD_LABEL = -100
"""The label of a padded example: the `ignore_index` of torch's losses."""

MOST_BATCH = 2**31 - 1
"""The largest batch of a rank, in examples."""


class Remainder(StrEnum):
    """What happens to the examples that do not fill a last global batch.

    `WRAP`: it is filled with the first examples of the next pass. `DROP`: it is left out. `PAD`: it is filled with
    copies that are not `valid` and carry the label -100 (floats NaN). `KEEP`: it stays short (one rank only).
    """

    WRAP = "wrap"
    DROP = "drop"
    PAD = "pad"
    KEEP = "keep"


class Delivery(StrEnum):
    """What a dataset hands to its loader: single examples (`SAMPLE`), or whole batches (`BATCH`)."""

    SAMPLE = "sample"
    BATCH = "batch"


@dataclass(frozen=True)
class PlannedBatch:
    """The examples of one batch of one rank.

    Attributes:
        index: int64 [n], the examples, n <= batch_size (less only in a last batch that is kept short).
        pass_number: int64 [n], the pass each belongs to; a wrapped copy belongs to the next one. In a mixture it is the
            pass over the example's member.
        valid: bool [n], False for padding.
    """

    index: Int64Array
    pass_number: Int64Array
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class EpochPlan:
    """The arithmetic of an epoch, for one place in the world.

    Attributes:
        order: which example is in each slot: `Passes` over a dataset or a subset, `Mixed`, `Drawn`.
        world: the grid, and our place in it.
        batch_size: B, per rank.
        remainder: what happens to an incomplete last global batch; `EpochPlan.default_remainder` returns the usual one.
        is_training: whether the epoch is one of training. Training always yields batches; evaluation never counts an
            example twice.
        repeats: how many times as long as the order's own epoch an epoch is; 0 and 1 mean once.
        first_example: slots of the epoch, of all ranks together, that were delivered under another global batch size,
            0..k * num_slots. The plan then describes the rest of the epoch.
        delivery: what `len()` counts.

    Raises:
        ConfigError: values out of range, or a combination that cannot keep the guarantees.
    """

    order: Order
    world: World
    batch_size: int
    remainder: Remainder
    is_training: bool = False
    repeats: int = 1
    first_example: int = 0
    delivery: Delivery = Delivery.SAMPLE

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_integer("batch_size", self.batch_size, 1))
        check_integer("batch_size", self.batch_size, 1, MOST_BATCH)
        object.__setattr__(self, "repeats", check_integer("repeats", self.repeats, 0))
        first_example = check_integer("first_example", self.first_example, 0, self.num_own_slots)
        object.__setattr__(self, "first_example", first_example)
        for name, kind in (("remainder", Remainder), ("delivery", Delivery)):
            check_choice(name, getattr(self, name), [member.value for member in kind])
            object.__setattr__(self, name, kind(getattr(self, name)))
        if self.remainder is Remainder.KEEP and self.world.num_replicas > 1:
            raise ConfigError(
                f"remainder='keep' with {self.world.num_replicas} ranks would give them different numbers of batches. "
                f"Use 'pad' (evaluation), 'wrap' or 'drop' (training)."
            )
        if self.is_training:
            self._check_training()
        else:
            self._check_evaluation()
        if self._largest_epoch < 0:
            raise ConfigError(
                f"An epoch of {self.num_own_slots:,} examples has sample keys that do not fit into 64 bits: its order "
                f"numbers {self.num_examples:,} examples, and begins too many passes. Use a smaller epoch_size."
            )

    def _check_training(self) -> None:
        if self.order.num_slots == 0:
            who = self.order.promise().who
            what = "subset" if who.endswith("subset") else "split"
            raise ConfigError(f"The {what} holds no examples: there is nothing to train on.")
        if self.remainder is Remainder.DROP and self.num_own_slots < self.global_batch_size:
            raise ConfigError(
                f"remainder='drop' leaves no batch: the epoch's {self.num_own_slots} examples are "
                f"fewer than the global batch of {self.global_batch_size} ({self.world.num_replicas} ranks x "
                f"batch_size {self.batch_size}). Use remainder='wrap' or a smaller batch_size."
            )

    def _check_evaluation(self) -> None:
        promised = self.order.promise()
        if promised.remedy:
            raise ConfigError(
                f"Evaluation needs each example exactly once, and in this order {promised.who} comes "
                f"{promised.often}. {promised.remedy}"
            )
        if self.num_passes > 1:
            raise ConfigError(f"repeats={self.repeats} in evaluation would count every example {self.repeats} times.")
        if self.remainder is Remainder.WRAP:
            raise ConfigError("remainder='wrap' in evaluation would count examples twice. Use 'pad', 'keep' or 'drop'.")

    @staticmethod
    def default_remainder(is_training: bool, world: World) -> Remainder:
        """Return `WRAP` for training, `PAD` for evaluation on several ranks and `KEEP` on one.

        Args:
            is_training: whether the epoch is one of training.
            world: the grid of ranks and workers.
        """
        if is_training:
            return Remainder.WRAP
        return Remainder.PAD if world.num_replicas > 1 else Remainder.KEEP

    @cached_property
    def num_examples(self) -> int:
        """N: examples are numbers in 0..N-1."""
        return self.order.num_examples

    @cached_property
    def seed(self) -> int:
        """The seed of the order, and of the random numbers of examples."""
        return self.order.seed

    @property
    def num_passes(self) -> int:
        """How many times an epoch is as long as that of the order, k >= 1."""
        return max(1, self.repeats)

    @property
    def has_equal_groups(self) -> bool:
        """Whether every global batch has equal shares of the groups, so that it is ordered by them."""
        return self.global_batch_size % self.order.num_groups == 0

    @property
    def num_own_slots(self) -> int:
        """Slots of the epoch's own examples, k * num_slots; the fill comes behind them."""
        return self.order.num_slots * self.num_passes

    @property
    def global_batch_size(self) -> int:
        """G = num_replicas * batch_size."""
        return self.world.num_replicas * self.batch_size

    @property
    def num_batches(self) -> int:
        """Batches of an epoch (from `first_example` on), the same on every rank."""
        return count_batches(self.num_own_slots - self.first_example, self.global_batch_size, self.remainder)

    @property
    def num_samples(self) -> int:
        """Examples that this rank yields in an epoch; wrapped and padded ones count."""
        if self.remainder is Remainder.KEEP:
            return self.num_own_slots - self.first_example
        return self.num_batches * self.batch_size

    @property
    def num_valid(self) -> int:
        """Slots of the whole world, from `first_example` on, that hold one of the epoch's own examples."""
        return min(self.num_own_slots - self.first_example, self.num_batches * self.global_batch_size)

    @property
    def num_slots_in_order(self) -> int:
        """Slots, from `first_example` on, that lie in the order's row: padding is behind them."""
        is_cut = self.remainder in (Remainder.KEEP, Remainder.PAD)
        return self.num_valid if is_cut else self.num_batches * self.global_batch_size

    @property
    def last_epoch(self) -> int:
        """The last epoch, < 2**62, whose sample keys fit into int64: those of its fill are of following passes."""
        return max(0, self._largest_epoch)

    @cached_property
    def _largest_epoch(self) -> int:
        """As `last_epoch`; -1: not even epoch 0."""
        num_slots = self.first_example + self.num_slots_in_order
        num_touched = -(
            -num_slots // max(1, self.order.num_slots)
        )  # Epochs of the order that one epoch of this plan reaches into.
        return (self.order.largest_epoch + 1 - num_touched) // self.num_passes

    def check_epoch(self, epoch: object) -> int:
        """Return an epoch as an int.

        Args:
            epoch: number of the epoch, an integer >= 0.

        Raises:
            ConfigError: it is not an integer in 0..last_epoch.
        """
        return check_integer("epoch", epoch, 0, self.last_epoch)

    def __len__(self) -> int:
        """Return what torch's `len(dataset)` must be: examples of this rank, or batches with `Delivery.BATCH`."""
        return self.num_batches if self.delivery is Delivery.BATCH else self.num_samples

    def worker_batches(self, start_batch: int = 0) -> range:
        """Return the numbers of the rank's batches that this worker yields.

        A loader collects its workers round-robin from worker 0, so batch b belongs to worker (b - start_batch) % W.

        Args:
            start_batch: the batch at which this iteration of the epoch begins.

        Raises:
            ConfigError: start_batch lies outside 0..num_batches.
        """
        if not isinstance(start_batch, int | np.integer) or not 0 <= start_batch <= self.num_batches:
            raise ConfigError(f"start_batch={start_batch} must be in 0..{self.num_batches}, the batches of an epoch.")
        return range(start_batch + self.world.worker, self.num_batches, self.world.num_workers)

    def batch(self, epoch: int, number: int) -> PlannedBatch:
        """Return the examples of one batch of this rank.

        Args:
            epoch: number of the epoch, 0..last_epoch.
            number: number of the rank's batch in the epoch, 0..num_batches-1.

        Raises:
            ConfigError: there is no such batch or epoch.
        """
        if not 0 <= number < self.num_batches:
            raise ConfigError(f"batch {number} must be in 0..{self.num_batches - 1}.")
        first = number * self.global_batch_size + self.world.rank * self.batch_size
        stop = first + self.batch_size
        if self.remainder is Remainder.KEEP:
            stop = min(stop, self.num_valid)
        return self.at_slots(epoch, np.arange(first, stop, dtype=np.int64))

    def at_slots(self, epoch: int, slots: Int64Array) -> PlannedBatch:
        """Return the examples at any slots of an epoch >= 0, of any rank.

        Args:
            epoch: number of the epoch, 0..last_epoch.
            slots: int64 [n], each >= 0 and within the epoch, counted from `first_example` on.

        Raises:
            ConfigError: there is no such epoch.
        """
        epoch = self.check_epoch(epoch)
        if self.order.num_groups > 1:
            slots = self.batch_groups(epoch).before(slots)
        slots = slots + self.first_example
        valid = np.ones(slots.shape, np.bool_)
        if self.remainder is Remainder.PAD:
            valid = slots < self.num_own_slots
            slots = np.where(valid, slots, self.num_own_slots - self.order.num_slots + slots % self.order.num_slots)
        pass_number, index = self.order.at(epoch * self.num_own_slots + slots)
        return PlannedBatch(index, pass_number, valid)

    def batch_groups(self, epoch: int) -> BatchGroups:
        """Return how the global batches of an epoch are ordered by the groups of blocks.

        Args:
            epoch: number of the epoch, >= 0.
        """
        num_slots = self.num_slots_in_order // self.global_batch_size * self.global_batch_size
        first_group = (epoch * self.num_own_slots + self.first_example) % self.order.num_groups
        return BatchGroups(
            self.global_batch_size, self.order.num_groups, first_group, num_slots if self.has_equal_groups else 0
        )


def count_batches(num_slots: int, global_batch_size: int, remainder: Remainder) -> int:
    """Return the number of batches of an epoch of `num_slots` slots, the same on every rank."""
    whole, rest = divmod(num_slots, global_batch_size)
    return whole + (1 if rest and remainder is not Remainder.DROP else 0)
