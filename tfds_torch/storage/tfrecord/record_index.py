"""Where every example of a split lies: built once from the shards' headers, then mapped from the cache folder."""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
from filelock import BaseFileLock, FileLock, Timeout

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.file_instruction import FileInstruction
from tfds_torch.storage.instruction_table import InstructionTable
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE, scan_offsets
from tfds_torch.storage.tfrecord.index_builder import find_records
from tfds_torch.storage.tfrecord.index_file import (
    DamagedIndexError,
    IndexedShards,
    UnusableIndexError,
    file_bytes,
    load_offsets,
    store_offsets,
)

_LONG_WAIT_S = 10.0
_LONGEST_WAIT_S = 1800.0
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
    path = _index_path(shards)
    stored = _load(path, shards, say=True)
    if stored is not None and (is_right is None or is_right(stored)):
        return stored
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _wait_for_lock(path, shards)
    except (OSError, NotImplementedError, Timeout) as error:
        _logger.warning(
            "The index of %s cannot be kept in %s (%s): this process builds one of its own, and so will every other.",
            shards.dataset,
            path.parent,
            error,
        )
        return _build(shards)
    try:
        # Another process may have built it while this one waited.
        stored = _load(path, shards, say=False)
        if stored is not None and (is_right is None or is_right(stored)):
            return stored
        return _store(path, shards, _build(shards))
    finally:
        lock.release()


def _index_path(shards: IndexedShards) -> Path:
    key = "\0".join((shards.dataset, *shards.paths)).encode(errors="surrogateescape")
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    return platformdirs.user_cache_path("tfds_torch") / "record_index" / f"{name}.index"


def _load(path: Path, shards: IndexedShards, *, say: bool) -> Int64Array | None:
    try:
        return load_offsets(path, shards)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedIndexError as error:
        level, problem = logging.WARNING, str(error)
    except UnusableIndexError as error:
        level, problem = logging.INFO, str(error)
    except OSError as error:
        level, problem = logging.WARNING, f"it cannot be read: {error.strerror}"
    if say:
        _logger.log(level, "The index %s of %s is built again: %s.", path, shards.dataset, problem)
    return None


def _wait_for_lock(path: Path, shards: IndexedShards) -> BaseFileLock:
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=_LONG_WAIT_S)
    except Timeout:
        _logger.warning(
            "Another process has been indexing %s for %.0f s: waiting for it (lock %s.lock).",
            shards.dataset,
            _LONG_WAIT_S,
            path,
        )
        lock.acquire(timeout=_LONGEST_WAIT_S)
    return lock


def _build(shards: IndexedShards) -> Int64Array:
    sizes = [size for size, _ in shards.stamps]
    return find_records(shards.paths, sizes, shards.counts, shards.dataset)


def _store(path: Path, shards: IndexedShards, offsets: Int64Array) -> Int64Array:
    """Returns the offsets from the file they were written to, or as they are if they could not be written."""
    try:
        store_offsets(path, shards, offsets)
    except OSError as error:
        _logger.warning(
            "The index of %s stays in this process's memory, and others build it again: writing %s failed (%s). It "
            "needs %d bytes, free are %d.",
            shards.dataset,
            path,
            error.strerror,
            file_bytes(shards),
            shutil.disk_usage(path.parent).free,
        )
        return offsets
    stored = _load(path, shards, say=True)
    return offsets if stored is None else stored
