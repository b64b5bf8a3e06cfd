"""Where the records of ArrayRecord objects lie: shard by shard, from its footer, when one of them is first needed."""

import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Thread

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.array_record.footer import are_chunks, find_chunks
from tfds_torch.storage.array_record.riegeli import UnreadChunkError, find_decompress
from tfds_torch.storage.index_cache import DamagedIndexError, IndexCache, index_path
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.object_index import ObjectIndex
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_files import RangeReader
from tfds_torch.storage.shard_scans import Advance

_AT_ONCE = 8  # Shards that are looked at side by side.
Window = tuple[int, Sequence[tuple[int, int]]]
"""Number of a window, and its blocks: position of the file, and number of the block among its cuts."""


@dataclass(frozen=True)
class LocatedChunk:
    """In which chunks examples lie; every field is int64 [n].

    Attributes:
        file: position in `ChunkIndex.files`.
        record: number in its file.
        start: where the chunk begins, in bytes.
        stop: where the next one begins, or what follows the last one.
        position: of the record in its chunk.
        num_records: of the chunk.
        chunk: number of the chunk among all; those that lie one after the other have consecutive numbers.
        place: number of the record among all.
    """

    file: Int64Array
    record: Int64Array
    start: Int64Array
    stop: Int64Array
    position: Int64Array
    num_records: Int64Array
    chunk: Int64Array
    place: Int64Array


