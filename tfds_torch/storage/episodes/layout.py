"""EpisodeLayout: which features of a record have one value for each step, and where they lie in the record."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.crc32c import crc32c
from tfds_torch.storage.episodes.wire import (
    Encoded,
    WireError,
    find_features,
    find_list,
    find_packed,
    find_values,
    varint_stops,
)

_BLOCK_BYTES = 2048  # Bytes of floats that are read together: a window of a few steps lies in one block, or two.
_MOST_STEPS_OF_BLOCK = 64
_MOST_RECORD_BYTES = 2**32 - 1

_Features = Mapping[bytes, tuple[int, int]]  # Key -> where its `Feature` begins and ends.


class StepCountError(ValueError):
    """The features of a record do not fit together as those of an episode; the message is a sentence."""


class Numbers(NamedTuple):
    """A feature of numbers: how many each step has, and whether they are floats or integers."""

    row_size: int
    is_float: bool

    @property
    def steps_of_block(self) -> int:
        """Number of steps whose numbers are one unit."""
        return max(1, min(_MOST_STEPS_OF_BLOCK, _BLOCK_BYTES // (4 * self.row_size)))


@dataclass(frozen=True)
class EpisodeLayout:
    """The features of a record of one dataset.

    A **unit** is read and compared with a checksum at once: values that lie together in a record. The number of a unit
    within the record follows from the number of steps: first come the units of all `values`, then those of all
    `numbers`, then those of `others`.

    Attributes:
        sequence: the feature that holds the steps, for messages.
        values: features that have one value of bytes for each step: each value is a unit.
        numbers: features of numbers, with a fixed shape for each step: floats are packed, 4 bytes each; integers are
            varints of 1 to 10 bytes; the numbers of a few steps are a unit (`Numbers.steps_of_block`).
        others: all other features: those of the whole episode, and sequences within steps (which tf makes
            RaggedTensors of). Each feature is one unit, which is read and decoded whole.
    """

    sequence: str
    values: tuple[str, ...]
    numbers: Mapping[str, Numbers]
    others: tuple[str, ...]

    def num_units(self, num_steps: Int64Array) -> Int64Array:
        """Return how many units records of so many steps have, int64 [n]."""
        total = num_steps * len(self.values) + len(self.others)
        for one in self.numbers.values():
            total = total + -(-num_steps // one.steps_of_block)
        return total

    def first_unit(self, key: str, num_steps: Int64Array) -> Int64Array:
        """Return the first unit of a feature within records of so many steps, int64 [n]."""
        if key in self.values:
            return num_steps * self.values.index(key)
        first = num_steps * len(self.values)
        for name, one in self.numbers.items():
            if name == key:
                return first
            first = first + -(-num_steps // one.steps_of_block)
        return first + self.others.index(key)

    def find_units(self, record: NDArray[np.uint8], units: "array[int]") -> tuple[int, list[int]]:
        """Append offset, length and CRC32C of every unit of a record, uint8 [n].

        Returns:
            The number of steps, and the bytes of each of `values`.

        Raises:
            WireError: the record is not an Example, or has lists that TFDS does not write.
            StepCountError: its features have different numbers of steps.
        """
        if len(record) > _MOST_RECORD_BYTES:
            raise WireError("It is larger than an Example can be.")
        content = record.data  # Reading one byte of it as an int takes a third of the time.
        features = find_features(content)
        counts: dict[str, int] = {}
        sizes: list[int] = []
        for key in self.values:
            bounds = _values_of(content, features, key)
            counts[key] = len(bounds)
            sizes.append(bounds[-1][1] - bounds[0][0] if bounds else 0)
            _append(units, record, bounds)
        for key, one in self.numbers.items():
            counts[key], bounds = _blocks_of(content, features, key, one)
            _append(units, record, bounds)
        if len(set(counts.values())) > 1:
            (first, least), (other, most) = min(counts.items(), key=_count), max(counts.items(), key=_count)
            raise StepCountError(
                f"The features of its {quoted(self.sequence)} have different numbers of steps: {quoted(first)} has "
                f"{least}, {quoted(other)} has {most}."
            )
        _append(units, record, [features.get(key.encode(), (0, 0)) for key in self.others])
        return next(iter(counts.values())), sizes


def _count(item: tuple[str, int]) -> int:
    return item[1]


def _append(units: "array[int]", record: NDArray[np.uint8], bounds: Sequence[tuple[int, int]]) -> None:
    for start, stop in bounds:
        units.extend((start, stop - start, crc32c(record[start:stop])))


def _list_of(record: Encoded, features: _Features, key: str, kind: str) -> tuple[int, int]:
    """Return where the list of a feature begins and ends; the list is empty where the record lacks the feature."""
    found, start, stop = find_list(record, features.get(key.encode(), (0, 0)))
    if found != kind and start < stop:
        raise WireError(f"It holds {found} values instead of {kind} values.")
    return start, stop


def _values_of(record: Encoded, features: _Features, key: str) -> list[tuple[int, int]]:
    """Return where the values of a feature of bytes begin and end."""
    try:
        return find_values(record, *_list_of(record, features, key, "bytes"))
    except WireError as error:
        raise WireError(f"Its feature {quoted(key)}: {error}") from None


def _blocks_of(record: Encoded, features: _Features, key: str, numbers: Numbers) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of steps of a feature of numbers, and where the blocks of its numbers begin and end."""
    try:
        start, stop = find_packed(record, *_list_of(record, features, key, "float" if numbers.is_float else "int64"))
        if numbers.is_float:
            count, rest = divmod(stop - start, 4)
            stops = range(start + 4, stop + 1, 4)
        else:
            stops = (start + varint_stops(record[start:stop])).tolist()
            count, rest = len(stops), int(start < stop and (not stops or stops[-1] != stop))
        if rest:
            raise WireError("Its last number is cut.")
    except WireError as error:
        raise WireError(f"Its feature {quoted(key)}: {error}") from None
    num_steps, rest = divmod(count, numbers.row_size)
    if rest:
        raise StepCountError(f"Its feature {quoted(key)} has {count} numbers, and a step has {numbers.row_size}.")
    ends = list(stops[numbers.row_size * numbers.steps_of_block - 1 :: numbers.row_size * numbers.steps_of_block])
    if count and (not ends or ends[-1] != stop):
        ends.append(stop)
    return num_steps, list(zip([start, *ends], ends, strict=False))
