"""Groups of blocks: every global batch has an equal part of each, and does not depend on machines, ranks or workers."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plan.saved_states import message_of, state_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import EpochPlan, PlannedBatch, Remainder, WorkerOrder
from tfds_torch.plan.mixed import MixtureMember, MixtureOrder
from tfds_torch.plan.passes import BatchGroups, BlockShuffle, block_order_at
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.subset import make_subset
from tfds_torch.plan.weights import make_segments
from tfds_torch.plan.world import World

Examples = NDArray[np.int64]
Slots = list[tuple[int, int, bool]]  # Example, pass, valid.


@st.composite
def grouped_plans(draw: st.DrawFn, max_examples: int = 120) -> EpochPlan:
    """Any valid plan in block order with groups, for one rank."""
    groups = draw(st.integers(1, 6))
    batch_size = draw(st.integers(1, 4).map(lambda share: groups * share) | st.integers(1, 20))
    is_training = draw(st.booleans())
    allowed = [Remainder.DROP, Remainder.PAD, Remainder.WRAP if is_training else Remainder.KEEP]
    remainder = draw(st.sampled_from([*allowed, Remainder.KEEP]))
    least = batch_size if is_training and remainder is Remainder.DROP else int(is_training)
    num_examples = draw(st.integers(least, max(least, max_examples)))
    subset = None
    if num_examples > batch_size and draw(st.booleans()):
        chosen = draw(st.permutations(range(num_examples)))[: draw(st.integers(batch_size, num_examples))]
        subset = make_subset(list(chosen), num_examples)
    can_be_cut = is_training and remainder is not Remainder.DROP
    return EpochPlan(
        num_examples=num_examples,
        world=World(),
        batch_size=batch_size,
        remainder=remainder,
        is_training=is_training,
        repeats=draw(st.integers(0, 3)) if is_training else 1,
        shuffle=True,
        seed=draw(st.integers(0, 2**40)),
        blocks=BlockShuffle(draw(st.integers(1, 40)), draw(st.integers(1, 12)), groups),
        subset=subset,
        epoch_size=draw(st.none() | st.integers(1, 200)) if can_be_cut else None,
    )


PLANS = grouped_plans()


def slots_of(batches: list[PlannedBatch]) -> Slots:
    columns = [np.concatenate([getattr(one, name) for one in batches]) for name in ("index", "pass_number", "valid")]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def global_batches(plan: EpochPlan, epoch: int, numbers: Iterable[int]) -> list[Slots]:
    ranks = [replace(plan, world=replace(plan.world, rank=rank)) for rank in range(plan.world.num_replicas)]
    return [slots_of([one.batch(epoch, number) for one in ranks]) for number in numbers]


def whole_epoch(plan: EpochPlan, epoch: int) -> list[Slots]:
    return global_batches(plan, epoch, range(plan.num_batches))


# The oracle: groups written out one by one, and taken in turn.


def groups_of_pass(plan: EpochPlan, number: int) -> list[list[int]]:
    """What each group holds of a pass: sets of examples, from the row of blocks of the plain order, cut into parts."""
    assert plan.blocks is not None
    size, num_examples = plan.blocks.block_records, plan.num_selected
    everywhere = np.arange(num_examples, dtype=np.int64)
    # Windows of one block show the row of blocks.
    plain = block_order_at(everywhere, num_examples, plan.seed, number, BlockShuffle(size, 1))
    row = [example for block in dict.fromkeys((plain // size).tolist())
           for example in range(block * size, min((block + 1) * size, num_examples))]  # fmt: skip
    first = number * num_examples % plan.blocks.groups
    turns = [(position + first) % plan.blocks.groups for position in range(num_examples)]
    sizes = [turns.count(group) for group in range(plan.blocks.groups)]
    ends = np.cumsum([0, *sizes]).tolist()
    return [row[start:stop] for start, stop in pairwise(ends)]


@settings(max_examples=120, deadline=None)
@given(PLANS, st.integers(0, 50))
def test_a_pass_has_each_example_once_and_takes_the_groups_in_turn(plan: EpochPlan, number: int) -> None:
    assert plan.blocks is not None
    everywhere = np.arange(plan.num_selected, dtype=np.int64)
    order = block_order_at(everywhere, plan.num_selected, plan.seed, number, plan.blocks).tolist()
    assert sorted(order) == everywhere.tolist()
    first, groups = number * plan.num_selected % plan.blocks.groups, plan.blocks.groups
    for group, expected in enumerate(groups_of_pass(plan, number)):
        came = order[(group - first) % groups :: groups]
        assert sorted(came) == sorted(expected)
        # Windows of whole blocks of the row, but at the ends of the group.
        at, size = 0, plan.blocks.block_records
        blocks = list(dict.fromkeys(example // size for example in expected))
        per_window = max(1, plan.blocks.window_blocks // groups)
        for start in range(0, len(blocks), per_window):
            inside = [one for one in expected if one // size in blocks[start : start + per_window]]
            assert sorted(came[at : at + len(inside)]) == sorted(inside)
            at += len(inside)


@settings(max_examples=100, deadline=None)
@given(PLANS, st.data())
def test_any_slice_of_the_order_is_that_slice_of_the_permutation(plan: EpochPlan, data: st.DataObject) -> None:
    assert plan.blocks is not None
    everywhere = np.arange(plan.num_selected, dtype=np.int64)
    whole = block_order_at(everywhere, plan.num_selected, plan.seed, 3, plan.blocks)
    if plan.num_selected:
        chosen = np.array(data.draw(st.lists(st.integers(0, plan.num_selected - 1), max_size=50)), np.int64)
        assert np.array_equal(block_order_at(chosen, plan.num_selected, plan.seed, 3, plan.blocks), whole[chosen])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 40), st.integers(0, 5), st.integers(0, 20))
def test_a_batch_is_ordered_by_group_and_back(groups: int, share: int, first: int, num_batches: int, rest: int) -> None:
    size = groups * share
    order = BatchGroups(size, groups, first % groups, num_batches * size)
    slots = np.arange(num_batches * size + rest, dtype=np.int64)
    before = order.before(slots)
    assert np.array_equal(order.after(before), slots)
    assert np.array_equal(before[num_batches * size :], slots[num_batches * size :])
    for number in range(num_batches):
        part = before[number * size : (number + 1) * size]
        assert sorted(part.tolist()) == list(range(number * size, (number + 1) * size))
        assert ((part + first) % groups).tolist() == np.repeat(np.arange(groups), share).tolist()
        assert all(np.diff(part[one * share : (one + 1) * share]).tolist() == [groups] * (share - 1)
                   for one in range(groups))  # fmt: skip


# Epochs


def row_of(plan: EpochPlan, epoch: int, num_slots: int) -> Slots:
    """The first slots of an epoch, one by one, before batches are ordered by group."""
    assert plan.blocks is not None
    row: Slots = []
    orders: dict[int, list[int]] = {}  # Of the passes that came; slices of them are held against these above.
    everywhere = np.arange(plan.num_selected, dtype=np.int64)
    for slot in range(num_slots):
        is_fill = plan.remainder is Remainder.PAD and slot >= plan.num_own_slots
        at = (plan.num_passes - 1) * plan.pass_size + slot % plan.pass_size if is_fill else slot
        number, position = divmod(epoch * plan.num_own_slots + at, plan.num_selected)
        if number not in orders:
            orders[number] = block_order_at(everywhere, len(everywhere), plan.seed, number, plan.blocks).tolist()
        example = orders[number][position]
        row.append((example if plan.subset is None else int(plan.subset.numbers[example]), number, not is_fill))
    return row


@settings(max_examples=120, deadline=None)
@given(PLANS, st.integers(0, 4))
def test_every_example_comes_once_a_pass_and_the_fill_is_the_planned_one(plan: EpochPlan, epoch: int) -> None:
    came = [one for batch in whole_epoch(plan, epoch) for one in batch]
    row, size = row_of(plan, epoch, len(came)), plan.global_batch_size
    for start in range(0, len(came), size):
        assert sorted(came[start : start + size]) == sorted(row[start : start + size])
    valid = [one for one in came if one[2]]
    assert len(set(valid)) == len(valid)
    if plan.epoch_size is None and plan.remainder is not Remainder.DROP:
        passes = range(epoch * plan.num_passes, (epoch + 1) * plan.num_passes)
        numbers = range(plan.num_examples) if plan.subset is None else plan.subset.numbers.tolist()
        assert {(example, number, True) for number in passes for example in numbers} <= set(valid)
    assert [one[2] for one in came] == [True] * len(valid) + [False] * (len(came) - len(valid))


@settings(max_examples=120, deadline=None)
@given(PLANS, st.integers(0, 3), st.data())
def test_global_batches_are_the_same_sequence_for_any_ranks_and_workers(
    plan: EpochPlan, epoch: int, data: st.DataObject
) -> None:
    divisors = [one for one in range(1, plan.batch_size + 1) if plan.batch_size % one == 0]
    ranks = 1 if plan.remainder is Remainder.KEEP else data.draw(st.sampled_from(divisors))
    workers, start = data.draw(st.integers(1, 3)), data.draw(st.integers(0, plan.num_batches))
    there = replace(plan, world=World(num_replicas=ranks), batch_size=plan.batch_size // ranks)
    expected = whole_epoch(plan, epoch)
    assert whole_epoch(there, epoch) == expected
    came: dict[tuple[int, int], PlannedBatch] = {}
    for world in World.grid(ranks, workers):
        order = WorkerOrder(replace(there, world=world), epoch, start)
        at = 0
        for number in order.numbers:
            stop = min(at + there.batch_size, len(order))
            came[number, world.rank], at = order.planned(at, stop), stop
    tail = [slots_of([came[number, rank] for rank in range(ranks)]) for number in range(start, plan.num_batches)]
    assert tail == expected[start:]


@settings(max_examples=120, deadline=None)
@given(PLANS, st.integers(0, 3))
def test_every_whole_batch_takes_its_share_of_each_group_in_order(plan: EpochPlan, epoch: int) -> None:
    assert plan.blocks is not None
    if not plan.has_equal_groups:
        return
    groups, share = plan.blocks.groups, plan.global_batch_size // plan.blocks.groups
    numbers = range(plan.num_examples) if plan.subset is None else plan.subset.numbers.tolist()
    members = {}
    for came in whole_epoch(plan, epoch):
        if len(came) < plan.global_batch_size or not all(valid for *_, valid in came):
            continue
        for at, (example, pass_number, _) in enumerate(came):
            if pass_number not in members:
                parts = groups_of_pass(plan, pass_number)
                members[pass_number] = {numbers[one]: group for group, part in enumerate(parts) for one in part}
            assert members[pass_number][example] == at // share
    assert groups * share == plan.global_batch_size


@settings(max_examples=100, deadline=None)
@given(PLANS, st.integers(0, 3), st.data())
def test_another_global_batch_goes_on_with_the_same_examples(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
    assert plan.blocks is not None
    taken = data.draw(st.integers(0, plan.num_batches))
    came = [one for batch in global_batches(plan, epoch, range(taken)) for one in batch]
    state = state_of(plan, taken, epoch)
    most = min(20, plan.num_own_slots) if plan.remainder is Remainder.DROP and plan.is_training else 20
    other = replace(plan, batch_size=data.draw(st.integers(1, most)))
    loaded = LoaderState.load(state.to_dict(), state_of(other), allow_batch_change=True)
    rest = replace(other, first_example=loaded.first_example)
    came += chain.from_iterable(global_batches(rest, epoch, range(loaded.batches_delivered, rest.num_batches)))
    valid = [one for one in came if one[2]]
    assert sorted(valid) == sorted(row_of(plan, epoch, len(valid)))
    if plan.remainder is not Remainder.DROP:
        assert len(valid) >= plan.num_own_slots


def test_one_group_is_the_plain_order() -> None:
    plain = EpochPlan(1000, World(), 12, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(7, 5))
    grouped = replace(plain, blocks=BlockShuffle(7, 5, 1))
    assert global_batches(plain, 2, range(84)) == global_batches(grouped, 2, range(84))
    assert grouped == plain
    assert repr(grouped.blocks) == "BlockShuffle(block_records=7, window_blocks=5)"
    assert repr(BlockShuffle(7, 5, 2)) == "BlockShuffle(block_records=7, window_blocks=5, groups=2)"


def test_the_order_of_groups_never_changes() -> None:
    def order(num_examples: int, blocks: BlockShuffle, number: int, start: int, stop: int) -> list[int]:
        found = block_order_at(np.arange(start, stop, dtype=np.int64), num_examples, 42, number, blocks)
        return found.tolist()

    assert order(10, BlockShuffle(3, 2, 2), 0, 0, 10) == [2, 7, 1, 8, 0, 4, 9, 3, 6, 5]
    middle = 5 * 10**11
    expected = [870915359916, 408342342218, 157308519524, 251278850734, 870915359146, 73506942521]
    assert order(10**12, BlockShuffle(1000, 40, 4), 3, middle, middle + 6) == expected
    plan = EpochPlan(10, World(), 4, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(3, 2, 2))
    assert [plan.batch(1, number).index.tolist() for number in range(3)] == [[3, 4, 8, 9], [5, 6, 2, 1], [7, 6, 0, 1]]


# What machines read


def examples_of_machine(plan: EpochPlan, epoch: int, machine: int, num_machines: int) -> Examples:
    """What the ranks of one machine read of an epoch."""
    share = plan.global_batch_size // num_machines
    at = np.arange(machine * share, (machine + 1) * share, dtype=np.int64)
    slots = (np.arange(plan.num_batches, dtype=np.int64)[:, None] * plan.global_batch_size + at).ravel()
    return plan.at_slots(epoch, slots).index


@pytest.mark.parametrize("num_examples", [40_000, 40_037, 39_999])
@pytest.mark.parametrize("remainder", [Remainder.WRAP, Remainder.DROP])
@pytest.mark.parametrize("num_replicas", [4, 8])
def test_each_of_four_machines_reads_a_quarter_of_the_blocks(
    num_examples: int, remainder: Remainder, num_replicas: int
) -> None:
    blocks = BlockShuffle(25, 40, 4)
    plan = EpochPlan(num_examples, World(num_replicas=num_replicas), 64 // num_replicas, remainder, True,
                     shuffle=True, blocks=blocks)  # fmt: skip
    num_blocks = -(-num_examples // 25)
    for epoch in (0, 1):
        for machine in range(4):
            read = len(np.unique(examples_of_machine(plan, epoch, machine, 4) // 25))
            assert Fraction(read, num_blocks) <= Fraction(27, 100)
            pair = len(np.unique(examples_of_machine(plan, epoch, machine % 2, 2) // 25))
            assert Fraction(pair, num_blocks) <= Fraction(52, 100)
    plain = replace(plan, blocks=BlockShuffle(25, 40))
    assert len(np.unique(examples_of_machine(plain, 0, 0, 4) // 25)) > 0.99 * num_blocks


def test_groups_are_dealt_anew_in_every_pass() -> None:
    plan = EpochPlan(40_000, World(), 64, Remainder.DROP, True, shuffle=True, blocks=BlockShuffle(25, 40, 4))
    parts = [set((examples_of_machine(plan, epoch, 0, 4) // 25).tolist()) for epoch in (0, 1)]
    assert 0.15 < len(parts[0] & parts[1]) / len(parts[0]) < 0.35


def test_a_batch_far_into_a_huge_epoch_takes_no_longer() -> None:
    plan = EpochPlan(10**12, World(), 64, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(256, 32, 4))
    assert len(set(plan.batch(10**5, 10**10).index.tolist())) == 64


# States and errors


def test_a_state_names_the_groups() -> None:
    plan = EpochPlan(100, World(), 8, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(5, 4, 2))
    state = state_of(plan, 3)
    saved = state.to_dict()
    assert saved["block_groups"] == 2
    assert LoaderState.from_json(state.to_json()) == state
    assert state.plan == plan
    without = state_of(replace(plan, blocks=BlockShuffle(5, 4)), 3)
    assert without.to_dict()["block_groups"] is None
    assert LoaderState.from_dict(without.to_dict()) == without
    misfit = "The state does not fit this dataset. block_groups:"
    assert message_of(LoaderState.load, saved, without) == (
        f"{misfit} 2 in the state, None here. Pass ReadOptions(block_groups=2)."
    )
    assert message_of(LoaderState.load, without.to_dict(), state) == (
        f"{misfit} None in the state, 2 here. Pass ReadOptions(block_groups=1)."
    )
    changed = message_of(LoaderState.from_dict, {**saved, "block_groups": 4})
    assert "block_groups=4" in changed
    assert "was changed after saving" in changed
    assert "block_groups=1 must be an integer >= 2 or None" in message_of(
        LoaderState.from_dict, {**saved, "block_groups": 1}
    )
    assert message_of(LoaderState.from_dict, {**saved, "block_records": None, "window_blocks": None}) == (
        "LoaderState: block_groups=2 must be None where block_records is. Load the state as it was saved."
    )


@pytest.mark.parametrize("batch_size", [1, 3, 6, 30])
def test_a_global_batch_that_does_not_divide_keeps_the_turns(batch_size: int) -> None:
    plan = EpochPlan(103, World(), batch_size, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(5, 8, 4))
    assert not plan.has_equal_groups
    came = [one for batch in whole_epoch(plan, 1) for one in batch]
    assert came == row_of(plan, 1, len(came))


def test_an_order_that_is_not_shuffled_has_no_groups() -> None:
    plan = EpochPlan(10, World(), 3, Remainder.KEEP, blocks=BlockShuffle(5, 4, 4))
    assert plan.num_groups == 1
    assert plan.batch(0, 0).index.tolist() == [0, 1, 2]


def test_a_member_of_a_mixture_with_groups_is_a_config_error() -> None:
    segments, _ = make_segments({"a": 10}, {"a": 1}, 1.0)
    with pytest.raises(ConfigError) as caught:
        MixtureOrder((MixtureMember("a", 10, BlockShuffle(2, 2, 2)),), segments, 10)
    assert str(caught.value) == (
        "The member 'a' of the mixture has block_groups=2 beside weights, which choose what is in a global batch, so "
        "that it has no equal part of each group. Leave out block_groups (block_records works with weights), or the "
        "weights."
    )
