"""The index of steps: where the values of every step lie in the records of a split; built once, and kept in a file.

The table of the index file is JSON: dataset and features, and path, size, modification time and number of records of
every shard. Its content, one array behind the other, little-endian: int64, bytes of each feature of bytes in all
records; uint32, steps of every record; and of every unit (see `EpisodeLayout`) offset in the record, length and CRC32C,
uint32 each. That is 12 bytes for each step and feature of bytes, and 12 for 64 steps of seven floats.
"""

import json
import mmap
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.storage.episodes.layout import EpisodeLayout, StepCountError
from tfds_torch.storage.episodes.wire import WireError
from tfds_torch.storage.index_cache import DamagedIndexError, IndexCache, UnusableIndexError, index_path
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_files import LOCAL, ShardFiles, file_name, read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards

Scan = Callable[[str, Advance, Stamp], Iterator[NDArray[np.uint8]]]
"""Function: a shard's path, a function to call with the offset reached, and the shard's stamp -> its verified records.
Each record is uint8 [n], and valid until the next is asked for."""

_FORMAT = "steps 1"
_UNITS_AT_ONCE = 1 << 17  # Bytes that are written at a time: memory stays small.


@dataclass(frozen=True)
class StepIndex:
    """The steps of the records of some shards, N records of U units.

    Attributes:
        layout: the features of a record.
        value_bytes: int64 [number of `layout.values`], bytes of each feature in all records.
        num_steps: uint32 [N], steps of each record.
        units: uint32 [U, 3]: offset in the record (bytes), length (bytes) and CRC32C of each unit.
    """

    layout: EpisodeLayout
    value_bytes: Int64Array
    num_steps: NDArray[np.uint32]
    units: NDArray[np.uint32]

    @cached_property
    def _counts(self) -> Int64Array:
        return self.layout.num_units(self.num_steps.astype(np.int64))

    @cached_property
    def _first(self) -> Int64Array:
        """First unit of each record, int64 [N]."""
        return np.cumsum(self._counts) - self._counts

    @property
    def num_units(self) -> int:
        """Number of units that records with these steps have."""
        return int(self._counts.sum())

    def first_units(self, key: str, record: Int64Array) -> Int64Array:
        """Return the first unit of a feature of records, int64 [n]."""
        return self._first[record] + self.layout.first_unit(key, self.num_steps[record].astype(np.int64))


def open_step_index(
    layout: EpisodeLayout,
    dataset: str,
    paths: Sequence[str],
    stamps: Sequence[Stamp],
    counts: Sequence[int],
    scan: Scan,
    files: ShardFiles = LOCAL,
) -> StepIndex:
    """Map the index of shards, or build it; where several processes start together, one builds it.

    Args:
        layout: the features of a record.
        dataset: name of the dataset, for messages.
        paths: local files, or URLs.
        stamps: size in bytes and version of each shard.
        counts: number of records that each shard must hold.
        scan: reads the records of a shard, with their checksums.
        files: where the shards lie.

    Raises:
        ShardError: a shard is missing, changed, or holds another number of records.
        CorruptRecordError: a record does not have its checksum, or is not an episode of these features.
    """

    def find(place: int, advance: Advance) -> StepIndex:
        beside = steps_beside(layout, dataset, paths[place], stamps[place], counts[place])
        found = read_beside(files, paths[place], beside, kind_of(layout))
        if found is not None:
            return found
        return scan_steps(layout, dataset, paths[place], stamps[place], counts[place], scan, advance)

    return IndexCache(
        index_path(f"{_FORMAT} {layout.sequence} {dataset}", paths),
        dataset,
        table=_table(layout, dataset, paths, stamps, counts),
        build=lambda: _join(layout, scan_shards(find, [size for size, _ in stamps], dataset, files.networks)),
        encode=_encode,
        decode=lambda content, start: _decode(layout, content, start, sum(counts)),
    ).open()


def kind_of(layout: EpisodeLayout) -> str:
    """Return the kind of an index that lies beside a shard: the file is named after the sequence."""
    return "of-" + re.sub("[^A-Za-z0-9_-]", "-", layout.sequence)


