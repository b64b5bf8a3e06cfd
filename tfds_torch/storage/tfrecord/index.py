"""Where the records of TFRecord files lie: found from their headers once, and kept in a file that all processes map.

The table of the index file is JSON: dataset, and path, size, modification time and number of records of every shard.
Its content is int64 offsets: for each shard those of its records and the shard's size, 8 bytes per example.
"""

import json
import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.index_cache import DamagedIndexError, IndexCache, index_path
from tfds_torch.storage.open_files import Stamp, stamp_of
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.shard_files import LOCAL, RangeReader
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets

_OFFSETS_AT_ONCE = 1 << 17  # Bytes that are written at a time: memory stays small.
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Located:
    """Where examples lie; every field is int64 [n].

    Attributes:
        file: position of the file in `RecordIndex.files`.
        record: number of the record in its file.
        offset: where the record's header begins, in bytes.
        length: size of the data, in bytes.
        place: number of the record among all records of the index; records that lie directly one after the other have
            consecutive places; records of different files never have consecutive places.
    """

    file: Int64Array
    record: Int64Array
    offset: Int64Array
    length: Int64Array
    place: Int64Array


class TfrecordIndex(Protocol):
    """File, offset and length of every example of a split by its number."""

    @property
    def files(self) -> Sequence[str]:
        """Paths or URLs of the files."""

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size in bytes and version of each file."""

    @property
    def dataset(self) -> str:
        """Name of the dataset, for messages."""

    def open_files(self) -> RangeReader:
        """Return a reader of the files as they were indexed."""

    def locate(self, index: Int64Array) -> Located:
        """Return where examples, int64 [n], lie, in the order asked."""

    def known_blocks(self, blocks: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return the blocks, each a file and a number, that can be located without waiting."""

    def look_again(self, file: int) -> "TfrecordIndex | None":
        """Return an index that was built again, where a file is not the indexed one; None where the index is right."""


class RecordIndex:
    """File, offset and length of every example of a split by global index; read-only, and shared by all processes.

    Args:
        table: instructions of one split expression; local files by absolute paths.
        stamps: size in bytes and modification time in ns of each file, when the index was opened.
        offsets: int64, as `find_records` returns them.
    """

    def __init__(self, table: InstructionTable, stamps: tuple[Stamp, ...], offsets: Int64Array) -> None:
        self.files, self.stamps, self.dataset = table.files, stamps, table.dataset
        self._table, self._offsets = table, offsets
        self._first_place = table.first_places

    @classmethod
    def open(cls, table: InstructionTable) -> "RecordIndex":
        """Map the index of a table's files, or build it; where several processes start together, one builds it.

        Raises:
            ConfigError: a file lies on another machine.
            ShardError: a file is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
        """
        table.check_local()
        stamps = tuple(stamp_of(shard_status(path)) for path in table.files)
        cache = offsets_cache(table.dataset, table.files, stamps, table.num_in_file)
        return cls(table, stamps, cache.open() if table.files else np.empty(0, np.int64))

    def open_files(self) -> RangeReader:
        """Return a reader of the files as they were indexed."""
        return LOCAL.open(self.files, self.stamps)

    def __len__(self) -> int:
        """Return the number of examples of the split."""
        return len(self._table)

    def known_blocks(self, blocks: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return all blocks: every file is known."""
        return blocks

    def locate(self, index: Int64Array) -> Located:
        """Return where examples, int64 [n], lie, in the order asked."""
        file, record = self._table.find(index)
        place = self._first_place[file] + record
        offset = self._offsets[place]
        return Located(file, record, offset, self._offsets[place + 1] - offset - FRAME_SIZE, place)

    def look_again(self, file: int) -> "RecordIndex | None":
        """Scan a file in which a record differed from the index, though the file's size and time are the indexed ones.

        Returns:
            An index that was built again; None where this one is right, so that the file is damaged.
        """
        count = self._table.num_in_file[file]
        found = scan_offsets(self.files[file])
        if len(found) - 1 != count:
            raise wrong_count(self.files[file], len(found) - 1, count, self.dataset)
        first = int(self._first_place[file])
        place = slice(first, first + count + 1)
        if np.array_equal(found, self._offsets[place]):
            return None
        _logger.warning(
            "The index of %s is built again: %s was exchanged for a file of the same size and time.",
            self.dataset,
            self.files[file],
        )
        cache = offsets_cache(self.dataset, self.files, self.stamps, self._table.num_in_file)
        # Another process may have built the index again meanwhile.
        offsets = cache.open(lambda stored: np.array_equal(found, stored[place]))
        return RecordIndex(self._table, self.stamps, offsets)


def offsets_cache(
    dataset: str,
    paths: Sequence[str],
    stamps: Sequence[Stamp],
    counts: Sequence[int],
    build: Callable[[], Int64Array] | None = None,
    name_of: Callable[[str], str] = str,
) -> IndexCache[Int64Array]:
    """Return the index file of shards; see `find_records` for the arguments.

    Args:
        dataset: name of the dataset, for messages.
        paths: paths of the shards.
        stamps: size in bytes and version of each shard.
        counts: number of records of each shard.
        build: function that makes the index; None: `find_records`.
        name_of: function: path -> the name of the shard in the index.
    """
    shards = [[name_of(path), *stamp, count] for path, stamp, count in zip(paths, stamps, counts, strict=True)]
    return IndexCache(
        index_path(dataset, paths),
        dataset,
        table=json.dumps({"dataset": dataset, "shards": shards}).encode(),
        build=build or (lambda: find_records(paths, stamps, counts, dataset)),
        encode=_encode,
        decode=lambda content, start: _decode(content, start, stamps, counts),
    )


def find_records(paths: Sequence[str], stamps: Sequence[Stamp], counts: Sequence[int], dataset: str) -> Int64Array:
    """Read the headers of every shard.

    Args:
        paths: local TFRecord files.
        stamps: size in bytes and modification time in ns that each file must have.
        counts: number of records that each file must hold.
        dataset: name of the dataset, for messages.

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


def _encode(offsets: Int64Array) -> Iterator[bytes]:
    for at in range(0, len(offsets), _OFFSETS_AT_ONCE):
        yield offsets[at : at + _OFFSETS_AT_ONCE].astype("<i8", copy=False).tobytes()


def _decode(content: mmap.mmap | bytes, start: int, stamps: Sequence[Stamp], counts: Sequence[int]) -> Int64Array:
    if len(content) - start != 8 * sum(count + 1 for count in counts):
        raise DamagedIndexError("it does not have the size that belongs to these shards")
    offsets = np.frombuffer(content, "<i8", offset=start)
    first = 0
    for (size, _), count in zip(stamps, counts, strict=True):
        own = offsets[first : first + count + 1]
        # A forged index must not make a reader take memory, or read outside of the file.
        if own[0] != 0 or own[-1] != size or (np.diff(own) < FRAME_SIZE).any():
            raise DamagedIndexError("its offsets cannot be those of these shards")
        first += count + 1
    return offsets
