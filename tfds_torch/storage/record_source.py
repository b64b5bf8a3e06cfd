"""Sources whose records are `tf.train.Example`s in shard files, and the table that finds the record of an example."""

import copy
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.storage.example import BadExampleError, ExampleReader
from tfds_torch.storage.network import Network
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.open_files import ProcessLock, Stamp, stamp_of
from tfds_torch.storage.order_blocks import OrderBlocks
from tfds_torch.storage.record_reader import RecordReader
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.shard_files import LOCAL, ShardFiles, file_name, schedule_of
from tfds_torch.storage.shard_scans import Advance
from tfds_torch.storage.source import (
    Columns,
    FieldSpec,
    FileInstruction,
    LazyIds,
    is_local,
    not_found,
    such_as,
)

_SIDE_BY_SIDE = 8
_ID = re.compile(r"(.*)__(0|[1-9][0-9]{0,17})", re.DOTALL)


class InstructionTable:
    """File instructions, flattened: example i is the i-th record of them all.

    Attributes:
        files: distinct files, in order of first use.
        num_in_file: number of records that each file holds according to `dataset_info.json`.
    """

    def __init__(self, instructions: Sequence[FileInstruction], dataset: str) -> None:
        self.dataset = dataset
        counts: dict[str, int] = {}
        first = 0
        for item in instructions:
            promised = counts.setdefault(item.path, item.num_in_shard)
            whole = min(item.skip, item.take) >= 0 and item.skip + item.take <= item.num_in_shard
            if not whole or promised != item.num_in_shard or item.first_index != first:
                raise ConfigError(
                    f"{dataset}: {item} does not continue the instructions before it, or leaves its file: "
                    f"its first_index must be {first}, and its records must lie among the {promised} of the shard."
                )
            first += item.take
        self.files, self.num_in_file = tuple(counts), tuple(counts.values())
        self.num_examples = first
        number = {path: place for place, path in enumerate(self.files)}
        self._file = np.array([number[item.path] for item in instructions], np.int64)
        self._first = np.array([item.first_index for item in instructions], np.int64)
        self._skip = np.array([item.skip for item in instructions], np.int64)
        self._take = np.array([item.take for item in instructions], np.int64)

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.num_examples

    @property
    def first_places(self) -> Int64Array:
        """Place of each file's first record among all records, int64; the end of a file counts as one more record."""
        counts = np.array(self.num_in_file, np.int64)
        return np.cumsum(counts + 1) - (counts + 1)

    def check_local(self) -> None:
        """Raise ConfigError unless every file lies on this machine."""
        remote = next((path for path in self.files if not is_local(path)), None)
        if remote is not None:
            raise ConfigError(
                f"{self.dataset}: {remote} is not a file of this machine, and examples can be read by their index "
                f"from local files only. Copy the dataset to a local folder."
            )

    def parts_of(self, file: int) -> list[tuple[int, int, int]]:
        """Return (first example, first record, number of records) of each instruction of a file."""
        places = np.flatnonzero(self._file == file)
        first, skip, take = (column[places].tolist() for column in (self._first, self._skip, self._take))
        return list(zip(first, skip, take, strict=True))

    def find(self, index: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return int64 [n] positions in `files` and int64 [n] record numbers in these files.

        Raises:
            ExampleNotFoundError: an index outside 0..len-1.
        """
        index = np.asarray(index, np.int64)
        outside = (index < 0) | (index >= self.num_examples)
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.dataset} has no example {index[outside][0]} here: the split has {self.num_examples} examples, "
                f"counted from 0."
            )
        if not len(index):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # The last instruction that begins at or before the example; instructions without records are passed over.
        place = np.searchsorted(self._first, index, side="right") - 1
        return self._file[place], self._skip[place] + index - self._first[place]


class RecordSource(ABC):
    """A `Source` of shard files.

    Args:
        name: `name/config:version`.
        instructions: instructions of one split expression, in its order; none of them is empty.
        specs: key of a feature -> shape and dtype of its values.
        mean_example_bytes: mean size of an encoded example, in bytes.
        empty_files: shards of the split that hold no example according to `dataset_info.json`.
        verify_checksums: whether the data of records is compared with its checksum, where that takes extra time.
        files: where the files lie. Examples of URLs among local files can only be streamed.
        folders: folders of a dataset that lies in several, in order; ids are then `<number>/<shard file>__<record>`.
        labels: key of a feature of labels -> for each folder, the labels that its 0, 1, ... stand for; None where
            a folder has the labels of the first one.
    """

    has_shards = True
    is_one_threaded = False
    can_stream = False

    def __init__(
        self,
        name: str,
        instructions: Sequence[FileInstruction],
        specs: Mapping[str, FieldSpec],
        *,
        mean_example_bytes: int,
        empty_files: Sequence[str] = (),
        verify_checksums: bool = True,
        files: ShardFiles = LOCAL,
        folders: Sequence[str] = (),
        labels: Mapping[str, Sequence[Int64Array | None]] = MappingProxyType({}),
    ) -> None:
        self.name, self.specs, self.files = name, specs, files
        self._folders = tuple(f"{_absolute(folder).rstrip('/')}/" for folder in folders)
        self._labels = dict(labels)
        self.instructions = tuple(map(_with_absolute_path, instructions))
        self.mean_example_bytes = mean_example_bytes
        self.verify_checksums = verify_checksums
        self.empty_files = tuple(map(_absolute, empty_files))
        self.table = InstructionTable(self.instructions, name)
        self._blocks_of_order: int | None = None
        self._examples = ExampleReader(specs)
        self._reader: RecordReader | None = None
        self._seen_empty: dict[str, Stamp] = {}
        self._lock = ProcessLock()

    @abstractmethod
    def _open(self) -> RecordReader:
        """Open the files for reading by number, and compare them with the promised numbers of records."""

    @abstractmethod
    def scan(self, path: str, advance: Advance, stamp: Stamp) -> Iterator[NDArray[np.uint8]]:
        """Yield all records of a file, uint8 [n], each compared with its checksum.

        A record is valid until the next one is asked for.

        Args:
            path: one of the table's files.
            advance: function that is called after every record, with the offset in bytes that was reached.
            stamp: size in bytes and modification time in ns that the file must have.

        Raises:
            ShardError: the file is missing, cannot be read, or is not the one of the stamp.
            CorruptRecordError: a record is damaged.
        """

    @abstractmethod
    def _count_records(self, path: str) -> int:
        """Return the number of records of a local file."""

    @property
    def _trusts_checksums(self) -> bool:
        """Whether the checksum of every record was verified before it is parsed."""
        return self.verify_checksums

    def __len__(self) -> int:
        return len(self.table)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_reader": None, "_seen_empty": {}}
        for derived in ("_file_names", "_instructions_of", "_folder_of_file"):
            state.pop(derived, None)
        return state

    def with_checksums(self, verify_checksums: bool) -> "RecordSource":
        """Return a copy of this source, with checksums verified or not. The copy opens its own files."""
        other = self._unopened_copy()
        other.verify_checksums = verify_checksums
        return other

    @property
    def networks(self) -> Collection[Network]:
        """The networks over which remote files come; see `Source`."""
        return self.files.networks

    @property
    def block_records(self) -> int | None:
        """Number of neighbouring examples that are best read together; see `Source`."""
        return self.files.block_records(self.mean_example_bytes)

    def in_blocks(self, block_records: int | None) -> "RecordSource":
        """Return this source, read in an order of such blocks; see `Source`."""
        if self.files.are_local or block_records == self._blocks_of_order:
            return self
        other = self._unopened_copy()
        other._blocks_of_order = block_records
        return other

    def _unopened_copy(self) -> "RecordSource":
        """Return a copy that, like a pickled source, has no open files; it shares no lock with this source."""
        other = copy.copy(self)
        other._lock = ProcessLock()
        return other

    @property
    def fetched_records(self) -> int:
        """Number of neighbouring examples that are fetched together, where files are remote."""
        return self._blocks_of_order or self.block_records or 1

    @property
    def identity(self) -> object:
        """Names of the files, which of how many records are read, and the meaning of labels where folders differ."""
        files = [(self._name_of(item.path), item.skip, item.take, item.num_in_shard) for item in self.instructions]
        if not self._labels:
            return files
        labels = {
            key: [None if numbering is None else numbering.tolist() for numbering in of_folders]
            for key, of_folders in self._labels.items()
        }
        return files, labels

    @property
    def copies_labels(self) -> bool:
        """Whether records hold the labels that `read` returns: false where folders number their classes differently."""
        return not self._labels

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size and time of each file."""
        return list(self.files.stamps(self.table.files))

    @property
    def obstacle(self) -> str | None:
        """Why examples cannot be read by number: a file is remote, and no store of it was opened."""
        return self.files.obstacle(self.table.files)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Compare local files, and objects that must be empty, with the promised numbers of records; see `Source`."""
        for path in filter(is_local, self.empty_files):
            self._check_empty(path)
        if isinstance(self.files, ObjectFiles) and self.obstacle is None:
            self._check_empty_objects(self.files)
        if streamed is not None:
            self._check_streamed(dict(zip(self.table.files, self.table.num_in_file, strict=True)), set(streamed))
        elif self.obstacle is None:
            with self._lock:
                # Objects are compared with their stamps whenever a part of them is fetched.
                if self._reader and self.files.are_local and self._reader.stamps != tuple(self.stamps):
                    self._reader = None  # Threads may still read with it; its files are closed when it is freed.
                if self._reader is None:
                    self._reader = self._open()

    @abstractmethod
    def _check_streamed(self, num_in_file: Mapping[str, int], streamed: Collection[str]) -> None:
        """Compare the files that will be streamed with their numbers of records; called where `can_stream` is true."""

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of examples in the order asked; see `Source`."""
        index = np.asarray(index, np.int64)
        return self.parse(self.records(index), index, fields)

    def records(self, index: Int64Array) -> list[bytes]:
        """Return whole encoded examples in the order asked, for comparison with another reader."""
        return self._opened().read(np.asarray(index, np.int64))

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Return parts of encoded examples in the order asked, for the caller to compare; see RecordReader."""
        return self._opened().read_parts(index, start, stop)

    def discard(self, index: Int64Array) -> bool:
        """Remove a damaged example, int64 [1], from the cache, once; return whether reading it again may help."""
        return self._opened().discard(index)

    def parse(self, records: Sequence[bytes], index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return the encoded values of records that were read elsewhere; see `Source`."""
        try:
            columns = self._examples.read(records, fields)
        except BadExampleError as error:
            raise self.undecodable(int(index[error.position]), error.reason) from None
        relabelled = {key: self._relabel(key, columns[key], index) for key in self._labels.keys() & columns.keys()}
        return {**columns, **relabelled} if relabelled else columns

    def _relabel(self, key: str, labels: Any, index: Int64Array) -> Any:
        """Return labels of examples, an array [n] or n arrays, in the numbering of the first folder."""
        files, _ = self.table.find(index)
        folders, numberings = self._folder_of_file[files], self._labels[key]
        if not isinstance(labels, np.ndarray) or labels.dtype == object:
            return [_renumber(one, numberings[folder]) for one, folder in zip(labels, folders.tolist(), strict=True)]
        renumbered = labels.copy()
        for folder in np.unique(folders).tolist():
            here = folders == folder
            renumbered[here] = _renumber(labels[here], numberings[folder])
        return renumbered

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Fetch the blocks of an order's next windows ahead; see `Source`."""
        if not self.files.are_local:
            blocks = OrderBlocks(self.table, self.fetched_records)
            self._opened().follow(schedule_of(windows, blocks.of))

    def announce(self, index: Int64Array) -> None:
        """Ask the system to read examples ahead; only reading reports errors."""
        with suppress(ShardError):
            self._opened().advise(np.asarray(index, np.int64))

    def announce_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Ask the system to read parts of examples ahead; only reading reports errors."""
        with suppress(ShardError):
            self._opened().advise_parts(index, start, stop)

    def ids(self, index: Int64Array) -> LazyIds:
        """Return TFDS's ids, `<shard file>__<record>`."""
        return LazyIds(self._name_records, np.asarray(index, np.int64))

    def find(self, id: str) -> int:
        """Return the number of the example that has an id; the first number where a split has the id twice."""
        match = _ID.fullmatch(id)
        if match is None:
            raise not_found(self, id, f"ids have the form '<shard file>__<record>'{such_as(self)}.")
        shard, record = match[1], int(match[2])
        of_shard = self._instructions_of.get(shard, [])
        for item in of_shard:
            if item.skip <= record < item.skip + item.take:
                return item.first_index + record - item.skip
        if not of_shard:
            hint = did_you_mean(shard, self._instructions_of)
            raise not_found(self, id, f"the split has no example of a shard with this name.{hint}")
        parts = ", ".join(f"{item.skip} to {item.skip + item.take - 1}" for item in of_shard)
        raise not_found(self, id, f"the split has the records {parts} of this shard.")

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for an example whose content cannot be decoded; see `Source`."""
        files, records = self.table.find(np.array([index], np.int64))
        path, record = self.table.files[int(files[0])], int(records[0])
        cause = (
            ", though its checksum is right: it was written that way."
            if self._trusts_checksums
            else ". Its checksum was not verified (verify_checksums=False): it was written that way, or is damaged."
        )
        return CorruptRecordError(
            f"{path}: record {record} (index {index}, id {self._name_of(path)}__{record}) of {self.name} cannot be "
            f"decoded{cause} {reason}"
        )

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _opened(self) -> RecordReader:
        reader = self._reader
        if reader is None:
            with self._lock:
                reader = self._reader = self._reader or self._open()
        return reader

    def _check_empty(self, path: str) -> None:
        if not os.path.lexists(path):  # TFDS may leave out the file.
            return
        stamp = stamp_of(shard_status(path))
        if self._seen_empty.get(path) == stamp:
            return
        found = self._count_records(path) if stamp[0] else 0
        if found:
            raise wrong_count(path, found, 0, self.name)
        self._seen_empty[path] = stamp

    def _check_empty_objects(self, files: ObjectFiles) -> None:
        """Check objects that must be empty, side by side and once; such an object may be missing, like a local file."""
        unseen = [url for url in self.empty_files if url not in self._seen_empty]
        if not unseen:
            return
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(unseen)), "tfds_torch-empty") as threads:
            for url, content in zip(unseen, threads.map(files.store.read_small, unseen), strict=True):
                if content:
                    found = self._count_object(files, url)
                    if found:
                        raise wrong_count(url, found, 0, self.name)
                self._seen_empty[url] = (0, 0)  # Any stamp: it is not looked at again.

    def _count_object(self, files: ObjectFiles, url: str) -> int:
        """Return how many records an object holds that is not part of the split."""
        return sum(1 for _ in self.scan(url, lambda _: None, files.stamps([url])[0]))

    def _name_records(self, index: Int64Array) -> list[str]:
        files, records = self.table.find(index)
        names = self._file_names
        return [f"{names[file]}__{record}" for file, record in zip(files.tolist(), records.tolist(), strict=True)]

    @cached_property
    def _file_names(self) -> list[str]:
        return [self._name_of(path) for path in self.table.files]

    @cached_property
    def _folder_of_file(self) -> Int64Array:
        """Position of each file's folder among the folders of the dataset."""
        return np.array([self._folder_of(path) for path in self.table.files], np.int64)

    def _folder_of(self, path: str) -> int:
        return next(number for number, folder in enumerate(self._folders) if path.startswith(folder))

    def _name_of(self, path: str) -> str:
        """Return the part of ids that names a file."""
        return f"{self._folder_of(path)}/{file_name(path)}" if self._folders else file_name(path)

    @cached_property
    def _instructions_of(self) -> dict[str, list[FileInstruction]]:
        found: dict[str, list[FileInstruction]] = {}
        for item in self.instructions:
            found.setdefault(self._name_of(item.path), []).append(item)
        return found


def _renumber(labels: Any, numbering: Int64Array | None) -> Any:
    """Return the labels of the dataset for a folder's labels, a number or an array; TFDS's label for none stays.

    Args:
        labels: labels of examples of the folder.
        numbering: the dataset's labels for 0, 1, ... of the folder; None: they are the same.
    """
    if numbering is None:
        return labels
    is_known = (labels >= 0) & (labels < len(numbering))  # The field that checks labels reports unknown ones.
    return np.where(is_known, numbering[np.where(is_known, labels, 0)], labels)


def _with_absolute_path(item: FileInstruction) -> FileInstruction:
    path = item.path
    if path.startswith("/") and "/." not in path and "//" not in path:
        return item  # A dataset can have millions of files.
    return replace(item, path=_absolute(path))


def _absolute(path: str) -> str:
    """Return a path that means the same after a change of the working folder."""
    return os.path.abspath(path) if is_local(path) else path
