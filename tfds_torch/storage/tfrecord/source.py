"""TfrecordSource: a split that TFDS stored as TFRecord files, and the reader of its records.

One read for each range of neighbours; every record is compared with its checksums.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, ReadRanges, Stamp
from tfds_torch.storage.record_reader import RecordReader
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.shard_files import RangeReader, discard_range
from tfds_torch.storage.shard_scans import Advance
from tfds_torch.storage.source import is_local
from tfds_torch.storage.tfrecord.framing import (
    FOOTER_SIZE,
    FRAME_SIZE,
    HEADER_SIZE,
    checksum,
    count_records,
    record_header,
    scan_records,
)
from tfds_torch.storage.tfrecord.index import Located, RecordIndex, TfrecordIndex
from tfds_torch.storage.tfrecord.remote_index import RemoteRecordIndex
from tfds_torch.storage.tfrecord.shard_counts import check_shards

_GAP_BYTES = 4096  # Gaps between parts of examples: reading them costs less than another call.


class TfrecordSource(RecordSource):
    """Examples of TFRecord files. Opening them builds their index, once for all processes of the machine."""

    @property
    def can_stream(self) -> bool:  # type: ignore[override]
        """Whether tf.data can stream the records: tensorflow must be able to open the files."""
        return self.files.are_streamed(self.table.files)

    def _open(self) -> RecordReader:
        index: TfrecordIndex
        if isinstance(self.files, ObjectFiles):
            index = RemoteRecordIndex(self.table, self.files, self.fetched_records)
        else:
            index = RecordIndex.open(self.table)
        return TfrecordReader(index, verify_checksums=self.verify_checksums)

    def scan(self, path: str, advance: Advance, stamp: Stamp) -> Iterator[NDArray[np.uint8]]:
        """Yield all records of a file; see RecordSource."""
        return scan_records(path, advance, stamp, self.files)

    def _count_records(self, path: str) -> int:
        return count_records(path)

    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Count records without building an index, which only helps where examples are read by number."""
        check_shards({path: n for path, n in num_in_file.items() if is_local(path) and path in streamed}, self.name)


