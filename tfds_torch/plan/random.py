"""Random numbers of an example, which depend on nothing but the seed and its sample key.

A *sample key* names one example in one pass: `pass_number * num_examples + index`. Whichever rank, worker or thread
draws, in whatever batch, after a resume or not, gets the same numbers; a wrapped copy belongs to the next pass and so
gets others. Orders and random numbers come out of the same keyed hash.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]
Keys = TypeVar("Keys", int, NDArray[np.int64])


def hash_with_key(values: UInt64Array, key: np.uint64 | UInt64Array) -> UInt64Array:
    """Mixes 64-bit values with keys: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied twice.

    Args:
        values: uint64, of any shape.
        key: uint64, one, or of a shape that broadcasts with that of values.

    Returns:
        uint64, of the broadcast shape.
    """
    mixed = values ^ key
    shifted = np.empty_like(mixed)  # In place: memory for every step would take longer than the steps.
    for _ in range(2):
        mixed += np.uint64(0x9E3779B97F4A7C15)  # Wraps modulo 2**64, as intended.
        mixed ^= np.right_shift(mixed, np.uint64(30), out=shifted)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def examples_of(keys: Keys, num_examples: int) -> Keys:
    """Returns the examples that sample keys name, in a dataset of `num_examples`: one, or int64 of the same shape."""
    return keys % num_examples


def draw_uniforms(
    keys: NDArray[np.int64], seed: int, draws: int | Sequence[int] | NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns independent random numbers for each of n sample keys.

    Args:
        keys: int64 [n], each >= 0.
        seed: any integer >= 0.
        draws: how many numbers of each; or which of them, m of 0, 1, 2, ...

    Returns:
        float64 [n, m], uniform in [0, 1); a number of a key does not depend on which others are drawn.
    """
    which = np.arange(draws, dtype=np.uint64) if isinstance(draws, int) else np.array(draws, np.uint64)
    bits = hash_with_key(_hash_keys(keys, seed)[:, None], which)
    # The upper 53 bits are a float64's precision.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_seeds(keys: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Returns a seed for each of n sample keys, int64 [n, 2], as tensorflow's stateless random operations take it."""
    bits = hash_with_key(_hash_keys(keys, seed)[:, None], np.array([2**32, 2**32 + 1], np.uint64))
    return bits.view(np.int64)


def _hash_keys(keys: NDArray[np.int64], seed: int) -> UInt64Array:
    (key,) = np.frombuffer(hashlib.blake2b(f"tfds_torch random {seed}".encode(), digest_size=8).digest(), "<u8")
    return hash_with_key(keys.astype(np.uint64), np.uint64(key))
