"""Subset: some examples of a split by their numbers, as a value."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.array_value import ArrayValue
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted


class Subset(ArrayValue):
    """Some examples of a split, in an order: their numbers, int64 [n], each once."""

    @property
    def numbers(self) -> Int64Array:
        """The numbers of the examples in the split, int64 [n]."""
        return self.values

    def __repr__(self) -> str:
        return f"Subset({len(self):,} examples, {self.digest[:8]})"

    def places_of(self, numbers: Int64Array) -> Int64Array:
        """Returns the places of examples, int64 [k], in the subset; -1 for those that are not in it."""
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
    """Returns the subset that a caller names.

    Args:
        indices: numbers of examples, in any order, each once; or a mask, bool [n], of the examples that are there.
        there: those, int64 [n]; or n, where they are 0..n-1.

    Raises:
        ConfigError: it is neither; a number stands there twice, or is not there; a mask of another length.
    """
    numbers = np.arange(there, dtype=np.int64) if isinstance(there, int) else there
    if not hasattr(indices, "__array__") and isinstance(indices, Iterable) and not isinstance(indices, str | bytes):
        indices = list(indices)
    asked = np.asarray(indices)
    if asked.ndim != 1 or (asked.dtype.kind not in "biu" and asked.size):
        raise ConfigError(
            f"subset: indices={quoted(indices)} must be a list of the numbers of examples, or a mask: an array of "
            f"{len(numbers):,} booleans. It has the shape {asked.shape} and the type {asked.dtype}. "
            f"A subset by class is parser.subset(parser.targets() == number)."
        )
    if asked.dtype.kind == "b":
        if len(asked) != len(numbers):
            raise ConfigError(
                f"subset: the mask has {len(asked):,} values, and there are {len(numbers):,} examples: a mask says of "
                f"each, in their order, whether it belongs to the subset."
            )
        return Subset(_frozen(numbers[asked]))
    found = asked.astype(np.int64)
    is_there = Subset(numbers).places_of(found) >= 0 if not isinstance(there, int) else (found >= 0) & (found < there)
    if not is_there.all():
        other = int(found[~is_there][0])
        known = f"0 to {there - 1:,}" if isinstance(there, int) else f"{len(there):,} of a subset"
        raise ConfigError(f"subset: there is no example {other}: the numbers are {known}.")
    values, counts = np.unique(found, return_counts=True)
    if len(values) < len(found):
        raise ConfigError(
            f"subset: example {int(values[counts > 1][0])} stands there {int(counts.max())} times: a pass has each "
            f"once. For examples that come more often, use weighted(), or a ParserMixture of subsets."
        )
    return Subset(_frozen(found))


def _frozen(numbers: NDArray[np.int64]) -> Int64Array:
    numbers = numbers.copy()
    numbers.setflags(write=False)
    return numbers
