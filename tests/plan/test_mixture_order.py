"""The row of a mixture: its proportions in every prefix, every member's passes, and any slot in the same time."""

import pickle
from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.mixtures import counts_of_periods, deal, mixtures, write_out

from tfds_torch.errors import ConfigError
from tfds_torch.plan import mixed
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import MixtureMember, MixtureOrder, make_table
from tfds_torch.plan.order import MOST_SLOTS, ShuffledPass, order_at, orders_at
from tfds_torch.plan.weights import Segment, make_segments
from tfds_torch.plan.world import World

PERIODS = st.integers(1, 6).flatmap(counts_of_periods)


def row_of(order: MixtureOrder, start: int, stop: int) -> list[tuple[int, int, int]]:
    found = order.at(np.arange(start, stop, dtype=np.int64))
    return list(zip(found.member.tolist(), found.pass_number.tolist(), found.example.tolist(), strict=True))


def mixture(sizes: dict[str, int], weights: Any, epoch_size: int = 100, **more: Any) -> MixtureOrder:
    members = tuple(MixtureMember(name, size) for name, size in sizes.items())
    return MixtureOrder(members, make_segments(sizes, weights)[0], epoch_size, **more)


# Proportions


@settings(max_examples=200)
@given(PERIODS, st.integers(0, 2**40))
def test_every_prefix_of_a_period_has_within_one_of_each_share(counts: tuple[int, ...], seed: int) -> None:
    period, members = sum(counts), make_table(counts, seed).members
    prefixes = np.arange(1, period + 1)
    for member, count in enumerate(counts):
        came = np.cumsum(members == member)
        assert (np.abs(came * period - prefixes * count) < period).all()
    assert np.bincount(members, minlength=len(counts)).tolist() == list(counts)


@settings(max_examples=90)
@given(mixtures())
def test_every_prefix_of_a_segment_has_within_one_of_each_share_over_epochs(order: MixtureOrder) -> None:
    stops = [*(segment.start for segment in order.segments[1:]), order.segments[-1].start + 3 * order.epoch_size]
    for segment, stop in zip(order.segments, stops, strict=True):
        members = order.at(np.arange(segment.start, stop, dtype=np.int64)).member
        prefixes = np.arange(1, len(members) + 1)
        for member, count in enumerate(segment.counts):
            came = np.cumsum(members == member)
            assert (np.abs(came * segment.period - prefixes * count) < segment.period).all()


def test_64_members_of_any_weights_have_within_one_of_their_rounded_shares_in_every_prefix() -> None:
    weights = np.random.default_rng(0).pareto(1, 64) + 0.05
    sizes = {f"m{number}": 1000 for number in range(64)}
    (segment,), _ = make_segments(sizes, dict(zip(sizes, weights.tolist(), strict=True)))
    members = make_table(segment.counts, 1).members
    prefixes = np.arange(1, segment.period + 1)
    deviations = [
        np.abs(np.cumsum(members == member) * segment.period - prefixes * count).max()
        for member, count in enumerate(segment.counts)
    ]
    assert segment.period == 65_536
    assert max(deviations) < segment.period


@settings(max_examples=70)
@given(mixtures(), st.integers(0, 400), st.integers(1, 60))
def test_any_batch_has_within_two_of_each_share(order: MixtureOrder, start: int, size: int) -> None:
    start += order.segments[-1].start
    members, last = order.at(np.arange(start, start + size, dtype=np.int64)).member, order.segments[-1]
    for member, count in enumerate(last.counts):
        assert abs(int((members == member).sum()) * last.period - size * count) < 2 * last.period


def test_a_period_is_dealt_by_earliest_deadline_first() -> None:
    for counts in [(7, 3), (5, 4, 3, 2, 1), (1, 1, 1), (40, 1, 1), (0, 2, 3)]:
        assert make_table(counts, 3).members.tolist() == deal(counts, 3, sum(counts))


def test_the_seed_orders_members_of_equal_shares() -> None:
    rows = {tuple(make_table((1,) * 8, seed).members.tolist()) for seed in range(20)}
    assert len(rows) > 15


# Slots, passes and examples


@settings(max_examples=90)
@given(mixtures())
def test_slots_are_those_of_the_row_that_is_written_out(order: MixtureOrder) -> None:
    num_slots = 250
    assert row_of(order, 0, num_slots) == write_out(order, num_slots)


