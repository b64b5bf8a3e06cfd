"""Where the records of TFRecord objects lie: shard by shard, each when a record of it is first needed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.storage.index_cache import IndexCache
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp
from tfds_torch.storage.order_blocks import OrderBlocks
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_files import RangeReader, file_name, read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets
from tfds_torch.storage.tfrecord.index import Located, offsets_cache


class _NoIndexError(Exception):
    """A shard has no index yet, which must be made from it; never leaves this module."""


class RemoteRecordIndex:
    """The index of a split whose shards are TFRecord objects.

    The index of a shard comes from its file in the user's cache folder, or from a file beside the shard; where there is
    none, the shard is fetched, its headers are read, and the index is written to the cache folder. Threads may share
    it; a forked process continues to use it.

    Args:
        table: instructions of one split expression, whose paths are URLs.
        files: access to the shards.
        block_records: number of neighbouring examples that are fetched together.
    """

    def __init__(self, table: InstructionTable, files: ObjectFiles, block_records: int) -> None:
        self.files, self.dataset = table.files, table.dataset
        self.stamps = files.stamps(table.files)
        self._table, self._store, self._blocks = table, files, OrderBlocks(table, block_records)
        self._first_place = table.first_places
        # Pages that no shard has filled take no memory.
        self._offsets = np.empty(sum(table.num_in_file) + len(table.files), np.int64)
        self._is_known = np.zeros(len(table.files), np.bool_)
        self._without_index: set[int] = set()  # No index lies beside them, or was made yet.
        self._lock = ProcessLock()

    def __len__(self) -> int:
        """Return the number of examples of the split."""
        return len(self._table)

    def open_files(self) -> RangeReader:
        """Return a reader of the shards, in blocks of the order."""
        return self._store.open(self.files, self.stamps, self.cuts, has_checksums=True)

    def locate(self, index: Int64Array) -> Located:
        """Return where examples, int64 [n], lie, in the order asked; unknown shards are indexed first.

        Raises:
            ShardError: a shard is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a shard ends inside a record, or a length does not have its checksum.
        """
        file, record = self._table.find(index)
        self._need(file)
        place = self._first_place[file] + record
        offset = self._offsets[place]
        return Located(file, record, offset, self._offsets[place + 1] - offset - FRAME_SIZE, place)

    def known_blocks(self, blocks: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return the blocks whose shards have an index; the other shards are indexed in the background.

        Where the cache cannot hold all shards, they are indexed first, and all blocks are returned: a shard that no
        window has would not stay in the cache until it is read.
        """
        files = np.array(list(dict.fromkeys(file for file, _ in blocks)), np.int64)
        with suppress(TfdsTorchError):  # Reading reports the error.
            self._look_at(files, fetches=self._is_cache_small)
        missing = files[~self._is_known[files]].tolist()
        if missing:
            self._store.fetch_ahead([self.files[file] for file in missing], [self.stamps[file] for file in missing])
            Thread(target=self._look_ahead, args=(missing,), name="tfds_torch-index-ahead", daemon=True).start()
        return [(file, block) for file, block in blocks if self._is_known[file]]

    def look_again(self, file: int) -> None:
        """Return None: a shard that was replaced has another version, and is not read."""

    def cuts(self, file: int) -> Int64Array:
        """Return the offsets at which the blocks of a shard begin, 0 first, its size last."""
        self._need(np.array([file], np.int64))
        offsets = self._offsets_of(file)
        return unique(np.append(offsets[self._blocks.bounds(file)], offsets[-1])).values

    def look_at_one(self, file: int, advance: Advance) -> None:
        """Find the records of a shard, where they are not known; threads may index other shards at the same time."""
        if not self._is_known[file]:
            self._look_at_one(file, self.stamps[file], advance)

    def to_bytes(self, file: int) -> bytes:
        """Return the bytes of the index file beside a shard, which `read_index` of the files reads."""
        return self._beside(file, self.stamps[file]).to_bytes(self._offsets_of(file))

    @cached_property
    def _is_cache_small(self) -> bool:
        most = self._store.store.options.max_bytes
        return most is not None and most < self._total_bytes

    @cached_property
    def _total_bytes(self) -> int:
        return sum(size for size, _ in self.stamps)

    def _offsets_of(self, file: int) -> Int64Array:
        """Return the part of the array for the offsets of a shard: one for each record, and one more."""
        first = int(self._first_place[file])
        return self._offsets[first : first + self._table.num_in_file[file] + 1]

    def _look_ahead(self, files: Sequence[int]) -> None:
        """Index shards one after the other, so that a reader waits for one only. Only reading reports errors."""
        with suppress(TfdsTorchError):
            for file in files:
                self._look_at(np.array([file], np.int64))

    def _need(self, files: Int64Array) -> None:
        """Index the shards, int64 [n], that are not known yet."""
        is_known = self._is_known[files]
        if not is_known.all():
            self._look_at(unique(files[~is_known]).values)

    def _look_at(self, files: Int64Array, *, fetches: bool = True) -> None:
        """Open the indices of shards; where shards must not be fetched, only indices that exist already."""
        with self._lock:
            missing = [file for file in files.tolist() if not self._is_known[file]]
            if not fetches:
                missing = [file for file in missing if file not in self._without_index]
            if not missing:
                return
            self.stamps.look(missing)
            stamps = {file: self.stamps[file] for file in missing}

            def look(place: int, advance: Advance) -> None:
                with suppress(_NoIndexError):
                    self._look_at_one(missing[place], stamps[missing[place]], advance if fetches else None)

            scan_shards(look, [size for size, _ in stamps.values()], self.dataset, self._store.networks)

    def _look_at_one(self, file: int, stamp: Stamp, advance: Advance | None) -> None:
        is_made = False

        def build() -> Int64Array:
            nonlocal is_made
            is_asked = file not in self._without_index
            beside = read_beside(self._store, self.files[file], self._beside(file, stamp)) if is_asked else None
            if beside is not None:
                return beside
            self._without_index.add(file)
            if advance is None:
                raise _NoIndexError
            found = self._find(file, stamp, advance)
            is_made = True
            return found

        self._offsets_of(file)[:] = self._cache(file, stamp, build).open()
        self._is_known[file] = True
        if is_made:  # Cut the fetched shard, where the cache cannot hold all.
            self._store.cut(self.files[file], stamp, self.cuts(file), self._total_bytes)

    def _cache(
        self, file: int, stamp: Stamp, build: Callable[[], Int64Array], name_of: Callable[[str], str] = str
    ) -> IndexCache[Int64Array]:
        shards = [self.files[file]], [stamp], [self._table.num_in_file[file]]
        return offsets_cache(self.dataset, *shards, build, name_of)

    def _find(self, file: int, stamp: Stamp, advance: Advance) -> Int64Array:
        url, count = self.files[file], self._table.num_in_file[file]
        offsets = scan_offsets(url, advance, stamp, self._store)
        if len(offsets) - 1 != count:
            raise wrong_count(url, len(offsets) - 1, count, self.dataset)
        return offsets

    def _beside(self, file: int, stamp: Stamp) -> IndexCache[Int64Array]:
        # By name: the shard may be read through another URL, and copies of all files with their times keep the index.
        return self._cache(file, stamp, lambda: self._find(file, stamp, lambda _: None), file_name)
