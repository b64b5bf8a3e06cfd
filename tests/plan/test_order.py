"""What every order keeps; the shuffled order of a pass, and whether it is as good as a shuffle; random numbers."""

import hashlib
import itertools
import json
import math
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plan import orders as some
from plan.orders import numbers, row_of, selected_of
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
from zygote import forked_instead_of_fresh

from tfds_torch import demo
from tfds_torch.errors import ConfigError
from tfds_torch.plan import drawn, mixed, order
from tfds_torch.plan.drawn import Drawn
from tfds_torch.plan.mixed import Mixed
from tfds_torch.plan.order import (
    ShuffledPass,
    draw_function_seeds,
    draw_seeds,
    draw_uniforms,
    epoch_order,
    examples_of,
    hash_with_key,
    order_at,
    unique,
)
from tfds_torch.plan.passes import BlockRow, BlockShuffle, Passes
from tfds_torch.plan.subset import make_subset
from tfds_torch.plan.weights import Segment

SIZES = [0, 1, 2, 3, 5, 100, 4095, 4096, 4097, 4098, 4160, 4225, 5003, 65 * 66, 100_003]
SEEDS = st.integers(0, 2**63)
PASSES = st.integers(0, 10**6)


# Every order


@settings(max_examples=100, deadline=None)
@given(some.orders(), st.integers(0, 200), st.data())
def test_no_slot_repeats_another_and_promised_counts_are_those_of_the_row(
    one: order.Order, num_slots: int, data: st.DataObject
) -> None:
    row, (least, most) = row_of(one, num_slots), one.promise().count(num_slots)
    assert len(set(row)) == num_slots
    came, there = Counter(example for _, example in row), set(selected_of(one))
    assert set(came) <= there
    counts = [came[example] for example in range(one.num_examples)]
    if isinstance(one, Passes | Mixed):  # The bounds are reached, where they are those of whole passes.
        assert (most - least).max() <= 1
    assert all(low <= count <= high for low, count, high in zip(least, counts, most, strict=True))
    assert one.is_endless == (not isinstance(one, Passes) or one.epoch_size is not None)
    if not one.is_endless:
        assert one.num_slots % one.promise().pass_size == 0
        assert one.promise().pass_size == len(there)
    chosen = np.array(data.draw(st.lists(st.integers(0, max(0, num_slots - 1)), max_size=20 if row else 0)), np.int64)
    found = zip(*(column.tolist() for column in one.at(chosen)), strict=True)
    assert list(found) == [row[at] for at in chosen.tolist()]


