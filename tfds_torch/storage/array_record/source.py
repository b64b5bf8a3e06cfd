"""ArrayRecordSource: a split that TFDS stored as ArrayRecord files."""

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.array_record.package import FileReader, check_reading, find_opener
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp, most_open_files, stamp_of
from tfds_torch.storage.record_reader import RecordReader
from tfds_torch.storage.record_source import InstructionTable, RecordSource
from tfds_torch.storage.remote.plain_files import HeldFile, PlainFiles
from tfds_torch.storage.shard_errors import shard_status, unreadable, wrong_count
from tfds_torch.storage.shard_scans import Advance, open_shard

_MOST_OPEN = 256  # An open file also holds its index and buffers in memory.
_SCANNED_BYTES = 1 << 20  # Bytes of a file that are read at a time.


class ArrayRecordFilesReader:
    """Reads examples by index with the package `array-record`, each record once per call.

    Objects come whole into the cache, and are read there. An object that the package cannot read is fetched once more,
    before an error is raised.

    Processes and threads: may be used by several threads, which read one after the other. Files are opened by the first
    read in each process; a forked process that inherits the package reads through a fresh process.

    Args:
        table: instructions of one split expression.
        objects: where the files lie, if the table's are URLs; None: on this machine.
    """

    def __init__(self, table: InstructionTable, objects: ObjectFiles | None = None) -> None:
        self._table = table
        self._objects: PlainFiles | None = None
        self.stamps: Sequence[Stamp]
        if objects is None:
            self._open_file: Callable[[str], FileReader] | None = find_opener(table.dataset)
            self._table.check_local()
            self.stamps = tuple(map(_check_there, table.files))
        else:
            check_reading(table.dataset)
            self._open_file = None  # A process that does not read needs no package: those it forks can load it.
            self.stamps = objects.stamps(table.files)
            self._objects = objects.open_plain(table.files, self.stamps)
        self.num_read = 0
        self._readers: OrderedDict[int, tuple[HeldFile, FileReader]] = OrderedDict()  # The last used at the end.
        self._lock = ProcessLock()
        self._is_checked = False  # In this process.
        self._closed = False
        self._most = min(_MOST_OPEN, most_open_files())
        _alive.add(self)

    def check(self) -> None:
        """Open every local file, once per process, and compare its number of records with the promised one."""
        with self._lock:
            if not self._is_checked and self._objects is None:
                for number, path in enumerate(self._table.files):
                    self._reader(number, HeldFile(path, ()))
            self._is_checked = True

    def read(self, index: Int64Array) -> list[bytes]:
        """Return encoded examples in the order asked."""
        if self._closed:
            raise ConfigError(f"The reader of {self._table.dataset} was closed: open another one to read on.")
        index = np.asarray(index, np.int64)
        distinct, _, back = unique(index)
        file, record = self._table.find(distinct)
        found: list[bytes] = [b""] * len(distinct)
        self.check()
        files = unique(file).values.tolist()
        if self._objects is not None:
            self._objects.ask_for(files)
        for number in files:
            positions = np.flatnonzero(file == number)
            data = self._read_file(number, record[positions].tolist(), distinct[positions].tolist())
            for position, one in zip(positions.tolist(), data, strict=True):
                found[position] = one
        if self._objects is not None:
            self._objects.count(sum(map(len, found)))
        return [found[place] for place in back.tolist()]

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Return parts of encoded examples in the order asked; examples are compressed, so each is read whole."""
        distinct, _, back = unique(np.asarray(index, np.int64))
        examples = self.read(distinct)
        bounds = zip(back.tolist(), start.tolist(), stop.tolist(), strict=True)
        return [examples[place][first:last] for place, first, last in bounds]

    def discard(self, index: Int64Array) -> bool:
        """Remove the file of a damaged example, int64 [1], from the cache; see RecordReader."""
        return self._discard(int(self._table.find(index)[0][0]))

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the files of an order's next windows ahead, where they are in an object store."""
        if self._objects is not None:
            self._objects.follow((number, [(file, 0) for file, _ in blocks]) for number, blocks in schedule)

    def advise(self, index: Int64Array) -> None:
        """Fetch remote files ahead; in local files only the package knows where records lie."""
        if self._objects is not None:
            self._objects.advise_files(unique(self._table.find(index)[0]).values)

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Do the same as `advise`: examples are read whole."""
        self.advise(index)

    def scan(self, path: str, advance: Advance) -> Iterator[bytes]:
        """Yield all records of an object; `advance` is called with the offset in bytes that was reached."""
        number = self._table.files.index(path)
        count, size = self._table.num_in_file[number], self.stamps[number][0]
        at_once = max(1, _SCANNED_BYTES * count // max(1, size))
        for first in range(0, count, at_once):
            last = min(first + at_once, count)
            yield from self._read_file(number, list(range(first, last)))
            advance(size * last // count)

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._closed = True
        with self._lock:
            self._readers.clear()
        if self._objects is not None:
            self._objects.close()

    def __enter__(self) -> "ArrayRecordFilesReader":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def leave_readers(self) -> None:
        """Forget the parent's readers in a forked child: ending them would wait for threads that are not here."""
        _inherited.append(self._readers)
        self._readers, self._is_checked, self._open_file = OrderedDict(), False, None

    def _held(self, number: int) -> AbstractContextManager[HeldFile]:
        """Return the path of a file on this machine, which is not removed while it is read."""
        if self._objects is not None:
            return self._objects.held(number)
        return nullcontext(HeldFile(self._table.files[number], ()))

    def _reader(self, number: int, file: HeldFile) -> FileReader:
        known = self._readers.get(number)
        if known is not None and known[0] == file:
            self._readers.move_to_end(number)
            return known[1]
        self._readers.pop(number, None)  # The file was removed from the cache, and is there again.
        while len(self._readers) >= self._most:
            self._readers.popitem(last=False)
        _check_there(file.path)
        if self._open_file is None:
            self._open_file = find_opener(self._table.dataset)
        reader = self._open_file(file.path)
        found = reader.num_records() if reader.ok() else 0
        if found != self._table.num_in_file[number]:
            # A damaged footer reads as no records at all.
            raise wrong_count(self._table.files[number], found, self._table.num_in_file[number], self._table.dataset)
        self._readers[number] = file, reader
        return reader

    def _read_file(self, number: int, records: list[int], examples: list[int] | None = None) -> list[bytes]:
        """Return records of a file; `examples` are their numbers in the split, for errors."""
        while True:
            with self._held(number) as file, self._lock:  # It is fetched before the lock is taken.
                try:
                    found = self._reader(number, file).read(records)
                    self.num_read += len(found)
                    return found
                except (RuntimeError, ShardError) as error:
                    self._readers.pop(number, None)
                    problem = error
            if not self._discard(number):
                break
        if isinstance(problem, ShardError):
            raise problem
        # One at a time, to find the damaged record.
        for place, record in enumerate(records):
            with self._held(number) as file, self._lock:
                try:
                    self._reader(number, file).read([record])
                except RuntimeError as error:
                    self._readers.pop(number, None)
                    where = f"example {examples[place]} of {self._table.dataset}: " if examples else ""
                    raise CorruptRecordError(
                        f"{where}{self._table.files[number]}: record {record}: {' '.join(str(error).split())}. The "
                        f"file is corrupt; prepare the dataset again."
                    ) from error
        raise ShardError(
            f"The shard file {self._table.files[number]} could not be read at once, but in parts. Try again."
        )

    def _discard(self, number: int) -> bool:
        """Remove a damaged object from the cache, once, so that it is fetched again; return False for a local file."""
        return self._objects is not None and self._objects.discard_file(number)


