"""epoch_order: a stateless permutation, and whether it is as good as a shuffle."""

import hashlib
import math
import tracemalloc
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
    blocks_mix_within_each_order,
    differences_at_all_lags_are_uniform,
    each_example_is_equally_likely_anywhere,
    each_permutation_is_equally_likely,
    fixed_points_are_as_many_as_by_chance,
    inversions_are_as_many_as_by_chance,
    neighbours_are_uncorrelated,
    passes_are_independent,
    residues_mix_within_each_order,
    seeds_are_independent,
    the_first_example_is_uniform,
    z_of_chi_square,
)

from tfds_torch.errors import ConfigError
from tfds_torch.plan import order
from tfds_torch.plan.order import epoch_order, order_at
from tfds_torch.plan.passes import BlockShuffle, block_order_at

AROUND_POWERS_OF_TWO = sorted({2**e + d for e in range(18) for d in (-1, 0, 1)})
SIZES = [
    0,
    1,
    2,
    3,
    5,
    10,
    100,
    1000,
    4095,
    4096,
    4097,
    4098,
    4160,
    4225,
    5000,
    5003,
    65 * 65,
    65 * 66,
    100_000,
    100_003,
]
SEEDS = st.integers(0, 2**63)
PASSES = st.integers(0, 10**6)


def in_blocks(*sizes: int) -> Callable[..., NDArray[np.int64]]:
    """Returns a function like `epoch_order`, of a block order."""

    def slice_of(num_examples: int, seed: int, pass_number: int, start: int, stop: int) -> NDArray[np.int64]:
        return block_order_at(np.arange(start, stop), num_examples, seed, pass_number, BlockShuffle(*sizes))

    return slice_of


# A permutation, whole or in slices.


def test_the_order_is_a_permutation() -> None:
    wrong = []
    for num_examples in sorted({*SIZES, *AROUND_POWERS_OF_TWO}):
        for seed, pass_number in ((0, 0), (42, 1), (2**70, 2**40)):
            whole = epoch_order(num_examples, seed, pass_number)
            if whole.dtype != np.int64 or not np.array_equal(np.sort(whole), np.arange(num_examples)):
                wrong.append((num_examples, seed, pass_number))
    assert not wrong, str(wrong)


@pytest.mark.slow
def test_the_order_is_a_permutation_for_every_small_size_and_for_a_million() -> None:
    for num_examples in [*range(600), *range(4000, 4600), 10**6, 1_281_167, 2**20 - 1, 2**20, 2**20 + 1]:
        whole = epoch_order(num_examples, 42, 3)
        assert np.array_equal(np.sort(whole), np.arange(num_examples))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200_000), SEEDS, PASSES)
def test_the_order_is_a_permutation_for_any_size_seed_and_pass(num_examples: int, seed: int, pass_number: int) -> None:
    whole = epoch_order(num_examples, seed, pass_number)
    assert np.bincount(whole, minlength=num_examples).tolist() == [1] * num_examples


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SIZES) | st.integers(0, 20_000), SEEDS, PASSES, st.data())
def test_any_slice_is_that_slice_of_the_whole(
    num_examples: int, seed: int, pass_number: int, data: st.DataObject
) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_examples)] * 2)))
    whole = epoch_order(num_examples, seed, pass_number)
    assert np.array_equal(epoch_order(num_examples, seed, pass_number, start, stop), whole[start:stop])
    assert np.array_equal(epoch_order(num_examples, seed, pass_number, start), whole[start:])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**12) | st.integers(4097, 6000), SEEDS, PASSES, st.data())
def test_any_positions_in_any_arrangement_give_the_same_examples(
    num_examples: int, seed: int, pass_number: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_examples - 1))
    stop = min(num_examples, start + 50)
    slice_ = epoch_order(num_examples, seed, pass_number, start, stop)
    chosen = np.array(data.draw(st.lists(st.integers(start, stop - 1), max_size=80)), np.int64)
    assert np.array_equal(order_at(chosen, num_examples, seed, pass_number), slice_[chosen - start])
    assert ((slice_ >= 0) & (slice_ < num_examples)).all()