@settings(max_examples=60, deadline=None)
@given(some.passes() | some.drawn(), st.integers(0, 300))
def test_the_pass_under_way_is_that_of_the_slot(one: Passes | Drawn, slot: int) -> None:
    size = len(selected_of(one)) if isinstance(one, Passes) else one.n
    assert one.passes_from(slot, numbers(3)).tolist() == [slot // size] * 3


@settings(max_examples=100, deadline=None)
@given(some.orders())
def test_an_identity_is_plain_and_a_pickle_is_the_same_order(one: order.Order) -> None:
    assert json.loads(json.dumps(one.identity())) == one.identity()
    row = row_of(one, 20)
    again = pickle.loads(pickle.dumps(one))
    assert (again, hash(again), again.identity(), row_of(again, 20)) == (one, hash(one), one.identity(), row)


BLOCKS = BlockShuffle(2, 2)
MEMBERS = (mixed.Member("a", 8), mixed.Member("b", 8, BLOCKS, make_subset([0, 3], 8)))
MIXED = Mixed(MEMBERS, (Segment(0, (1, 1)), Segment(5, (1, 2))), 9)
DRAWN = Drawn(3, drawn.make_draw_weights([1, 2, 3], 3), 5)
FIELDS: list[tuple[Any, list[dict[str, Any]]]] = [
    (
        Passes(8, blocks=BLOCKS),
        [
            *({"n": 9}, {"seed": 43}, {"shuffle": False}, {"blocks": None}, {"subset": make_subset(range(8), 8)}),
            *({"blocks": BlockShuffle(*sizes)} for sizes in ((3, 2), (2, 3), (2, 2, 2))),
            *({"epoch_size": 9}, {"subset": make_subset([7, *range(7)], 8)}),
        ],
    ),
    (
        MIXED,
        [
            *({"seed": 43}, {"shuffle": False}, {"epoch_size": 8}, {"members": MEMBERS[::-1]}),
            *({"segments": one} for one in ((Segment(0, (1, 1)),), (Segment(0, (1, 1)), Segment(6, (1, 2))))),
            {"segments": (Segment(0, (1, 1)), Segment(5, (2, 1)))},
            *({"members": (MEMBERS[0], replace(MEMBERS[1], **change))} for change in (
                {"name": "c"}, {"n": 9}, {"blocks": None}, {"blocks": BlockShuffle(2, 3)}, {"subset": None},
                {"subset": make_subset([3, 0], 8)},
            )),
        ],
    ),
    (
        DRAWN,
        [
            *({"n": 4}, {"epoch_size": 6}, {"seed": 43}, {"subset": make_subset([0, 1, 2], 3)}),
            {"weights": drawn.make_draw_weights([1, 3, 2], 3)},
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "changes"), FIELDS, ids=["passes", "mixed", "drawn"])
def test_a_change_of_each_field_is_another_identity(one: Any, changes: list[dict[str, Any]]) -> None:
    found = [one.identity(), *(replace(one, **change).identity() for change in changes)]
    assert len({json.dumps(identity) for identity in found}) == len(found)


def test_blocks_without_shuffle_are_no_other_row() -> None:
    plain, blocks = Passes(8, shuffle=False), Passes(8, shuffle=False, blocks=BlockShuffle(2, 4, 2))
    assert (row_of(blocks, 20), blocks.identity(), blocks.num_groups) == (row_of(plain, 20), plain.identity(), 1)
    members = (MEMBERS[0], replace(MEMBERS[1], blocks=None))
    mixture = replace(MIXED, shuffle=False)
    assert replace(mixture, members=members).identity() == mixture.identity()


@settings(max_examples=150, deadline=None)
@given(some.orders(), st.integers(3, 40), st.integers(0, 10**6))
def test_the_keys_of_the_largest_epoch_fit_and_those_of_the_next_do_not(
    one: order.Order, most_passes: int, rest: int
) -> None:
    largest = most_passes * one.num_examples + rest % one.num_examples
    with (
        mock.patch.object(order, "LARGEST_KEY", largest),
        mock.patch.object(mixed, "LARGEST_KEY", largest),
        mock.patch.object(drawn, "LARGEST_KEY", largest),
    ):
        num_keyed, epoch = one.num_keyed, one.largest_epoch
    assert epoch == min(num_keyed // one.num_slots, order.MOST_SLOTS) - 1
    passes, examples = one.at(numbers(min(num_keyed, 5000)))
    assert (passes * one.num_examples + examples).max(initial=0) <= largest
    if num_keyed < order.MOST_SLOTS:
        # A mixture counts at least so many, as an upper bound needs no table.
        beyond, _ = one.at(numbers(num_keyed + (300 if isinstance(one, Mixed) else 1), num_keyed))
        assert beyond.max() >= most_passes


def test_a_pass_of_one_example_or_none_has_counts_and_passes() -> None:
    for one, count in ((Passes(1), 3), (mixed.Mixed((mixed.Member("a", 1),), (Segment(0, (1,)),), 2), 3)):
        assert [bound.tolist() for bound in one.promise().count(count)] == [[count], [count]]
        assert one.passes_from(count, numbers(1)).tolist() == [count]
    assert Passes(0).at(numbers(0))[1].tolist() == Passes(0).promise().count(0)[0].tolist() == []
    assert Drawn(1, drawn.make_draw_weights([1], 1), 1).num_keyed == order.LARGEST_KEY


def test_no_epoch_has_a_number_that_is_too_large() -> None:
    assert Passes(1).largest_epoch == 2**62 - 1
    assert Passes(2**62, epoch_size=1).num_keyed == 2**62


# A permutation, whole or in slices


def in_blocks(*sizes: int) -> Callable[..., NDArray[np.int64]]:
    """Returns a function like `epoch_order`, of a block order."""

    def slice_of(num_examples: int, seed: int, pass_number: int, start: int, stop: int) -> NDArray[np.int64]:
        row = BlockRow(ShuffledPass(num_examples, seed, pass_number), BlockShuffle(*sizes))
        return row.examples_at(np.arange(start, stop))

    return slice_of


@pytest.mark.parametrize("num_examples", SIZES)
def test_the_order_is_a_permutation(num_examples: int) -> None:
    for seed, pass_number in ((0, 0), (42, 1), (2**70, 2**40)):
        whole = epoch_order(num_examples, seed, pass_number)
        assert whole.dtype == np.int64
        assert np.array_equal(np.sort(whole), np.arange(num_examples))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SIZES) | st.integers(0, 20_000), SEEDS, PASSES, st.data())
def test_any_slice_is_that_slice_of_a_permutation(
    num_examples: int, seed: int, pass_number: int, data: st.DataObject
) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_examples)] * 2)))
    whole = epoch_order(num_examples, seed, pass_number)
    assert np.bincount(whole, minlength=num_examples).tolist() == [1] * num_examples
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
        *((epoch_order, size) for size in (10**12 + 39, 2**62 - 1)),
        *((in_blocks(256, 32), size) for size in (10**10 + 7, 2**60)),
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


