"""How many examples of each member of a mixture came, window by window, beside its weights. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.mixed import Mixed

_MOST_WINDOWS = 200
_ROUNDING = 1e-6  # Of an example: expectations are floats.

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class MemberCount:
    """The examples of one member that came in one epoch, without those that fill the last batch.

    Attributes:
        name: the member.
        num_valid: examples that came.
        num_planned: examples that were to come.
        most_off: the farthest that a window's end was from n x weight, in examples; None without weights.
        is_within: whether every window's end was as near as promised.
    """

    name: str
    num_valid: int
    num_planned: int
    most_off: float | None = None
    is_within: bool = True


class MemberCounts:
    """Counts the examples of each member, or class, in windows of whole global batches, at most 200 an epoch.

    Args:
        plan: of the mixture, or of balanced classes.
        members: name -> number of examples of a pass, in their order.
        stored: examples of each member's split, in their order; None for those of a pass.
    """

    def __init__(self, plan: EpochPlan, members: Mapping[str, int], stored: Sequence[int] | None = None) -> None:
        self.names = list(members)
        self.sizes = np.array(list(members.values()), np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes if stored is None else stored)])
        self._plan = plan
        self._classes: Int64Array | None = None
        if isinstance(plan.order, Mixed) and plan.order.n is not None:
            self._classes = plan.order.members_of(np.arange(plan.num_examples))
        self._batches_of_window = max(1, -(-plan.num_batches // _MOST_WINDOWS))
        self._came: dict[int, Int64Array] = {}

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        return -(-self._plan.num_batches // self._batches_of_window)

    def members_of(self, index: Int64Array) -> Int64Array:
        """Return the numbers of the members of examples, int64 [n]; -1 for one that is of no class."""
        if self._classes is not None:
            return self._classes[index]
        members: Int64Array = np.searchsorted(self.offsets, index, side="right") - 1
        return members

    def add(self, rank: int, epoch: int, number: int, index: Int64Array) -> None:
        """Take a rank's batch of this number: int64 [n], -1 for an example that is not the mixture's, or padding."""
        if not 0 <= number < self._plan.num_batches:  # A batch too many, which is reported elsewhere.
            return
        own = index[(index >= 0) & are_own(self._plan, rank, number, len(index))]
        window, members = number // self._batches_of_window, self.members_of(own)
        self.windows(epoch)[window] += np.bincount(members[members >= 0], minlength=len(self.names))

    def windows(self, epoch: int) -> Int64Array:
        """Return how many examples of each member came in each window, int64 [windows, members]."""
        return self._came.setdefault(epoch, np.zeros((self.num_windows, len(self.names)), np.int64))

    @property
    def ends(self) -> Int64Array:
        """The slots of an epoch behind each window, int64 [windows]."""
        plan = self._plan
        batches = np.arange(1, self.num_windows + 1) * self._batches_of_window
        ends: Int64Array = np.minimum(batches, plan.num_batches) * plan.global_batch_size
        return np.minimum(ends, plan.num_own_slots)

    def count(self, epoch: int) -> tuple[MemberCount, ...]:
        """Return the count of every member in an epoch."""
        windows = self.windows(epoch)
        came = windows.sum(axis=0)
        mixture = self._plan.order
        if not isinstance(mixture, Mixed):
            planned = self.sizes * self._plan.num_passes
            counts = zip(self.names, came.tolist(), planned.tolist(), strict=True)
            return tuple(MemberCount(*count) for count in counts)
        start = epoch * self._plan.num_own_slots
        before = mixture.counts(start)
        planned = mixture.counts(start + self._plan.num_valid) - before
        expected, num_parts = expected_counts(mixture, start + self.ends)
        off = np.abs(before + np.cumsum(windows, axis=0) - expected)
        within = (off <= num_parts[:, None] + _ROUNDING).all(axis=0)
        most = off.max(axis=0, initial=0.0)
        rows = zip(*(each.tolist() for each in (came, planned, most, within)), strict=True)
        return tuple(MemberCount(name, *row) for name, row in zip(self.names, rows, strict=True))


def are_own(plan: EpochPlan, rank: int, number: int, size: int) -> NDArray[np.bool_]:
    """Return which of the examples of a rank's batch are the epoch's own, bool [size]: others fill the batch."""
    first = number * plan.global_batch_size + rank * plan.batch_size
    return np.arange(first, first + size) < plan.num_own_slots


def expected_counts(mixture: Mixed, slots: Int64Array) -> tuple[NDArray[np.float64], Int64Array]:
    """Return n x weight of each member in the first n slots, and how many parts of the schedule these touch.

    Args:
        mixture: the order, with its schedule.
        slots: int64 [k], values of n.

    Returns:
        float64 [k, members], and int64 [k]: counts lie within so many examples of n x weight, one for each part.
    """
    starts = [segment.start for segment in mixture.segments]
    expected = np.zeros((len(slots), len(mixture.members)))
    for segment, stop in zip(mixture.segments, [*starts[1:], None], strict=True):
        inside = np.clip(slots if stop is None else np.minimum(slots, stop), segment.start, None) - segment.start
        expected += inside[:, None] * (np.array(segment.counts) / segment.period)
    return expected, np.maximum(1, np.searchsorted(starts, slots, side="left"))


def draw_independently(mixture: Mixed, ends: Sequence[int], seed: int) -> Int64Array:
    """Return how many examples of each member each window of epoch 0 would have, if members were drawn at random.

    Args:
        mixture: the order, with its schedule.
        ends: the slot behind each window, ascending.
        seed: of the draws.

    Returns:
        int64 [windows, members].
    """
    expected, _ = expected_counts(mixture, np.array([0, *ends], np.int64))
    shares = np.diff(expected, axis=0)
    sizes = np.diff([0, *ends])
    random = np.random.default_rng(seed)
    drawn = [
        random.multinomial(size, share / max(1e-9, share.sum())) for size, share in zip(sizes, shares, strict=True)
    ]
    return np.array(drawn, np.int64).reshape(len(ends), len(mixture.members))