_alive: "weakref.WeakSet[ArrayRecordFilesReader]" = weakref.WeakSet()
_inherited: list[object] = []  # Never dropped.


def _begin_anew() -> None:
    for reader in _alive:
        reader.leave_readers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def count_records(path: str, dataset: str) -> int:
    """Return the number of records of a local ArrayRecord file; one with a damaged footer has none."""
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
    """Examples of ArrayRecord files. Their package always verifies the hashes of what it reads."""

    @property
    def _trusts_checksums(self) -> bool:
        return True

    def _open(self) -> RecordReader:
        if isinstance(self.files, ObjectFiles):
            return ArrayRecordFilesReader(self.table, self.files)
        reader = ArrayRecordFilesReader(self.table)
        reader.check()
        return reader

    def scan(self, path: str, advance: Advance, stamp: Stamp) -> Iterator[NDArray[np.uint8]]:
        """Yield all records of a file; see RecordSource."""
        if isinstance(self.files, ObjectFiles):
            with self.files.turn(stamp[0]), ArrayRecordFilesReader(self.table, self.files) as objects:
                for one in objects.scan(path, advance):
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
        objects = files.open_plain([url], files.stamps([url]))
        try:
            with objects.held(0) as file:
                return count_records(file.path, self.name)
        finally:
            objects.close()

    def _count_records(self, path: str) -> int:
        return count_records(path, self.name)

    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Do nothing: these files are not streamed."""
