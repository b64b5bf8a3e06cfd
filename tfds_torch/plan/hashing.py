"""Keyed hashes of 64-bit values: where every order and every random number of an example comes from."""

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]


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
