"""block_order_at: a stateless permutation whose windows are shuffled blocks, and how local it is."""

import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plan.shuffle_statistics import (
    FAIR_Z,
    STATISTICS,
    UNFAIR_Z,
    Order,
    blocks_mix_over_orders,
    each_permutation_is_equally_likely,
    passes_are_independent,
    z_of_chi_square,
)

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.passes import BlockShuffle, block_order_at

Examples = NDArray[np.int64]
SEEDS = st.integers(0, 2**63)
PASSES = st.integers(0, 10**6)
BLOCKS = st.builds(BlockShuffle, st.integers(1, 300) | st.integers(1, 10**5), st.integers(1, 40))


def block_order(
    num_examples: int, blocks: BlockShuffle, seed: int = 42, pass_number: int = 0, start: int = 0, stop: int = -1
) -> Examples:
    """One slice of the order."""
    stop = num_examples if stop < 0 else stop
    return block_order_at(np.arange(start, stop, dtype=np.int64), num_examples, seed, pass_number, blocks)


# A permutation, whole or in slices.


@pytest.mark.parametrize("block_records", [1, 2, 7, 64, 1000, 4097, 10**6])
def test_the_block_order_is_a_permutation(block_records: int) -> None:
    sizes, wrong = (0, 1, 2, 3, 10, 63, 64, 65, 1000, 4096, 4097, 5000, 20_011, 65_536), []
    for num_examples, window_blocks in itertools.product(sizes, (1, 3, 64, 5000)):
        if block_records * window_blocks * 2000 < num_examples:
            continue  # Tens of thousands of windows: slow, and the next test has such in small.
        whole = block_order(num_examples, BlockShuffle(block_records, window_blocks))
        if whole.dtype != np.int64 or not np.array_equal(np.sort(whole), np.arange(num_examples)):
            wrong.append((num_examples, window_blocks))
    assert not wrong, str(wrong)


@settings(max_examples=90, deadline=None)
@given(st.integers(0, 3000), BLOCKS, SEEDS, PASSES, st.data())
def test_any_slice_of_any_block_order_is_that_slice_of_the_permutation(
    num_examples: int, blocks: BlockShuffle, seed: int, pass_number: int, data: st.DataObject
) -> None:
    whole = block_order(num_examples, blocks, seed, pass_number)
    assert np.array_equal(np.sort(whole), np.arange(num_examples))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_examples)] * 2)))
    assert np.array_equal(block_order(num_examples, blocks, seed, pass_number, start, stop), whole[start:stop])
    if num_examples:
        chosen = np.array(data.draw(st.lists(st.integers(0, num_examples - 1), max_size=50)), np.int64)
        assert np.array_equal(block_order_at(chosen, num_examples, seed, pass_number, blocks), whole[chosen])


# Windows of whole blocks.


