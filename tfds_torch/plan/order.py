"""The protocol of orders; the shuffled order of a pass, and the random numbers of its examples, from one keyed hash.

An order is a value: an endless row of slots, each with an example in a pass. `Passes`, `Mixed` and `Drawn` are orders.

The order of a pass is a stateless permutation: position -> example, in O(slice) time and memory.

Construction. Numbers 0..N-1 are written as pairs (left, right) of Z_a x Z_b with a = ceil(sqrt(N)), b = ceil(N / a),
and sent through a Feistel network with modular addition (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002): each round adds a keyed hash of one half to the other, which is a bijection whatever the hash. The domain a * b
exceeds N by less than a; the few results outside 0..N-1 are sent through again ("cycle walking") until they fall
inside, which keeps the map a bijection of 0..N-1. Small N, where a Feistel network is measurably not uniform, are
ordered by sorting N keyed hashes instead: exactly uniform, and N is bounded by a constant.

The round keys are BLAKE2b of (seed, pass, N), so every (seed, pass) has its own order, on every platform and with
every version of numpy.

A *sample key* names one example in one pass: `pass_number * num_examples + index`. Its random numbers depend on nothing
else but the seed: they are the same whichever rank, worker or thread draws them, in whatever batch, after a resume or
not. A wrapped copy belongs to the next pass and so has others.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.subset import Int64Array as Int64Array
from tfds_torch.plan.subset import Subset
from tfds_torch.runtime.identity import Identity

if TYPE_CHECKING:
    from tfds_torch.plan.deal import WorkerOrder

UInt64Array = NDArray[np.uint64]
Keys = TypeVar("Keys", int, Int64Array)

LARGEST_KEY = 2**63 - 1
"""The largest sample key that int64 holds."""

MOST_SLOTS = 2**62
"""The largest number of slots of a row, and of epochs: later ones have no number."""

ExampleRanges = tuple[Int64Array, Int64Array]
"""Ranges of neighbouring examples that are read together: the first of each, int64 [n], and the one behind its last."""

_SLOTS_AT_ONCE = 8192  # Orders without their own blocks look up so many slots at a time, to read ahead.

_NUM_ROUNDS = 8
_LARGEST_SORTED = 4096


@dataclass(frozen=True)
class Promise:
    """What an order promises of an epoch, for code that counts the examples that came.

    Attributes:
        who: which examples the promise is about: "every example", "every example of the subset".
        often: how often each comes: "once", "once in each pass of its member".
        pass_size: examples of one pass.
        remedy: what to do where each example must come exactly once, as in evaluation; empty: the order promises that.
        count: n -> how often each example comes in the first n slots of the row, at least and at most: two int64
            [num_examples].
    """

    who: str
    often: str
    pass_size: int
    remedy: str
    count: Callable[[int], tuple[Int64Array, Int64Array]]


class Order(ABC):
    """An endless row of slots: which example is in each, and of which pass. A frozen value that can be pickled.

    An epoch has the next `num_slots` of them, or k times as many with `repeats=k`; the slots behind them fill its last
    global batch. Passes number the times that an example comes: no (pass, example) comes twice.

    Attributes:
        seed: seed of the order and of the random numbers of examples, >= 0.
        shuffle: whether another epoch has another order.
        subset: the examples that are in the row; None: all N.
    """

    seed: int
    shuffle: bool
    subset: Subset | None = None

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """N. Examples are numbers in 0..N-1."""

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """Slots of an epoch without repeats."""

    @abstractmethod
    def at(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the passes and the examples in any slots, int64 [n] each, in time and memory O(n).

        Args:
            slots: int64 [n], each in 0..2**62-1.
        """

    @abstractmethod
    def identity(self) -> Identity:
        """Return plain JSON values by name: equal values mean the same row, in epochs of the same size."""

    @abstractmethod
    def promise(self) -> Promise:
        """Return how often each example comes in an epoch of this order."""

    @property
    def is_endless(self) -> bool:
        """Whether passes do not end where epochs do."""
        return False

    @property
    def num_groups(self) -> int:
        """Groups that slots take from in turn, so that a global batch can have equal shares of them; 1: none."""
        return 1

    @property
    def num_keyed(self) -> int:
        """Slots from 0 on whose sample keys, `pass * num_examples + example`, fit into int64."""
        return LARGEST_KEY // max(1, self.num_examples) * max(1, self.promise().pass_size)

    @property
    def largest_epoch(self) -> int:
        """The last epoch, without repeats, whose sample keys fit into int64; -1: not even those of epoch 0 do."""
        return min(self.num_keyed // self.num_slots if self.num_slots else MOST_SLOTS, MOST_SLOTS) - 1

    def passes_from(self, slot: int, examples: Int64Array) -> Int64Array:
        """Return the pass of each example, int64 [n], that is under way at a slot."""
        return np.full(len(examples), slot // max(1, self.promise().pass_size), np.int64)

    def windows(self, batches: "WorkerOrder", block_records: int) -> Iterator[ExampleRanges]:
        """Yield the ranges to read together, ahead: the blocks that the next batches need, in the order of first use.

        A block may come again in a later window. Blocks that this place in the world does not need are left out.

        Args:
            batches: the batches of one place in the world, from a batch of an epoch on.
            block_records: number of neighbouring examples that files are best read in.
        """
        return self._runs(batches, block_records, 0)

    def _runs(self, batches: "WorkerOrder", block_records: int, start: int) -> Iterator[ExampleRanges]:
        """Yield the blocks of a worker's examples from position `start` on, 8,192 examples at a time."""
        for first in range(start, len(batches), _SLOTS_AT_ONCE):
            index = batches.planned(first, min(first + _SLOTS_AT_ONCE, len(batches))).index
            blocks = unique(index // block_records)
            starts = blocks.values[np.argsort(blocks.first)] * block_records
            yield starts, np.minimum(starts + block_records, self.num_examples)


def epoch_order(num_examples: int, seed: int, pass_number: int, start: int = 0, stop: int | None = None) -> Int64Array:
    """Return one slice of the shuffled order of a pass.

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
    """Return the examples, int64 [n], at any positions of a pass's shuffled order.

    Args:
        positions: int64 [n], each in 0..num_examples-1.
        num_examples: N, the number of examples of a pass.
        seed: any integer >= 0.
        pass_number: which pass over the examples, any integer >= 0.
    """
    if seed < 0 or pass_number < 0:
        raise ConfigError(f"epoch_order: seed={seed} and pass_number={pass_number} must be >= 0.")
    return permute(positions, num_examples, _name_of_order(num_examples, seed, pass_number))


class ShuffledPass(NamedTuple):
    """One pass over one of several sets of examples: the arguments of `order_at`."""

    num_examples: int
    seed: int
    pass_number: int


def orders_at(positions: Int64Array, which: Int64Array, passes: Sequence[ShuffledPass]) -> Int64Array:
    """Return the examples at any positions of several shuffled orders, all at once.

    They are those of `order_at`, order by order, in the time of one call.

    Args:
        positions: int64 [n], each in 0..num_examples-1 of its order.
        which: int64 [n], for each position the number of its order, a position in `passes`.
        passes: the orders.

    Returns:
        int64 [n].
    """
    sizes = np.array([one.num_examples for one in passes], np.int64)
    is_sorted = sizes[which] <= _LARGEST_SORTED
    examples = np.empty_like(positions)
    if is_sorted.any():
        orders = [
            _kept_order(one.num_examples, _name_of_order(*one)) if size <= _LARGEST_SORTED else np.empty(0, np.uint16)
            for one, size in zip(passes, sizes.tolist(), strict=True)
        ]
        starts = np.cumsum([0, *map(len, orders)])
        examples[is_sorted] = np.concatenate(orders)[starts[which[is_sorted]] + positions[is_sorted]]
    others = np.flatnonzero(~is_sorted)
    if others.size:
        here = which[others]
        networks = np.array([_network(one) for one in passes]).T[:, here]  # uint64 [2 + rounds, n]
        examples[others] = _walk(positions[others], sizes[here], networks[:2], networks[2:])
    return examples


@lru_cache(maxsize=4096)
def _network(one: ShuffledPass) -> UInt64Array:
    """Return the sides and the round keys of an order's Feistel network, uint64 [2 + rounds]."""
    keys = _round_keys(_name_of_order(*one))
    return np.concatenate([np.array(_sides(one.num_examples), np.uint64), keys])


def _name_of_order(num_examples: int, seed: int, pass_number: int) -> str:
    return f"order 1: seed {seed}, pass {pass_number}, examples {num_examples}"


def permute(positions: Int64Array, size: int, key: str) -> Int64Array:
    """Return the values of a permutation of 0..size-1, named by a key, at some positions."""
    if positions.size == 0:
        return np.empty(0, np.int64)
    if size <= _LARGEST_SORTED:
        return _sorted_order(size, key)[positions]
    sides = np.array(_sides(size), np.uint64)[:, None]
    return _walk(positions, np.array([size]), sides, _round_keys(key)[:, None])


def _sorted_order(size: int, key: str) -> Int64Array:
    hashes = hash_with_key(np.arange(size, dtype=np.uint64), _round_keys(key)[0])
    return np.argsort(hashes, kind="stable").astype(np.int64)


@lru_cache(maxsize=2048)  # Each has 8 KB at most: every slice of a mixture has some examples of many orders.
def _kept_order(size: int, key: str) -> NDArray[np.uint16]:
    order = _sorted_order(size, key).astype(np.uint16)
    order.setflags(write=False)
    return order


def _walk(positions: Int64Array, sizes: Int64Array, sides: UInt64Array, keys: UInt64Array) -> Int64Array:
    """Return the values of permutations at n positions: of one, or of one for each of them.

    Args:
        positions: int64 [n].
        sizes: int64 [1] or [n], how many numbers are permuted.
        sides: uint64 [2, 1] or [2, n], the sides of the Feistel networks.
        keys: uint64 [rounds, 1] or [rounds, n], their round keys.
    """
    values = _feistel(positions.astype(np.uint64), sides, keys)
    limits = np.broadcast_to(sizes.astype(np.uint64), values.shape)
    outside = np.flatnonzero(values >= limits)
    sides, keys = (np.broadcast_to(one, (len(one), values.size)) for one in (sides, keys))
    while outside.size:
        values[outside] = _feistel(values[outside], sides[:, outside], keys[:, outside])
        outside = outside[values[outside] >= limits[outside]]
    return values.astype(np.int64)


def _round_keys(key: str) -> UInt64Array:
    digest = hashlib.blake2b(f"tfds_torch {key}".encode(), digest_size=8 * _NUM_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _sides(num_examples: int) -> tuple[int, int]:
    a = math.isqrt(num_examples - 1) + 1
    return a, -(-num_examples // a)


def _feistel(values: UInt64Array, sides: UInt64Array, keys: UInt64Array) -> UInt64Array:
    a, b = sides
    left, right = values // b, _modulo(values, b)
    for i in range(0, _NUM_ROUNDS, 2):
        left = _modulo(left + _modulo(hash_with_key(right, keys[i]), a), a)
        right = _modulo(right + _modulo(hash_with_key(left, keys[i + 1]), b), b)
    results: UInt64Array = left * b + right
    return results


def _modulo(values: UInt64Array, divisor: UInt64Array) -> UInt64Array:
    """Return `values % divisor` by a division, which numpy does four times as fast as it takes remainders."""
    rest: UInt64Array = values - values // divisor * divisor
    return rest


class Distinct(NamedTuple):
    """The distinct ones of n values, as `numpy.unique` returns them.

    Attributes:
        values: int64 [m], ascending.
        first: int64 [m], the position at which each of them stands first.
        inverse: int64 [n], for each of the n values its position among the distinct ones.
    """

    values: Int64Array
    first: Int64Array
    inverse: Int64Array


def unique(values: Int64Array) -> Distinct:
    """Return the distinct ones of int64 [n].

    `numpy.unique` imports `numpy.ma` when it is first called: up to 0.3 s of a forked worker's first batch.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    is_new = np.ones(len(values), np.bool_)
    is_new[1:] = ascending[1:] != ascending[:-1]
    inverse = np.empty(len(values), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    return Distinct(ascending[is_new], order[is_new], inverse)


# Random numbers of examples


def hash_with_key(values: UInt64Array, key: np.uint64 | UInt64Array) -> UInt64Array:
    """Mix 64-bit values with keys: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied twice.

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
    """Return the examples that sample keys name, in a dataset of `num_examples`: one, or int64 of the same shape."""
    return keys % num_examples


def draw_uniforms(keys: Int64Array, seed: int, draws: int | Sequence[int] | Int64Array) -> NDArray[np.float64]:
    """Return independent random numbers for each of n sample keys.

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


def draw_seeds(keys: Int64Array, seed: int) -> Int64Array:
    """Return a seed for each of n sample keys, int64 [n, 2], as tensorflow's stateless random operations take it."""
    bits = hash_with_key(_hash_keys(keys, seed)[:, None], np.array([2**32, 2**32 + 1], np.uint64))
    return bits.view(np.int64)


def draw_function_seeds(keys: Int64Array, seed: int, function: int) -> Int64Array:
    """Return a seed, 0 to 2**63 - 1, of a user's function, by its number, for each of n sample keys, int64 [n]."""
    bits = hash_with_key(_hash_keys(keys, seed), np.uint64(2**32 + 2 + function))
    return (bits >> np.uint64(1)).astype(np.int64)


def _hash_keys(keys: Int64Array, seed: int) -> UInt64Array:
    (key,) = np.frombuffer(hashlib.blake2b(f"tfds_torch random {seed}".encode(), digest_size=8).digest(), "<u8")
    return hash_with_key(keys.astype(np.uint64), np.uint64(key))