class ChunkIndex(ObjectIndex):
    """The index of a split whose shards are ArrayRecord objects; see ObjectIndex.

    Of a shard of which nothing is known, the last 128 KiB are read, and its footer, where that is longer.
    """

    def __init__(self, table: InstructionTable, files: ObjectFiles, block_records: int) -> None:
        super().__init__(table, files, block_records)
        self.decompress = find_decompress(table.dataset)
        self._group = np.ones(len(table.files), np.int64)  # Records of each chunk of a file but the last one.
        self._num_in_file = np.array(table.num_in_file, np.int64)

    def open_files(self) -> RangeReader:
        """Returns a reader of the shards, in blocks of the order."""
        # What is longer than 1 KiB is not compared with its hash: blocks are compared with their checksums.
        return self._store.open(self.files, self.stamps, self.cuts)

    def locate(self, index: Int64Array) -> LocatedChunk:
        """Returns where examples, int64 [n], lie, in the order asked; shards that are unknown yet are looked at.

        Raises:
            ShardError: a shard is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a shard is not an ArrayRecord file, was cut, or its footer is damaged.
            ConfigError: a shard was written with options whose files are not read by URL.
        """
        file, record = self._table.find(index)
        self._need(file)
        group = self._group[file]
        number = record // group
        first = self._first_place[file]
        chunk = first + number
        num_records = np.minimum(group, self._num_in_file[file] - number * group)
        bounds = self._offsets[chunk], self._offsets[chunk + 1]
        return LocatedChunk(file, record, *bounds, record % group, num_records, chunk, first + record)

    def chunks_of(self, file: int) -> tuple[Int64Array, list[int]]:
        """Returns the offsets of a file's chunks and where the last one ends, and how many records each has."""
        self._need(np.array([file], np.int64))
        group, offsets = int(self._group[file]), self._chunks_of(file)
        last = self._table.num_in_file[file] - group * (len(offsets) - 2)
        return offsets, [group] * (len(offsets) - 2) + [last]

    def cuts(self, file: int) -> Int64Array:
        """Returns the offsets at which the blocks of a shard begin, 0 first, its size last; the footer is a block."""
        self._need(np.array([file], np.int64))
        return unique(np.concatenate([self._part_starts(file), self._chunks_of(file)[-1:], self._size_of(file)])).values

    def known_windows(self, schedule: Iterable[Window]) -> Iterator[Window]:
        """Yields windows with their blocks as `cuts` numbers them; shards that are unknown yet are looked at.

        Those of the next window are looked at while one is dealt. A shard that cannot be looked at is left to reading.

        Args:
            schedule: windows whose blocks are numbered as parts of the order.
        """
        coming: Window | None = None
        for following in schedule:
            if coming is not None:
                self._look_at_files(following[1], waits=False)
                yield coming[0], self._known_blocks(coming[1])
            coming = following
        if coming is not None:
            yield coming[0], self._known_blocks(coming[1])

    def _known_blocks(self, parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        self._look_at_files(parts, waits=True)
        return [block for file, part in parts if self._is_known[file] for block in self._blocks_of(file, part)]

    def _look_at_files(self, parts: Sequence[tuple[int, int]], *, waits: bool) -> None:
        missing = [file for file in dict.fromkeys(file for file, _ in parts) if not self._is_known[file]]
        if missing and waits:
            self._look_ahead(missing, _AT_ONCE)
        elif missing:
            arguments = missing, _AT_ONCE
            Thread(target=self._look_ahead, args=arguments, name="tfds_torch-index-ahead", daemon=True).start()

    def _blocks_of(self, file: int, part: int) -> Iterator[tuple[int, int]]:
        """Yields the blocks in which a part of the order lies: one, unless chunks hold records of several parts."""
        starts = unique(self._part_starts(file)).values
        bounds = np.append(self._blocks.bounds(file), self._table.num_in_file[file])
        offsets, group = self._chunks_of(file), int(self._group[file])
        first, last = offsets[bounds[part] // group], offsets[(bounds[part + 1] - 1) // group]
        begin, end = (int(np.searchsorted(starts, offset, side="right")) - 1 for offset in (first, last))
        yield from ((file, block) for block in range(max(0, begin), max(0, end) + 1))

    def _part_starts(self, file: int) -> Int64Array:
        """Returns where the chunks of the first records of the order's parts begin, the first one at 0."""
        bounds, offsets = self._blocks.bounds(file), self._chunks_of(file)
        number = np.where(bounds < self._num_in_file[file], bounds // self._group[file], len(offsets) - 1)
        starts = offsets[number]
        starts[0] = 0
        return starts

    def _chunks_of(self, file: int) -> Int64Array:
        return self._offsets_of(file)[: -(-self._table.num_in_file[file] // int(self._group[file])) + 1]

    def _size_of(self, file: int) -> Int64Array:
        return np.array([self.stamps[file][0]], np.int64)

    def _cache(
        self, file: int, stamp: Stamp, build: Callable[[], Int64Array], name_of: Callable[[str], str] = str
    ) -> IndexCache[Int64Array]:
        url, size, count = self.files[file], stamp[0], self._table.num_in_file[file]

        def decode(content: mmap.mmap | bytes, start: int) -> Int64Array:
            if (len(content) - start) % 8 or len(content) - start < 24:
                raise DamagedIndexError("it does not have the size that belongs to this shard")
            found = np.frombuffer(content, "<i8", offset=start)
            # A forged index must not make a reader take memory, or read outside of the file.
            if not are_chunks(found, size, count):
                raise DamagedIndexError("its offsets cannot be those of this shard")
            return found

        shard = {"dataset": self.dataset, "array_record": [name_of(url), *stamp, count]}
        return IndexCache(
            index_path(self.dataset, [url]),
            self.dataset,
            table=json.dumps(shard).encode(),
            build=build,
            encode=lambda found: [found.astype("<i8", copy=False).tobytes()],
            decode=decode,
        )

    def _find(self, file: int, stamp: Stamp, advance: Advance) -> Int64Array:
        url, count = self.files[file], self._table.num_in_file[file]
        try:
            num_records, found = find_chunks(self._store, url, stamp, self.decompress)
        except UnreadChunkError as error:
            raise unread(self.dataset, url, error) from None
        advance(stamp[0])
        if num_records != count:
            raise wrong_count(url, num_records, count, self.dataset)
        return found

    def _keep(self, file: int, found: Int64Array) -> None:
        self._group[file] = found[0]
        self._chunks_of(file)[:] = found[1:]

    def _note_made(self, file: int, stamp: Stamp) -> None:
        """Does nothing: only the end of the shard was fetched."""

    def _kept(self, file: int) -> Int64Array:
        return np.concatenate([self._group[file : file + 1], self._chunks_of(file)])


def count_object_records(files: ObjectFiles, url: str, dataset: str) -> int:
    """Returns the number of records of an object, which its footer says; for the errors see `ChunkIndex.locate`."""
    try:
        return find_chunks(files, url, files.stamps([url])[0], find_decompress(dataset))[0]
    except UnreadChunkError as error:
        raise unread(dataset, url, error) from None


def unread(dataset: str, url: str, error: UnreadChunkError) -> ConfigError:
    """Returns the error for a file that was written with other options than TFDS's."""
    return ConfigError(
        f"{dataset}: {url} has {error}; by URL, simple chunks are read, uncompressed or compressed by zstd, as TFDS "
        f"writes them. Copy the dataset to this machine, where the package array_record reads it, or convert it."
    )