@settings(max_examples=60)
@given(mixtures(max_examples=12))
def test_every_pass_over_a_member_has_each_example_exactly_once(order: MixtureOrder) -> None:
    num_slots = order.segments[-1].start + 400
    came = Counter(row_of(order, 0, num_slots))
    assert set(came.values()) <= {1}
    passes = Counter((member, number) for member, number, _ in came)
    for (member, number), count in passes.items():
        is_last = (member, number + 1) not in passes
        assert count == order.members[member].num_examples or (is_last and count < order.members[member].num_examples)
        examples = {example for who, which, example in came if (who, which) == (member, number)}
        assert examples <= set(range(order.members[member].num_examples))
    for (member, first), (other, second) in pairwise(sorted(passes)):
        assert other != member or second == first + 1


@pytest.mark.parametrize("start", [0, 10**12, 2**62 - 5000])
def test_any_slot_is_arithmetic(start: int) -> None:
    sizes = {"a": 1_000_003, "b": 77, "c": 5000, "d": 4097}
    order = mixture(sizes, {"a": 0.5, "b": 0.2, "c": 0.2, "d": 0.1}, shuffle=False)
    slots = np.arange(start, start + 4096, dtype=np.int64)
    found, counts = order.at(slots), order.counts(start).copy()
    for member, number, example in row_of(order, start, start + 4096):
        assert number * order.members[member].num_examples + example == counts[member]
        counts[member] += 1
    assert counts.tolist() == order.counts(start + 4096).tolist()
    assert (found.index == order.offsets[found.member] + found.example).all()


def test_slots_may_be_asked_for_in_any_order_and_twice() -> None:
    order = mixture({"a": 100, "b": 9}, [(0, {"a": 1, "b": 1}), (37, {"a": 1, "b": 4})])
    slots = np.array([99, 3, 3, 36, 37, 10**9, 0], np.int64)
    found = order.at(slots)
    for place, slot in enumerate(slots.tolist()):
        alone = order.at(np.array([slot], np.int64))
        assert (alone.member[0], alone.pass_number[0], alone.index[0]) == (
            *(found.member[place], found.pass_number[place]),
            found.index[place],
        )
    assert len(order.at(np.empty(0, np.int64)).index) == 0


def test_a_member_has_its_orders_whatever_the_other_members_are() -> None:
    def passes_of_b(order: MixtureOrder, member: int) -> dict[int, list[int]]:
        passes: dict[int, list[int]] = {}
        for who, number, example in row_of(order, 0, 4000):
            if who == member:
                passes.setdefault(number, []).append(example)
        return {number: passes[number] for number in range(5)}

    alone = passes_of_b(mixture({"b": 50}, {"b": 1}), 0)
    among = passes_of_b(mixture({"a": 50, "b": 50, "c": 8}, {"a": 2, "b": 3, "c": 5}), 1)
    assert alone == among
    assert passes_of_b(mixture({"a": 50, "b": 50, "c": 8}, {"a": 2, "b": 3, "c": 5}), 0) != among
    assert passes_of_b(mixture({"b": 50}, {"b": 1}, seed=7), 0) != alone


def test_members_of_one_size_have_different_orders() -> None:
    order = mixture({"a": 200, "b": 200}, {"a": 1, "b": 1})
    passes: dict[int, list[int]] = {0: [], 1: []}
    for member, _, example in row_of(order, 0, 400):
        passes[member].append(example)
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1])


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=6))
def test_several_orders_at_once_are_those_of_each(passes: list[tuple[int, int, int]]) -> None:
    orders = [ShuffledPass(*one) for one in passes]
    which = np.arange(200) % len(orders)
    positions = np.array([17 * at % orders[which[at]].num_examples for at in range(200)], np.int64)
    found = orders_at(positions, which, orders)
    for number, one in enumerate(orders):
        here = which == number
        assert found[here].tolist() == order_at(positions[here], *one).tolist()


# Lengths


@settings(max_examples=90)
@given(mixtures(), st.integers(0, 400))
def test_counts_are_those_of_the_row(order: MixtureOrder, num_slots: int) -> None:
    came = Counter(member for member, _, _ in row_of(order, 0, num_slots))
    assert order.counts(num_slots).tolist() == [came[member] for member in range(len(order.members))]


