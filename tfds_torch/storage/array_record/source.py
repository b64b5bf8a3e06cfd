"""ArrayRecordSource: a split that TFDS stored as ArrayRecord files."""

import os
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.array_record.package import FileReader, find_opener
from tfds_torch.storage.array_record.remote_index import ChunkIndex, count_object_records
from tfds_torch.storage.array_record.remote_reader import RemoteArrayRecordReader
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp, most_open_files, stamp_of
from tfds_torch.storage.record_reader import RecordReader
from tfds_torch.storage.record_source import InstructionTable, RecordSource
from tfds_torch.storage.shard_errors import shard_status, unreadable, wrong_count
from tfds_torch.storage.shard_scans import Advance, open_shard

_MOST_OPEN = 256  # An open file also holds its index and buffers in memory.


class ArrayRecordFilesReader:
    """Reads examples by index with the package `array-record`, each record once per call.

    Processes and threads: may be used by several threads, one at a time. Files are opened by the first read in each
    process; a forked one that inherits the package reads through a process of its own.
    """

    def __init__(self, table: InstructionTable) -> None:
        self._open_file = find_opener(table.dataset)
        self._table = table
        self._table.check_local()
        self.stamps: tuple[Stamp, ...] = tuple(map(_check_there, self._table.files))
        self.num_read = 0
        self._readers: OrderedDict[int, FileReader] = OrderedDict()  # By file, the last used at the end.
        self._lock = ProcessLock()
        self._is_checked = False  # In this process.
        self._closed = False
        self._most = min(_MOST_OPEN, most_open_files())
        _alive.add(self)

    def check(self) -> None:
        """Opens every file, once per process, and compares it with its promised number of records."""
        with self._lock:
            self._check()

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked."""
        if self._closed:
            raise ConfigError(f"The reader of {self._table.dataset} was closed: open another one to read on.")
        index = np.asarray(index, np.int64)
        distinct, _, back = unique(index)
        file, record = self._table.find(distinct)
        found: list[bytes] = [b""] * len(distinct)
        with self._lock:
            self._check()
            for number in unique(file).values.tolist():
                positions = np.flatnonzero(file == number)
                data = self._read_file(number, record[positions].tolist(), distinct[positions].tolist())
                for position, one in zip(positions.tolist(), data, strict=True):
                    found[position] = one
                self.num_read += len(data)
        return [found[place] for place in back.tolist()]

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Returns parts of encoded examples in the order asked; examples are compressed, so each is read whole."""
        distinct, _, back = unique(np.asarray(index, np.int64))
        examples = self.read(distinct)
        bounds = zip(back.tolist(), start.tolist(), stop.tolist(), strict=True)
        return [examples[place][first:last] for place, first, last in bounds]

    def discard(self, index: Int64Array) -> bool:
        """Returns False: a local file holds what it holds."""
        return False

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Does nothing: local files are here."""

    def advise(self, index: Int64Array) -> None:
        """Does nothing: only the package knows where its records lie."""

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Does nothing, as `advise`."""

    def close(self) -> None:
        """Closes the files; may be called twice."""
        self._closed = True
        with self._lock:
            self._readers.clear()

    def __enter__(self) -> "ArrayRecordFilesReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _check(self) -> None:
        if not self._is_checked:
            for number in range(len(self._table.files)):
                self._reader(number)
            self._is_checked = True

    def leave_readers(self) -> None:
        """Forgets the parent's readers in a forked child: ending them would wait for threads that are not here."""
        _inherited.append(self._readers)
        self._readers, self._is_checked = OrderedDict(), False
        self._open_file = find_opener(self._table.dataset)

    def _reader(self, number: int) -> FileReader:
        if number in self._readers:
            self._readers.move_to_end(number)
            return self._readers[number]
        while len(self._readers) >= self._most:
            self._readers.popitem(last=False)
        path = self._table.files[number]
        _check_there(path)
        reader = self._open_file(path)
        found = reader.num_records() if reader.ok() else 0
        if found != self._table.num_in_file[number]:
            # A damaged footer reads as no records at all.
            raise wrong_count(path, found, self._table.num_in_file[number], self._table.dataset)
        self._readers[number] = reader
        return reader

    def _read_file(self, number: int, records: list[int], examples: list[int]) -> list[bytes]:
        try:
            return self._reader(number).read(records)
        except RuntimeError:
            del self._readers[number]
        # One at a time, to find which one it is.
        for record, example in zip(records, examples, strict=True):
            try:
                self._reader(number).read([record])
            except RuntimeError as error:
                del self._readers[number]
                problem = " ".join(str(error).split())
                raise CorruptRecordError(
                    f"example {example} of {self._table.dataset}: {self._table.files[number]}: record {record}: "
                    f"{problem}. The file is corrupt; prepare the dataset again."
                ) from error
        raise ShardError(
            f"The shard file {self._table.files[number]} could not be read at once, but in parts. Try again."
        )


