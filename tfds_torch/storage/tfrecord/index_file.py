"""The offsets of a split's records: found in its shards once, and kept in an index file.

The table is JSON: dataset, and path, size, modification time and number of records of every shard. The content is
int64 offsets: for each shard those of its records and the shard's size, 8 bytes per example.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.index_cache import (
    DamagedIndexError,
    IndexCache,
    front_bytes,
    index_path,
    map_index,
    store_index,
)
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets

_CHUNK_BYTES = 1 << 20  # Offsets are compared and written piece by piece: memory stays small.


@dataclass(frozen=True)
class IndexedShards:
    """What an index is about.

    Attributes:
        dataset: "name/config:version".
        paths: absolute, of the shards.
        stamps: size and modification time of each.
        counts: number of records of each.
    """

    dataset: str
    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    counts: tuple[int, ...]

    def table(self) -> bytes:
        """Returns the JSON text that says all this."""
        shards = [
            [path, *stamp, count] for path, stamp, count in zip(self.paths, self.stamps, self.counts, strict=True)
        ]
        return json.dumps({"dataset": self.dataset, "shards": shards}).encode()


def open_offsets(shards: IndexedShards, is_right: Callable[[Int64Array], bool] | None = None) -> Int64Array:
    """Returns the offsets from the index file, which is built where there is none that can be used.

    Args:
        shards: what it is about.
        is_right: whether offsets are those of the shards, where more is known than stamps tell.

    Returns:
        As `load_offsets`.

    Raises:
        ShardError, CorruptRecordError: as `find_records`.
    """
    return IndexCache(
        index_path(shards.dataset, shards.paths),
        shards.dataset,
        load=lambda path: load_offsets(path, shards),
        build=lambda: find_records(shards.paths, shards.stamps, shards.counts, shards.dataset),
        store=lambda path, offsets: store_offsets(path, shards, offsets),
        num_bytes=lambda offsets: file_bytes(shards),
    ).open(is_right)


def find_records(paths: Sequence[str], stamps: Sequence[Stamp], counts: Sequence[int], dataset: str) -> Int64Array:
    """Reads the headers of every shard.

    Args:
        paths: local TFRecord files.
        stamps: size in bytes and modification time in ns that each file must have.
        counts: number of records that each file must hold.
        dataset: what the files belong to, for messages.

    Returns:
        int64 [sum of (count + 1)]: for each shard the offsets of its records, and its size.

    Raises:
        ShardError: a file is missing, cannot be read, is not the one of its stamp, or holds another number of records.
        CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
    """

    def scan(place: int, advance: Advance) -> Int64Array:
        offsets = scan_offsets(paths[place], advance, stamps[place])
        if len(offsets) - 1 != counts[place]:
            raise wrong_count(paths[place], len(offsets) - 1, counts[place], dataset)
        return offsets

    found = scan_shards(scan, [size for size, _ in stamps], dataset)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def load_offsets(path: Path, shards: IndexedShards) -> Int64Array:
    """Opens an index file read-only, in memory that all processes share.

    Returns:
        int64 [sum of (count + 1)]: for each shard the offsets of its records, and its size.

    Raises:
        FileNotFoundError: there is none.
        UnusableIndexError: it is about other shards, or these have changed.
        DamagedIndexError: it is damaged, or no index file of this version.
        OSError: it cannot be read.
    """
    content, start = map_index(path, shards.table())
    if len(content) != file_bytes(shards):
        raise DamagedIndexError("it does not have the size that belongs to these shards")
    offsets = np.frombuffer(content, "<i8", offset=start)
    _check_offsets(offsets, shards)
    return offsets


def store_offsets(path: Path, shards: IndexedShards, offsets: Int64Array) -> None:
    """Writes an index file; readers see all of it or what was there before.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    stored, steps = offsets.astype("<i8", copy=False), _CHUNK_BYTES // 8
    store_index(path, shards.table(), (stored[at : at + steps].tobytes() for at in range(0, len(stored), steps)))


def file_bytes(shards: IndexedShards) -> int:
    """Returns the size of the index file of these shards."""
    return front_bytes(shards.table()) + 8 * sum(count + 1 for count in shards.counts)


def _check_offsets(offsets: Int64Array, shards: IndexedShards) -> None:
    """Offsets that could not be a shard's, although they have their checksum, were not written by us."""
    first = 0
    for (size, _), count in zip(shards.stamps, shards.counts, strict=True):
        own = offsets[first : first + count + 1]
        steps = _CHUNK_BYTES // 8
        rising = all(bool((np.diff(own[at : at + steps + 1]) >= FRAME_SIZE).all()) for at in range(0, count, steps))
        if own[0] != 0 or own[-1] != size or not rising:
            raise DamagedIndexError("its offsets cannot be those of these shards")
        first += count + 1
