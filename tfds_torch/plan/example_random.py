"""Random numbers of an example, which depend on nothing but the seed and its sample key.

A *sample key* names one example in one pass: `pass_number * num_examples + index`. Whichever rank, worker or thread
draws, in whatever batch, after a resume or not, gets the same numbers; a wrapped copy belongs to the next pass and so
gets others.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.hashing import UInt64Array, hash_with_key


def draw_uniforms(keys: NDArray[np.int64], seed: int, num_draws: int) -> NDArray[np.float64]:
    """Returns independent random numbers for each of n sample keys.

    Args:
        keys: int64 [n], each >= 0.
        seed: any integer >= 0.
        num_draws: numbers of each.

    Returns:
        float64 [n, num_draws], uniform in [0, 1); those of a key do not depend on num_draws beyond their count.
    """
    bits = hash_with_key(_hash_keys(keys, seed)[:, None], np.arange(num_draws, dtype=np.uint64))
    # The upper 53 bits are a float64's precision.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_seeds(keys: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Returns a seed for each of n sample keys, int64 [n, 2], as tensorflow's stateless random operations take it."""
    bits = hash_with_key(_hash_keys(keys, seed)[:, None], np.array([2**32, 2**32 + 1], np.uint64))
    return bits.view(np.int64)


def _hash_keys(keys: NDArray[np.int64], seed: int) -> UInt64Array:
    (key,) = np.frombuffer(hashlib.blake2b(f"tfds_torch random {seed}".encode(), digest_size=8).digest(), "<u8")
    return hash_with_key(keys.astype(np.uint64), np.uint64(key))
