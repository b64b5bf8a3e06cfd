"""Passes: each has every example once, in its own order: shuffled one by one or in blocks, or as stored.

In a block order, blocks of neighbouring examples are shuffled, and examples within windows of blocks. The blocks stand
in a *row*, which is shuffled itself: whole blocks, and the short one (if any) somewhere between. A *place* is a
number of that row, a *position* one of the pass. Windows are cut from the row.

With L groups, the row is cut into L parts of equal length, give or take one example, at examples and not at blocks.
Each part is a group with its own windows, and the positions of the pass take from the groups in turn: position q of
pass p belongs to group (q + p N) % L. So the turns continue from one pass to the next, and any n L slots that follow
each other, over whatever passes, have exactly n of each group. A global batch of G slots, a multiple of L, is then
ordered by group (`BatchGroups`), so that the m-th of M equal parts of it takes from the m-th part of the groups: the
ranks of one of M machines read 1 / M of the blocks. The canonical nodes of MosaicML Streaming have the same purpose.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import (
    MOST_SLOTS,
    ExampleRanges,
    Int64Array,
    Order,
    Promise,
    ShuffledPass,
    order_at,
    permute,
    unique,
)
from tfds_torch.plan.subset import Subset
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.identity import Identity
from tfds_torch.runtime.printable import quoted

if TYPE_CHECKING:
    from tfds_torch.plan.deal import WorkerOrder


@dataclass(frozen=True)
class Passes(Order):
    """Passes over a dataset, one after the other: each has every example, or every one of a subset, once.

    Attributes:
        n: number of examples of the dataset.
        seed: seed of the shuffled orders, >= 0.
        shuffle: whether every pass has its own order, or that of the dataset.
        blocks: where whole blocks are shuffled, the sizes of these; None: single examples are.
        subset: the examples of a pass; None: all N.
        epoch_size: E: an epoch is the next E examples of the passes, whose ends do not matter; None: it is one pass.

    Raises:
        ConfigError: a value is out of range.
    """

    n: int
    seed: int = 42
    shuffle: bool = True
    blocks: "BlockShuffle | None" = None
    subset: Subset | None = None
    epoch_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("num_examples", self.n, 0, MOST_SLOTS))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))
        if self.epoch_size is not None:
            object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))
        if not isinstance(self.blocks, BlockShuffle | None):
            raise ConfigError(f"blocks={quoted(self.blocks)} must be a BlockShuffle or None.")

    @property
    def num_examples(self) -> int:  # noqa: D102
        return self.n

    @property
    def pass_size(self) -> int:
        """Examples of a pass."""
        return self.n if self.subset is None else len(self.subset)

    @property
    def num_slots(self) -> int:  # noqa: D102
        return self.pass_size if self.epoch_size is None else self.epoch_size

    @property
    def is_endless(self) -> bool:  # noqa: D102
        return self.epoch_size is not None

    @property
    def num_groups(self) -> int:  # noqa: D102
        return self.blocks.groups if self.blocks is not None and self.shuffle else 1

    def at(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:  # noqa: D102
        pass_number = slots // self.pass_size
        position = slots - pass_number * self.pass_size  # numpy's divmod takes four times as long.
        example = self.shuffled(pass_number, position) if self.shuffle else position
        return pass_number, example if self.subset is None else self.subset.numbers[example]

    def shuffled(self, pass_number: Int64Array, position: Int64Array) -> Int64Array:
        """Return which of the examples of a pass stand at positions of shuffled passes; all are int64 [n]."""
        if not len(position):
            return position
        if pass_number.min() == pass_number.max():  # As nearly always: nothing is copied.
            return self._order_at(position, int(pass_number[0]))
        example = np.empty_like(position)
        for number in unique(pass_number).values.tolist():
            here = pass_number == number
            example[here] = self._order_at(position[here], number)
        return example

    def _order_at(self, position: Int64Array, pass_number: int) -> Int64Array:
        if self.blocks is None:
            return order_at(position, self.pass_size, self.seed, pass_number)
        return self._row(pass_number).examples_at(position)

    def _row(self, pass_number: int) -> "BlockRow":
        assert self.blocks is not None  # noqa: S101 (asked for where there are blocks)
        return BlockRow(ShuffledPass(self.pass_size, self.seed, pass_number), self.blocks)

    def identity(self) -> Identity:  # noqa: D102
        return {
            "kind": "passes",
            "num_examples": self.n,
            "num_slots": self.num_slots,
            "seed": self.seed,
            "shuffle": self.shuffle,
            **identity_of_blocks(self.blocks if self.shuffle else None),
            "subset": None if self.subset is None else self.subset.digest,
        }

    def promise(self) -> Promise:  # noqa: D102
        return Promise(
            who="every example" if self.subset is None else "every example of the subset",
            often="once" if self.epoch_size is None else "once in each pass",
            pass_size=self.pass_size,
            remedy=f"Leave out epoch_size={self.epoch_size}, or choose a subset." if self.is_endless else "",
            count=self.count,
        )

    def count(self, num_slots: int) -> tuple[Int64Array, Int64Array]:
        """Return how often each example comes in the first `num_slots` slots, at least and at most: two int64 [N]."""
        least, most = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        here = slice(None) if self.subset is None else self.subset.numbers
        least[here], most[here] = num_slots // max(1, self.pass_size), -(-num_slots // max(1, self.pass_size))
        return least, most

    def windows(self, batches: "WorkerOrder", block_records: int) -> Iterator[ExampleRanges]:
        """Yield the ranges to read together, as `Order.windows` does; in a block order, the windows that are shuffled.

        In a block order no block is in two windows of a pass, except for blocks that are cut between two groups, of
        which each window has its part. The fill of a last global batch comes from windows of another pass, or again of
        the same one.
        """
        if self.blocks is None or not self.shuffle:
            yield from super().windows(batches, block_records)
            return
        plan, groups = batches.plan, batches.plan.batch_groups(batches.epoch)
        # Slot 0 of the plan is number `first` of the row.
        first = batches.epoch * plan.num_own_slots + plan.first_example
        start, stop = batches.start_batch * plan.global_batch_size, plan.num_slots_in_order
        pass_number, position = divmod(first + start, max(1, self.pass_size))
        while start < stop and pass_number * self.pass_size < first + stop:
            pass_start, row = pass_number * self.pass_size - first, self._row(pass_number)
            for positions in row.windows(position):
                if pass_start + positions[0] >= stop:
                    break
                slots = groups.after(positions + pass_start)
                is_read = (slots >= start) & (slots < stop)
                is_read[is_read] = batches.reads(slots[is_read])
                if is_read.any():
                    examples = row.examples_at(positions)
                    if self.subset is not None:
                        examples = self.subset.numbers[examples]
                    yield _ranges(examples // self.blocks.block_records, examples, slots, is_read)
            pass_number, position = pass_number + 1, 0
        yield from self._runs(batches, self.blocks.block_records, batches.num_valid)


def _ranges(block: Int64Array, example: Int64Array, slot: Int64Array, is_read: NDArray[np.bool_]) -> ExampleRanges:
    """Return a window's range in each block that is read, ordered by the first slot that is read; all are int64 [n]."""
    blocks, limits = unique(block), np.iinfo(np.int64)
    starts, first_slots = (np.full(len(blocks.values), limits.max) for _ in range(2))
    stops = np.full(len(blocks.values), limits.min)
    np.minimum.at(starts, blocks.inverse, example)
    np.maximum.at(stops, blocks.inverse, example + 1)
    np.minimum.at(first_slots, blocks.inverse[is_read], slot[is_read])
    order = np.argsort(first_slots, kind="stable")[: np.count_nonzero(first_slots < limits.max)]
    return starts[order], stops[order]