_alive: "weakref.WeakSet[ArrayRecordFilesReader]" = weakref.WeakSet()
_inherited: list[object] = []  # Never dropped.


def _begin_anew() -> None:
    for reader in _alive:
        reader.leave_readers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def count_records(path: str, dataset: str) -> int:
    """Returns the number of records of a local ArrayRecord file; one with a damaged footer has none."""
    _check_there(path)
    reader = find_opener(dataset)(path)
    return reader.num_records() if reader.ok() else 0


def _check_there(path: str) -> Stamp:
    status = shard_status(path)
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise unreadable(path, error) from error
    return stamp_of(status)


class ArrayRecordSource(RecordSource):
    """Examples of ArrayRecord files. Of local ones, their package always verifies the hashes of what it reads."""

    @property
    def _trusts_checksums(self) -> bool:
        return True

    def _open(self) -> RecordReader:
        if isinstance(self.files, ObjectFiles):
            return self._open_remote(self.files)
        reader = ArrayRecordFilesReader(self.table)
        reader.check()
        return reader

    def _open_remote(self, files: ObjectFiles) -> RemoteArrayRecordReader:
        index = ChunkIndex(self.table, files, self.fetched_records)
        return RemoteArrayRecordReader(index, verify_checksums=self.verify_checksums)

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Returns the error for an example whose content cannot be decoded; see `Source`.

        That of an object is compared with its hash first, however long it is.
        """
        reader = self._opened()
        if isinstance(reader, RemoteArrayRecordReader) and reader.is_damaged(index):
            if reader.discard(np.array([index], np.int64)) and not reader.is_damaged(index):
                return CorruptRecordError(
                    f"example {index} of {self.name} was damaged on the way to this machine, and was fetched again: "
                    f"start again. Use https: it notices such damage."
                )
            return reader.corrupt(index, f"its bytes do not have their hash, and cannot be decoded ({reason})")
        return super().undecodable(index, reason)

    def scan(self, path: str, advance: Advance, stamp: Stamp) -> Iterator[NDArray[np.uint8]]:
        """Yields all records of a file; see RecordSource."""
        if isinstance(self.files, ObjectFiles):
            with self._open_remote(self.files) as remote:
                for one in remote.scan(self.files, self.table.files.index(path), advance, stamp):
                    yield np.frombuffer(one, np.uint8)
            return
        with open_shard(path, stamp):
            reader = find_opener(self.name)(path)
            number = reader.num_records() if reader.ok() else 0
            for record in range(number):
                try:
                    (data,) = reader.read([record])
                except RuntimeError as error:
                    raise CorruptRecordError(
                        f"{path}: record {record}: {' '.join(str(error).split())}. The file is corrupt; prepare the "
                        f"dataset again."
                    ) from error
                yield np.frombuffer(data, np.uint8)
                advance(stamp[0] * (record + 1) // number)

    def _count_object(self, files: ObjectFiles, url: str) -> int:
        return count_object_records(files, url, self.name)

    def _count_records(self, path: str) -> int:
        return count_records(path, self.name)

    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Does nothing: these files are not streamed."""
