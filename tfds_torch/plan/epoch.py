"""EpochPlan and WorkerOrder: how many batches each rank and worker yields, and which examples are in them.

N examples, R ranks, W workers, batch_size B per rank, global batch G = R * B. An epoch is a row of *slots*: first k * N
slots for its k passes (`repeats`), then, where the remainder asks for it, the fill of the last global batch. Global
batch g is slots g*G .. (g+1)*G - 1, and rank r takes its r-th slice of B. Where the first `first_example` slots were
delivered under another G, slots and batches are counted from there on. With groups of blocks, of which a global batch
has equal shares, it has the same slots, ordered by group.

A subset of n examples has n slots in a pass. With `epoch_size` E, or in a mixture, there is one endless row of slots,
of which E are an epoch, or one of its k repeats: everything else is the same.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.drawn import WeightedOrder
from tfds_torch.plan.mixed import MixtureOrder
from tfds_torch.plan.order import LARGEST_KEY, Int64Array, order_at, unique
from tfds_torch.plan.passes import BatchGroups, BlockShuffle, block_order_at
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import MOST_SLOTS
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_choice, check_integer
from tfds_torch.runtime.printable import quoted

PAD_LABEL = -100
"""The label of a padded example: the `ignore_index` of torch's losses."""

MOST_EPOCHS = 2**62


