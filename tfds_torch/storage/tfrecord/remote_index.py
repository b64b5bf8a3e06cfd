"""Where the records of TFRecord objects lie: shard by shard, each when a record of it is first needed."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from threading import Thread

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.index_cache import IndexCache
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp
from tfds_torch.storage.order_blocks import OrderBlocks
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_files import RangeReader, file_name, read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets
from tfds_torch.storage.tfrecord.index import Located, first_places, offsets_cache


class _NoIndexError(Exception):
    """A shard that must be fetched before its records are known; never leaves this module."""


class RemoteRecordIndex:
    """The index of a split whose shards are objects.

    The offsets of a shard come from its index file in the user's cache folder; where there is none, the shard is
    fetched, its headers are read, and the file is written. Threads may share it; a forked process goes on with it.

    Args:
        table: instructions of one split expression, by URLs.
        files: where the shards lie.
        block_records: neighbouring examples that are fetched together.
    """

    def __init__(self, table: InstructionTable, files: ObjectFiles, block_records: int) -> None:
        self.files, self.dataset = table.files, table.dataset
        self.stamps = files.stamps(table.files)
        self._table, self._store, self._blocks = table, files, OrderBlocks(table, block_records)
        self._first_place = first_places(table)
        # Pages of what no shard has filled take no memory.
        self._offsets = np.empty(sum(table.num_in_file) + len(table.files), np.int64)
        self._is_known = np.zeros(len(table.files), np.bool_)
        self._without_index: set[int] = set()  # Nothing lies beside them, and they were not fetched yet.
        self._lock = ProcessLock()

    def __len__(self) -> int:
        """Number of examples of the split."""
        return len(self._table)

    def open_files(self) -> RangeReader:
        """Returns a reader of the shards, in blocks of the order."""
        return self._store.open(self.files, self.stamps, self.cuts, has_checksums=True)

    def locate(self, index: Int64Array) -> Located:
        """Returns where examples, int64 [n], lie, in the order asked; shards that are unknown yet are looked at.

        Raises:
            ShardError: a shard is missing, cannot be read, or does not hold what `dataset_info.json` promises.
            CorruptRecordError: a shard ends inside a record, or a length does not have its checksum.
        """
        file, record = self._table.find(index)
        is_known = self._is_known[file]
        if not is_known.all():
            self._look_at(unique(file[~is_known]).values)
        place = self._first_place[file] + record
        offset = self._offsets[place]
        return Located(file, record, offset, self._offsets[place + 1] - offset - FRAME_SIZE, place)

    def known_blocks(self, blocks: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Returns those of blocks whose shards have an index; the other shards are looked at meanwhile.

        Where the cache does not hold all shards, they are looked at first, and all blocks are returned: what no window
        has would not stay there until it is read.
        """
        files = np.array(list(dict.fromkeys(file for file, _ in blocks)), np.int64)
        with suppress(TfdsTorchError):  # Reading reports it.
            self._look_at(files, fetches=self._is_cache_small)
        missing = files[~self._is_known[files]].tolist()
        if missing:
            Thread(target=self._look_ahead, args=(missing,), name="tfds_torch-index-ahead", daemon=True).start()
        return [(file, block) for file, block in blocks if self._is_known[file]]

    @cached_property
    def _is_cache_small(self) -> bool:
        most = self._store.store.options.max_bytes
        return most is not None and most < sum(size for size, _ in self.stamps)

    def look_again(self, file: int) -> None:
        """Returns None: a shard that was exchanged has another ETag, and is not read."""

    def cuts(self, file: int) -> Int64Array:
        """Returns the offsets at which the blocks of a shard begin, 0 first, its size last."""
        if not self._is_known[file]:
            self._look_at(np.array([file], np.int64))
        offsets = self._offsets_of(file)
        return unique(np.append(offsets[self._blocks.bounds(file)], offsets[-1])).values

    def _offsets_of(self, file: int) -> Int64Array:
        first = int(self._first_place[file])
        return self._offsets[first : first + self._table.num_in_file[file] + 1]

    def _look_ahead(self, files: Sequence[int]) -> None:
        """Looks at shards, one after the other, so that a reader in a hurry waits for one of them only."""
        with suppress(TfdsTorchError):  # Reading reports it.
            for file in files:
                self._look_at(np.array([file], np.int64))

    def _look_at(self, files: Int64Array, *, fetches: bool = True) -> None:
        """Fills in the offsets of shards; where shards are not to be fetched, only of those that have an index."""
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
        url, count = self.files[file], self._table.num_in_file[file]

        is_scanned = False

        def build() -> Int64Array:
            nonlocal is_scanned
            is_asked = file not in self._without_index
            beside = read_beside(self._store, url, self._beside(file, stamp)) if is_asked else None
            if beside is not None:
                return beside
            self._without_index.add(file)
            if advance is None:
                raise _NoIndexError
            offsets = scan_offsets(url, advance, stamp, self._store)
            if len(offsets) - 1 != count:
                raise wrong_count(url, len(offsets) - 1, count, self.dataset)
            is_scanned = True
            return offsets

        self._offsets_of(file)[:] = offsets_cache(self.dataset, [url], [stamp], [count], build).open()
        self._is_known[file] = True
        if is_scanned:
            self._store.cut(url, stamp, self.cuts(file))

    def to_bytes(self, file: int) -> bytes:
        """Returns the index of a shard as it lies beside it: read by `read_index` of the files."""
        offsets = self._offsets_of(file)
        return self._beside(file, self.stamps[file]).to_bytes(offsets)

    def look_at_one(self, file: int, advance: Advance) -> None:
        """Finds the records of a shard, where they are not known; threads may look at others side by side."""
        if not self._is_known[file]:
            self._look_at_one(file, self.stamps[file], advance)

    def _beside(self, file: int, stamp: Stamp) -> IndexCache[Int64Array]:
        # By name: the shard may be read through another URL, and a copy of all keeps it.
        arguments = [self.files[file]], [stamp], [self._table.num_in_file[file]]
        return offsets_cache(self.dataset, *arguments, name_of=file_name)
