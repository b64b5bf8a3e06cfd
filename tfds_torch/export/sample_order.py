"""SampleOrder: which samples of a source are exported, and in what order."""

import hashlib
from collections.abc import Iterable
from operator import index

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array, epoch_order
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted


class SampleOrder:
    """Samples of a source by their place in the file. All of them in order take no memory.

    Args:
        num_samples: of the source.
        indices: numbers of samples, in the file's order, perhaps one several times; None: all of them.
        shuffle_seed: of a shuffle of these; None: they stay in order.
    """

    def __init__(self, num_samples: int, indices: Iterable[int] | None = None, shuffle_seed: int | None = None) -> None:
        self._numbers = None if indices is None else _checked(indices, num_samples)
        self._len = num_samples if self._numbers is None else len(self._numbers)
        if shuffle_seed is not None:
            shuffled = epoch_order(self._len, check_integer("shuffle_seed", shuffle_seed, 0), 0)
            self._numbers = shuffled if self._numbers is None else self._numbers[shuffled]

    def __len__(self) -> int:
        return self._len

    def at(self, places: range) -> Int64Array:
        """Returns int64 [n]: the number of the sample at each of these places, which lie side by side."""
        if self._numbers is None:
            return np.arange(places.start, places.stop)
        return self._numbers[places.start : places.stop]

    def number_at(self, place: int) -> int:
        """Returns the number of the sample at a place."""
        return place if self._numbers is None else int(self._numbers[place])

    @property
    def has_repeats(self) -> bool:
        """Whether a sample stands at several places."""
        return self._numbers is not None and len(np.unique(self._numbers)) < len(self)

    def digest(self) -> str:
        """Returns a digest of these numbers in this order."""
        return hashlib.blake2b(self._all.tobytes(), digest_size=16).hexdigest()

    def places_of(self, number: int) -> list[int]:
        """Returns where a sample of the source stands in the file."""
        if self._numbers is None:
            return [number] if number < len(self) else []
        start, stop = np.searchsorted(self._sorted, [number, number + 1])
        return self._places[start:stop].tolist()  # type: ignore[no-any-return]

    @property
    def _all(self) -> Int64Array:
        return self.at(range(len(self)))

    @cached_property
    def _places(self) -> Int64Array:
        return np.argsort(self._all, kind="stable")

    @cached_property
    def _sorted(self) -> Int64Array:
        return self._all[self._places]


def _checked(indices: Iterable[int], num_samples: int) -> Int64Array:
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise ConfigError(f"indices={quoted(indices)} must be a sequence of integers.")
    if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and indices.ndim == 1:
        outside = indices[(indices < 0) | (indices >= num_samples)].tolist()
    else:
        indices = [_integer(one) for one in indices]
        outside = [number for number in indices if not 0 <= number < num_samples]
    if outside:
        raise ConfigError(f"indices: there is no sample {outside[0]}: the source has {num_samples:,}, counted from 0.")
    return np.array(indices, np.int64)


def _integer(value: object) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"indices: {quoted(value)} is not an integer. Of a mask, give np.flatnonzero(mask)."
        ) from None
