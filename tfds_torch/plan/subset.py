"""Subset: some examples of a split by their numbers, as a value."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import array_of_tensor, is_tensor

Int64Array = NDArray[np.int64]


class ArrayValue:
    """An array that is a value: two are equal where all numbers are, in the same order.

    Args:
        values: numbers [n]; the array must not be changed afterwards.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayValue) and type(other) is type(self) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Hex digest of the numbers and their order."""
        little = self.values.astype(self.values.dtype.newbyteorder("<"))
        return hashlib.blake2b(little.tobytes(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values}  # Values that were derived from them are made anew.


_NUM_SHOWN = 8


class Subset(ArrayValue):
    """Some examples of a split, in some order: their numbers, int64 [n], each once."""

    @property
    def numbers(self) -> Int64Array:
        """The numbers of the examples in the split, int64 [n]."""
        return self.values

    def __repr__(self) -> str:
        return f"Subset({len(self):,} examples, {self.digest[:8]})"

    def places_of(self, numbers: Int64Array) -> Int64Array:
        """Return the places of examples, int64 [k], in the subset; -1 for those that are not in it."""
        if not len(self):
            return np.full(len(numbers), -1, np.int64)
        ordered, places = self._by_number
        at = np.minimum(np.searchsorted(ordered, numbers), len(self) - 1)
        found: Int64Array = np.where(ordered[at] == numbers, places[at], -1)
        return found

    @cached_property
    def _by_number(self) -> tuple[Int64Array, Int64Array]:
        places = np.argsort(self.numbers, kind="stable")
        return self.numbers[places], places


def make_subset(indices: object, there: Int64Array | int) -> Subset:
    """Return the subset that `indices` names.

    Args:
        indices: numbers of examples, in any order, each once; or a mask, bool [n], of the examples that are there.
        there: the numbers of the examples that are there, int64 [n]; or n, where they are 0..n-1.

    Raises:
        ConfigError: `indices` is neither; a number is in it twice, or is not one of `there`; or a mask has another
            length.
    """
    numbers = np.arange(there, dtype=np.int64) if isinstance(there, int) else there
    is_array = hasattr(indices, "__array__")
    if not is_array and isinstance(indices, Iterable) and not isinstance(indices, str | bytes | Mapping):
        indices = list(indices)
    asked = as_array(indices)
    is_mixed = isinstance(indices, list) and asked.dtype.kind != "b" and any(isinstance(one, bool) for one in indices)
    if asked.ndim != 1 or (asked.dtype.kind not in "biu" and asked.size) or is_mixed:
        what = "booleans among numbers" if is_mixed else f"the shape {asked.shape} and the type {asked.dtype}"
        raise ConfigError(
            f"subset: indices={quoted(indices)} must be a list of the numbers of examples, or a mask: an array of "
            f"{len(numbers):,} booleans. It has {what}. A subset by class is parser.subset(parser.targets() == number)."
        )
    if asked.dtype.kind == "b":
        if len(asked) != len(numbers):
            raise ConfigError(
                f"subset: the mask has {len(asked):,} values, and there are {len(numbers):,} examples: a mask says of "
                f"each, in their order, whether it belongs to the subset."
            )
        return Subset(_frozen(numbers[asked]))
    found = asked.astype(np.int64)
    is_there = (found == asked) & (found >= 0)  # uint64 has numbers that int64 has not.
    is_there &= Subset(numbers).places_of(found) >= 0 if not isinstance(there, int) else found < there
    if not is_there.all():
        other = int(asked[~is_there][0])
        raise ConfigError(f"subset: there is no example {other}: the numbers are {_listed(there)}.")
    values, counts = np.unique(found, return_counts=True)
    if len(values) < len(found):
        raise ConfigError(
            f"subset: example {int(values[counts > 1][0])} stands there {int(counts.max())} times: a pass has each "
            f"once. For examples that come more often, use weighted(), or a ParserMixture of subsets."
        )
    return Subset(_frozen(found))


def as_array(values: object) -> NDArray[np.generic]:
    """Return a caller's value as an array, of dtype object where its parts have no common shape."""
    if is_tensor(type(values)):
        values = array_of_tensor(values)
    try:
        return np.asarray(values)
    except (TypeError, ValueError):  # For example lists of several lengths.
        return np.array(None, object)


def _listed(there: Int64Array | int) -> str:
    """Return the numbers of the examples that are there, in words."""
    if isinstance(there, int):
        return f"0 to {there - 1:,}"
    shown = ", ".join(map(str, there[:_NUM_SHOWN].tolist()))
    return f"the {len(there):,} of the subset that is cut again, {shown}{', ...' if len(there) > _NUM_SHOWN else ''}"


def _frozen(numbers: NDArray[np.int64]) -> Int64Array:
    numbers = numbers.copy()
    numbers.setflags(write=False)
    return numbers
