"""Passes: every example once in each, plain, in blocks, in groups, of a subset; and the windows that are read ahead."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan.orders import GROUPED, SEEDS, numbers, orders, passes, row_of, selected_of
from plan.shuffle_statistics import (
    FAIR_Z,
    UNFAIR_Z,
    Order,
    blocks_mix_over_orders,
    each_permutation_is_equally_likely,
    passes_are_independent,
    z_of_chi_square,
)
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import Int64Array, ShuffledPass, epoch_order
from tfds_torch.plan.passes import BatchGroups, BlockRow, BlockShuffle, Passes
from tfds_torch.plan.world import World


def block_order(
    size: int, blocks: BlockShuffle, seed: int = 42, number: int = 0, start: int = 0, stop: int = -1
) -> Any:
    """One slice of a pass."""
    return BlockRow(ShuffledPass(size, seed, number), blocks).examples_at(numbers(size if stop < 0 else stop, start))


def row_of_blocks_of(size: int, seed: int, number: int, block_records: int) -> list[int]:
    """The examples of the row of blocks, before windows are shuffled: windows of one block show it."""
    plain = block_order(size, BlockShuffle(block_records, 1), seed, number)
    return [
        example
        for block in dict.fromkeys((plain // block_records).tolist())
        for example in range(block * block_records, min((block + 1) * block_records, size))
    ]


def windows_of(size: int, seed: int, number: int, blocks: BlockShuffle) -> list[list[tuple[int, int]]]:
    """The windows of each group, written out: (position, example before the window is shuffled)."""
    row, first = row_of_blocks_of(size, seed, number, blocks.block_records), number * size % blocks.groups
    windows = []
    for group in range(blocks.groups):
        positions = [at for at in range(size) if (at + first) % blocks.groups == group]
        own, row = list(zip(positions, row, strict=False)), row[len(positions) :]
        held = list(dict.fromkeys(example // blocks.block_records for _, example in own))
        size_of_window = max(1, blocks.window_blocks // blocks.groups)
        for start in range(0, len(held), size_of_window):
            inside = held[start : start + size_of_window]
            windows.append([one for one in own if one[1] // blocks.block_records in inside])
    return windows


# The row


@settings(max_examples=100, deadline=None)
@given(passes(), st.integers(0, 9))
def test_every_pass_has_each_example_once_in_an_order_of_its_own(order: Passes, number: int) -> None:
    there, size = selected_of(order), order.pass_size
    came = row_of(order, (number + 1) * size, number * size)
    assert [one for one, _ in came] == [number] * size
    assert sorted(example for _, example in came) == sorted(there)
    if not order.shuffle:
        expected = numbers(size)
    elif order.blocks is None:
        expected = epoch_order(size, order.seed, number)
    else:
        expected = block_order(size, order.blocks, order.seed, number)
    assert [example for _, example in came] == [there[at] for at in expected.tolist()]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), GROUPED, SEEDS, st.integers(0, 50))
def test_a_pass_takes_the_groups_in_turn_and_windows_hold_whole_blocks(
    size: int, blocks: BlockShuffle, seed: int, number: int
) -> None:
    came, windows = block_order(size, blocks, seed, number), windows_of(size, seed, number, blocks)
    for window in windows:
        assert sorted(came[[at for at, _ in window]].tolist()) == sorted(example for _, example in window)
    row = BlockRow(ShuffledPass(size, seed, number), blocks)
    found = [one.tolist() for one in row.windows()]
    assert found == sorted([at for at, _ in window] for window in windows)
    for start in {0, 1, size // 2, size - 1, size}:
        assert [one.tolist() for one in row.windows(start)] == [one for one in found if one[-1] >= start]


@pytest.mark.parametrize("block_records", [1, 7, 64, 1000, 4097, 10**6])
def test_the_block_order_is_a_permutation(block_records: int) -> None:
    for size in (1, 2, 63, 64, 65, 4096, 4097, 20_011):
        for window_blocks in (1, 3, 5000):
            if block_records * window_blocks * 2000 >= size:
                whole = block_order(size, BlockShuffle(block_records, window_blocks))
                assert np.array_equal(np.sort(whole), np.arange(size)), (size, window_blocks)


def test_another_block_or_window_size_has_another_order() -> None:
    sizes = [BlockShuffle(16, 4), BlockShuffle(16, 5), BlockShuffle(17, 4), BlockShuffle(64, 1), BlockShuffle(16, 4, 2)]
    slices = [block_order(5000, blocks, stop=100) for blocks in sizes]
    for number, one in enumerate(slices):
        assert all(np.count_nonzero(one == other) < 12 for other in slices[:number])


@pytest.mark.parametrize(
    ("size", "blocks", "number", "start", "expected"),
    [
        (10, BlockShuffle(3, 2), 0, 0, [2, 9, 1, 0, 7, 8, 3, 6, 5, 4]),
        (10, BlockShuffle(3, 2), 1, 0, [8, 3, 6, 7, 4, 5, 9, 0, 1, 2]),
        (10, BlockShuffle(3, 2, 2), 0, 0, [2, 7, 1, 8, 0, 4, 9, 3, 6, 5]),
        (1_281_167, BlockShuffle(256, 32), 3, 1_281_160, [605330, 1116142, 1154452, 375706, 334665, 1154387]),
        (10**12, BlockShuffle(1000, 10), 3, 5 * 10**11, [27422138934, 556686488191, 556686488451, 556686488273]),
        (10**12, BlockShuffle(1000, 40, 4), 3, 5 * 10**11, [870915359916, 408342342218, 157308519524, 251278850734]),
    ],
)
def test_the_block_order_never_changes(
    size: int, blocks: BlockShuffle, number: int, start: int, expected: list[int]
) -> None:
    assert block_order(size, blocks, 42, number, start, start + len(expected)).tolist() == expected


def test_no_part_of_the_block_order_ever_changes() -> None:
    digest = hashlib.sha256(block_order(100_003, BlockShuffle(64, 16)).astype("<i8").tobytes()).hexdigest()
    assert digest == "81b379d7e6250dc62263ce2d9daa76311838b55a08c2619f4ad131b71849c28b"


def test_passes_that_cannot_be_are_refused() -> None:
    refused: list[tuple[Callable[..., object], tuple[Any, ...], str]] = [
        (BlockShuffle, (0, 4), "block_records=0 must be an integer >= 1."),
        (BlockShuffle, (2.0, 4), "block_records=2.0 must be an integer >= 1."),
        (BlockShuffle, (4, -1), "window_blocks=-1 must be an integer >= 1."),
        (BlockShuffle, (4, True), "window_blocks=True must be an integer >= 1."),
        (BlockShuffle, (4, 4, 0), "groups=0 must be an integer >= 1."),
        (Passes, (-1,), "num_examples=-1 must be an integer"),
        (Passes, (2**62 + 1,), f"num_examples={2**62 + 1} must be an integer"),
        (Passes, (1, -1), "seed=-1 must be an integer"),
        (Passes, (1, 42, True, (4, 4)), "blocks=(4, 4) must be a BlockShuffle or None."),
        (Passes, (1, 42, True, None, None, 0), "epoch_size=0 must be an integer"),
        (Passes, (1, 42, True, None, None, 2**62 + 1), f"epoch_size={2**62 + 1} must be an integer"),
    ]
    found = [(message, said_of(ConfigError, call, *arguments)) for call, arguments, message in refused]
    assert not [one for one in found if one[0] not in one[1]]


# Global batches by group


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 40), st.integers(0, 5), st.integers(0, 20))
def test_a_batch_is_ordered_by_group_and_back(groups: int, share: int, first: int, num_batches: int, rest: int) -> None:
    size = groups * share
    order = BatchGroups(size, groups, first % groups, num_batches * size)
    slots = numbers(num_batches * size + rest)
    expected = [
        number * size + at
        for number in range(num_batches)
        for group in range(groups)
        for at in range(size)
        if (number * size + at + first) % groups == group
    ]
    before = order.before(slots)
    assert before.tolist() == [*expected, *slots[num_batches * size :].tolist()]
    assert np.array_equal(order.after(before), slots)


@settings(max_examples=100, deadline=None)
@given(passes(), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.data())
def test_global_batches_are_the_same_sequence_for_any_ranks_and_workers(
    order: Passes, epoch: int, ranks: int, workers: int, batch_size: int, data: st.DataObject
) -> None:
    one = EpochPlan(order, World(), ranks * batch_size, Remainder.WRAP, True, data.draw(st.integers(0, 2)))
    start, size = data.draw(st.integers(0, one.num_batches)), ranks * batch_size
    came: dict[int, tuple[int, int]] = {}
    for world in World.grid(ranks, workers):
        own = WorkerOrder(replace(one, world=world, batch_size=batch_size), epoch, start)
        found = own.planned(0, len(own))
        slots = [n * size + world.rank * batch_size + at for n in own.numbers for at in range(batch_size)]
        came |= dict(zip(slots, zip(found.pass_number.tolist(), found.index.tolist(), strict=True), strict=True))
    own_slots, first = one.num_own_slots, epoch * one.num_own_slots
    expected = row_of(order, first + one.num_batches * size, first)
    assert own_slots <= len(expected) < own_slots + size
    assert sorted(came) == list(range(start * size, len(expected)))
    for number in range(start, one.num_batches):
        batch = [came[slot] for slot in range(number * size, (number + 1) * size)]
        planned, groups = expected[number * size : (number + 1) * size], order.num_groups
        if groups > 1 and size % groups == 0:
            by_group = sorted(range(size), key=lambda at: (first + number * size + at) % groups)
            planned = [planned[at] for at in by_group]
        assert batch == planned


@settings(max_examples=120, deadline=None)
@given(passes(), st.integers(0, 3), st.integers(1, 9), st.sampled_from(Remainder), st.booleans(), st.integers(1, 3))
def test_every_example_comes_once_a_pass_and_the_fill_is_the_planned_one(
    order: Passes, epoch: int, size: int, remainder: Remainder, is_training: bool, repeats: int
) -> None:
    order, is_training = replace(order, epoch_size=None), is_training or remainder is Remainder.WRAP
    repeats = repeats if is_training else 1
    own, n = repeats * order.pass_size, order.pass_size
    if remainder is Remainder.DROP:
        assume(own >= size)
    plan = EpochPlan(order, World(), size, remainder, is_training, repeats)
    row = [(*one, True) for one in row_of(order, (epoch + 1) * own + size, epoch * own)]
    if remainder is Remainder.PAD:
        row[own:] = [(*row[own - n + slot % n][:2], False) for slot in range(own, own + size)]
    num_slots = {Remainder.KEEP: own, Remainder.DROP: own // size * size}.get(remainder, -(-own // size) * size)
    for number, start in enumerate(range(0, num_slots, size)):
        expected = row[start : min(start + size, num_slots)]
        if size % order.num_groups == 0 and len(expected) == size and all(valid for *_, valid in expected):
            first = epoch * own + start
            expected = [expected[at] for at in sorted(range(size), key=lambda at: (first + at) % order.num_groups)]
        found = plan.batch(epoch, number)
        columns = (found.pass_number.tolist(), found.index.tolist(), found.valid.tolist())
        assert list(zip(*columns, strict=True)) == expected
    assert plan.num_batches == -(-num_slots // size)


def examples_of_machine(plan: EpochPlan, epoch: int, machine: int, num_machines: int) -> Int64Array:
    """What the ranks of one machine read of an epoch."""
    share = plan.global_batch_size // num_machines
    slots = numbers(plan.num_batches)[:, None] * plan.global_batch_size + numbers(
        (machine + 1) * share, machine * share
    )
    return plan.at_slots(epoch, slots.ravel()).index


@pytest.mark.parametrize(("num_examples", "remainder"), [(40_037, Remainder.WRAP), (39_999, Remainder.DROP)])
def test_each_of_four_machines_reads_a_quarter_of_the_blocks(num_examples: int, remainder: Remainder) -> None:
    order = Passes(num_examples, blocks=BlockShuffle(25, 40, 4))
    plan, num_blocks = EpochPlan(order, World(num_replicas=8), 8, remainder, True), -(-num_examples // 25)
    parts = [set((examples_of_machine(plan, epoch, 0, 4) // 25).tolist()) for epoch in (0, 1)]
    assert 0.15 < len(parts[0] & parts[1]) / len(parts[0]) < 0.35  # Groups are dealt anew in every pass.
    for machine in range(4):
        read = len(np.unique(examples_of_machine(plan, 1, machine, 4) // 25))
        assert Fraction(read, num_blocks) <= Fraction(27, 100)
        assert len(np.unique(examples_of_machine(plan, 1, machine % 2, 2) // 25)) <= 0.52 * num_blocks
    plain = replace(plan, order=replace(order, blocks=BlockShuffle(25, 40)))
    assert len(np.unique(examples_of_machine(plain, 0, 0, 4) // 25)) > 0.99 * num_blocks


# Windows that are read ahead


@settings(max_examples=120, deadline=None)
@given(orders(), st.integers(0, 3), st.integers(1, 9), st.data())
def test_windows_hold_all_that_the_worker_reads(order: Any, epoch: int, size: int, data: st.DataObject) -> None:
    ranks, workers = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    world = World(data.draw(st.integers(0, ranks - 1)), ranks, data.draw(st.integers(0, workers - 1)), workers)
    can_evaluate = isinstance(order, Passes) and order.epoch_size is None
    is_training = not can_evaluate or data.draw(st.booleans())
    remainder = Remainder.WRAP if is_training else Remainder.PAD
    repeats = data.draw(st.integers(1, 3)) if is_training else 1
    plan = EpochPlan(order, world, data.draw(st.integers(1, 6)), remainder, is_training, repeats)
    batches = WorkerOrder(plan, epoch, data.draw(st.integers(0, plan.num_batches)))
    is_in_blocks = isinstance(order, Passes) and order.blocks is not None and order.shuffle
    if is_in_blocks:
        size = order.blocks.block_records
    came = batches.planned(0, len(batches)).index.tolist()
    windows = [list(zip(starts.tolist(), stops.tolist(), strict=True)) for starts, stops in
               order.windows(batches, size)]  # fmt: skip
    assert all(windows)
    ranges = [one for window in windows for one in window]
    assert all(any(start <= example < stop for start, stop in ranges) for example in set(came))
    for start, stop in ranges:
        assert start // size * size <= start < stop <= min((start // size + 1) * size, order.num_examples)
        assert any(example // size == start // size for example in came)
    blocks = [[start // size for start, _ in window] for window in windows]
    assert all(len(set(window)) == len(window) for window in blocks)
    first_uses = list(dict.fromkeys(example // size for example in came))
    if not is_in_blocks:
        assert blocks == ([first_uses] if came else [])  # Fewer than are looked up at a time.
    elif order.num_groups == 1 and repeats == 1 and order.epoch_size is None and not is_training:
        assert list(dict.fromkeys(block for window in blocks for block in window)) == first_uses


@pytest.mark.parametrize("groups", [1, 4])
def test_a_block_is_in_one_window_of_an_epoch_or_is_cut_between_two(groups: int) -> None:
    plan = EpochPlan(Passes(1037, blocks=BlockShuffle(10, 20, groups)), World(), 20, Remainder.KEEP)
    windows = list(plan.order.windows(WorkerOrder(plan, 2), 10))
    held = sorted(one for starts, stops in windows for one in zip(starts.tolist(), stops.tolist(), strict=True))
    assert (held[0][0], held[-1][1]) == (0, 1037)
    assert all(one[1] == other[0] for one, other in pairwise(held))
    assert 104 <= len(held) <= 104 + groups - 1
    assert max(len(starts) for starts, _ in windows) <= 20 // groups


def test_a_resume_in_one_pass_needs_all_windows_of_the_next_one() -> None:
    plan = EpochPlan(Passes(100, blocks=BlockShuffle(10, 2)), World(), 10, Remainder.WRAP, True, 2)
    assert [len(list(plan.order.windows(WorkerOrder(plan, 0, start), 10))) for start in (0, 7)] == [10, 2 + 5]


def test_a_huge_epoch_is_looked_at_one_window_at_a_time() -> None:
    plan = EpochPlan(Passes(10**12, blocks=BlockShuffle(256, 32, 4)), World(), 64, Remainder.WRAP, True)
    batches = WorkerOrder(plan, 3, 10**10)
    starts, stops = next(plan.order.windows(batches, 256))
    first = int(batches.planned(0, 1).index[0])
    assert len(starts) == 8
    assert starts[0] <= first < stops[0]
    plain = EpochPlan(Passes(10**12, shuffle=False), World(), 64, Remainder.KEEP)
    assert next(plain.order.windows(WorkerOrder(plain, 0), 256))[0].tolist() == list(range(0, 8192, 256))


def test_windows_hold_what_pads_the_last_batch() -> None:
    order = Passes(100, blocks=BlockShuffle(1, 1))
    for rank in range(3):
        batches = WorkerOrder(EpochPlan(order, World(rank, 3), 17, Remainder.PAD), 0)
        held = {int(start) for starts, _ in order.windows(batches, 1) for start in starts}
        assert held == set(batches.planned(0, len(batches)).index.tolist())


def test_an_epoch_without_examples_needs_no_blocks() -> None:
    for blocks in (None, BlockShuffle(2, 2)):
        plan = EpochPlan(Passes(0, blocks=blocks), World(), 4, Remainder.PAD)
        assert list(plan.order.windows(WorkerOrder(plan, 0), 2)) == []


# Uniformity. The statistics ask for permutations: here are three that lie inside a block order.


def row_of_blocks(num_blocks: int, seed: int, pass_number: int) -> Int64Array:
    """The order of the blocks, the short last one included: windows of one block, of two examples."""
    whole = block_order(2 * num_blocks - 1, BlockShuffle(2, 1), seed, pass_number) // 2
    return np.array(list(dict.fromkeys(whole.tolist())))


def inside_a_window(size: int, seed: int, pass_number: int) -> Int64Array:
    """How the second of three windows orders its examples, which are one block."""
    found: Int64Array = block_order(3 * size, BlockShuffle(size, 1), seed, pass_number, size, 2 * size) % size
    return found


def windows_of_a_pass(size: int, seed: int, window: int) -> Int64Array:
    """How one of many windows orders its examples, which are one block; windows stand where passes do."""
    found: Int64Array = block_order(50 * size, BlockShuffle(size, 1), seed, 0, window * size, (window + 1) * size)
    return found % size


@pytest.mark.parametrize("shuffle", [row_of_blocks, inside_a_window], ids=lambda shuffle: shuffle.__name__)
def test_each_permutation_of_blocks_or_of_a_window_is_equally_likely(shuffle: Order) -> None:
    assert abs(each_permutation_is_equally_likely(shuffle, num_examples=4)) < FAIR_Z


@pytest.mark.parametrize("statistic", [blocks_mix_over_orders, passes_are_independent], ids=lambda one: one.__name__)
def test_a_window_is_as_good_as_a_fair_shuffle(statistic: Callable[[Order], float]) -> None:
    assert abs(statistic(inside_a_window)) < FAIR_Z


def test_the_windows_of_a_pass_are_shuffled_independently() -> None:
    assert abs(passes_are_independent(windows_of_a_pass)) < FAIR_Z


def positions_of_blocks(shuffle: Callable[[int, int], Int64Array], num_blocks: int, size: int, seeds: int) -> float:
    """Chi-square of the table block x block's length of positions, of one example of each block, over seeds."""
    table = np.zeros((num_blocks, num_blocks))
    for seed in range(seeds):
        whole = shuffle(num_blocks * size, seed)
        chosen = np.flatnonzero(whole % size == seed % size)
        np.add.at(table, (whole[chosen] // size, chosen // size), 1)
    expected = seeds / num_blocks
    return z_of_chi_square(float(((table - expected) ** 2).sum() / expected), num_blocks * (num_blocks - 1))


def test_every_example_reaches_every_block_position_equally_often() -> None:
    def blocks_in_place(size: int, seed: int) -> Int64Array:
        generator = np.random.default_rng(seed)
        return np.concatenate([generator.permutation(part) for part in np.split(np.arange(size), size // 20)])

    ours = positions_of_blocks(lambda size, seed: block_order(size, BlockShuffle(5, 4), seed), 20, 5, 1000)
    assert abs(ours) < FAIR_Z
    assert abs(positions_of_blocks(blocks_in_place, 20, 5, 1000)) > UNFAIR_Z


def test_the_short_last_block_comes_anywhere() -> None:
    places = [int(np.flatnonzero(block_order(28, BlockShuffle(3, 1), seed) == 27)[0]) // 3 for seed in range(1000)]
    counts = np.bincount(places)
    assert len(counts) == 10
    assert abs(z_of_chi_square(float(((counts - 100) ** 2).sum() / 100), 9)) < FAIR_Z
