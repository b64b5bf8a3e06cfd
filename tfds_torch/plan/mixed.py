"""The order of a mixture: one endless row of slots, in which every member has its share of every prefix.

Weights are periods of at most 65,536 slots. The slots of one period are dealt by earliest deadline first over the
windows of Tijdeman ("The chairman assignment problem", 1980) and Steiner and Yeomans ("Level schedules for mixed-model,
just-in-time processes", 1993): copy j of a member that has d of D slots lies in the slots floor(j D / d) to
ceil((j + 1) D / d) - 1. So every prefix of n slots has within 1 of n d / D of each member. Equal deadlines are ordered
by the seed.

A slot's member, and its number among that member's slots, come out of the period's table and the number of whole
periods before it. That number is a position in the member's own passes, one shuffled order after the other. Nothing
grows with the slot.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import (
    LARGEST_KEY,
    MOST_SLOTS,
    Int64Array,
    Order,
    Promise,
    ShuffledPass,
    order_at,
    orders_at,
    unique,
)
from tfds_torch.plan.passes import BlockRow, BlockShuffle, identity_of_blocks
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import Segment
from tfds_torch.runtime.arguments import check_choice, check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.identity import Identity
from tfds_torch.runtime.printable import quoted

STOPS = ("first_exhausted", "all_exhausted")
"""Where an epoch without a size ends: when the first member's pass ends, or when every member's first pass has."""


@dataclass(frozen=True)
class Member:
    """One dataset of a mixture.

    Attributes:
        name: its name, unique in the mixture.
        n: number of examples of its split, >= 1.
        blocks: where its passes are shuffled in blocks, the sizes of these; None: single examples are.
        subset: the examples of a pass; None: all of the split.
    """

    name: str
    n: int
    blocks: BlockShuffle | None = None
    subset: Subset | None = None

    @property
    def pass_size(self) -> int:
        """Examples of a pass."""
        return self.n if self.subset is None else len(self.subset)


class PeriodTable(NamedTuple):
    """The slots of one period of D slots.

    Attributes:
        members: uint16 [D], the member of each slot.
        ranks: int32 [D], its number among that member's slots of the period.
        places: int32 [D], the slots, ordered by member and then by rank.
        firsts: int64 [M + 1], where each member's slots begin in `places`.
    """

    members: NDArray[np.uint16]
    ranks: NDArray[np.int32]
    places: NDArray[np.int32]
    firsts: Int64Array


@lru_cache(maxsize=16)  # Each has 0.6 MB at most; forked workers inherit them, and a pickle has none.
def make_table(counts: tuple[int, ...], seed: int) -> PeriodTable:
    """Return the slots of a period, dealt by earliest deadline first.

    Args:
        counts: int [M], how many slots each member has; their sum is D <= 65,536.
        seed: orders members whose deadlines are equal.
    """
    num_members, period, of_member = len(counts), sum(counts), np.array(counts, np.int64)
    member = np.repeat(np.arange(num_members), of_member)
    firsts = np.concatenate([[0], np.cumsum(of_member)])
    copy = np.arange(period) - firsts[member]
    release = copy * period // of_member[member]
    deadline = -(-(copy + 1) * period // of_member[member]) - 1
    tie = order_at(np.arange(num_members), num_members, seed, 0)
    order = np.argsort(release, kind="stable")
    keys = (deadline * num_members + tie[member])[order].tolist()  # Of one member, an earlier copy comes first.
    num_released = np.searchsorted(release[order], np.arange(period), side="right").tolist()
    waiting: list[int] = []  # Copies that may be dealt now, a heap by deadline.
    dealt, start = [], 0
    for stop in num_released:
        for key in keys[start:stop]:
            heappush(waiting, key)
        dealt.append(heappop(waiting))
        start = stop
    members = np.argsort(tie)[np.array(dealt, np.int64) % num_members]
    places = np.argsort(members, kind="stable")
    ranks = np.empty(period, np.int32)
    ranks[places] = copy
    return PeriodTable(members.astype(np.uint16), ranks, places.astype(np.int32), firsts)


@dataclass(frozen=True)
class Mixed(Order):
    """Several datasets mixed by weights: one row, in which every member goes through its own passes.

    It is a plain value: tables are made where the first slot is looked up, once in a process. Examples are numbered
    over all members' splits, one after the other.

    Attributes:
        members: the datasets, at least one.
        segments: the weights, from slot 0 on, in ascending order.
        epoch_size: E, slots of an epoch, >= 1.
        seed: of the orders of all passes, and of members whose deadlines are equal.
        shuffle: whether every pass has its own order, or that of the dataset.
        n: where all members are subsets of one split, the number of its examples; examples then have their numbers in
            that split. None: each member has its own split.
        subset: with `n`, the examples that the members have together; None: all of the split.

    Raises:
        ConfigError: there is no member, one is empty or has groups of blocks, or two have one name; or values are out
            of range.
    """

    members: tuple[Member, ...]
    segments: tuple[Segment, ...]
    epoch_size: int
    seed: int = 42
    shuffle: bool = True
    n: int | None = None
    subset: Subset | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))
        check_members(self.members)

    @property
    def num_examples(self) -> int:  # noqa: D102
        return int(self.offsets[-1])

    @property
    def num_slots(self) -> int:  # noqa: D102
        return self.epoch_size

    @property
    def is_endless(self) -> bool:  # noqa: D102
        return True

    @property
    def whose(self) -> str:
        """Whose the passes are: "member", or "class" where one split is balanced."""
        return "member" if self.n is None else "class"

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [M + 1]: where each member's split begins, counted over all members; at the end, their number."""
        if self.n is not None:
            return np.array([*[0] * len(self.members), self.n], np.int64)
        return np.cumsum([0, *(member.n for member in self.members)], dtype=np.int64)

    # From slots to examples

    def at(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the pass over its member, and the example, in any slots, int64 [n] each; see `Order.at`."""
        member, position = self.deal(slots)
        sizes = self._sizes[member]
        # Neither is negative: numpy divides unsigned integers faster.
        pass_number = (position.view(np.uint64) // sizes.view(np.uint64)).view(np.int64)
        example = position - pass_number * sizes
        if self.shuffle:
            example = self._shuffled(member, pass_number, example)
        return pass_number, self.offsets[member] + self._in_split(member, example)

    def deal(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the member of each slot, and its number among all of that member's slots, int64 [n] each."""
        numbers = np.searchsorted(self._starts, slots, side="right") - 1
        first, last = int(numbers.min(initial=len(self.segments) - 1)), int(numbers.max(initial=0))
        if first >= last:
            return self._positions_in(last, slots)
        member, position = np.empty_like(slots), np.empty_like(slots)
        for number in unique(numbers).values.tolist():
            here = numbers == number
            member[here], position[here] = self._positions_in(number, slots[here])
        return member, position

    def identity(self) -> Identity:  # noqa: D102
        return {
            "kind": "mixed",
            "num_examples": self.num_examples,
            "num_slots": self.epoch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "weights": [[one.start, *one.counts] for one in self.segments],
            "members": [
                {
                    "name": one.name,
                    "num_examples": one.n,
                    **identity_of_blocks(one.blocks if self.shuffle else None),
                    "subset": None if one.subset is None else one.subset.digest,
                }
                for one in self.members
            ],
        }

    def passes_from(self, slot: int, examples: Int64Array) -> Int64Array:  # noqa: D102
        found: Int64Array = (self.counts(slot) // self._sizes)[self.members_of(examples)]
        return found

    def promise(self) -> Promise:  # noqa: D102
        return Promise(
            who="every example",
            often=f"once in each pass of its {self.whose}",
            pass_size=self.num_examples,
            remedy="Leave out the weights: every example then comes exactly once.",
            count=self._count,
        )

    def _count(self, num_slots: int) -> tuple[Int64Array, Int64Array]:
        """Return how often each example comes in the first slots, at least and at most; see `Promise.count`."""
        least, most = np.zeros(self.num_examples, np.int64), np.zeros(self.num_examples, np.int64)
        counts, firsts = self.counts(num_slots).tolist(), self.offsets[:-1].tolist()
        for count, first, one in zip(counts, firsts, self.members, strict=True):
            here = slice(first, first + one.n) if one.subset is None else first + one.subset.numbers
            least[here], most[here] = count // one.pass_size, -(-count // one.pass_size)
        return least, most

    def counts(self, num_slots: int) -> Int64Array:
        """Return how many of the first `num_slots` slots each member has, int64 [M].

        Raises:
            ConfigError: `num_slots` is not an integer in 0..2**62.
        """
        num_slots = check_integer("counts: n", num_slots, 0, MOST_SLOTS)
        number = int(np.searchsorted(self._starts, num_slots, side="right")) - 1
        return self._counts_before[number] + self._counts_in(number, num_slots - self.segments[number].start)

    def slots_until(self, stop: str) -> int:
        """Return the number of slots until the first member's first pass ends, or until every member's first pass has.

        Raises:
            ConfigError: `stop` is neither "first_exhausted" nor "all_exhausted"; or a member never comes to its end,
                because its weight is 0 from some example on.
        """
        check_choice("stop", stop, STOPS)
        ends = {member.name: self._end_of_pass(number) for number, member in enumerate(self.members)}
        endless = [name for name, end in ends.items() if end is None]
        if stop == "all_exhausted" and endless:
            raise ConfigError(
                f"stop='all_exhausted': the pass of {', '.join(map(quoted, endless))} never ends, because its weight "
                f"is 0 from some example on. Give it a weight in the last segment, or the mixture an epoch_size."
            )
        found = [end for end in ends.values() if end is not None]
        if not found:
            raise ConfigError(f"stop={stop!r}: no member's pass ever ends: give the mixture an epoch_size.")
        return min(found) if stop == "first_exhausted" else max(found)

    @cached_property
    def num_keyed(self) -> int:
        """A lower bound of the slots from 0 on whose sample keys, `pass * num_examples + example`, fit into int64."""
        most_passes = LARGEST_KEY // self.num_examples
        stops = [*(segment.start for segment in self.segments[1:]), None]
        found = MOST_SLOTS
        for number, member in enumerate(self.members):
            left = most_passes * member.pass_size  # The member's slots that have keys, from this segment on.
            for segment, stop in zip(self.segments, stops, strict=True):
                count = segment.counts[number]
                if count and (stop is None or left * segment.period // count <= stop - segment.start):
                    found = min(found, max(0, segment.start + (left - 1) * segment.period // count))
                    break
                if stop is not None:  # At most so many slots are the member's; the exact number needs a table.
                    left -= (stop - segment.start) * count // segment.period + 1
        return found

    def members_of(self, index: Int64Array) -> Int64Array:
        """Return the members of examples, int64 [n], by their `index`; -1 for an example that no member has."""
        if self.n is None:
            found: Int64Array = np.searchsorted(self.offsets, index, side="right") - 1
            return found
        found = np.full(len(index), -1, np.int64)
        for number, member in enumerate(self.members):
            if member.subset is not None:
                found[member.subset.places_of(index) >= 0] = number
        return found

    # Arithmetic of the segments

    @cached_property
    def _sizes(self) -> Int64Array:
        return np.array([member.pass_size for member in self.members], np.int64)

    @cached_property
    def _starts(self) -> Int64Array:
        return np.array([segment.start for segment in self.segments], np.int64)

    @cached_property
    def _seeds(self) -> list[int]:
        """The seed of each member's passes: it depends on the member's name, and not on the other members."""
        keys = [f"tfds_torch mixture 1: seed {self.seed}, member {member.name}" for member in self.members]
        return [int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little") for key in keys]

    @cached_property
    def _counts_before(self) -> list[Int64Array]:
        """How many slots each member, int64 [M], has before each segment."""
        before = [np.zeros(len(self.members), np.int64)]
        for number, following in enumerate(self.segments[1:]):
            before.append(before[-1] + self._counts_in(number, following.start - self.segments[number].start))
        return before

    def _counts_in(self, number: int, num_slots: int) -> Int64Array:
        """Return how many of the first slots of a segment each member has."""
        segment = self.segments[number]
        periods, rest = divmod(num_slots, segment.period)
        counts = periods * np.array(segment.counts, np.int64)
        if rest:
            counts += np.bincount(self._table(number).members[:rest], minlength=len(self.members))
        return counts

    def _table(self, number: int) -> PeriodTable:
        return make_table(self.segments[number].counts, self.seed)

    def _positions_in(self, number: int, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return as `deal` does, for slots of one segment."""
        segment, table = self.segments[number], self._table(number)
        from_start: Int64Array = slots - segment.start
        periods = from_start // segment.period
        places = from_start - periods * segment.period
        member = table.members[places].astype(np.int64)
        counts, before = np.array(segment.counts, np.int64), self._counts_before[number]
        ranks = table.ranks[places].astype(np.int64)
        return member, before[member] + periods * counts[member] + ranks

    def _end_of_pass(self, number: int) -> int | None:
        """Return the slot behind the last slot of a member's first pass; None: the pass never ends."""
        last = self.members[number].pass_size - 1  # Its position among the member's slots.
        for segment_number, segment in enumerate(self.segments):
            count = segment.counts[number]
            if not count:
                continue
            periods, rank = divmod(last - int(self._counts_before[segment_number][number]), count)
            table = self._table(segment_number)
            place = int(table.places[table.firsts[number] + rank])
            end = segment.start + periods * segment.period + place + 1
            is_last = segment_number + 1 == len(self.segments)
            if is_last or end <= self.segments[segment_number + 1].start:
                return end
        return None

    @cached_property
    def _subsets(self) -> tuple[Int64Array, Int64Array] | None:
        """The numbers of all subsets, and where those of each member begin among them, int64 [M]; -1: it has none."""
        parts = [None if member.subset is None else member.subset.numbers for member in self.members]
        some = [part for part in parts if part is not None]
        if not some:
            return None
        sizes = np.array([0 if part is None else len(part) for part in parts], np.int64)
        has_none = [part is None for part in parts]
        return np.concatenate(some), np.where(has_none, -1, np.cumsum(sizes) - sizes)

    def _in_split(self, member: Int64Array, example: Int64Array) -> Int64Array:
        """Return the numbers in their splits of examples that are given by their numbers in a pass."""
        if self._subsets is None:
            return example
        numbers, starts = self._subsets
        first = starts[member]
        has_subset = first >= 0
        found: Int64Array = np.where(has_subset, numbers[np.where(has_subset, first + example, 0)], example)
        return found

    def _shuffled(self, member: Int64Array, pass_number: Int64Array, position: Int64Array) -> Int64Array:
        """Return the examples at positions of the shuffled passes of members."""
        which, members, passes = _distinct_pairs(member, pass_number, len(self.members))
        orders = [
            ShuffledPass(self.members[number].pass_size, self._seeds[number], one)
            for number, one in zip(members, passes, strict=True)
        ]
        blocks = [self.members[number].blocks for number in members]
        if not any(blocks):
            return orders_at(position, which, orders)
        example = np.empty_like(position)
        for pair, sizes in enumerate(blocks):
            if sizes is not None:
                here = which == pair
                example[here] = BlockRow(orders[pair], sizes).examples_at(position[here])
        others = np.array([sizes is None for sizes in blocks])[which]
        example[others] = orders_at(position[others], which[others], orders)
        return example


def check_members(members: tuple[Member, ...]) -> None:
    """Raise ConfigError where there is no member, one is empty or has groups of blocks, or two have one name."""
    if not members:
        raise ConfigError("A mixture needs members: it has none.")
    names = [member.name for member in members]
    for number, member in enumerate(members):
        if member.name in names[:number]:
            raise ConfigError(f"Two members of the mixture are called {quoted(member.name)}: give each its own name.")
        if member.pass_size < 1:
            raise ConfigError(f"The member {quoted(member.name)} of the mixture holds no examples: leave it out.")
        if member.blocks is not None and member.blocks.groups > 1:
            refuse_groups(f"The member {quoted(member.name)} of the mixture", member.blocks.groups)


def refuse_groups(what: str, groups: int) -> Never:
    """Raise the ConfigError for groups of blocks beside weights, which choose the examples of a batch."""
    raise ConfigError(
        f"{what} has block_groups={groups} beside weights, which choose what is in a global batch, so that it has no "
        f"equal part of each group. Leave out block_groups (block_records works with weights), or the weights."
    )


def _distinct_pairs(
    member: Int64Array, pass_number: Int64Array, num_members: int
) -> tuple[Int64Array, list[int], list[int]]:
    """Return the number of each slot's pair (member, pass), int64 [n], and the pairs' members and passes."""
    if not len(member):
        return member, [], []
    first = int(pass_number.min())
    span = int(pass_number.max()) - first + 1
    if num_members * span <= 4 * len(member) + 1024:  # A table of all possible pairs is quicker than sorting.
        pairs = member * span + (pass_number - first)
        is_there = np.zeros(num_members * span, np.bool_)
        is_there[pairs] = True
        distinct = np.flatnonzero(is_there)
        which = (np.cumsum(is_there) - 1)[pairs]
        return which, (distinct // span).tolist(), (distinct % span + first).tolist()
    passes = unique(pass_number)
    pairs = member * len(passes.values) + passes.inverse
    found = unique(pairs)
    members, at = np.divmod(found.values, len(passes.values))
    return found.inverse, members.tolist(), passes.values[at].tolist()
