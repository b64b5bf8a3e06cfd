"""Mixed: the shares of every prefix, every member's passes, and any slot in the same time."""

import pickle
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.orders import counts_of_periods, mixtures, numbers, row_of
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan import mixed
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import Member, Mixed, make_table
from tfds_torch.plan.order import ShuffledPass, order_at, orders_at
from tfds_torch.plan.passes import BlockRow, BlockShuffle
from tfds_torch.plan.subset import make_subset
from tfds_torch.plan.weights import Segment, make_segments
from tfds_torch.plan.world import World

PERIODS = st.integers(1, 6).flatmap(counts_of_periods)


def mixture(sizes: dict[str, int], weights: Any, epoch_size: int = 100, **more: Any) -> Mixed:
    members = tuple(Member(name, size) for name, size in sizes.items())
    return Mixed(members, make_segments(sizes, weights)[0], epoch_size, **more)


def deal(counts: tuple[int, ...], seed: int, num_slots: int) -> list[int]:
    """Returns the members of the first slots of a segment: at each slot, of the copies whose window is open, the one
    whose window ends first."""
    period = sum(counts)
    ties = order_at(numbers(len(counts)), len(counts), seed, 0).tolist()
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


def members_of_row(order: Mixed, num_slots: int) -> list[int]:
    """Returns the member of each slot, segment by segment."""
    row: list[int] = []
    for number, segment in enumerate(order.segments):
        stop = order.segments[number + 1].start if number + 1 < len(order.segments) else num_slots
        row += deal(segment.counts, order.seed, min(stop, num_slots) - segment.start)
    return row


def write_out(order: Mixed, num_slots: int) -> list[tuple[int, int]]:
    """Returns (pass, example) of the first slots, one by one, by the definition: pass after pass of each member."""
    row: list[tuple[int, int]] = []
    came: Counter[int] = Counter()
    for member in members_of_row(order, num_slots):
        one = order.members[member]
        there = list(range(one.n)) if one.subset is None else one.subset.numbers.tolist()
        number, position = divmod(came[member], len(there))
        shuffled, where = ShuffledPass(len(there), order._seeds[member], number), numbers(position + 1, position)
        if order.shuffle:
            found = (
                order_at(where, *shuffled) if one.blocks is None else BlockRow(shuffled, one.blocks).examples_at(where)
            )
            position = int(found[0])
        before = 0 if order.n is not None else sum(other.n for other in order.members[:member])
        row.append((number, before + there[position]))
        came[member] += 1
    return row


# Proportions


@settings(max_examples=100)
@given(PERIODS, st.integers(0, 2**40))
def test_a_period_is_dealt_by_earliest_deadline_first(counts: tuple[int, ...], seed: int) -> None:
    assert make_table(counts, seed).members.tolist() == deal(counts, seed, sum(counts))


@settings(max_examples=90, deadline=None)
@given(mixtures())
def test_every_prefix_of_a_segment_has_within_one_of_each_share_over_epochs(order: Mixed) -> None:
    stops = [*(segment.start for segment in order.segments[1:]), order.segments[-1].start + 3 * order.epoch_size]
    for segment, stop in zip(order.segments, stops, strict=True):
        members, prefixes = order.deal(numbers(stop, segment.start))[0], numbers(stop - segment.start + 1, 1)
        for member, count in enumerate(segment.counts):
            came = np.cumsum(members == member)
            assert (np.abs(came * segment.period - prefixes * count) < segment.period).all()


def test_64_members_of_any_weights_have_within_one_of_their_rounded_shares_in_every_prefix() -> None:
    weights = np.random.default_rng(0).pareto(1, 64) + 0.05
    sizes = {f"m{number}": 1000 for number in range(64)}
    (segment,), _ = make_segments(sizes, dict(zip(sizes, weights.tolist(), strict=True)))
    members, prefixes = make_table(segment.counts, 1).members, numbers(segment.period + 1, 1)
    assert segment.period == 65_536
    for member, count in enumerate(segment.counts):
        assert np.abs(np.cumsum(members == member) * segment.period - prefixes * count).max() < segment.period