@pytest.mark.parametrize(
    ("slice_of", "num_examples"),
    [
        *((epoch_order, size) for size in (10**9, 10**12, 10**12 + 39, 2**40, 2**62 - 1)),
        *((in_blocks(256, 32), size) for size in (10**9, 10**10 + 7, 2**60)),
    ],
)
def test_a_large_slice_of_a_huge_order_repeats_nothing(
    slice_of: Callable[..., NDArray[np.int64]], num_examples: int
) -> None:
    wrong = []
    for start in (0, num_examples // 2, num_examples - 200_000):
        examples = slice_of(num_examples, 42, 0, start, start + 200_000)
        if len(np.unique(examples)) != 200_000 or examples.min() < 0 or examples.max() >= num_examples:
            wrong.append(start)
    assert not wrong, str(wrong)


def test_disjoint_slices_of_a_huge_order_are_disjoint() -> None:
    starts = (0, 10**6, 5 * 10**11, 10**12 - 10**5)
    examples = np.concatenate([epoch_order(10**12, 42, 0, start, start + 10**5) for start in starts])
    assert len(np.unique(examples)) == len(examples)


def peak_bytes(slice_of: Callable[..., NDArray[np.int64]], num_examples: int, size: int) -> int:
    start = (num_examples - size) // 2
    tracemalloc.start()
    try:
        slice_of(num_examples, 42, 0, start, start + size)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("slice_of", "once_bytes", "each_bytes"),
    [
        (epoch_order, 20_000, 100),
        # 4,096 hashes, where there are few blocks.
        *((in_blocks(*sizes), 250_000, 150) for sizes in ((256, 32), (10**5, 10**4), (4, 16))),
    ],
)
@pytest.mark.parametrize("num_examples", [10**5, 10**6, 10**9, 10**12])
def test_a_slice_costs_memory_for_itself_only(
    slice_of: Callable[..., NDArray[np.int64]], once_bytes: int, each_bytes: int, num_examples: int
) -> None:
    peak_bytes(slice_of, num_examples, 10)  # Whatever is allocated once.
    assert peak_bytes(slice_of, num_examples, 1) < once_bytes
    assert peak_bytes(slice_of, num_examples, 10_000) < once_bytes + each_bytes * 10_000