@settings(max_examples=90)
@given(mixtures(max_examples=15))
def test_an_epoch_ends_where_the_first_member_or_every_one_is_exhausted(order: MixtureOrder) -> None:
    num_slots = order.segments[-1].start + 15 * 4 * 12 + 100
    ends: dict[int, int] = {}
    came: Counter[int] = Counter()
    for slot, (member, _, _) in enumerate(row_of(order, 0, num_slots), 1):
        came[member] += 1
        if came[member] == order.members[member].num_examples:
            ends[member] = slot
    endless = {
        member
        for member, count in enumerate(order.segments[-1].counts)
        if not count and came[member] < order.members[member].num_examples
    }
    assert ends.keys() | endless == set(range(len(order.members)))
    assert order.slots_until("first_exhausted") == min(ends.values())
    if endless:
        with pytest.raises(ConfigError, match="never ends, because its weight is 0 from some example on"):
            order.slots_until("all_exhausted")
    else:
        assert order.slots_until("all_exhausted") == max(ends.values())


def test_the_table_is_not_made_before_a_slot_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"member {number}": 1000 + number**2 for number in range(64)}
    order = mixture(sizes, "sizes", epoch_size=10**9)
    make_table.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(mixed, "make_table", None)
        plan = EpochPlan(order.num_examples, World(), 8, Remainder.WRAP, True, shuffle=True, mixture=order)
        assert (len(plan), plan.num_batches) == (10**9, 125_000_000)
        again = pickle.loads(pickle.dumps(plan))
    plan.batch(3, 7)
    assert len(pickle.dumps(plan)) < 8_000
    assert (again.batch(3, 7).index == plan.batch(3, 7).index).all()


def test_sample_keys_beyond_64_bits_are_refused() -> None:
    order = mixture({"large": 2**40, "one": 1}, {"large": 1, "one": 1}, epoch_size=2**24)
    assert order.num_keyed == pytest.approx(2**24, rel=0.01)
    with pytest.raises(ConfigError, match="sample keys that do not fit into 64 bits"):
        EpochPlan(order.num_examples, World(), 8, Remainder.WRAP, True, shuffle=True, mixture=order)
    order = mixture({"large": 2**40, "one": 1}, {"large": 1, "one": 1}, epoch_size=2**20)
    plan = EpochPlan(order.num_examples, World(), 8, Remainder.WRAP, True, shuffle=True, mixture=order)
    assert 13 <= plan.last_epoch <= 15
    last = plan.batch(plan.last_epoch, plan.num_batches - 1)
    assert int(last.pass_number.max()) * order.num_examples + order.num_examples < 2**63


@settings(max_examples=100)
@given(mixtures(max_examples=6), st.integers(3, 40))
def test_as_many_slots_are_keyed_as_passes_fit(order: MixtureOrder, most_passes: int) -> None:
    with mock.patch.object(mixed, "LARGEST_KEY", most_passes * order.num_examples + order.num_examples // 2):
        num_keyed = order.num_keyed
    found = order.at(np.arange(min(num_keyed, 5000), dtype=np.int64))
    assert int(found.pass_number.max(initial=0)) < most_passes
    beyond = order.at(np.arange(num_keyed, num_keyed + 300, dtype=np.int64)).pass_number
    assert num_keyed == MOST_SLOTS or int(beyond.max()) >= most_passes


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((), "A mixture needs members"),
        ((MixtureMember("a", 3), MixtureMember("a", 4)), "Two members of the mixture are called 'a'"),
        ((MixtureMember("a", 0),), "The member 'a' of the mixture holds no examples"),
    ],
)
def test_members_that_cannot_be_mixed_are_refused(members: tuple[MixtureMember, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixtureOrder(members, (Segment(0, (1,) * len(members)),), 1)


def test_evaluation_and_other_arithmetic_than_the_plans_are_refused() -> None:
    order = mixture({"a": 10, "b": 10}, {"a": 1, "b": 1})
    with pytest.raises(ConfigError, match="Evaluation by weights would leave examples out"):
        EpochPlan(20, World(), 4, Remainder.PAD, shuffle=True, mixture=order)
    with pytest.raises(ConfigError, match="they must be the same"):
        EpochPlan(20, World(), 4, Remainder.WRAP, True, shuffle=True, seed=3, mixture=order)
    with pytest.raises(ConfigError, match="stop='soon' must be 'first_exhausted' or 'all_exhausted'"):
        order.slots_until("soon")
    with pytest.raises(ConfigError, match="counts: n=-1"):
        order.counts(-1)
