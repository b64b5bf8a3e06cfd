"""Random numbers of examples: uniform, independent, and a function of seed and sample key alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.plan.order import draw_seeds, draw_uniforms, examples_of, hash_with_key

NUM_KEYS, NUM_DRAWS = 20_000, 6
KEYS = np.arange(NUM_KEYS, dtype=np.int64)

UNIFORMS = [
    [0.3693614226433125, 0.02279516359340228],
    [0.24651196397790487, 0.38183878016509976],
    [0.024210854021529893, 0.20858908292929246],
]
SEEDS = [
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


def test_more_draws_leave_the_first_ones_as_they_are() -> None:
    np.testing.assert_array_equal(draw_uniforms(KEYS, 42, NUM_DRAWS)[:, :2], draw_uniforms(KEYS, 42, 2))


def test_another_seed_and_another_pass_give_other_numbers() -> None:
    uniforms = draw_uniforms(KEYS, 42, NUM_DRAWS)
    for seed, keys in ((43, KEYS), (42 + 2**32, KEYS), (42, KEYS + NUM_KEYS)):
        others = draw_uniforms(keys, seed, NUM_DRAWS)
        assert not (uniforms == others).any()


def test_numbers_are_the_same_on_every_machine() -> None:
    keys = np.array([0, 1, 2**40], np.int64)
    assert draw_uniforms(keys, 42, 2).tolist() == UNIFORMS
    assert draw_seeds(keys, 42).tolist() == SEEDS


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


# The hash

KEY = np.uint64(0x0123456789ABCDEF)
WORD = 2**64


def mix_by_hand(value: int, key: int) -> int:
    """SplitMix64's step, twice, in Python's integers."""
    mixed = value ^ key
    for _ in range(2):
        mixed = (mixed + 0x9E3779B97F4A7C15) % WORD
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WORD
        mixed ^= mixed >> 31
    return mixed


@pytest.mark.parametrize("key", [0, 1, int(KEY), WORD - 1])
def test_a_hash_is_the_finalizer_of_splitmix64_twice(key: int) -> None:
    values = [0, 1, 2, 12345, 2**32, 2**63, WORD - 1]
    hashed = hash_with_key(np.array(values, np.uint64), np.uint64(key))
    assert hashed.dtype == np.uint64
    assert hashed.tolist() == [mix_by_hand(value, key) for value in values]


def test_no_two_values_have_the_same_hash() -> None:
    assert len(np.unique(hash_with_key(np.arange(200_000, dtype=np.uint64), KEY))) == 200_000


def test_keys_and_values_broadcast() -> None:
    values, keys = np.arange(5, dtype=np.uint64), np.arange(100, 103, dtype=np.uint64)
    table = hash_with_key(values[:, None], keys)
    assert table.shape == (5, 3)
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(table[:, number], hash_with_key(values, key))


def test_every_bit_of_the_input_changes_half_of_the_output() -> None:
    values = np.arange(4096, dtype=np.uint64)
    for bit in range(64):
        changed = hash_with_key(values, KEY) ^ hash_with_key(values ^ np.uint64(1 << bit), KEY)
        shares = np.unpackbits(changed.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        # Five standard deviations of 4,096 coins.
        assert np.abs(shares - 0.5).max() < 5 * 0.5 / 64, bit