@pytest.mark.parametrize(("slice_of", "num_networks"), [(epoch_order, 1), (in_blocks(256, 32), 2)])
def test_the_work_for_a_slice_does_not_grow_with_the_order(
    monkeypatch: pytest.MonkeyPatch, slice_of: Callable[..., NDArray[np.int64]], num_networks: int
) -> None:
    hashed: list[int] = []
    hash_values = order.hash_with_key

    def count(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
        hashed.append(values.size)
        return hash_values(values, key)

    monkeypatch.setattr(order, "hash_with_key", count)
    for num_examples in (*((4097, 10**6) if num_networks == 1 else ()), 10**7, 10**9, 10**12):
        hashed.clear()
        slice_of(num_examples, 42, 0, 1000, 2000)
        # Eight rounds of each network, and again for those that fall outside: less than a in a * b.
        assert sum(hashed) < num_networks * 8 * 1000 * 1.2


# An order of its own for every seed, pass and size; and the same one for ever.


@pytest.mark.parametrize(
    ("slice_of", "num_examples"),
    [
        *((epoch_order, size) for size in (20, 5000, 10**12)),
        *((in_blocks(16, 4), size) for size in (200, 5000, 10**12)),
    ],
)
def test_every_seed_and_pass_has_an_order_of_its_own(
    slice_of: Callable[..., NDArray[np.int64]], num_examples: int
) -> None:
    keys = [(seed, pass_number) for seed in [*range(20), 2**31, 2**32, 2**63, 2**64] for pass_number in range(20)]
    orders = {slice_of(num_examples, seed, number, 0, 20).tobytes() for seed, number in keys}
    assert len(orders) == len(keys)


@pytest.mark.parametrize(("left", "right"), [(4000, 4001), (5000, 5001), (10**12, 10**12 + 1)])
def test_another_size_has_another_order(left: int, right: int) -> None:
    same = epoch_order(left, 42, 0, 0, 1000) == epoch_order(right, 42, 0, 0, 1000)
    assert same.sum() < 10


@pytest.mark.parametrize(
    ("num_examples", "seed", "pass_number", "start", "expected"),
    [
        (2, 42, 0, 0, [1, 0]),
        (10, 42, 0, 0, [7, 1, 5, 8, 3, 6, 4, 9, 2, 0]),
        (10, 42, 1, 0, [2, 4, 0, 8, 3, 5, 7, 1, 6, 9]),
        (10, 43, 0, 0, [7, 6, 8, 1, 2, 0, 3, 5, 9, 4]),
        (11, 42, 0, 0, [4, 5, 6, 0, 2, 1, 10, 3, 9, 7, 8]),
        (4096, 42, 0, 0, [2369, 1608, 2273, 218, 2820, 1332, 3687, 1939]),
        (4097, 42, 0, 0, [3975, 3479, 454, 793, 1091, 952, 2808, 1012]),
        (50_000, 42, 0, 0, [18002, 1081, 34357, 17073, 20571, 36609, 39382, 19110]),
        (1_281_167, 42, 3, 1_281_160, [396519, 979152, 1198299, 736775, 649493, 818140, 1152434]),
        (10**12, 7, 3, 5 * 10**11, [270179135123, 847721002687, 879170466905, 21547400895, 138458035827]),
        (2**62 - 1, 0, 0, 2**62 - 4, [174232784626475362, 4503820332126574647, 4275188069077526349]),
    ],
)
def test_the_order_never_changes(
    num_examples: int, seed: int, pass_number: int, start: int, expected: list[int]
) -> None:
    stop = start + len(expected)
    assert epoch_order(num_examples, seed, pass_number, start, stop).tolist() == expected


@pytest.mark.parametrize(
    ("num_examples", "digest"),
    [
        (4096, "953c53acd399e68438a90d0f80d3e08d668dd3770d246384e8b535c7f0192e0e"),
        (100_000, "7a807d22d98c5605693298fc1fa8f648f5667624c1d90710e29842e0d2ba2d98"),
    ],
)
def test_no_part_of_the_order_ever_changes(num_examples: int, digest: str) -> None:
    assert hashlib.sha256(epoch_order(num_examples, 42, 0).astype("<i8").tobytes()).hexdigest() == digest


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0), "epoch_order: num_examples=-1 must be in 0..2**62-1."),
        ((2**62, 0, 0, 0, 1), f"epoch_order: num_examples={2**62} must be in 0..2**62-1."),
        ((10, 0, 0, -1, 5), "epoch_order: the slice -1:5 must lie within 0..10."),
        ((10, 0, 0, 0, 11), "epoch_order: the slice 0:11 must lie within 0..10."),
        ((10, 0, 0, 6, 5), "epoch_order: the slice 6:5 must lie within 0..10."),
        ((10, 0, 0, 11), "epoch_order: the slice 11:10 must lie within 0..10."),
        ((10, -1, 0), "epoch_order: seed=-1 and pass_number=0 must be >= 0."),
        ((10, 0, -1), "epoch_order: seed=0 and pass_number=-1 must be >= 0."),
    ],
)
def test_arguments_out_of_range_are_config_errors(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        epoch_order(*arguments)
    assert str(caught.value) == message


# Uniformity.


def the_dataset_order(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    return np.arange(num_examples)


def affine(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    """i -> (m * i + b) modulo N: a permutation, and a shuffle for the eye."""
    generator = np.random.default_rng([seed, pass_number])
    while math.gcd(multiplier := int(generator.integers(1, num_examples)), num_examples) > 1:
        pass
    return (np.arange(num_examples) * multiplier + int(generator.integers(num_examples))) % num_examples


def shuffle_buffer(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    """Windows of a tenth, each shuffled well."""
    generator = np.random.default_rng([seed, pass_number])
    return np.concatenate([generator.permutation(part) for part in np.array_split(np.arange(num_examples), 10)])


def residue_classes(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    """16 files read in turns, each shuffled well."""
    generator = np.random.default_rng([seed, pass_number])
    whole = np.arange(num_examples)
    for i in range(16):
        whole[i::16] = generator.permutation(whole[i::16])
    return whole


def same_in_every_pass(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_examples)


def same_for_every_seed(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    return np.random.default_rng(pass_number).permutation(num_examples)


def numpys_shuffle(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, pass_number]).permutation(num_examples)


def whole_order(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    return epoch_order(num_examples, seed, pass_number)


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.__name__)
def test_the_order_is_as_good_as_a_fair_shuffle(statistic: Callable[[Order], float]) -> None:
    assert abs(statistic(whole_order)) < FAIR_Z


@pytest.mark.slow
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.__name__)
def test_numpys_shuffle_passes_the_same_statistics(statistic: Callable[[Order], float]) -> None:
    assert abs(statistic(numpys_shuffle)) < FAIR_Z


@pytest.mark.parametrize(
    ("statistic", "bad_order"),
    [
        (each_permutation_is_equally_likely, affine),
        (each_example_is_equally_likely_anywhere, shuffle_buffer),
        (blocks_mix_within_each_order, affine),
        (blocks_mix_over_orders, shuffle_buffer),
        (residues_mix_within_each_order, residue_classes),
        (differences_at_all_lags_are_uniform, affine),
        (neighbours_are_uncorrelated, shuffle_buffer),
        (fixed_points_are_as_many_as_by_chance, the_dataset_order),
        (inversions_are_as_many_as_by_chance, shuffle_buffer),
        (the_first_example_is_uniform, shuffle_buffer),
        (passes_are_independent, same_in_every_pass),
        (seeds_are_independent, same_for_every_seed),
    ],
    ids=lambda function: function.__name__,
)
def test_every_statistic_refuses_a_bad_order(statistic: Callable[[Order], float], bad_order: Order) -> None:
    assert abs(statistic(bad_order)) > UNFAIR_Z


@pytest.mark.parametrize("num_rounds", [2, 4])
def test_a_feistel_network_of_too_few_rounds_is_refused(monkeypatch: pytest.MonkeyPatch, num_rounds: int) -> None:
    monkeypatch.setattr(order, "_NUM_ROUNDS", num_rounds)
    assert differences_at_all_lags_are_uniform(whole_order) > UNFAIR_Z


def test_a_feistel_network_of_two_rounds_is_refused_by_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_NUM_ROUNDS", 2)
    assert blocks_mix_within_each_order(whole_order) > UNFAIR_Z


@pytest.mark.slow
def test_a_feistel_network_for_small_sizes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_LARGEST_SORTED", 0)
    assert each_permutation_is_equally_likely(whole_order, per_cell=60) > UNFAIR_Z


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [4097, 4225, 5000, 5003, 8192, 65_537])
def test_larger_samples_of_many_sizes_are_fair(num_examples: int) -> None:
    for statistic in (
        blocks_mix_within_each_order,
        blocks_mix_over_orders,
        residues_mix_within_each_order,
        differences_at_all_lags_are_uniform,
        passes_are_independent,
        seeds_are_independent,
    ):
        assert abs(statistic(whole_order, num_examples)) < FAIR_Z, statistic.__name__


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [2, 3, 4, 6])
def test_each_permutation_of_a_few_examples_is_equally_likely(num_examples: int) -> None:
    per_cell = {2: 20_000, 3: 6000, 4: 2000, 6: 60}[num_examples]
    assert abs(each_permutation_is_equally_likely(whole_order, num_examples, per_cell)) < FAIR_Z


@pytest.mark.parametrize("num_examples", [10**9, 10**12, 2**40])
@pytest.mark.parametrize("seed", [0, 42])
def test_a_slice_of_a_huge_order_is_spread_evenly(num_examples: int, seed: int) -> None:
    size, num_bins = 200_000, 1000
    examples = epoch_order(num_examples, seed, 0, num_examples // 3, num_examples // 3 + size)
    steps = np.diff(examples) % num_examples
    for bins in (examples * num_bins // num_examples, examples % num_bins, steps * num_bins // num_examples):
        statistic = ((np.bincount(bins, minlength=num_bins) - len(bins) / num_bins) ** 2).sum() * num_bins / len(bins)
        assert abs(z_of_chi_square(float(statistic), num_bins - 1)) < FAIR_Z
