"""Where the records of TFRecord objects lie: shard by shard, each when a record of it is first needed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Thread

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.index_cache import IndexCache
from tfds_torch.storage.object_index import ObjectIndex
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_files import RangeReader
from tfds_torch.storage.shard_scans import Advance
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets
from tfds_torch.storage.tfrecord.index import Located, offsets_cache


class RemoteRecordIndex(ObjectIndex):
    """The index of a split whose shards are TFRecord objects; see ObjectIndex.

    A shard of which nothing is known is fetched, and its headers are read.
    """

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
        self._need(file)
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
            self._store.fetch_ahead([self.files[file] for file in missing], [self.stamps[file] for file in missing])
            Thread(target=self._look_ahead, args=(missing,), name="tfds_torch-index-ahead", daemon=True).start()
        return [(file, block) for file, block in blocks if self._is_known[file]]

    @cached_property
    def _is_cache_small(self) -> bool:
        most = self._store.store.options.max_bytes
        return most is not None and most < self._total_bytes

    @cached_property
    def _total_bytes(self) -> int:
        return sum(size for size, _ in self.stamps)

    def look_again(self, file: int) -> None:
        """Returns None: a shard that was exchanged has another ETag, and is not read."""

    def cuts(self, file: int) -> Int64Array:
        """Returns the offsets at which the blocks of a shard begin, 0 first, its size last."""
        self._need(np.array([file], np.int64))
        offsets = self._offsets_of(file)
        return unique(np.append(offsets[self._blocks.bounds(file)], offsets[-1])).values

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

    def _keep(self, file: int, found: Int64Array) -> None:
        self._offsets_of(file)[:] = found

    def _kept(self, file: int) -> Int64Array:
        return self._offsets_of(file)

    def _note_made(self, file: int, stamp: Stamp) -> None:
        """Makes blocks of what was fetched, where the cache does not hold all."""
        self._store.cut(self.files[file], stamp, self.cuts(file), self._total_bytes)
