"""Deal: which batches and examples of an epoch each place in the world reads, as arithmetic.

By number, a worker delivers every W-th batch of its rank: `WorkerOrder`.

Streams (the read modes `files` and `examples`) read parts of files. A split is a row of *files* (TFDS's file
instructions: a shard, or a cut of one) with known lengths. Every pipeline gets *shard ranges* that together hold the
number of examples that the EpochPlan asks of it, so nothing downstream needs to repeat, truncate or count.

When the plan shuffles, the row of files is permuted anew in every pass, before it is dealt: shards move between ranks
and workers from epoch to epoch. The row of examples begins at another place in every pass, so that neither the cuts
between pipelines nor the examples that are cut off at the end are always the same, even of a single shard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan, PlannedBatch, Remainder
from tfds_torch.plan.order import Int64Array, epoch_order, order_at
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_integer


def pipeline_counts(plan: EpochPlan, start_batch: int = 0) -> tuple[int, int]:
    """Return how many valid and how many fill examples the plan's own (rank, worker) yields in an epoch."""
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
        """Return the number of examples that this worker delivers; wrapped and padded ones count."""
        return sum(pipeline_counts(self.plan, self.start_batch))

    @property
    def num_valid(self) -> int:
        """The number of leading examples that are not padding."""
        num_own, num_fill = pipeline_counts(self.plan, self.start_batch)
        return num_own if self.plan.remainder is Remainder.PAD else num_own + num_fill

    def sample_keys(self, start: int, stop: int) -> Int64Array:
        """Return the sample keys at positions start..stop-1 of this worker's deliveries.

        Returns:
            int64 [stop - start]: `pass_number * num_examples + index`.
        """
        planned = self.planned(start, stop)
        return planned.pass_number * self.plan.num_examples + planned.index

    def planned(self, start: int, stop: int) -> PlannedBatch:
        """Return the examples at positions start..stop-1, the pass of each, and whether it is valid."""
        if not 0 <= start <= stop <= len(self):
            raise ConfigError(
                f"WorkerOrder: positions {start}:{stop} must lie within 0..{len(self)}, the examples that worker "
                f"{self.plan.world.worker} of rank {self.plan.world.rank} delivers from batch {self.start_batch} on."
            )
        numbers, batch_size = self.numbers, self.plan.batch_size
        places = np.arange(start, stop, dtype=np.int64)
        own = places // batch_size
        first = self.plan.world.rank * batch_size
        slots = (numbers.start + own * numbers.step) * self.plan.global_batch_size + first + places - own * batch_size
        return self.plan.at_slots(self.epoch, slots)

    def reads(self, slots: Int64Array) -> NDArray[np.bool_]:
        """Return which slots of the epoch this worker delivers, bool [n]."""
        world, numbers = self.plan.world, self.numbers
        batch, at = np.divmod(slots, self.plan.global_batch_size)
        is_own: NDArray[np.bool_] = at // self.plan.batch_size == world.rank
        is_own &= (batch >= numbers.start) & ((batch - numbers.start) % numbers.step == 0)
        return is_own


# Streams


@dataclass(frozen=True)
class ShardRange:
    """Consecutive examples of one file: `start` <= position within the file < `stop`, in one pass."""

    file: int
    start: int
    stop: int
    pass_number: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Assignment:
    """What one pipeline reads in an epoch.

    Attributes:
        valid: shard ranges of the epoch's own examples.
        fill: shard ranges of the examples that fill the last global batch (wrapped or padded); they come last.
        num_available: number of examples in the files dealt to this pipeline. Only in mode `files` does it differ from
            the number of examples that the pipeline reads.
    """

    valid: tuple[ShardRange, ...]
    fill: tuple[ShardRange, ...]
    num_available: int

    @property
    def num_valid(self) -> int:
        """Number of the epoch's own examples."""
        return sum(map(len, self.valid))

    @property
    def num_fill(self) -> int:
        """Number of wrapped or padded examples."""
        return sum(map(len, self.fill))


def deal_examples(plan: EpochPlan, file_lengths: Sequence[int], epoch: int) -> Assignment:
    """Return the ranges of the plan's pipeline in mode `examples`: consecutive cuts of the row of examples.

    The pipelines' cuts lie side by side, so every example of every pass is read exactly once; the fill is cut likewise
    out of the first examples of the next pass (wrap) or of this one (pad).

    Args:
        plan: the epoch plan; its world names the pipeline.
        file_lengths: examples in each file of the split, with sum `plan.num_examples`.
        epoch: which epoch, >= 0.
    """
    _check_whole(plan)
    pipelines = World.grid(plan.world.num_replicas, plan.world.num_workers)[: plan.world.pipeline + 1]
    counts = np.array([pipeline_counts(replace(plan, world=world)) for world in pipelines], dtype=np.int64)
    (valid_start, fill_start), (num_valid, num_fill) = counts[:-1].sum(axis=0).tolist(), counts[-1].tolist()
    first_pass = epoch * plan.num_passes
    fill_pass = first_pass + plan.num_passes - (1 if plan.remainder is Remainder.PAD else 0)
    valid = _cut(plan, file_lengths, first_pass, valid_start, num_valid)
    fill = _cut(plan, file_lengths, fill_pass, fill_start, num_fill, same_pass=plan.remainder is Remainder.PAD)
    return Assignment(tuple(valid), tuple(fill), num_available=num_valid)


