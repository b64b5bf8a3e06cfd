"""block_windows: which blocks readers need and when, held against the batches themselves; file_ranges beside it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import plans
from plan.test_block_groups import grouped_plans

from tfds_torch.errors import ConfigError
from tfds_torch.plan.block_windows import BlockWindow, block_windows, file_ranges
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import BlockRow, BlockShuffle
from tfds_torch.plan.world import World

PLANS = plans(max_examples=80, max_replicas=3, max_workers=3, max_batch_size=5, max_repeats=2)
TRAINING = EpochPlan(
    1000, World(), 16, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(10, 20, 4)
)  # 100 blocks; four groups with windows of 5.


@st.composite
def spread_plans(draw: st.DrawFn) -> EpochPlan:
    """A plan with groups on several ranks and workers, and at one of their places."""
    plan = draw(grouped_plans(80))
    ranks = 1 if plan.remainder is Remainder.KEEP else draw(st.sampled_from([1, plan.batch_size]))
    workers = draw(st.integers(1, 3))
    world = World(draw(st.integers(0, ranks - 1)), ranks, draw(st.integers(0, workers - 1)), workers)
    return replace(plan, world=world, batch_size=plan.batch_size // ranks)


def needed(plan: EpochPlan, epoch: int, start_batch: int, ranks: list[int] | None) -> dict[int, int]:
    """Slot -> example of all that the readers read, batch by batch."""
    found = {}
    numbers = plan.worker_batches(start_batch) if ranks is None else range(start_batch, plan.num_batches)
    for rank in [plan.world.rank] if ranks is None else ranks:
        own = replace(plan, world=replace(plan.world, rank=rank))
        for number in numbers:
            first = number * plan.global_batch_size + rank * plan.batch_size
            found |= dict(enumerate(own.batch(epoch, number).index.tolist(), first))
    return found


def check_windows(plan: EpochPlan, epoch: int, start_batch: int, ranks: list[int] | None, size: int) -> None:
    """Every slot is in the window that says so, and every bound is reached."""
    windows = list(block_windows(plan, epoch, start_batch, ranks=ranks, block_records=size))
    expected = needed(plan, epoch, start_batch, ranks)
    bounds: set[int] = set()
    for slot, example in expected.items():
        assert any(
            (window.block == example // size).any()
            and window.start[at] <= example < window.stop[at]
            and window.first_slot[at] <= slot <= window.last_slot[at]
            for window in windows
            for at in np.flatnonzero(window.block == example // size).tolist()
        )
    for window in windows:
        assert len(window.block)
        assert len(set(window.block.tolist())) == len(window.block)
        assert (np.diff(window.first_slot) > 0).all()
        for block, start, stop, first, last in rows_of(window):
            assert block * size <= start < stop <= min((block + 1) * size, plan.num_examples)
            assert expected[first] // size == expected[last] // size == block
            bounds |= {first, last}
    assert bounds <= set(expected)


def rows_of(window: BlockWindow) -> list[list[int]]:
    return np.stack([window.block, window.start, window.stop, window.first_slot, window.last_slot], 1).tolist()


@settings(max_examples=90, deadline=None)
@given(PLANS | spread_plans(), st.integers(0, 3), st.booleans(), st.data())
def test_windows_hold_all_that_the_readers_read(
    plan: EpochPlan, epoch: int, is_machine: bool, data: st.DataObject
) -> None:
    ranks = None
    if is_machine:
        ranks = data.draw(st.lists(st.integers(0, plan.world.num_replicas - 1), min_size=1, max_size=3, unique=True))
    start = data.draw(st.integers(0, plan.num_batches))
    sizes = st.integers(1, 9)
    size = plan.blocks.block_records if plan.blocks and data.draw(st.booleans()) else data.draw(sizes)
    check_windows(plan, epoch, start, ranks, size)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_block_is_in_one_window_of_an_epoch_or_is_cut_between_two(groups: int) -> None:
    plan = replace(TRAINING, blocks=BlockShuffle(10, 20, groups), num_examples=1037, batch_size=20)
    windows = list(block_windows(replace(plan, remainder=Remainder.KEEP), 2, ranks=[0]))
    held = sorted((start, stop) for window in windows for _, start, stop, *_ in rows_of(window))
    assert held[0][0] == 0
    assert held[-1][1] == 1037
    assert all(one[1] == other[0] for one, other in pairwise(held))
    assert 104 <= len(held) <= 104 + groups - 1
    assert [len(window.block) for window in windows if len(window.block) > 20 // groups] == []


def test_windows_come_in_the_order_in_which_batches_need_them() -> None:
    firsts = [int(window.first_slot[0]) // 16 for window in block_windows(TRAINING, 1, ranks=[0])]
    assert firsts == sorted(firsts)
    # The first windows of all four groups are needed by the first batch, the second ones when these are dealt.
    assert firsts[:4] == [0, 0, 0, 0]
    windows = list(block_windows(TRAINING, 1, ranks=[0]))
    own = [window for window in windows if window.first_slot[0] % 16 < 4]  # Those of the first group.
    for window, following in pairwise(own):
        assert int(window.last_slot.max()) < int(following.first_slot.min())


def test_machines_with_groups_of_their_own_share_no_window() -> None:
    plan = replace(TRAINING, world=World(num_replicas=4), batch_size=4)
    parts = [list(block_windows(plan, 0, ranks=[rank])) for rank in range(4)]
    sizes = [sum(int((window.stop - window.start).sum()) for window in part) for part in parts]
    in_all = sum(int((window.stop - window.start).sum()) for window in block_windows(plan, 0, ranks=range(4)))
    assert sum(sizes) == in_all
    assert max(sizes) <= 0.3 * in_all  # Of 1,000 examples; the last batch is filled from the next pass's first windows.
    assert len(parts[0]) < len(list(block_windows(replace(plan, blocks=BlockShuffle(10, 5)), 0, ranks=[0])))


def test_the_next_pass_begins_where_this_one_is_filled_up() -> None:
    plan = EpochPlan(95, World(), 10, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(10, 2))
    last = list(block_windows(plan, 0))[-1]
    assert int(last.first_slot[0]) >= 95
    following = next(block_windows(plan, 1))
    assert set(last.block.tolist()) <= set(following.block.tolist())


def test_a_resume_in_one_pass_needs_all_windows_of_the_next_one() -> None:
    plan = EpochPlan(100, World(), 10, Remainder.WRAP, True, 2, True, blocks=BlockShuffle(10, 2))
    assert len(list(block_windows(plan, 0))) == 10
    assert len(list(block_windows(plan, 0, 7))) == 2 + 5
    check_windows(plan, 0, 7, None, 10)


def test_a_huge_epoch_is_looked_at_one_window_at_a_time() -> None:
    plan = EpochPlan(10**12, World(), 64, Remainder.WRAP, True, shuffle=True, blocks=BlockShuffle(256, 32, 4))
    window = next(block_windows(plan, 3, 10**10))
    assert len(window.block) == 8
    assert int(window.first_slot[0]) // 64 == 10**10
    evaluation = EpochPlan(10**12, World(), 64, Remainder.KEEP)
    assert next(block_windows(evaluation, 0, block_records=256)).block.tolist() == list(range(32))


def test_windows_of_a_row_are_those_of_the_order() -> None:
    row = BlockRow(1000, BlockShuffle(10, 20, 4), 42, 0)
    windows = list(row.windows())
    assert sorted(np.concatenate(windows).tolist()) == list(range(1000))
    for start in (0, 1, 7, 499, 999, 1000):
        rest = list(row.windows(start))
        assert [one.tolist() for one in rest] == [one.tolist() for one in windows if one[-1] >= start]


def test_an_epoch_without_examples_needs_no_blocks() -> None:
    assert list(block_windows(EpochPlan(0, World(), 4, Remainder.KEEP), 0, block_records=4)) == []
    assert (
        list(block_windows(EpochPlan(0, World(), 4, Remainder.PAD, shuffle=True, blocks=BlockShuffle(2, 2)), 0)) == []
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epoch": -1}, "epoch=-1 must be an integer"),
        ({"start_batch": 64}, "start_batch=64 must be in 0..63"),
        ({"ranks": [1]}, "block_windows: a rank=1 must be an integer in 0..0."),
        ({"ranks": []}, "block_windows: ranks=[] must name one rank at least."),
        ({"block_records": 0}, "block_windows: block_records=0 must be an integer >= 1."),
        ({"plan": replace(TRAINING, blocks=None)}, "this order has no blocks: pass block_records"),
    ],
)
def test_arguments_that_cannot_be_are_config_errors(arguments: dict[str, object], message: str) -> None:
    given = {"plan": TRAINING, "epoch": 0, **arguments}
    with pytest.raises(ConfigError) as caught:
        block_windows(**given)  # type: ignore[arg-type]
    assert message in str(caught.value)


# Files


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.data())
def test_ranges_of_examples_are_ranges_of_files(lengths: list[int], data: st.DataObject) -> None:
    places = [(file, number) for file, length in enumerate(lengths) for number in range(length)]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(places)), max_size=8)))
    ranges = list(pairwise(cuts))
    starts, stops = np.array([one[0] for one in ranges], np.int64), np.array([one[1] for one in ranges], np.int64)
    found = file_ranges(starts, stops, np.array(lengths, np.int64))
    rows = np.stack([found.which, found.file, found.start, found.stop], 1).tolist()
    for number, (start, stop) in enumerate(ranges):
        own = [(file, one) for which, file, first, last in rows if which == number for one in range(first, last)]
        assert own == places[start:stop]
    assert all(first < last for *_, first, last in rows)
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