@settings(max_examples=70, deadline=None)
@given(mixtures(), st.integers(0, 400), st.integers(1, 60))
def test_any_batch_has_within_two_of_each_share(order: Mixed, start: int, size: int) -> None:
    start, last = start + order.segments[-1].start, order.segments[-1]
    members = order.deal(numbers(start + size, start))[0]
    for member, count in enumerate(last.counts):
        assert abs(int((members == member).sum()) * last.period - size * count) < 2 * last.period


def test_the_seed_orders_members_of_equal_shares() -> None:
    assert len({tuple(make_table((1,) * 8, seed).members.tolist()) for seed in range(20)}) > 15


# Slots, passes and examples


@settings(max_examples=90, deadline=None)
@given(mixtures())
def test_slots_are_those_of_the_row_that_is_written_out(order: Mixed) -> None:
    assert row_of(order, 250) == write_out(order, 250)
    assert order.deal(numbers(250))[0].tolist() == members_of_row(order, 250)


@settings(max_examples=60, deadline=None)
@given(mixtures(max_examples=12))
def test_every_pass_over_a_member_has_each_example_exactly_once(order: Mixed) -> None:
    num_slots = order.segments[-1].start + 400
    members = order.deal(numbers(num_slots))[0].tolist()
    assert order.members_of(order.at(numbers(num_slots))[1]).tolist() == members
    came: list[list[tuple[int, int]]] = [[] for _ in order.members]
    for member, one in zip(members, row_of(order, num_slots), strict=True):
        came[member].append(one)
    for own, who in zip(came, order.members, strict=True):
        assert len(set(own)) == len(own)
        assert [number for number, _ in own] == [at // who.pass_size for at in range(len(own))]
        assert len({example for _, example in own}) == min(len(own), who.pass_size)


@settings(max_examples=60, deadline=None)
@given(mixtures(), st.integers(0, 400))
def test_passes_under_way_and_counts_are_those_of_the_row(order: Mixed, slot: int) -> None:
    came = Counter(order.deal(numbers(slot))[0].tolist())
    assert order.counts(slot).tolist() == [came[member] for member in range(len(order.members))]
    passes, examples = order.at(numbers(slot + 60, slot))
    for member, number, example in zip(order.deal(numbers(slot + 60, slot))[0], passes, examples, strict=True):
        (found,) = order.passes_from(slot, np.array([example])).tolist()
        assert found == came[int(member)] // order.members[int(member)].pass_size <= number


@pytest.mark.parametrize("start", [0, 10**12, 2**62 - 5000])
def test_any_slot_is_arithmetic(start: int) -> None:
    sizes = {"a": 1_000_003, "b": 77, "c": 5000, "d": 4097}
    order = mixture(sizes, {"a": 0.5, "b": 0.2, "c": 0.2, "d": 0.1}, shuffle=False)
    slots, counts = numbers(start + 4096, start), order.counts(start).copy()
    found = zip(*(column.tolist() for column in (order.deal(slots)[0], *order.at(slots))), strict=True)
    for member, number, example in found:
        size = order.members[member].n
        assert number * size + example - order.offsets[member] == counts[member]
        counts[member] += 1
    assert counts.tolist() == order.counts(start + 4096).tolist()


def test_a_member_has_its_orders_whatever_the_other_members_are() -> None:
    def passes_of(name: str, order: Mixed) -> dict[int, list[int]]:
        (member,) = (at for at, one in enumerate(order.members) if one.name == name)
        passes: dict[int, list[int]] = {}
        for who, (number, example) in zip(order.deal(numbers(4000))[0], row_of(order, 4000), strict=True):
            if who == member:
                passes.setdefault(number, []).append(example - int(order.offsets[member]))
        return {number: passes[number] for number in range(5)}

    among = mixture({"a": 50, "b": 50, "c": 8}, {"a": 2, "b": 3, "c": 5})
    assert passes_of("b", mixture({"b": 50}, {"b": 1})) == passes_of("b", among)
    assert passes_of("b", mixture({"b": 50}, {"b": 1}, seed=7)) != passes_of("b", among)
    assert passes_of("a", among) != passes_of("b", among)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9000) | st.sampled_from([4096, 4097]), st.integers(0, 99), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    )
)
def test_several_orders_at_once_are_those_of_each(passes: list[tuple[int, int, int]]) -> None:
    orders, which = [ShuffledPass(*one) for one in passes], numbers(200) % len(passes)
    positions = np.array([17 * at % orders[which[at]].num_examples for at in range(200)], np.int64)
    found = orders_at(positions, which, orders)
    for number, one in enumerate(orders):
        here = which == number
        assert found[here].tolist() == order_at(positions[here], *one).tolist()