def steps_beside(layout: EpisodeLayout, dataset: str, path: str, stamp: Stamp, count: int) -> IndexCache[StepIndex]:
    """Return the index file that lies beside a shard; it names the shard by its file name alone."""
    name = file_name(path)

    def build() -> StepIndex:
        raise UnusableIndexError("it is read, not built")

    return IndexCache(
        Path(name),
        dataset,
        table=_table(layout, dataset, [name], [stamp], [count]),
        build=build,
        encode=_encode,
        decode=lambda content, start: _decode(layout, content, start, count),
    )


def scan_steps(
    layout: EpisodeLayout, dataset: str, path: str, stamp: Stamp, count: int, scan: Scan, advance: Advance
) -> StepIndex:
    """Read all records of a shard, and return its index; see `open_step_index`."""
    found = _scan_shard(layout, path, scan(path, advance, stamp))
    if len(found.num_steps) != count:
        raise wrong_count(path, len(found.num_steps), count, dataset)
    return found


def _table(
    layout: EpisodeLayout, dataset: str, names: Sequence[str], stamps: Sequence[Stamp], counts: Sequence[int]
) -> bytes:
    """Return the text that says which shards and features an index is about."""
    shards = [[name, *stamp, count] for name, stamp, count in zip(names, stamps, counts, strict=True)]
    features = {
        "values": layout.values,
        "numbers": {key: [*one, one.steps_of_block] for key, one in layout.numbers.items()},
        "others": layout.others,
    }
    return json.dumps({"format": _FORMAT, "dataset": dataset, "features": features, "shards": shards}).encode()


def _scan_shard(layout: EpisodeLayout, path: str, records: Iterator[NDArray[np.uint8]]) -> StepIndex:
    steps, units = array("I"), array("I")
    value_bytes = np.zeros(len(layout.values), np.int64)
    for number, record in enumerate(records):
        try:
            num_steps, sizes = layout.find_units(record, units)
        except (WireError, StepCountError) as error:
            raise CorruptRecordError(
                f"{path}: record {number} is not an episode that can be read step by step, though its checksum is "
                f"right: it was written that way. {error}"
            ) from None
        steps.append(num_steps)
        value_bytes += np.array(sizes, np.int64)
    return StepIndex(layout, value_bytes, np.frombuffer(steps, np.uint32), _in_rows(np.frombuffer(units, np.uint32)))


def _join(layout: EpisodeLayout, parts: list[StepIndex]) -> StepIndex:
    """Return the index of all shards; take their parts one by one, so that the units are not in memory twice."""
    value_bytes = np.sum([np.zeros(len(layout.values), np.int64), *(part.value_bytes for part in parts)], axis=0)
    num_steps = np.concatenate([np.empty(0, np.uint32), *(part.num_steps for part in parts)])
    units = np.empty((sum(len(part.units) for part in parts), 3), np.uint32)
    stop = len(units)
    while parts:
        own = parts.pop().units
        units[stop - len(own) : stop] = own
        stop -= len(own)
    return StepIndex(layout, value_bytes, num_steps, units)


def _encode(index: StepIndex) -> Iterator[bytes]:
    yield index.value_bytes.astype("<i8").tobytes()
    yield index.num_steps.astype("<u4").tobytes()
    for at in range(0, len(index.units), _UNITS_AT_ONCE):
        yield index.units[at : at + _UNITS_AT_ONCE].astype("<u4", copy=False).tobytes()


def _decode(layout: EpisodeLayout, content: mmap.mmap | bytes, start: int, num_records: int) -> StepIndex:
    steps_at = start + 8 * len(layout.values)
    units_at = steps_at + 4 * num_records
    if units_at > len(content) or (len(content) - units_at) % 12:
        raise DamagedIndexError("it does not have the size that belongs to these shards")
    index = StepIndex(
        layout,
        np.frombuffer(content, "<i8", len(layout.values), start),
        np.frombuffer(content, "<u4", num_records, steps_at),
        _in_rows(np.frombuffer(content, "<u4", offset=units_at)),
    )
    # A forged index must not make a reader take memory, or read outside of a record: readers check the offsets.
    if index.num_units != len(index.units):
        raise DamagedIndexError("its units are not those of its steps")
    return index


def _in_rows(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return values.reshape(-1, 3)
