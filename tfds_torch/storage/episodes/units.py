"""Reads units of records, each compared with its checksum, and makes columns of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.episodes.layout import Numbers
from tfds_torch.storage.episodes.step_index import StepIndex
from tfds_torch.storage.episodes.wire import read_floats, read_varints, write_example
from tfds_torch.storage.record_source import RecordSource

_crc32c = google_crc32c.value


class BadUnitError(Exception):
    """A unit that does not have its checksum; `position` is its place among the wanted units."""

    def __init__(self, position: int, offset: int, length: int) -> None:
        super().__init__(position, offset, length)
        self.position, self.offset, self.length = position, offset, length


@dataclass(frozen=True)
class UnitRanges:
    """Where units lie: bytes start..stop-1 of an example, int64 [n] each, and their CRC32C, uint32 [n]."""

    example: Int64Array
    start: Int64Array
    stop: Int64Array
    crc: NDArray[np.uint32]


def ranges_of(index: StepIndex, example: Int64Array, units: Int64Array) -> UnitRanges:
    """Return where units, int64 [n], of examples, int64 [n], lie."""
    found = index.units[units]
    start = found[:, 0].astype(np.int64)
    return UnitRanges(example, start, start + found[:, 1], found[:, 2])


def read_units(
    source: RecordSource, index: StepIndex, example: Int64Array, units: Int64Array
) -> tuple[list[bytes], Int64Array]:
    """Read units, each once.

    Args:
        source: the records.
        index: the index of their steps.
        example: int64 [n], the number of each unit's record in the source.
        units: int64 [n], numbers of the units in the index.

    Returns:
        The distinct units, and int64 [n]: the place of each wanted unit among them.

    Raises:
        BadUnitError: a unit does not have its checksum.
        ShardError: a file is missing, changed, or cannot be read.
    """
    distinct, first, back = unique(units)
    ranges = ranges_of(index, example[first], distinct)
    found = source.read_parts(ranges.example, ranges.start, ranges.stop)
    if source.verify_checksums:
        for place, (content, crc) in enumerate(zip(found, ranges.crc.tolist(), strict=True)):
            if _crc32c(content) != crc:
                start, stop = int(ranges.start[place]), int(ranges.stop[place])
                raise BadUnitError(int(first[place]), start, stop - start)
    return found, back


def value_column(found: Sequence[bytes], places: Int64Array, *, has_time: bool) -> list[Any]:
    """Return values of bytes: n values, or n arrays of T objects; `places` is int64 [n, T]."""
    values = [found[place] for place in places.reshape(-1).tolist()]
    if not has_time:
        return values
    column = np.empty(len(values), object)
    column[:] = values
    return list(column.reshape(places.shape))


def number_column(
    found: Sequence[bytes],
    places: Int64Array,
    rows: Int64Array,
    steps_of_unit: Int64Array,
    numbers: Numbers,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Return numbers of steps, [n, T, row_size] of a dtype.

    Args:
        found: bytes of the units.
        places: int64 [n, T], the unit of each step.
        rows: int64 [n, T], the place of each step within its unit.
        steps_of_unit: int64 [n, T], how many steps the unit of each step has.
        numbers: the feature.
        dtype: dtype that the dataset declares.
    """
    distinct, first, back = unique(places.reshape(-1))
    content = b"".join(found[place] for place in distinct.tolist())
    values = (read_floats if numbers.is_float else read_varints)(content).reshape(-1, numbers.row_size)
    counts = steps_of_unit.reshape(-1)[first]
    begins = np.cumsum(counts) - counts
    column: NDArray[Any] = values[begins[back] + rows.reshape(-1)]
    return column.astype(dtype, copy=False).reshape(*places.shape, numbers.row_size)


def examples_of_units(found: Sequence[bytes], places: Int64Array, keys: Sequence[str]) -> Iterable[bytes]:
    """Yield n Examples that have some features only, as they are stored; `places` is int64 [n, number of keys]."""
    names = [key.encode() for key in keys]
    for row in places.tolist():
        features = ((name, found[place]) for name, place in zip(names, row, strict=True))
        yield write_example((name, feature) for name, feature in features if feature)
