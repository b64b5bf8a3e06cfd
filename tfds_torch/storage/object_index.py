"""ObjectIndex: where the records of shards lie that are objects, each shard when a record of it is first needed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.index_cache import IndexCache
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp
from tfds_torch.storage.order_blocks import OrderBlocks
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_files import file_name, read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards


class _NoIndexError(Exception):
    """A shard whose index must be made from it; never leaves this module."""


class ObjectIndex(ABC):
    """The index of a split whose shards are objects.

    The index of a shard comes from its file in the user's cache folder, or from a file beside the shard; where there is
    none, it is made from the shard, and written to the cache folder. Threads may share it; a forked process goes on
    with it.

    Args:
        table: instructions of one split expression, by URLs.
        files: where the shards lie.
        block_records: neighbouring examples that are fetched together.
    """

    def __init__(self, table: InstructionTable, files: ObjectFiles, block_records: int) -> None:
        self.files, self.dataset = table.files, table.dataset
        self.stamps = files.stamps(table.files)
        self._table, self._store, self._blocks = table, files, OrderBlocks(table, block_records)
        self._first_place = table.first_places
        # Pages of what no shard has filled take no memory.
        self._offsets = np.empty(sum(table.num_in_file) + len(table.files), np.int64)
        self._is_known = np.zeros(len(table.files), np.bool_)
        self._without_index: set[int] = set()  # Nothing lies beside them, and none was made yet.
        self._lock = ProcessLock()

    @abstractmethod
    def cuts(self, file: int) -> Int64Array:
        """Returns the offsets at which the blocks of a shard begin, 0 first, its size last."""

    @abstractmethod
    def _cache(
        self, file: int, stamp: Stamp, build: Callable[[], Int64Array], name_of: Callable[[str], str] = str
    ) -> IndexCache[Int64Array]:
        """Returns the index file of a shard.

        Args:
            file: the shard's position.
            stamp: of the shard.
            build: makes the index.
            name_of: URL -> what names the shard in the index.
        """

    @abstractmethod
    def _find(self, file: int, stamp: Stamp, advance: Advance) -> Int64Array:
        """Returns the index of a shard, int64, from the shard itself, which holds as many records as promised."""

    @abstractmethod
    def _keep(self, file: int, found: Int64Array) -> None:
        """Takes the index of a shard."""

    @abstractmethod
    def _kept(self, file: int) -> Int64Array:
        """Returns the index of a shard that is known, as `_find` does."""

    @abstractmethod
    def _note_made(self, file: int, stamp: Stamp) -> None:
        """Does what follows once the index of a shard was made from the shard."""

    def __len__(self) -> int:
        """Number of examples of the split."""
        return len(self._table)

    def look_at_one(self, file: int, advance: Advance) -> None:
        """Finds the records of a shard, where they are not known; threads may look at others side by side."""
        if not self._is_known[file]:
            self._look_at_one(file, self.stamps[file], advance)

    def to_bytes(self, file: int) -> bytes:
        """Returns the index of a shard as it lies beside it: read by `read_index` of the files."""
        return self._beside(file, self.stamps[file]).to_bytes(self._kept(file))

    def _offsets_of(self, file: int) -> Int64Array:
        """Returns the room for the offsets of a shard: one for each record, and one more."""
        first = int(self._first_place[file])
        return self._offsets[first : first + self._table.num_in_file[file] + 1]

    def _look_ahead(self, files: Sequence[int], at_once: int = 1) -> None:
        """Looks at shards, few at once: a reader in a hurry waits for these only. Errors are left to reading."""
        with suppress(TfdsTorchError):
            for at in range(0, len(files), at_once):
                self._look_at(np.array(files[at : at + at_once], np.int64))

    def _need(self, files: Int64Array) -> None:
        """Looks at those of shards, int64 [n], that are not known yet."""
        is_known = self._is_known[files]
        if not is_known.all():
            self._look_at(unique(files[~is_known]).values)

    def _look_at(self, files: Int64Array, *, fetches: bool = True) -> None:
        """Takes the indices of shards; where shards are not to be fetched, only those that need not be made."""
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

        self._keep(file, self._cache(file, stamp, build).open())
        self._is_known[file] = True
        if is_made:
            self._note_made(file, stamp)

    def _beside(self, file: int, stamp: Stamp) -> IndexCache[Int64Array]:
        # By name: the shard may be read through another URL, and a copy of all keeps it.
        return self._cache(file, stamp, lambda: self._find(file, stamp, lambda _: None), file_name)
