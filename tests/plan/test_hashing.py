"""Keyed hashes: the published mixer, one to one, without traces of their input."""

import numpy as np
import pytest

from tfds_torch.plan.random import hash_with_key

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