def deal_files(plan: EpochPlan, file_lengths: Sequence[int], epoch: int) -> Assignment:
    """Return the ranges of the plan's pipeline in mode `files`: every num_pipelines-th file of the (shuffled) row.

    Of its last file it reads only the examples that are still wanted, beginning anywhere in the file. If its files have
    too few examples, the rest comes from the files dealt to it in the next pass. There is no fill: the examples that a
    wrap adds are among its own examples.

    Args:
        plan: the epoch plan; its world names the pipeline.
        file_lengths: examples in each file, none of them empty, at least as many as there are pipelines.
        epoch: which epoch, >= 0.
    """
    _check_whole(plan)
    wanted = sum(pipeline_counts(plan))
    first_pass = epoch * plan.num_passes

    def dealt(pass_number: int) -> list[int]:
        return _file_order(plan, len(file_lengths), pass_number)[plan.world.pipeline :: plan.world.num_pipelines]

    available = sum(file_lengths[file] for j in range(plan.num_passes) for file in dealt(first_pass + j))
    shard_ranges: list[ShardRange] = []
    pass_number = first_pass
    while wanted > 0:
        for file in dealt(pass_number):
            length = file_lengths[file]
            if wanted >= length:
                shard_ranges.append(ShardRange(file, 0, length, pass_number))
            elif wanted > 0:
                begin = _rotation(plan, length, pass_number, file)
                shard_ranges += [ShardRange(file, *window, pass_number) for window in _window(begin, wanted, length)]
            wanted -= length
        pass_number += 1
    return Assignment(tuple(shard_ranges), (), num_available=available)


def _check_whole(plan: EpochPlan) -> None:
    if plan.first_example:
        raise ConfigError(
            f"first_example={plan.first_example}: read modes 'files' and 'examples' deal whole epochs only, so that a "
            f"stream goes on with the same global batch. Use read mode 'index' to change it within an epoch."
        )


def _cut(
    plan: EpochPlan, file_lengths: Sequence[int], pass_number: int, start: int, count: int, *, same_pass: bool = False
) -> Iterator[ShardRange]:
    """Yield the shard ranges of `count` examples, from position `start` of the passes from `pass_number` on."""
    while count > 0:
        skipped, start = divmod(start, plan.num_examples)
        pass_number += 0 if same_pass else skipped
        taken = min(count, plan.num_examples - start)
        files = _file_order(plan, len(file_lengths), pass_number)
        begin = (start + _rotation(plan, plan.num_examples, pass_number)) % plan.num_examples
        for window in _window(begin, taken, plan.num_examples):
            yield from _shard_ranges(files, file_lengths, pass_number, *window)
        start += taken
        count -= taken


def _shard_ranges(
    files: Sequence[int], file_lengths: Sequence[int], pass_number: int, start: int, stop: int
) -> Iterator[ShardRange]:
    """Yield the shard ranges of positions start..stop-1 of a pass's row of files."""
    first = 0
    for file in files:
        begin, end = max(start - first, 0), min(stop - first, file_lengths[file])
        if begin < end:
            yield ShardRange(file, begin, end, pass_number)
        first += file_lengths[file]


def _window(begin: int, count: int, length: int) -> list[tuple[int, int]]:
    """Return `count` consecutive positions from `begin` on a ring of `length` as (start, stop) pairs."""
    over = begin + count - length
    return [(begin, begin + count)] if over <= 0 else [(begin, length), (0, over)]


def _rotation(plan: EpochPlan, length: int, pass_number: int, number: int = 0) -> int:
    """Return where a ring of examples begins in a pass: without it, the same examples would always be cut off."""
    if not plan.order.shuffle:
        return 0
    return int(order_at(np.array([number % length]), length, plan.seed, pass_number)[0])


def _file_order(plan: EpochPlan, num_files: int, pass_number: int) -> list[int]:
    if not plan.order.shuffle:
        return list(range(num_files))
    return epoch_order(num_files, plan.seed, pass_number).tolist()  # type: ignore[no-any-return]