MOST_BATCH = 2**31 - 1
"""Examples of a rank's batch, at most."""


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
        num_examples: N, of the split.
        world: the grid, and our place in it.
        batch_size: B, per rank.
        remainder: what happens to an incomplete last global batch; `EpochPlan.default_remainder` returns the usual one.
        is_training: training never yields nothing; evaluation never counts an example twice.
        repeats: passes in one epoch; 0 and 1 mean one.
        shuffle: whether a pass has a shuffled order, or the order of the dataset.
        seed: what the shuffled order depends on.
        delivery: what `len()` counts.
        blocks: where `shuffle` shuffles blocks of examples, the sizes of these; None shuffles single examples.
        first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
            size, 0..k * N. The plan is then that of the rest of the epoch.
        mixture: the order of a mixture of N examples in all, in training; None: one dataset, or a concatenation.
        subset: the examples of a pass; None: all N.
        draws: the order of examples that are drawn by weights, in training; None: passes have each example once.
        epoch_size: E, in training: an epoch is the next E examples of the passes, one after the other; None: it is
            `repeats` whole passes.

    Raises:
        ConfigError: values out of range, or a combination that cannot keep the guarantees.
    """

    num_examples: int
    world: World
    batch_size: int
    remainder: Remainder
    is_training: bool = False
    repeats: int = 1
    shuffle: bool = False
    seed: int = 42
    delivery: Delivery = Delivery.SAMPLE
    blocks: BlockShuffle | None = None
    first_example: int = 0
    mixture: MixtureOrder | None = None
    subset: Subset | None = None
    epoch_size: int | None = None
    draws: WeightedOrder | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_examples", 0), ("batch_size", 1), ("repeats", 0), ("seed", 0)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least))
        check_integer("batch_size", self.batch_size, 1, MOST_BATCH)
        if self.epoch_size is not None:
            object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))
        first_example = check_integer("first_example", self.first_example, 0, self.num_own_slots)
        object.__setattr__(self, "first_example", first_example)
        for name, kind in (("remainder", Remainder), ("delivery", Delivery)):
            check_choice(name, getattr(self, name), [member.value for member in kind])
            object.__setattr__(self, name, kind(getattr(self, name)))
        if not isinstance(self.blocks, BlockShuffle | None):
            raise ConfigError(f"blocks={quoted(self.blocks)} must be a BlockShuffle or None.")
        if self.row is not None:
            self._check_row(self.row)
        if self.remainder is Remainder.KEEP and self.world.num_replicas > 1:
            raise ConfigError(
                f"remainder='keep' with {self.world.num_replicas} ranks would give them different numbers of batches. "
                f"Use 'pad' (evaluation), 'wrap' or 'drop' (training)."
            )
        if self.is_training:
            self._check_training()
        else:
            self._check_evaluation()

    def _check_training(self) -> None:
        if self.num_selected == 0:
            what = "split" if self.subset is None else "subset"
            raise ConfigError(f"The {what} holds no examples: there is nothing to train on.")
        if self.remainder is Remainder.DROP and self.num_own_slots < self.global_batch_size:
            raise ConfigError(
                f"remainder='drop' leaves no batch: the epoch's {self.num_own_slots} examples are "
                f"fewer than the global batch of {self.global_batch_size} ({self.world.num_replicas} ranks x "
                f"batch_size {self.batch_size}). Use remainder='wrap' or a smaller batch_size."
            )

    def _check_row(self, row: MixtureOrder | WeightedOrder) -> None:
        if not self.is_training:
            raise ConfigError(
                "Evaluation by weights would leave examples out, or count them twice. Leave out the weights: every "
                "example then comes exactly once."
            )
        for name in ("subset", "epoch_size"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}={getattr(self, name)} beside weights: their order has its own.")
        if row is self.draws and not self.shuffle:
            raise ConfigError(
                "shuffle=False beside weights of examples, which are drawn at random. Leave shuffle out, or choose "
                "examples with subset()."
            )
        of_row = row.num_examples, row.seed, row.shuffle, None
        if of_row != (self.num_examples, self.seed, self.shuffle, self.blocks):
            raise ConfigError(
                f"The order by weights has (num_examples, seed, shuffle, blocks) = {of_row}, and the plan "
                f"{(self.num_examples, self.seed, self.shuffle, self.blocks)}: they must be the same."
            )
        if self.first_example + self.num_batches * self.global_batch_size > self._num_keyed:
            raise ConfigError(
                f"An epoch of {self.num_own_slots:,} examples has sample keys that do not fit into 64 bits: its "
                f"members hold {self.num_examples:,} examples together, and a small one begins too many passes. Use a "
                f"smaller epoch_size."
            )

    def _check_evaluation(self) -> None:
        if self.epoch_size is not None:
            raise ConfigError(
                f"epoch_size={self.epoch_size} in evaluation would leave examples out, or count them twice. Leave it "
                f"out, or evaluate a subset."
            )
        if self.num_passes > 1:
            raise ConfigError(f"repeats={self.repeats} in evaluation would count every example {self.repeats} times.")
        if self.remainder is Remainder.WRAP:
            raise ConfigError("remainder='wrap' in evaluation would count examples twice. Use 'pad', 'keep' or 'drop'.")

    @staticmethod
    def default_remainder(is_training: bool, world: World) -> Remainder:
        """Returns `WRAP` for training, `PAD` for evaluation on several ranks and `KEEP` on one."""
        if is_training:
            return Remainder.WRAP
        return Remainder.PAD if world.num_replicas > 1 else Remainder.KEEP

    @property
    def num_passes(self) -> int:
        """Passes over the examples in one epoch, k >= 1."""
        return max(1, self.repeats)

    @property
    def num_selected(self) -> int:
        """Examples of one pass: N, or those of the subset."""
        return self.num_examples if self.subset is None else len(self.subset)

    @property
    def pass_size(self) -> int:
        """Slots of one of the k repeats of an epoch: one pass over the examples, or E of the endless row."""
        if self.row is not None:
            return self.row.epoch_size
        return self.num_selected if self.epoch_size is None else self.epoch_size

    @property
    def row(self) -> MixtureOrder | WeightedOrder | None:
        """The endless row of slots that weights make; None: there are none."""
        return self.mixture if self.mixture is not None else self.draws

    @property
    def is_endless(self) -> bool:
        """Whether an epoch is a part of an endless row, so that passes do not end where epochs do."""
        return self.row is not None or self.epoch_size is not None

    @property
    def num_groups(self) -> int:
        """Groups of blocks that the slots take from in turn; 1: there are none."""
        return self.blocks.groups if self.blocks is not None and self.shuffle else 1

    @property
    def has_equal_groups(self) -> bool:
        """Whether every global batch has equal shares of the groups, so that it is ordered by them."""
        return self.global_batch_size % self.num_groups == 0

    @property
    def num_own_slots(self) -> int:
        """Slots of the epoch's own examples, k * N (of an endless row k * E); the fill comes behind them."""
        return self.pass_size * self.num_passes

    @property
    def global_batch_size(self) -> int:
        """G = num_replicas * batch_size."""
        return self.world.num_replicas * self.batch_size

    @property
    def num_batches(self) -> int:
        """Batches of an epoch (from `first_example` on), the same on every rank."""
        whole, rest = divmod(self.num_own_slots - self.first_example, self.global_batch_size)
        return whole + (1 if rest and self.remainder is not Remainder.DROP else 0)

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
    def last_epoch(self) -> int:
        """The last epoch, <= 2**62, whose sample keys fit into int64: those of its fill are of following passes."""
        num_slots = self.first_example + self.num_batches * self.global_batch_size
        most = (self._num_keyed - num_slots) // max(1, self.num_own_slots)
        return max(0, min(MOST_EPOCHS, most))

    @property
    def _num_keyed(self) -> int:
        """Slots whose sample keys fit into int64."""
        if self.row is not None:
            return self.row.num_keyed
        return LARGEST_KEY if self.subset is None else LARGEST_KEY // max(1, self.num_examples) * self.num_selected

    def check_epoch(self, epoch: object) -> int:
        """Returns an epoch as an int.

        Raises:
            ConfigError: it is not an integer in 0..last_epoch.
        """
        return check_integer("epoch", epoch, 0, self.last_epoch)

    def __len__(self) -> int:
        """What torch's `len(dataset)` must be: examples of this rank, or batches with `Delivery.BATCH`."""
        return self.num_batches if self.delivery is Delivery.BATCH else self.num_samples

    def worker_batches(self, start_batch: int = 0) -> range:
        """Returns the numbers of the rank's batches that this worker yields.

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
        """Returns the examples of this rank's batch `number` of an epoch >= 0.

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
        """Returns the examples at any slots of an epoch >= 0, of any rank.

        Args:
            epoch: which epoch.
            slots: int64 [n], each >= 0 and within the epoch, counted from `first_example` on.

        Raises:
            ConfigError: there is no such epoch.
        """
        epoch = self.check_epoch(epoch)
        if self.num_groups > 1:
            slots = self.batch_groups(epoch).before(slots)
        slots = slots + self.first_example
        passes, positions = np.divmod(slots, self.pass_size)
        valid = np.ones(slots.shape, np.bool_)
        if self.remainder is Remainder.PAD:
            valid = slots < self.num_own_slots
            passes = np.minimum(passes, self.num_passes - 1)
        passes += epoch * self.num_passes
        if self.row is not None:
            found = self.row.at(passes * self.pass_size + positions)
            return PlannedBatch(found.index, found.pass_number, valid)
        if self.epoch_size is not None:
            passes, positions = np.divmod(passes * self.epoch_size + positions, self.num_selected)
        examples = self._examples_at(passes, positions)
        return PlannedBatch(examples if self.subset is None else self.subset.numbers[examples], passes, valid)

    def batch_groups(self, epoch: int) -> BatchGroups:
        """Returns how the global batches of an epoch are ordered by the groups of blocks."""
        num_slots = self.num_batches * self.global_batch_size if self.has_equal_groups else 0
        if num_slots and self.remainder in (Remainder.KEEP, Remainder.PAD):
            num_slots = self.num_valid // self.global_batch_size * self.global_batch_size
        first_group = (epoch * self.num_own_slots + self.first_example) % self.num_groups
        return BatchGroups(self.global_batch_size, self.num_groups, first_group, num_slots)

    def _examples_at(self, passes: Int64Array, positions: Int64Array) -> Int64Array:
        """Returns which of the examples of a pass stand at positions in passes."""
        if not self.shuffle:
            return positions
        examples = np.empty_like(positions)
        for number in unique(passes).values.tolist():
            here = passes == number
            examples[here] = self._order_at(positions[here], number)
        return examples

    def _order_at(self, positions: Int64Array, pass_number: int) -> Int64Array:
        if self.blocks is None:
            return order_at(positions, self.num_selected, self.seed, pass_number)
        return block_order_at(positions, self.num_selected, self.seed, pass_number, self.blocks)


