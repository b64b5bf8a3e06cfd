"""RemoteArrayRecordReader: the records of ArrayRecord objects by number, without the package array_record."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.array_record.remote_index import ChunkIndex, LocatedChunk, Window, unread
from tfds_torch.storage.array_record.riegeli import (
    BadChunkError,
    UnreadChunkError,
    check_data,
    decode_chunks,
    without_block_headers,
)
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ReadRanges, Stamp
from tfds_torch.storage.shard_files import RangeReader, discard_range
from tfds_torch.storage.shard_scans import Advance

_SCANNED_BYTES = 1 << 20  # Of chunks that are decoded at a time.


class RemoteArrayRecordReader:
    """Reads examples by index, sorted by file and offset, each chunk once per call.

    A chunk that is not what was written is fetched once more, before it is called corrupt.

    Processes and threads: may be used by several threads and after a fork.

    Args:
        index: index of the split.
        verify_checksums: whether data of 1 KiB at most is compared with its hash; headers always are.
    """

    def __init__(self, index: ChunkIndex, *, verify_checksums: bool = True) -> None:
        self.index = index
        self.num_read = 0
        self._verify = verify_checksums
        self._files: RangeReader = index.open_files()

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size in bytes and version of each object."""
        return self.index.stamps

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: an object is missing, changed, or cannot be read.
            CorruptRecordError: a record is not what was written.
            ConfigError: the reader is closed, or files were written with options that are not read by URL.
        """
        index = np.asarray(index, np.int64)
        while True:
            try:
                return self._read(index)
            except _BadRecordError as error:
                if not self.discard(np.array([error.example], np.int64)):
                    raise self.corrupt(error.example, error.problem) from None

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Returns parts of encoded examples in the order asked; examples are compressed, so each is read whole."""
        distinct, _, back = unique(np.asarray(index, np.int64))
        examples = self.read(distinct)
        bounds = zip(back.tolist(), start.tolist(), stop.tolist(), strict=True)
        return [examples[place][first:last] for place, first, last in bounds]

    def discard(self, index: Int64Array) -> bool:
        """Takes a damaged example, int64 [1], out of a cache; see RecordReader."""
        located = self.index.locate(index)
        return discard_range(self._files, int(located.file[0]), int(located.start[0]), int(located.stop[0]))

    def is_damaged(self, example: int) -> bool:
        """Returns whether the chunk of an example, however long, does not have its hash."""
        located = self.index.locate(np.array([example], np.int64))
        start, stop = int(located.start[0]), int(located.stop[0])
        content = self._files.read(int(located.file[0]), start, stop - start)
        try:
            check_data([without_block_headers(memoryview(content), start)])
        except BadChunkError:
            return True
        return False

    def follow(self, schedule: Iterable[Window]) -> None:
        """Fetches the blocks of an order's next windows ahead; see RecordReader."""
        self._files.follow(self.index.known_windows(schedule))

    def advise(self, index: Int64Array) -> None:
        """Has examples, int64 [n], read ahead; returns at once."""
        self._files.advise_ranges(lambda: _ranges_of(self.index.locate(index))[0])

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Does the same as `advise`: examples are read whole."""
        self.advise(index)

    def scan(self, files: ObjectFiles, file: int, advance: Advance, stamp: Stamp) -> Iterator[bytes]:
        """Yields all records of an object, which is fetched as a whole.

        Args:
            files: where it lies.
            file: its position among those of the index.
            advance: called with the offset in bytes that was reached, many times.
            stamp: size and version that it must have.

        Raises:
            ShardError: the object is missing, cannot be read, or is not the one of the stamp.
            CorruptRecordError: a record is not what was written.
        """
        url = self.index.files[file]
        offsets, counts = self.index.chunks_of(file)
        bounds = [*np.flatnonzero(np.diff(offsets[:-1] // _SCANNED_BYTES, prepend=-1)).tolist(), len(counts)]
        record = 0
        with files.scan(url, stamp) as content:
            for first, last in pairwise(bounds):
                begin, end = int(offsets[first]), int(offsets[last])
                content.seek(begin)
                chunks = _chunks(content.read(end - begin), begin, offsets[first : last + 1].tolist())
                try:
                    decoded = decode_chunks(
                        chunks, counts[first:last], self.index.decompress, verify_checksums=self._verify
                    )
                except BadChunkError as error:
                    number, at = record + sum(counts[first : first + error.place]), offsets[first + error.place]
                    raise CorruptRecordError(
                        f"{url}: record {number} at offset {at}: {error.problem}: the file is corrupt. "
                        f"Prepare the dataset again."
                    ) from None
                except UnreadChunkError as error:
                    raise unread(self.index.dataset, url, error) from None
                for records in decoded:
                    yield from records
                record += sum(counts[first:last])
                advance(end)
        files.cut(url, stamp, self.index.cuts(file))

    def close(self) -> None:
        """Closes the files; may be called twice."""
        self._files.close()

    def __enter__(self) -> "RemoteArrayRecordReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _read(self, index: Int64Array) -> list[bytes]:
        located = self.index.locate(index)
        ranges, chunk_of = _ranges_of(located)
        chunks: list[memoryview] = []
        contents = self._files.read_all(ranges.spans)
        for first, last in ranges.bounds:
            begin = ranges.start[first]
            try:
                content = next(contents)
            except ShardError as error:
                raise type(error)(f"{self._name(_example_in(index, chunk_of, first))}: {error}") from error
            chunks += _chunks(content, begin, [*ranges.start[first:last], ranges.end[last - 1]])
        num_records = np.zeros(len(chunks), np.int64)
        num_records[chunk_of] = located.num_records
        try:
            decoded = decode_chunks(chunks, num_records.tolist(), self.index.decompress, verify_checksums=self._verify)
        except BadChunkError as error:
            raise _BadRecordError(_example_in(index, chunk_of, error.place), error.problem) from None
        except UnreadChunkError as error:
            raise unread(self.index.dataset, self.index.files[int(located.file[0])], error) from None
        self.num_read += len(unique(located.place).values)
        places = zip(chunk_of.tolist(), located.position.tolist(), strict=True)
        return [decoded[chunk][position] for chunk, position in places]

    def _name(self, example: int) -> str:
        return f"example {example} of {self.index.dataset}"

    def corrupt(self, example: int, problem: str) -> CorruptRecordError:
        """Returns the error for an example that is not what was written; `problem` is a clause."""
        located = self.index.locate(np.array([example], np.int64))
        file = int(located.file[0])
        changed = self._files.changed(file)
        since = f" The file changed since it was indexed: {changed}." if changed else ""
        return CorruptRecordError(
            f"{self._name(example)}: {self.index.files[file]}: record {located.record[0]} at offset "
            f"{located.start[0]}: {problem}: the file is corrupt.{since} Prepare the dataset again."
        )


def _ranges_of(located: LocatedChunk) -> tuple[ReadRanges, Int64Array]:
    """Returns where the chunks of examples lie, each once, in the order of the disk; and which is whose, int64 [n]."""
    _, first, back = unique(located.chunk)
    return ReadRanges(located.file[first], located.start[first], located.stop[first]), back


def _chunks(content: bytes, begin: int, bounds: Sequence[int]) -> list[memoryview]:
    """Returns the chunks between offsets, without block headers, out of the bytes of a file from `begin` on."""
    view = memoryview(content)
    return [without_block_headers(view[start - begin : stop - begin], start) for start, stop in pairwise(bounds)]


def _example_in(index: Int64Array, chunk_of: Int64Array, chunk: int) -> int:
    """Returns the first example that was asked for of a chunk."""
    return int(index[np.argmax(chunk_of == chunk)])


class _BadRecordError(Exception):
    """An example whose chunk is not what was written."""

    def __init__(self, example: int, problem: str) -> None:
        super().__init__(problem)
        self.example, self.problem = example, problem