def windows_of(num_examples: int, blocks: BlockShuffle, seed: int, pass_number: int) -> list[set[int]]:
    """The blocks of every window, found by walking along the order until whole blocks are complete."""
    whole = block_order(num_examples, blocks, seed, pass_number)
    last_block = -(-num_examples // blocks.block_records) - 1
    last_size = num_examples - last_block * blocks.block_records
    windows, start = [], 0
    while start < num_examples:
        size = min(num_examples - start, blocks.block_records * blocks.window_blocks)
        inside = set((whole[start : start + size] // blocks.block_records).tolist())
        if last_block in inside:
            short_size = size if start + size == num_examples else size - blocks.block_records + last_size
            shorter = set((whole[start : start + short_size] // blocks.block_records).tolist())
            if last_block in shorter:
                size, inside = short_size, shorter
        expected = [number for block in sorted(inside) for number in range(num_examples)
                    if number // blocks.block_records == block]  # fmt: skip
        assert sorted(whole[start : start + size].tolist()) == expected
        windows.append(inside)
        start += size
    return windows


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.integers(1, 30), st.integers(1, 8), SEEDS, PASSES)
def test_every_window_holds_whole_blocks_and_no_two_share_one(
    num_examples: int, block_records: int, window_blocks: int, seed: int, pass_number: int
) -> None:
    windows = windows_of(num_examples, BlockShuffle(block_records, window_blocks), seed, pass_number)
    num_blocks = -(-num_examples // block_records)
    assert [len(window) for window in windows[:-1]] == [window_blocks] * (len(windows) - 1)
    assert len(windows) == -(-num_blocks // window_blocks)
    assert set().union(*windows) == set(range(num_blocks))


def test_one_window_over_everything_is_a_shuffle_of_single_examples() -> None:
    whole = block_order(5000, BlockShuffle(10, 500))
    assert np.count_nonzero(np.abs(np.diff(whole)) < 10) < 50  # By chance 20.


def test_the_examples_of_one_block_are_shuffled_too() -> None:
    assert sorted(block_order(64, BlockShuffle(64, 1)).tolist()) == list(range(64))
    assert np.count_nonzero(block_order(64, BlockShuffle(64, 1)) == np.arange(64)) < 10


def place_of_short_block(num_blocks: int, seed: int) -> int:
    """Where the block of one example stands in a row of windows of one block of three."""
    return int(np.flatnonzero(block_order(3 * num_blocks - 2, BlockShuffle(3, 1), seed) == 3 * num_blocks - 3)[0]) // 3


def test_the_short_last_block_comes_anywhere() -> None:
    num_blocks, per_place = 10, 100
    counts = np.bincount([place_of_short_block(num_blocks, seed) for seed in range(num_blocks * per_place)])
    statistic = float(((counts - per_place) ** 2).sum() / per_place)
    assert len(counts) == num_blocks
    assert abs(z_of_chi_square(statistic, num_blocks - 1)) < FAIR_Z


# An order of its own for every seed, pass and block; and the same one for ever.


def test_another_block_or_window_size_has_another_order() -> None:
    sizes = [BlockShuffle(16, 4), BlockShuffle(16, 5), BlockShuffle(17, 4), BlockShuffle(64, 1)]
    slices = [block_order(5000, blocks, stop=100) for blocks in sizes]
    for number, one in enumerate(slices):
        for other in slices[:number]:
            assert np.count_nonzero(one == other) < 10


@pytest.mark.parametrize(
    ("num_examples", "blocks", "pass_number", "start", "expected"),
    [
        (10, BlockShuffle(3, 2), 0, 0, [2, 9, 1, 0, 7, 8, 3, 6, 5, 4]),
        (10, BlockShuffle(3, 2), 1, 0, [8, 3, 6, 7, 4, 5, 9, 0, 1, 2]),
        (1_281_167, BlockShuffle(256, 32), 3, 1_281_160, [605330, 1116142, 1154452, 375706, 334665, 1154387]),
        (
            10**12,
            BlockShuffle(1000, 10),
            3,
            5 * 10**11,
            [27422138934, 556686488191, 556686488451, 556686488273, 373165360305, 192665858441],
        ),
    ],
)
def test_the_block_order_never_changes(
    num_examples: int, blocks: BlockShuffle, pass_number: int, start: int, expected: list[int]
) -> None:
    assert block_order(num_examples, blocks, 42, pass_number, start, start + len(expected)).tolist() == expected


def test_no_part_of_the_block_order_ever_changes() -> None:
    whole = block_order(100_003, BlockShuffle(64, 16))
    digest = hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()
    assert digest == "81b379d7e6250dc62263ce2d9daa76311838b55a08c2619f4ad131b71849c28b"


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "block_records=0 must be an integer >= 1."),
        ((2.0, 4), "block_records=2.0 must be an integer >= 1."),
        ((4, -1), "window_blocks=-1 must be an integer >= 1."),
        ((4, True), "window_blocks=True must be an integer >= 1."),
    ],
)
def test_sizes_out_of_range_are_config_errors(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BlockShuffle(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(("seed", "pass_number"), [(-1, 0), (0, -1)])
def test_a_negative_seed_or_pass_is_a_config_error(seed: int, pass_number: int) -> None:
    with pytest.raises(ConfigError) as caught:
        block_order(10, BlockShuffle(2, 2), seed, pass_number)
    assert str(caught.value) == f"epoch_order: seed={seed} and pass_number={pass_number} must be >= 0."


# Uniformity. The statistics ask for permutations: here are three that lie inside a block order.


def row_of_blocks(num_blocks: int, seed: int, pass_number: int) -> Examples:
    """The order of the blocks, the short last one included: windows of one block, of two examples."""
    whole = block_order(2 * num_blocks - 1, BlockShuffle(2, 1), seed, pass_number) // 2
    is_first = np.ones(len(whole), bool)
    is_first[1:] = whole[1:] != whole[:-1]
    return whole[is_first]


def inside_a_window(size: int, seed: int, pass_number: int) -> Examples:
    """How the second of three windows orders its examples, which are one block."""
    return block_order(3 * size, BlockShuffle(size, 1), seed, pass_number, size, 2 * size) % size


def windows_of_a_pass(size: int, seed: int, window: int) -> Examples:
    """How one of many windows orders its examples, which are one block; windows stand where passes do."""
    return block_order(50 * size, BlockShuffle(size, 1), seed, 0, window * size, (window + 1) * size) % size


def only_window(num_examples: int, seed: int, pass_number: int) -> Examples:
    """A window over everything."""
    return block_order(num_examples, BlockShuffle(7, num_examples), seed, pass_number)


QUICK = [blocks_mix_over_orders, passes_are_independent]


@pytest.mark.parametrize("statistic", QUICK, ids=lambda statistic: statistic.__name__)
@pytest.mark.parametrize("shuffle", [inside_a_window, only_window], ids=lambda shuffle: shuffle.__name__)
def test_a_window_is_as_good_as_a_fair_shuffle(shuffle: Order, statistic: Callable[[Order], float]) -> None:
    assert abs(statistic(shuffle)) < FAIR_Z


@pytest.mark.parametrize("shuffle", [row_of_blocks, inside_a_window, only_window], ids=lambda shuffle: shuffle.__name__)
def test_each_permutation_of_blocks_or_of_a_window_is_equally_likely(shuffle: Order) -> None:
    assert abs(each_permutation_is_equally_likely(shuffle, num_examples=4)) < FAIR_Z


def test_the_windows_of_a_pass_are_shuffled_independently() -> None:
    assert abs(passes_are_independent(windows_of_a_pass)) < FAIR_Z


@pytest.mark.slow
@pytest.mark.parametrize("statistic", QUICK, ids=lambda statistic: statistic.__name__)
def test_the_row_of_blocks_is_as_good_as_a_fair_shuffle(statistic: Callable[..., float]) -> None:
    assert abs(statistic(row_of_blocks, 2003)) < FAIR_Z


@pytest.mark.slow
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.__name__)
def test_a_window_over_everything_passes_all_statistics(statistic: Callable[[Order], float]) -> None:
    assert abs(statistic(only_window)) < FAIR_Z


Shuffle = Callable[[int, BlockShuffle, int], Examples]


def positions_of_blocks(shuffle: Shuffle, blocks: BlockShuffle, num_blocks: int, num_seeds: int) -> float:
    """Chi-square of the table block x block's length of positions, of one example of each block, over seeds."""
    table = np.zeros((num_blocks, num_blocks))
    size = blocks.block_records
    for seed in range(num_seeds):
        whole = shuffle(num_blocks * size, blocks, seed)
        chosen = np.flatnonzero(whole % size == seed % size)
        np.add.at(table, (whole[chosen] // size, chosen // size), 1)
    expected = num_seeds / num_blocks
    return z_of_chi_square(float(((table - expected) ** 2).sum() / expected), num_blocks * (num_blocks - 1))


def numpys_block_shuffle(
    num_examples: int, blocks: BlockShuffle, seed: int, *, sorted_windows: bool = False
) -> Examples:
    """The same shape of order, from numpy's generator; of whole blocks only."""
    generator = np.random.default_rng(seed)
    row = generator.permutation(num_examples // blocks.block_records)
    parts = np.split(row, range(blocks.window_blocks, len(row), blocks.window_blocks))
    examples = [(part[:, None] * blocks.block_records + np.arange(blocks.block_records)).ravel() for part in parts]
    return np.concatenate([np.sort(part) if sorted_windows else generator.permutation(part) for part in examples])


def blocks_in_place(num_examples: int, blocks: BlockShuffle, seed: int) -> Examples:
    """Windows shuffled well, blocks not at all."""
    size, generator = blocks.block_records * blocks.window_blocks, np.random.default_rng(seed)
    return np.concatenate(
        [generator.permutation(part) for part in np.split(np.arange(num_examples), num_examples // size)]
    )


def sorted_windows(num_examples: int, blocks: BlockShuffle, seed: int) -> Examples:
    """Blocks shuffled well, windows not at all."""
    return numpys_block_shuffle(num_examples, blocks, seed, sorted_windows=True)


def our_block_order(num_examples: int, blocks: BlockShuffle, seed: int) -> Examples:
    return block_order(num_examples, blocks, seed)


def test_every_example_reaches_every_block_position_equally_often() -> None:
    sizes = BlockShuffle(5, 4)
    assert abs(positions_of_blocks(our_block_order, sizes, 20, 1000)) < FAIR_Z
    assert abs(positions_of_blocks(numpys_block_shuffle, sizes, 20, 1000)) < FAIR_Z
    assert abs(positions_of_blocks(blocks_in_place, sizes, 20, 1000)) > UNFAIR_Z
    assert abs(positions_of_blocks(sorted_windows, sizes, 20, 1000)) > UNFAIR_Z


# What locality it buys.


def num_runs(examples: Examples) -> int:
    """Runs of neighbours among some examples: what a disk would be asked for at the least."""
    return 1 + np.count_nonzero(np.diff(np.sort(examples)) > 1)  # type: ignore[return-value]


def test_a_batch_reads_from_few_blocks_and_a_window_from_few_runs() -> None:
    num_examples, batch_size, blocks = 1_281_167, 256, BlockShuffle(256, 32)
    for start in (0, 8192 * 70):
        window = block_order(num_examples, blocks, start=start, stop=start + 8192)
        everywhere = epoch_order(num_examples, 42, 0, start, start + 8192)
        for first in range(0, 8192, batch_size):
            assert len(np.unique(window[first : first + batch_size] // 256)) <= 33
            assert len(np.unique(everywhere[first : first + batch_size] // 256)) > 230
        assert num_runs(window) <= 33
        assert num_runs(everywhere) > 8000
