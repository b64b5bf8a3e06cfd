"""Which blocks the windows of an epoch need, and from which slot to which: what is fetched ahead, and when it is done.

It is arithmetic of the plan, one window at a time: nothing is listed before it is asked for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.plan.passes import BlockRow, BlockShuffle
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted

_SLOTS_AT_ONCE = 8192
"""Of orders without windows, which are looked at so many slots at a time."""


@dataclass(frozen=True)
class BlockWindow:
    """The blocks that some readers need of one window of an epoch, in the order in which they are first needed.

    A block is `block_records` neighbouring examples of the split; it may lie in several files: see `file_ranges`. The
    batch of slot s is s // G. Once the last batch is delivered, the window needs nothing more.

    Attributes:
        block: int64 [n], numbers of blocks, each once.
        start, stop: int64 [n], the examples start..stop-1 of each block that the window has: all of the block, but
            where a group begins or ends within it, or where the order is that of a subset.
        first_slot, last_slot: int64 [n], the first and last slot of the readers with an example of the block. Slots are
            those of `EpochPlan.at_slots`.
    """

    block: Int64Array
    start: Int64Array
    stop: Int64Array
    first_slot: Int64Array
    last_slot: Int64Array


def block_windows(
    plan: EpochPlan,
    epoch: int,
    start_batch: int = 0,
    *,
    ranks: Iterable[int] | None = None,
    block_records: int | None = None,
) -> Iterator[BlockWindow]:
    """Yields the blocks that readers need from a batch of an epoch on, window by window.

    In a block order, the windows of an epoch are those that are shuffled: no block is in two of them, but for the
    blocks that are cut between two groups, of which each window has its part. What fills a last global batch comes from
    windows of another pass (`wrap`), or of the same pass again (`pad`). Windows come in the order of the first slot
    that is read from each by anybody; those from which the readers need nothing are left out.

    Other orders have no windows: 8,192 slots of the readers stand for one, and a block may come again in later ones.

    Args:
        plan: the epoch plan. Its world names the reader, a rank's worker.
        epoch: which epoch.
        start_batch: the batch at which the iteration begins.
        ranks: the readers, all workers of these ranks, such as those of a machine; None: the worker that the world
            names.
        block_records: examples of a block; None: those of the plan's block order.

    Raises:
        ConfigError: there is no such epoch, batch or rank; or the order has no blocks, and `block_records` is None.
    """
    epoch = plan.check_epoch(epoch)
    plan.worker_batches(start_batch)
    readers = _Readers(plan, start_batch, ranks)
    blocks = plan.blocks if plan.shuffle and plan.row is None else None
    if block_records is None:
        if blocks is None:
            raise ConfigError("block_windows: this order has no blocks: pass block_records, the examples of one.")
        block_records = blocks.block_records
    size = check_integer("block_windows: block_records", block_records, 1)
    start, stop = start_batch * plan.global_batch_size, plan.num_batches * plan.global_batch_size
    if plan.remainder is Remainder.KEEP:
        stop = plan.num_valid
    if start >= stop:
        return iter(())
    if blocks is None:
        return _in_runs(plan, epoch, readers, size, start, stop)
    return _in_windows(plan, blocks, epoch, readers, size, start, stop)


class _Readers:
    """Which slots some workers read."""

    def __init__(self, plan: EpochPlan, start_batch: int, ranks: Iterable[int] | None) -> None:
        world = plan.world
        self._batch_size, self._global_batch_size = plan.batch_size, plan.global_batch_size
        self._start_batch, self._worker, self._num_workers = start_batch, world.worker, world.num_workers
        if ranks is None:
            ranks = [world.rank]
        else:
            self._worker, self._num_workers = 0, 1
        self._ranks = np.zeros(world.num_replicas, np.bool_)
        for rank in ranks:
            self._ranks[check_integer("block_windows: a rank", rank, 0, world.num_replicas - 1)] = True
        if not self._ranks.any():
            raise ConfigError(f"block_windows: ranks={quoted(ranks)} must name one rank at least.")

    def read(self, slots: Int64Array) -> NDArray[np.bool_]:
        """Returns of slots, int64 [n], whether the readers read them."""
        batch, at = np.divmod(slots, self._global_batch_size)
        is_own: NDArray[np.bool_] = self._ranks[at // self._batch_size]
        if self._num_workers > 1:
            is_own &= (batch - self._start_batch) % self._num_workers == self._worker
        return is_own


def _in_windows(
    plan: EpochPlan, blocks: BlockShuffle, epoch: int, readers: _Readers, size: int, start: int, stop: int
) -> Iterator[BlockWindow]:
    """Yields the windows of a block order, from slot `start` to `stop` - 1."""
    num_in_order = min(stop, plan.num_valid) if plan.remainder is Remainder.PAD else stop
    groups = plan.batch_groups(epoch)
    # Slots of the endless row of passes: slot 0 of the plan is number `first` of it.
    first = epoch * plan.num_own_slots + plan.first_example
    end = first + num_in_order
    pass_number, position = divmod(first + start, plan.num_selected)
    while pass_number * plan.num_selected < end:
        pass_start = pass_number * plan.num_selected
        row = BlockRow(plan.num_selected, blocks, plan.seed, pass_number)
        for positions in row.windows(position):
            if pass_start + positions[0] >= end:
                break
            slots = groups.after(positions + (pass_start - first))
            examples = row.examples_at(positions)
            if plan.subset is not None:
                examples = plan.subset.numbers[examples]
            is_read = (slots >= start) & (slots < num_in_order)
            is_read[is_read] = readers.read(slots[is_read])
            if is_read.any():
                yield _window(examples, slots, is_read, size)
        pass_number, position = pass_number + 1, 0
    yield from _in_runs(plan, epoch, readers, size, max(start, num_in_order), stop)


def _in_runs(plan: EpochPlan, epoch: int, readers: _Readers, size: int, start: int, stop: int) -> Iterator[BlockWindow]:
    """Yields the blocks of slots `start` to `stop` - 1, some of these slots at a time."""
    at_once = max(_SLOTS_AT_ONCE, plan.global_batch_size)
    waiting: list[Int64Array] = []
    for first in range(start, stop, at_once):
        slots = np.arange(first, min(first + at_once, stop), dtype=np.int64)
        waiting.append(slots[readers.read(slots)])
        if sum(map(len, waiting)) >= _SLOTS_AT_ONCE or first + at_once >= stop:
            own = np.concatenate(waiting)
            waiting = []
            if own.size:
                window = _window(plan.at_slots(epoch, own).index, own, np.ones(own.shape, np.bool_), size)
                stops = np.minimum((window.block + 1) * size, plan.num_examples)
                yield BlockWindow(window.block, window.block * size, stops, window.first_slot, window.last_slot)


def _window(examples: Int64Array, slots: Int64Array, is_read: NDArray[np.bool_], size: int) -> BlockWindow:
    """Returns the blocks of the slots that are read; of each block, the examples that all slots of the window have."""
    blocks = unique(examples // size)
    num_blocks = len(blocks.values)
    limits = np.iinfo(np.int64)
    starts, first_slots = (np.full(num_blocks, limits.max) for _ in range(2))
    stops, last_slots = (np.full(num_blocks, limits.min) for _ in range(2))
    np.minimum.at(starts, blocks.inverse, examples)
    np.maximum.at(stops, blocks.inverse, examples + 1)
    np.minimum.at(first_slots, blocks.inverse[is_read], slots[is_read])
    np.maximum.at(last_slots, blocks.inverse[is_read], slots[is_read])
    order = np.argsort(first_slots, kind="stable")
    order = order[first_slots[order] < limits.max]  # Those of which the readers need anything.
    return BlockWindow(blocks.values[order], starts[order], stops[order], first_slots[order], last_slots[order])


@dataclass(frozen=True)
class FileRanges:
    """Where ranges of examples lie in the files of a split: one range for each file that they touch.

    Attributes:
        which: int64 [m], the number of the range of examples, ascending.
        file: int64 [m], the number of the file (of the split's instructions).
        start, stop: int64 [m], the examples of that file, counted from its first one that the split has.
    """

    which: Int64Array
    file: Int64Array
    start: Int64Array
    stop: Int64Array


def file_ranges(start: Int64Array, stop: Int64Array, file_lengths: Int64Array) -> FileRanges:
    """Returns where ranges of examples lie: blocks are cut by the numbers of examples, whatever the files.

    Args:
        start: int64 [n], the first example of each range, counted in the split.
        stop: int64 [n], the one behind its last, > start.
        file_lengths: int64 [F], examples of the split in each file.
    """
    stops = np.cumsum(file_lengths, dtype=np.int64)
    first = np.searchsorted(stops, start, side="right")
    counts = np.searchsorted(stops, stop, side="left") + 1 - first
    which = np.repeat(np.arange(len(start), dtype=np.int64), counts)
    file = first[which] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
    begins = stops[file] - file_lengths[file]
    begin, end = np.maximum(start[which], begins), np.minimum(stop[which], stops[file])
    is_there = begin < end  # Empty files lie between others.
    return FileRanges(which[is_there], file[is_there], (begin - begins)[is_there], (end - begins)[is_there])
