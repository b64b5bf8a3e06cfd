"""The order of an epoch as a stateless permutation: position -> example, in O(slice) time and memory.

Construction. Numbers 0..N-1 are written as pairs (left, right) of Z_a x Z_b with a = ceil(sqrt(N)), b = ceil(N / a),
and sent through a Feistel network with modular addition (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002): each round adds a keyed hash of one half to the other, which is a bijection whatever the hash. The domain a * b
exceeds N by less than a; the few results outside 0..N-1 are sent through again ("cycle walking") until they fall
inside, which keeps the map a bijection of 0..N-1. Small N, where a Feistel network is measurably not uniform, are
ordered by sorting N keyed hashes instead: exactly uniform, and N is bounded by a constant.

The round keys are BLAKE2b of (seed, pass, N), so every (seed, pass) has an order of its own, on every platform and with
every version of numpy.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError

Int64Array = NDArray[np.int64]
_UInt64Array = NDArray[np.uint64]

_NUM_ROUNDS = 8
_LARGEST_SORTED = 4096


def epoch_order(num_examples: int, seed: int, pass_number: int, start: int = 0, stop: int | None = None) -> Int64Array:
    """Returns one slice of the shuffled order of a pass.

    The whole order is a permutation of 0..num_examples-1 that depends on (seed, pass_number, num_examples) alone; any
    slice of it costs time and memory in proportion to the slice.

    Args:
        num_examples: N, the number of examples of a pass, 0 <= N < 2**62.
        seed: any integer >= 0.
        pass_number: which pass over the examples, any integer >= 0.
        start: first position of the slice, 0 <= start <= N.
        stop: end of the slice, start <= stop <= N; None means N.

    Returns:
        int64 [stop - start]: the examples at positions start..stop-1.

    Raises:
        ConfigError: an argument is out of range.
    """
    stop = num_examples if stop is None else stop
    if not 0 <= num_examples < 2**62:
        raise ConfigError(f"epoch_order: num_examples={num_examples} must be in 0..2**62-1.")
    if not 0 <= start <= stop <= num_examples:
        raise ConfigError(f"epoch_order: the slice {start}:{stop} must lie within 0..{num_examples}.")
    return order_at(np.arange(start, stop, dtype=np.int64), num_examples, seed, pass_number)


def order_at(positions: Int64Array, num_examples: int, seed: int, pass_number: int) -> Int64Array:
    """Returns the examples at any positions of a pass's shuffled order.

    Args:
        positions: int64 [n], each in 0..num_examples-1.
        num_examples: N, the number of examples of a pass.
        seed: any integer >= 0.
        pass_number: which pass over the examples, any integer >= 0.

    Returns:
        int64 [n].

    Raises:
        ConfigError: seed or pass_number is negative.
    """
    if seed < 0 or pass_number < 0:
        raise ConfigError(f"epoch_order: seed={seed} and pass_number={pass_number} must be >= 0.")
    if positions.size == 0:
        return np.empty(0, np.int64)
    keys = _round_keys(seed, pass_number, num_examples)
    if num_examples <= _LARGEST_SORTED:
        hashes = _hash(np.arange(num_examples, dtype=np.uint64), keys[0])
        return np.argsort(hashes, kind="stable").astype(np.int64)[positions]
    values = positions.astype(np.uint64)
    outside = np.arange(values.size)
    while outside.size:
        values[outside] = _feistel(values[outside], num_examples, keys)
        outside = outside[values[outside] >= num_examples]
    return values.astype(np.int64)


def _round_keys(seed: int, pass_number: int, num_examples: int) -> _UInt64Array:
    text = f"tfds_torch order 1: seed {seed}, pass {pass_number}, examples {num_examples}"
    digest = hashlib.blake2b(text.encode(), digest_size=8 * _NUM_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _feistel(values: _UInt64Array, num_examples: int, keys: _UInt64Array) -> _UInt64Array:
    a = np.uint64(math.isqrt(num_examples - 1) + 1)
    b = np.uint64(-(-num_examples // int(a)))
    left, right = values // b, values % b
    for i in range(0, _NUM_ROUNDS, 2):
        left = (left + _hash(right, keys[i]) % a) % a
        right = (right + _hash(left, keys[i + 1]) % b) % b
    return left * b + right


def _hash(values: _UInt64Array, key: np.uint64) -> _UInt64Array:
    """Mixes 64-bit values with a key: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied twice."""
    mixed = values ^ key
    for _ in range(2):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)  # Wraps modulo 2**64, as intended.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