def pipeline_counts(plan: EpochPlan, start_batch: int = 0) -> tuple[int, int]:
    """Returns how many valid and how many fill examples the plan's own (rank, worker) yields in an epoch."""
    numbers = plan.worker_batches(start_batch)
    slots = len(numbers) * plan.batch_size
    if not numbers or numbers[-1] != plan.num_batches - 1:
        return slots, 0
    first_of_last = numbers[-1] * plan.global_batch_size + plan.world.rank * plan.batch_size
    fill = plan.batch_size - min(max(plan.num_valid - first_of_last, 0), plan.batch_size)
    return slots - fill, 0 if plan.remainder is Remainder.KEEP else fill


@dataclass(frozen=True)
class WorkerOrder:
    """What one worker of one rank delivers of an epoch, from a batch on, in order of delivery.

    It is arithmetic: nothing is listed before it is asked for, whatever the size of the dataset.

    Attributes:
        plan: the epoch plan; its world names the worker.
        epoch: which epoch, >= 0.
        start_batch: the rank's batch at which this iteration of the epoch begins, 0 <= start_batch <= num_batches.
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
        """The number of leading examples that are not padding."""
        num_own, num_fill = pipeline_counts(self.plan, self.start_batch)
        return num_own if self.plan.remainder is Remainder.PAD else num_own + num_fill

    def sample_keys(self, start: int, stop: int) -> Int64Array:
        """Returns the sample keys at positions start..stop-1 of this worker's deliveries.

        Returns:
            int64 [stop - start]: `pass_number * num_examples + index`.
        """
        planned = self.planned(start, stop)
        return planned.pass_number * self.plan.num_examples + planned.index

    def planned(self, start: int, stop: int) -> PlannedBatch:
        """Returns the examples at the same positions, the pass of each, and whether it is valid."""
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
