"""Where the records of TFRecord files lie, and reading them by the examples' index.

One read for each range of neighbours; every record is held against its checksums.
"""

import logging
import os
from dataclasses import dataclass

import numpy as np

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.open_files import OpenFiles, ProcessLock, Stamp, stamp_of
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.tfrecord.framing import (
    FOOTER_SIZE,
    FRAME_SIZE,
    HEADER_SIZE,
    checksum,
    record_header,
    scan_offsets,
)
from tfds_torch.storage.tfrecord.index_file import IndexedShards, open_offsets

_READ_AS_WHOLE_BYTES = 256 << 20
_RANGE_BYTES = 4 << 20  # Neighbours are read together up to here: a batch of them is not held twice.
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
    def open(cls, table: InstructionTable) -> "RecordIndex":
        """Maps the index of a table's files, or builds it; of processes that start together one builds.

        Args:
            table: instructions of one split expression; local TFRecord files.

        Raises:
            ConfigError: a file of another machine.
            ShardError: a file is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
        """
        table.check_local()
        stamps = tuple(stamp_of(shard_status(path)) for path in table.files)
        paths = tuple(os.path.abspath(path) for path in table.files)
        shards = IndexedShards(table.dataset, paths, stamps, table.num_in_file)
        return cls(table, shards, open_offsets(shards) if paths else np.empty(0, np.int64))

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
        offsets = open_offsets(self._shards, lambda stored: np.array_equal(found, stored[place]))
        return RecordIndex(self._table, self._shards, offsets)


class TfrecordReader:
    """Reads examples by index with `pread`, sorted by file and offset, each record once per call.

    A record that is not what the index says may mean that the index is stale: a file was exchanged for one of the same
    size and time. Its file is then scanned, once, before it is called corrupt.

    Processes and threads: may be used by several threads (single reads take turns) and after a fork.

    Args:
        index: of the split.
        verify_checksums: whether the data is held against its CRC32C; the length always is.

    Attributes:
        index: of the split.
        num_read: records whose bytes were read so far.
    """

    def __init__(self, index: RecordIndex, *, verify_checksums: bool = True) -> None:
        self.index = index
        self.num_read = 0
        self._verify = verify_checksums
        self._files = OpenFiles(index.files, index.stamps)
        self._reads_whole_files = sum(size for size, _ in index.stamps) <= _READ_AS_WHOLE_BYTES
        self._is_advised = False
        self._lock = ProcessLock()
        self._scanned: set[int] = set()  # Files that were looked at again.

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """Size in bytes and modification time in ns of each file, when it was indexed."""
        return self.index.stamps

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked.

        Args:
            index: int64 [n], of examples; the same may be asked for twice.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, cannot be opened or read, or has changed since it was indexed.
            CorruptRecordError: a record is not what was written.
            ConfigError: the reader is closed.
        """
        index = np.asarray(index, np.int64)
        while True:
            used = self.index
            try:
                return self._read(used, index)
            except _BadRecordError as error:
                if not self._renew_index(used, error.file):
                    raise self._corrupt(used, error) from None

    def _read(self, used: RecordIndex, index: Int64Array) -> list[bytes]:
        located = used.locate(index)
        places, first, back = unique(located.place)
        found: list[bytes] = []
        ranges = _Ranges(places, located, first)
        for start, stop in ranges.bounds:
            file, begin = ranges.file[start], ranges.offset[start]
            try:
                content = self._files.read(file, begin, ranges.end[stop - 1] - begin)
            except ShardError as error:
                raise type(error)(f"{self._name(int(index[first[len(found)]]))}: {error}") from error
            self.num_read += stop - start
            for number in range(start, stop):
                data, problem = self._take(content, ranges.offset[number] - begin, ranges.end[number] - begin)
                if problem:
                    raise _BadRecordError(int(index[first[number]]), file, problem)
                found.append(data)
        return [found[place] for place in back.tolist()]

    def advise(self, index: Int64Array) -> None:
        """Asks the system to read these examples ahead, one request for each range of neighbours; returns at once.

        Small files are asked for as wholes, once: a request costs more than it gains where the records are small too.

        Args:
            index: int64 [n], of examples.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, cannot be opened, or has changed since it was indexed.
            ConfigError: the reader is closed.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        if self._reads_whole_files:
            self._advise_whole()
            return
        located = self.index.locate(index)
        places, first, _ = unique(located.place)
        ranges = _Ranges(places, located, first)
        for start, stop in ranges.bounds:
            begin = ranges.offset[start]
            self._files.advise(ranges.file[start], begin, ranges.end[stop - 1] - begin)

    def _advise_whole(self) -> None:
        if self._is_advised:
            return
        self._is_advised = True
        for file, (size, _) in enumerate(self.index.stamps):
            self._files.advise(file, 0, size)

    def close(self) -> None:
        """Closes the files; may be called twice."""
        self._files.close()

    def __enter__(self) -> "TfrecordReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _take(self, content: bytes, start: int, end: int) -> tuple[bytes, str]:
        """Returns the data of the record that fills content[start:end], and what is wrong with it, or nothing."""
        if end > len(content):
            return b"", "the file ends inside it: it was cut"
        length = end - start - FRAME_SIZE
        if content[start : start + HEADER_SIZE] != record_header(length):
            return b"", "its header is not the one that was indexed: the file is corrupt"
        data = content[start + HEADER_SIZE : end - FOOTER_SIZE]
        if self._verify and content[end - FOOTER_SIZE : end] != checksum(data):
            return b"", f"its {length} bytes do not have their checksum: the file is corrupt"
        return data, ""

    def _renew_index(self, used: RecordIndex, file: int) -> bool:
        """Looks again at a file with a bad record; returns whether there is another index now than the used one."""
        with self._lock:
            if self.index is not used:  # Another thread was here first.
                return True
            if file in self._scanned or self._files.changed(file):
                return False
            self._scanned.add(file)
            try:
                renewed = used.look_again(file)
            except CorruptRecordError:  # The bad record's own message tells more.
                return False
            if renewed is None:
                return False
            self.index = renewed
            return True

    def _name(self, example: int) -> str:
        return f"example {example} of {self.index.dataset}"

    def _corrupt(self, used: RecordIndex, bad: "_BadRecordError") -> CorruptRecordError:
        located = used.locate(np.array([bad.example], np.int64))
        changed = self._files.changed(bad.file)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._name(bad.example)}: {used.files[bad.file]}: record {located.record[0]} at offset "
            f"{located.offset[0]}: {bad.problem}.{since} Prepare the dataset again."
        )


class _BadRecordError(Exception):
    """A record that is not what was indexed.

    Args:
        example: its index.
        file: position in the index's files.
        problem: what is wrong with it.
    """

    def __init__(self, example: int, file: int, problem: str) -> None:
        super().__init__(problem)
        self.example, self.file, self.problem = example, file, problem


class _Ranges:
    """Distinct records in the order of the disk, in ranges of direct neighbours.

    Attributes:
        file: of each record, position in the index's files.
        offset: of each record's header, in bytes.
        end: of each record, in bytes.
        bounds: first record of each range, and the one after its last.
    """

    def __init__(self, places: Int64Array, located: Located, first: Int64Array) -> None:
        offset = located.offset[first]
        end = offset + located.length[first] + FRAME_SIZE
        apart = (np.diff(places) != 1) | (np.diff(offset // _RANGE_BYTES) != 0)
        starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
        self.file: list[int] = located.file[first].tolist()
        self.offset: list[int] = offset.tolist()
        self.end: list[int] = end.tolist()
        self.bounds = list(zip(starts, [*starts[1:], len(places)], strict=True)) if len(places) else []
