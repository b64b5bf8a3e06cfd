"""Where every example of a split lies: built once from the shards' headers, then mapped from the cache folder."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.file_instruction import FileInstruction
from tfds_torch.storage.index_cache import IndexCache, index_path
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets
from tfds_torch.storage.tfrecord.index_builder import find_records
from tfds_torch.storage.tfrecord.index_file import IndexedShards, file_bytes, load_offsets, store_offsets

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Located:
    """Where examples lie; every field is int64 [n].

    Attributes:
        file: position in `RecordIndex.files`.
        record: number in its file.
        offset: of the record's header, in bytes.
        length: of the data, in bytes.
        place: of the record among all records of the index; records that lie directly one after the other have
            consecutive places, and records of different files never have.
    """

    file: Int64Array
    record: Int64Array
    offset: Int64Array
    length: Int64Array
    place: Int64Array


class RecordIndex:
    """For a split: file, offset and length of every example by global index.

    Processes and threads: read-only, and shared by all processes of the machine as pages of one file.

    Attributes:
        files: distinct shard paths, in order of first use.
        stamps: size in bytes and modification time in ns of each, when the index was opened.
        dataset: "name/config:version".
    """

    def __init__(self, table: InstructionTable, shards: IndexedShards, offsets: Int64Array) -> None:
        self.files, self.stamps, self.dataset = table.files, shards.stamps, table.dataset
        self._table, self._shards, self._offsets = table, shards, offsets
        # In the offsets every file has one entry more than records: its size.
        counts = np.array(table.num_in_file, np.int64)
        self._first_place = np.cumsum(counts + 1) - (counts + 1)

    @classmethod
    def open(cls, instructions: Sequence[FileInstruction], dataset: str) -> "RecordIndex":
        """Maps the index of these instructions' files, or builds it; of processes that start together one builds.

        Args:
            instructions: of one split expression, in its order; local TFRecord files.
            dataset: "name/config:version", for messages and as part of the key.

        Raises:
            ConfigError: a file of another machine, or instructions that contradict each other.
            ShardError: a file is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
        """
        return cls.of_table(InstructionTable(instructions, dataset))

    @classmethod
    def of_table(cls, table: InstructionTable) -> "RecordIndex":
        """Does the same for instructions that are in a table already."""
        table.check_local()
        stamps = tuple(stamp_of(shard_status(path)) for path in table.files)
        paths = tuple(os.path.abspath(path) for path in table.files)
        shards = IndexedShards(table.dataset, paths, stamps, table.num_in_file)
        return cls(table, shards, _offsets(shards) if paths else np.empty(0, np.int64))

    def __len__(self) -> int:
        """Number of examples of the split."""
        return len(self._table)

    def locate(self, index: Int64Array) -> Located:
        """Returns where examples lie, in the order asked.

        Args:
            index: int64 [n], of examples, in any order.

        Raises:
            ExampleNotFoundError: an index outside 0..len-1.
        """
        file, record = self._table.find(index)
        place = self._first_place[file] + record
        offset = self._offsets[place]
        return Located(file, record, offset, self._offsets[place + 1] - offset - FRAME_SIZE, place)

    def look_again(self, file: int) -> "RecordIndex | None":
        """Scans a file in which a record was not what the index says, though its size and time are.

        Args:
            file: position in `files`.

        Returns:
            An index that was built again; None where this one is right, so that the file is damaged.

        Raises:
            ShardError: the file, or another one that is then scanned as well, does not hold what is promised of it.
            CorruptRecordError: a length does not have its checksum.
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
        # Another process may have built it again meanwhile.
        offsets = _offsets(self._shards, lambda stored: np.array_equal(found, stored[place]))
        return RecordIndex(self._table, self._shards, offsets)

    @property
    def file_numbers(self) -> Int64Array:
        """int64 [N]: position in `files` of every example's file; allocates."""
        return self._everything().file

    @property
    def offsets(self) -> Int64Array:
        """int64 [N]: offset of every example's header in its file, in bytes; allocates."""
        return self._everything().offset

    @property
    def lengths(self) -> Int64Array:
        """int64 [N]: length of every example's data, in bytes; allocates."""
        return self._everything().length

    def _everything(self) -> Located:
        return self.locate(np.arange(len(self), dtype=np.int64))


def _offsets(shards: IndexedShards, is_right: Callable[[Int64Array], bool] | None = None) -> Int64Array:
    """Returns the offsets from the index file, which is built where there is none that can be used.

    Args:
        shards: what it is about.
        is_right: whether offsets are those of the shards, where more is known than stamps tell.
    """
    return IndexCache(
        index_path(shards.dataset, shards.paths),
        shards.dataset,
        load=lambda path: load_offsets(path, shards),
        build=lambda: _build(shards),
        store=lambda path, offsets: store_offsets(path, shards, offsets),
        num_bytes=lambda offsets: file_bytes(shards),
    ).open(is_right)


def _build(shards: IndexedShards) -> Int64Array:
    return find_records(shards.paths, shards.stamps, shards.counts, shards.dataset)