# Uniformity


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


@pytest.mark.slow
def test_a_feistel_network_for_small_sizes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_LARGEST_SORTED", 0)
    assert each_permutation_is_equally_likely(whole_order, per_cell=60) > UNFAIR_Z


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [4225, 5003, 65_537])
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


# Random numbers of examples


NUM_KEYS, NUM_DRAWS = 20_000, 6
KEYS = np.arange(NUM_KEYS, dtype=np.int64)
WORD = 2**64

UNIFORMS = [
    [0.3693614226433125, 0.02279516359340228],
    [0.24651196397790487, 0.38183878016509976],
    [0.024210854021529893, 0.20858908292929246],
]
SEED_PAIRS = [
    [-3386560135628426419, -2956616601953949762],
    [3150905930368821814, -7370297044993466067],
    [-1268336528503326535, -2945008113589789158],
]
"""Of the sample keys 0, 1 and 2**40 with seed 42."""


def chi_squared(counts: np.ndarray) -> float:
    """Returns how many standard deviations counts lie above those of a uniform distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("seed", [0, 42, 2**40])
def test_every_draw_is_uniform(seed: int) -> None:
    uniforms = draw_uniforms(KEYS, seed, NUM_DRAWS)
    assert (uniforms.shape, uniforms.dtype) == ((NUM_KEYS, NUM_DRAWS), np.float64)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    for draw in uniforms.T:
        assert abs(chi_squared(np.histogram(draw, 100, (0, 1))[0])) < 4


def test_draws_of_an_example_are_independent() -> None:
    uniforms = draw_uniforms(KEYS, 42, NUM_DRAWS)
    for one, other in itertools.combinations(range(NUM_DRAWS), 2):
        squares = np.histogram2d(uniforms[:, one], uniforms[:, other], 10, [(0, 1), (0, 1)])[0]
        assert abs(chi_squared(squares)) < 4, (one, other)


@pytest.mark.parametrize("distance", [1, 2, 211, 4096])
def test_examples_beside_each_other_and_passes_after_each_other_are_independent(distance: int) -> None:
    uniforms = draw_uniforms(KEYS, 42, NUM_DRAWS)
    for one, other in itertools.product(range(NUM_DRAWS), repeat=2):
        squares = np.histogram2d(uniforms[:-distance, one], uniforms[distance:, other], 10, [(0, 1), (0, 1)])[0]
        assert abs(chi_squared(squares)) < 4, (one, other)


def test_numbers_do_not_depend_on_what_is_drawn_together() -> None:
    uniforms = draw_uniforms(KEYS, 42, NUM_DRAWS)
    pieces = [draw_uniforms(KEYS[at : at + 777], 42, NUM_DRAWS) for at in range(0, NUM_KEYS, 777)]
    np.testing.assert_array_equal(np.concatenate(pieces), uniforms)
    order = np.random.default_rng(0).permutation(NUM_KEYS)
    np.testing.assert_array_equal(draw_uniforms(KEYS[order], 42, NUM_DRAWS), uniforms[order])


def test_another_seed_and_another_pass_give_other_numbers() -> None:
    uniforms = draw_uniforms(KEYS, 42, NUM_DRAWS)
    for seed, keys in ((43, KEYS), (42 + 2**32, KEYS), (42, KEYS + NUM_KEYS)):
        others = draw_uniforms(keys, seed, NUM_DRAWS)
        assert not (uniforms == others).any()


def test_numbers_are_the_same_on_every_machine() -> None:
    keys = np.array([0, 1, 2**40], np.int64)
    assert draw_uniforms(keys, 42, 2).tolist() == UNIFORMS
    assert draw_seeds(keys, 42).tolist() == SEED_PAIRS


def test_seeds_are_pairs_of_their_own_for_every_example() -> None:
    seeds = draw_seeds(KEYS, 42)
    assert (seeds.shape, seeds.dtype) == ((NUM_KEYS, 2), np.int64)
    assert len(np.unique(seeds)) == 2 * NUM_KEYS
    np.testing.assert_array_equal(draw_seeds(KEYS[100:200], 42), seeds[100:200])
    assert not np.isin(draw_seeds(KEYS, 43), seeds).any()
    uniforms_of_bits = (seeds.view(np.uint64) >> np.uint64(11)) * 2.0**-53
    assert not np.isin(uniforms_of_bits, draw_uniforms(KEYS, 42, 64)).any()


@given(st.integers(1, 2**40), st.integers(0, 10**6), st.data())
def test_a_sample_key_names_its_example(num_examples: int, pass_number: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, num_examples - 1), max_size=5))
    keys = pass_number * num_examples + np.array(index, np.int64)
    assert examples_of(keys, num_examples).tolist() == index
    assert [examples_of(int(key), num_examples) for key in keys] == index


def mix_by_hand(value: int, key: int) -> int:
    """SplitMix64's step, twice, in Python's integers."""
    mixed = value ^ key
    for _ in range(2):
        mixed = (mixed + 0x9E3779B97F4A7C15) % WORD
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WORD
        mixed ^= mixed >> 31
    return mixed


@pytest.mark.parametrize("key", [0, 1, 0x0123456789ABCDEF, WORD - 1])
def test_a_hash_is_the_finalizer_of_splitmix64_twice(key: int) -> None:
    values = [0, 1, 2, 12345, 2**32, 2**63, WORD - 1]
    hashed = hash_with_key(np.array(values, np.uint64), np.uint64(key))
    assert hashed.dtype == np.uint64
    assert hashed.tolist() == [mix_by_hand(value, key) for value in values]


def test_seeds_of_functions_are_their_own() -> None:
    found = np.stack([draw_function_seeds(KEYS, 42, function) for function in range(3)])
    assert found.min() >= 0
    assert len(np.unique(np.concatenate([found.ravel(), draw_seeds(KEYS, 42).ravel()]))) == 5 * NUM_KEYS
    np.testing.assert_array_equal(draw_function_seeds(KEYS[7:9], 42, 1), found[1, 7:9])


# Distinct values


@given(st.lists(st.integers(-5, 5)))
def test_distinct_ones_are_numpys_own(values: list[int]) -> None:
    array = np.array(values, np.int64)
    numpys = np.unique(array, return_index=True, return_inverse=True)
    for ours, theirs in zip(unique(array), numpys, strict=True):
        np.testing.assert_array_equal(ours, theirs)


SCRIPT = """
import sys
from tfds_torch import ParserTfds, World, demo

root = demo.prepare("digits")
for _ in ParserTfds(root, "digits", is_training=True, batch_size=32).batches(World()):
    pass
print("numpy.ma" in sys.modules)
"""


@pytest.mark.timeout(120)
def test_nothing_of_reading_imports_masked_arrays(run_python) -> None:
    with forked_instead_of_fresh():
        demo.prepare("digits", progress=False)  # In the cache, where the script finds it.
    done = run_python("-c", SCRIPT)
    assert done.stdout.strip() == "False", done.stderr