# Lengths


@settings(max_examples=90, deadline=None)
@given(mixtures(max_examples=15))
def test_an_epoch_ends_where_the_first_member_or_every_one_is_exhausted(order: Mixed) -> None:
    ends: dict[int, int] = {}
    came: Counter[int] = Counter()
    for slot, member in enumerate(order.deal(numbers(order.segments[-1].start + 20 * 4 * 12 + 100))[0].tolist(), 1):
        came[member] += 1
        if came[member] == order.members[member].pass_size:
            ends[member] = slot
    if ends:
        assert order.slots_until("first_exhausted") == min(ends.values())
    else:
        assert "no member's pass ever ends" in said_of(ConfigError, order.slots_until, "first_exhausted")
    if len(ends) < len(order.members):
        assert "never ends, because its weight is 0" in said_of(ConfigError, order.slots_until, "all_exhausted")
    else:
        assert order.slots_until("all_exhausted") == max(ends.values())


def test_the_table_is_not_made_before_a_slot_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"member {number}": 1000 + number**2 for number in range(64)}
    order = mixture(sizes, "sizes", epoch_size=10**9)
    make_table.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(mixed, "make_table", None)
        plan = EpochPlan(order, World(), 8, Remainder.WRAP, True)
        assert (len(plan), plan.num_batches, plan.last_epoch > 0) == (10**9, 125_000_000, True)
        again = pickle.loads(pickle.dumps(plan))
    plan.batch(3, 7)
    assert len(pickle.dumps(plan)) < 8_000
    assert (again.batch(3, 7).index == plan.batch(3, 7).index).all()


def test_mixtures_that_cannot_be_are_refused() -> None:
    order, empty = mixture({"a": 10, "b": 10}, {"a": 1, "b": 1}), make_subset([], 3)
    refused: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        (replace, (order,), {"members": ()}, "A mixture needs members"),
        (replace, (order,), {"members": (Member("a", 3), Member("a", 4))}, "Two members of the mixture are called 'a'"),
        (replace, (order,), {"members": (Member("a", 0),)}, "The member 'a' of the mixture holds no examples"),
        (
            replace,
            (order,),
            {"members": (Member("a", 3, subset=empty),)},
            "The member 'a' of the mixture holds no exam",
        ),
        (replace, (order,), {"members": (Member("a", 3, BlockShuffle(2, 2, 2)),)}, "has block_groups=2 beside weights"),
        (replace, (order,), {"epoch_size": 0}, "epoch_size=0 must be an integer"),
        (replace, (order,), {"seed": -1}, "seed=-1 must be an integer"),
        (EpochPlan, (order, World(), 4, Remainder.PAD), {}, "Evaluation needs each example exactly once"),
        (order.slots_until, ("soon",), {}, "stop='soon' must be 'first_exhausted' or 'all_exhausted'"),
        (order.counts, (-1,), {}, "counts: n=-1"),
    ]
    found = [(message, said_of(ConfigError, call, *args, **more)) for call, args, more, message in refused]
    assert not [one for one in found if one[0] not in one[1]]


def test_an_example_that_no_member_has_is_of_none() -> None:
    parts = (Member("a", 5, subset=make_subset([3, 1], 5)), Member("b", 5, subset=make_subset([0], 5)))
    order = Mixed(parts, (Segment(0, (1, 1)),), 4, n=5, subset=make_subset([0, 1, 3], 5))
    assert order.members_of(numbers(5)).tolist() == [1, 0, -1, 0, -1]
