"""Mixtures for tests: any valid one, and the row of its slots, written out slowly."""

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfds_torch.plan.mixed import MixtureMember, MixtureOrder
from tfds_torch.plan.order import order_at
from tfds_torch.plan.passes import BlockShuffle, block_order_at
from tfds_torch.plan.weights import Segment

Slot = tuple[int, int, int]
"""Member, pass, example."""


def write_out(order: MixtureOrder, num_slots: int) -> list[Slot]:
    """Returns the first slots of a row, one by one, by the definition: earliest deadline first, pass after pass."""
    row: list[Slot] = []
    came: Counter[int] = Counter()
    for number, segment in enumerate(order.segments):
        stop = order.segments[number + 1].start if number + 1 < len(order.segments) else num_slots
        for member in deal(segment.counts, order.seed, min(stop, num_slots) - segment.start):
            number_of_pass, position = divmod(came[member], order.members[member].num_examples)
            row.append((member, number_of_pass, example_at(order, member, number_of_pass, position)))
            came[member] += 1
    return row


def deal(counts: tuple[int, ...], seed: int, num_slots: int) -> list[int]:
    """Returns the members of the first slots of a segment: at each slot, of the copies whose window is open, the one
    whose window ends first."""
    period = sum(counts)
    ties = order_at(_numbers(len(counts)), len(counts), seed, 0).tolist()
    came, row = [0] * len(counts), []
    for slot in range(num_slots):
        open_now = []
        for member, count in enumerate(counts):
            if count and Fraction(came[member] * period, count).__floor__() <= slot:
                deadline = Fraction((came[member] + 1) * period, count).__ceil__() - 1
                assert deadline >= slot, "a copy has missed its window"
                open_now.append((deadline, ties[member], member))
        member = min(open_now)[2]
        row.append(member)
        came[member] += 1
    return row


def example_at(order: MixtureOrder, member: int, pass_number: int, position: int) -> int:
    """Returns the example at a position of a pass over one member."""
    if not order.shuffle:
        return position
    one, seed = order.members[member], order._seeds[member]
    where = _numbers(one.num_examples)[position : position + 1]
    if one.blocks is not None:
        return int(block_order_at(where, one.num_examples, seed, pass_number, one.blocks)[0])
    return int(order_at(where, one.num_examples, seed, pass_number)[0])


def _numbers(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64)


@st.composite
def counts_of_periods(draw: st.DrawFn, num_members: int, most: int = 12) -> tuple[int, ...]:
    """Whole slots of a period for each member; some may have none."""
    counts = draw(st.lists(st.integers(0, most), min_size=num_members, max_size=num_members))
    if not any(counts):
        counts[draw(st.integers(0, num_members - 1))] = 1
    return tuple(counts)


@st.composite
def mixtures(draw: st.DrawFn, max_examples: int = 30, max_segment: int = 80) -> MixtureOrder:
    """Any mixture of a few small members, shuffled or not, in blocks or not, of one to three segments."""
    num_members = draw(st.integers(1, 4))
    blocks = st.builds(BlockShuffle, st.integers(1, 8), st.integers(1, 3))
    members = tuple(
        MixtureMember(f"m{number}", draw(st.integers(1, max_examples)), draw(st.none() | blocks))
        for number in range(num_members)
    )
    segments, start = [], 0
    for _ in range(draw(st.integers(1, 3))):
        segments.append(Segment(start, draw(counts_of_periods(num_members))))
        start += draw(st.integers(1, max_segment))
    return MixtureOrder(
        members, tuple(segments), draw(st.integers(1, 120)), draw(st.integers(0, 2**40)), draw(st.booleans())
    )