# Blocks


@dataclass(frozen=True)
class BlockShuffle:
    """A coarser shuffle, for disks and networks where reads all over a file are expensive.

    Whole blocks of neighbouring examples are shuffled. Then the examples of every `window_blocks` blocks that follow
    each other in that row are shuffled among themselves. So the examples of a window lie in `window_blocks` places, and
    no two windows share a block.

    Attributes:
        block_records: number of neighbouring examples that stay in one window, >= 1.
        window_blocks: number of blocks of a window, >= 1; with groups, of all groups' windows that are read together.
        groups: number of parts that the row of blocks is cut into, >= 1; positions of a pass take from them in turn.

    Raises:
        ConfigError: a value is not an integer or below 1.
    """

    block_records: int
    window_blocks: int
    groups: int = 1

    def __post_init__(self) -> None:
        for name in ("block_records", "window_blocks", "groups"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1))


def identity_of_blocks(blocks: BlockShuffle | None) -> Identity:
    """Return the sizes of blocks by name; each is None where single examples are shuffled."""
    return {
        "block_records": None if blocks is None else blocks.block_records,
        "window_blocks": None if blocks is None else blocks.window_blocks,
        "block_groups": None if blocks is None else blocks.groups,
    }


class BlockRow:
    """The row of shuffled blocks of one pass.

    `examples_at` is a permutation of 0..num_examples-1 like that of `order_at`, at the same cost: every window that a
    position falls into adds one more set of keys (and, for windows of at most 4,096 examples, the hashes of that
    window).
    """

    def __init__(self, one: ShuffledPass, blocks: BlockShuffle) -> None:
        num_examples, seed, pass_number = one
        self._block_records, self._groups = blocks.block_records, blocks.groups
        self._window_blocks = max(1, blocks.window_blocks // blocks.groups)
        key = f"seed {seed}, pass {pass_number}, examples {num_examples}"
        self._key = f"block order 1: {key}, blocks of {blocks.block_records}"
        self._num_whole, self._short_records = divmod(num_examples, blocks.block_records)
        digest = hashlib.blake2b(f"tfds_torch {self._key}: place of the short block".encode(), digest_size=16).digest()
        self._short_place = int.from_bytes(digest, "little") % (self._num_whole + 1)  # So many whole ones come before.
        self._first_group = pass_number * num_examples % blocks.groups
        # For each group: its first position, its places, and the block that its first place is in.
        self._first_positions = (np.arange(self._groups) - self._first_group) % self._groups
        sizes = np.maximum(0, (num_examples - 1 - self._first_positions) // self._groups + 1)
        self._stops = np.cumsum(sizes, dtype=np.int64)
        self._starts = self._stops - sizes
        self._first_blocks = self._block_place(self._starts)[0]

    def examples_at(self, positions: Int64Array) -> Int64Array:
        """Return the examples at positions of the pass, int64 [n]."""
        group = (positions + self._first_group) % self._groups
        places = self._starts[group] + (positions - self._first_positions[group]) // self._groups
        return self._example(self._shuffle_windows(group, places))

    def windows(self, start: int = 0) -> Iterator[Int64Array]:
        """Yield the positions of each window, int64 [n], in the order of the first of them.

        Args:
            start: a position of the pass, >= 0; windows that end before it are left out.
        """
        rows = [self._windows_of(group, start) for group in range(self._groups)]
        for _, positions in merge(*rows, key=lambda window: window[0]):
            yield positions

    def _windows_of(self, group: int, start: int) -> Iterator[tuple[int, Int64Array]]:
        """Yield the windows of one group, each with its first position."""
        first_position, first_place = int(self._first_positions[group]), int(self._starts[group])
        stop = int(self._stops[group])
        place = first_place + max(0, -(-(start - first_position) // self._groups))
        while place < stop:
            block = int(self._block_place(np.array([place]))[0][0])
            window = (block - int(self._first_blocks[group])) // self._window_blocks
            begin, place = self._window(group, window)
            positions = first_position + (np.arange(begin, place, dtype=np.int64) - first_place) * self._groups
            yield int(positions[0]), positions

    def _shuffle_windows(self, group: Int64Array, places: Int64Array) -> Int64Array:
        """Return the places that places of a group had in the row before its windows were shuffled."""
        shuffled = np.empty_like(places)
        windows = (self._block_place(places)[0] - self._first_blocks[group]) // self._window_blocks
        numbers = windows * self._groups + group
        by_window = np.argsort(numbers, kind="stable")
        for here in np.split(by_window, np.flatnonzero(np.diff(numbers[by_window])) + 1):
            window, own_group = divmod(int(numbers[here[0]]), self._groups)
            start, stop = self._window(own_group, window)
            key = f"{self._key}, window {window} of {self._window_blocks} blocks"
            if self._groups > 1:
                key += f", group {own_group} of {self._groups}"
            shuffled[here] = start + permute(places[here] - start, stop - start, key)
        return shuffled

    def _window(self, group: int, window: int) -> tuple[int, int]:
        """Return the places of a window of a group, as (start, stop)."""
        block = int(self._first_blocks[group]) + window * self._window_blocks
        start, stop = self._start(block), self._start(block + self._window_blocks)
        return max(start, int(self._starts[group])), min(stop, int(self._stops[group]))

    def _example(self, places: Int64Array) -> Int64Array:
        """Return the examples at places of the row."""
        blocks, offsets = self._block_place(places)
        is_short = (blocks == self._short_place) & (self._short_records > 0)
        whole = blocks - ((blocks > self._short_place) & (self._short_records > 0))
        blocks[is_short] = self._num_whole
        blocks[~is_short] = permute(whole[~is_short], self._num_whole, f"{self._key}, whole blocks {self._num_whole}")
        return blocks * self._block_records + offsets

    def _block_place(self, places: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return which block of the row each place is in, counted from the row's start, and its offset in the block."""
        short_start = self._short_place * self._block_records
        after = places - short_start - self._short_records
        blocks, offsets = np.divmod(np.where(after >= 0, places - self._short_records, places), self._block_records)
        if self._short_records:
            blocks[after >= 0] += 1
        return blocks, offsets

    def _start(self, block: int) -> int:
        """Return the first place of a block of the row; past the last block, the end of the row."""
        num_blocks = self._num_whole + (1 if self._short_records else 0)
        block = min(block, num_blocks)
        if self._short_records and block > self._short_place:
            return (block - 1) * self._block_records + self._short_records
        return block * self._block_records


@dataclass(frozen=True)
class BatchGroups:
    """The order of slots within global batches, by group: a bijection of the slots of each whole batch.

    Attributes:
        global_batch_size: G, a multiple of `groups` where any slots are ordered.
        groups: L, >= 1.
        first_group: the group of slot 0 before batches were ordered; the slots behind it have the next groups, in turn.
        num_slots: number of slots from 0 on that are ordered, in whole batches. A last batch that is kept short, or
            padded at its end, keeps its order.
    """

    global_batch_size: int
    groups: int
    first_group: int
    num_slots: int

    def before(self, slots: Int64Array) -> Int64Array:
        """Return the slots before batches were ordered, int64 [n], for slots after that, int64 [n]."""
        if not self.num_slots:
            return slots
        batch, at = np.divmod(slots, self.global_batch_size)
        group, number = np.divmod(at, self.global_batch_size // self.groups)
        found = batch * self.global_batch_size + (group - self.first_group) % self.groups + number * self.groups
        return np.where(slots < self.num_slots, found, slots)

    def after(self, slots: Int64Array) -> Int64Array:
        """Return the slots after batches were ordered, int64 [n], for slots before that, int64 [n]."""
        if not self.num_slots:
            return slots
        batch, at = np.divmod(slots, self.global_batch_size)
        number, turn = np.divmod(at, self.groups)
        group = (turn + self.first_group) % self.groups
        found = batch * self.global_batch_size + group * (self.global_batch_size // self.groups) + number
        return np.where(slots < self.num_slots, found, slots)