class TfrecordReader:
    """Reads examples by index with `pread`, sorted by file and offset, each record once per call.

    A record that differs from the index may mean that the index is stale: a file was replaced by one of the same
    size and time. The file is then scanned once, before it counts as corrupt.

    Processes and threads: may be used by several threads (single reads take turns) and after a fork.

    Args:
        index: index of the split.
        verify_checksums: whether the data is compared with its CRC32C; the length is always compared.
    """

    def __init__(self, index: TfrecordIndex, *, verify_checksums: bool = True) -> None:
        self.index = index
        self.num_read = 0
        self._verify = verify_checksums
        self._files: RangeReader = index.open_files()
        self._lock = ProcessLock()
        self._scanned: set[int] = set()  # Files that were scanned again.

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size in bytes and version of each file, when it was indexed."""
        return self.index.stamps

    def read(self, index: Int64Array) -> list[bytes]:
        """Return encoded examples in the order asked.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, cannot be opened or read, or has changed since it was indexed.
            CorruptRecordError: a record is damaged.
            ConfigError: the reader is closed.
        """
        index = np.asarray(index, np.int64)
        while True:
            used = self.index
            try:
                return self._read(used, index)
            except _BadRecordError as error:
                if not (self.discard(np.array([error.example])) or self._renew_index(used, error.file)):
                    raise self._corrupt(used, error) from None

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Return parts of encoded examples in the order asked; see RecordReader. Near ones are read together."""
        order, ranges = self._part_ranges(index, start, stop)
        parts: list[bytes] = [b""] * len(order)
        places = order.tolist()
        contents = self._files.read_all(ranges.spans)
        for begin, end in ranges.bounds:
            offset = ranges.start[begin]
            try:
                content = next(contents)
            except ShardError as error:
                raise type(error)(f"{self._name(int(index[places[begin]]))}: {error}") from error
            for number in range(begin, end):
                parts[places[number]] = content[ranges.start[number] - offset : ranges.end[number] - offset]
        return parts

    def discard(self, index: Int64Array) -> bool:
        """Remove a damaged example, int64 [1], from the cache; see RecordReader."""
        located = self.index.locate(index)
        begin = int(located.offset[0])
        return discard_range(self._files, int(located.file[0]), begin, begin + int(located.length[0]) + FRAME_SIZE)

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead; see RecordReader.

        Blocks of shards without an index are left out: these shards are fetched as wholes and indexed meanwhile.
        """
        self._files.follow((window, self.index.known_blocks(blocks)) for window, blocks in schedule)

    def advise(self, index: Int64Array) -> None:
        """Ask the system to read examples, int64 [n], ahead; return at once."""

        def find() -> ReadRanges:
            located = self.index.locate(index)
            return _ranges_of(located, unique(located.place)[1])

        self._files.advise_ranges(find)

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Ask the system to read parts of examples ahead, bytes start..stop-1, int64 [n]."""
        self._files.advise_ranges(lambda: self._part_ranges(index, start, stop)[1])

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._files.close()

    def __enter__(self) -> "TfrecordReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _part_ranges(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> tuple[Int64Array, ReadRanges]:
        """Return the order of parts on the disk, int64 [n], and their ranges in this order."""
        located = self.index.locate(index)
        begin = located.offset + HEADER_SIZE
        first, last = (begin + np.minimum(bound, located.length) for bound in (start, stop))
        order = np.lexsort((first, located.file))
        return order, ReadRanges(located.file[order], first[order], last[order], _GAP_BYTES)

    def _read(self, used: TfrecordIndex, index: Int64Array) -> list[bytes]:
        located = used.locate(index)
        _, first, back = unique(located.place)
        found: list[bytes] = []
        ranges = _ranges_of(located, first)
        contents = self._files.read_all(ranges.spans)
        for start, stop in ranges.bounds:
            file, begin = ranges.file[start], ranges.start[start]
            try:
                content = next(contents)
            except ShardError as error:
                raise type(error)(f"{self._name(int(index[first[len(found)]]))}: {error}") from error
            self.num_read += stop - start
            for number in range(start, stop):
                data, problem = self._take(content, ranges.start[number] - begin, ranges.end[number] - begin)
                if problem:
                    raise _BadRecordError(int(index[first[number]]), file, problem)
                found.append(data)
        return [found[place] for place in back.tolist()]

    def _take(self, content: bytes, start: int, end: int) -> tuple[bytes, str]:
        """Return the data of the record in content[start:end], and the problem with it; "": there is no problem."""
        if end > len(content):
            return b"", "the file ends inside it: it was cut"
        length = end - start - FRAME_SIZE
        if content[start : start + HEADER_SIZE] != record_header(length):
            return b"", "its header is not the one that was indexed: the file is corrupt"
        data = content[start + HEADER_SIZE : end - FOOTER_SIZE]
        if self._verify and content[end - FOOTER_SIZE : end] != checksum(data):
            return b"", f"its {length} bytes do not have their checksum: the file is corrupt"
        return data, ""

    def _renew_index(self, used: TfrecordIndex, file: int) -> bool:
        """Scan a file with a bad record again; return whether there is another index now than the used one."""
        with self._lock:
            if self.index is not used:  # Another thread was here first.
                return True
            if file in self._scanned or self._files.changed(file):
                return False
            self._scanned.add(file)
            try:
                renewed = used.look_again(file)
            except CorruptRecordError:  # The message about the bad record says more.
                return False
            if renewed is None:
                return False
            self.index = renewed
            return True

    def _name(self, example: int) -> str:
        return f"example {example} of {self.index.dataset}"

    def _corrupt(self, used: TfrecordIndex, bad: "_BadRecordError") -> CorruptRecordError:
        located = used.locate(np.array([bad.example], np.int64))
        changed = self._files.changed(bad.file)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._name(bad.example)}: {used.files[bad.file]}: record {located.record[0]} at offset "
            f"{located.offset[0]}: {bad.problem}.{since} Prepare the dataset again."
        )


def _ranges_of(located: Located, first: Int64Array) -> ReadRanges:
    """Return the ranges of distinct records, of which each occurs first at one of these positions."""
    offset = located.offset[first]
    return ReadRanges(located.file[first], offset, offset + located.length[first] + FRAME_SIZE)


class _BadRecordError(Exception):
    """An example whose record differs from the index; `file` is its position in the index's files."""

    def __init__(self, example: int, file: int, problem: str) -> None:
        super().__init__(problem)
        self.example, self.file, self.problem = example, file, problem
