"""SampleOrder: which samples of a source are exported, and in what order."""

from collections.abc import Iterable
from functools import cached_property
from operator import index

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.order import Int64Array, epoch_order


class SampleOrder:
    """Samples of a source by their place in the file.

    Args:
        num_samples: of the source.
        indices: numbers of samples, in the file's order; also one several times. None: all of them.
        shuffle_seed: of a shuffle of these; None: they stay in order.

    Attributes:
        numbers: int64 [m], of the sample at each place.

    Raises:
        ConfigError: an index outside the source, or something else than an index.
    """

    def __init__(self, num_samples: int, indices: Iterable[int] | None = None, shuffle_seed: int | None = None) -> None:
        self._is_whole = indices is None and shuffle_seed is None
        self.numbers: Int64Array = np.arange(num_samples) if indices is None else _checked(indices, num_samples)
        if shuffle_seed is not None:
            seed = check_integer("shuffle_seed", shuffle_seed, 0)
            self.numbers = self.numbers[epoch_order(len(self.numbers), seed, 0)]

    def __len__(self) -> int:
        return len(self.numbers)

    def places_of(self, number: int) -> list[int]:
        """Returns where a sample of the source stands in the file."""
        if self._is_whole:
            return [number] if number < len(self) else []
        start, stop = np.searchsorted(self._sorted, [number, number + 1])
        return self._places[start:stop].tolist()  # type: ignore[no-any-return]

    @cached_property
    def _places(self) -> Int64Array:
        return np.argsort(self.numbers, kind="stable")

    @cached_property
    def _sorted(self) -> Int64Array:
        return self.numbers[self._places]


def _checked(indices: Iterable[int], num_samples: int) -> Int64Array:
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise ConfigError(f"indices={indices!r} must be a sequence of integers.")
    if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and indices.ndim == 1:
        numbers = indices.astype(np.int64)
    else:
        numbers = np.array([_integer(one) for one in indices], np.int64)
    outside = (numbers < 0) | (numbers >= num_samples)
    if outside.any():
        raise ConfigError(
            f"indices: there is no sample {numbers[outside][0]}: the source has {num_samples:,}, counted from 0."
        )
    return numbers


def _integer(value: object) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"indices: {value!r} is not an integer. Of a mask, give np.flatnonzero(mask).") from None
