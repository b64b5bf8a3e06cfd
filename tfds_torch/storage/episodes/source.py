"""WindowSource: windows of the episodes that a dataset stores, by number."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.plan.windows import Windows, WindowTable
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.step_index import open_step_index
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, WindowFeatures, WindowReader, padding_key
from tfds_torch.storage.example import ExampleReader
from tfds_torch.storage.network import Network
from tfds_torch.storage.open_files import ProcessLock, difference, stamp_of
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.shard_errors import shard_status
from tfds_torch.storage.shard_files import ShardFiles
from tfds_torch.storage.source import (
    Columns,
    FieldSpec,
    FileInstruction,
    LazyIds,
    ReadByNumber,
    not_found,
    such_as,
)


class WindowSource(ReadByNumber):
    """Windows of episodes. Reading a window reads only the values of its steps, and compares each with its checksum.

    Opening it builds the index of steps, once for all processes of the machine. An episode without steps has no window.
    Columns are those of an example whose sequences are as long as the window: [n, T, ...] for a feature with offsets,
    [n, ...] for one without. Steps before and after an episode repeat its first or last step; `padding_key` marks them.

    Args:
        episodes: the records.
        windows: which windows there are.
        features: the features of the episodes that windows have, and at which steps.
    """

    def __init__(self, episodes: RecordSource, windows: Windows, features: WindowFeatures) -> None:
        self.episodes, self.windows, self.features = episodes, windows, features
        if episodes.files.are_local:
            episodes.table.check_local()
        self._stamps = list(episodes.files.stamps(episodes.table.files))
        self._reader: WindowReader | None = None
        self._fields: tuple[str, ...] = ()  # The fields that were read last.
        self._lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "instructions"} | {"_reader": None}

    def __len__(self) -> int:
        return len(self.reader.table)

    def with_checksums(self, verify_checksums: bool) -> "WindowSource":
        """Return the same windows, with checksums verified or not. The new source opens its own files."""
        return WindowSource(self.episodes.with_checksums(verify_checksums), self.windows, self.features)

    def steps(self) -> "WindowSource":
        """Return all steps of the same episodes, in order, as windows that have one value for each feature of steps."""
        features = replace(self.features, offsets={}, copies={})
        steps = WindowSource(self.episodes, Windows(self.windows.sequence), features)
        steps._stamps = self._stamps
        steps._reader = replace(self.reader, features=features, table=WindowTable(self.reader.num_steps))
        return steps

    @property
    def reader(self) -> WindowReader:
        """The reader of windows, which is opened when it is first needed."""
        if self._reader is None:
            with self._lock:
                self._reader = self._reader or self._open()
        return self._reader

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.episodes.name

    @property
    def identity(self) -> object:
        """The episodes with their steps, and the windows."""
        steps = hashlib.blake2b(self.reader.num_steps.astype("<i8").tobytes(), digest_size=16).hexdigest()
        windows, offsets = self.windows, sorted(self.features.offsets.items())
        return self.episodes.identity, windows.sequence, offsets, windows.stride, windows.pad, windows.whole, steps

    @property
    def stamps(self) -> object:
        """Size and time of each file."""
        return self.episodes.stamps

    @cached_property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields of a window, as they are stored."""
        specs = dict(self.episodes.specs)
        for column in (*self.episodes.specs, *self.features.copies):
            feature = self.features.feature_of(column)
            spec, offsets = self.episodes.specs[feature], self.features.offsets.get(column)
            time = () if offsets is None else (len(offsets),)
            if self.features.is_of_steps(feature):
                specs[column] = replace(spec, shape=(*time, *spec.shape[1:]))
            if offsets is not None:
                specs[padding_key(column)] = FieldSpec(time, np.dtype(np.bool_))
        return specs | {EPISODE: FieldSpec((), np.dtype(np.int64)), STEP: FieldSpec((), np.dtype(np.int64))}

    @cached_property
    def instructions(self) -> Sequence[FileInstruction]:
        """The windows of the split by file."""
        files = self.episodes.table.files
        counts = WindowTable(self.reader.index.num_steps.astype(np.int64), self.windows.stride, *self._reach).counts
        stops = np.concatenate([[0], np.cumsum(counts)])
        first_record = dict(zip(files, self._first_records.tolist(), strict=True))
        found: list[FileInstruction] = []
        first_index = 0
        for item in self.episodes.instructions:
            start = first_record[item.path]
            skip, stop, whole = (
                int(stops[start + number] - stops[start])
                for number in (item.skip, item.skip + item.take, item.num_in_shard)
            )
            if stop > skip:
                found.append(FileInstruction(item.path, skip, stop - skip, first_index, whole))
            first_index += stop - skip
        return tuple(found)

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of all fields of a window."""
        index, layout = self.reader.index, self.features.layout
        steps = max(1, int(index.num_steps.sum(dtype=np.int64)))
        sizes = dict(zip(layout.values, (index.value_bytes // steps).tolist(), strict=True))
        sizes |= {key: 4 * one.row_size for key, one in layout.numbers.items()}
        return sum(size * len(self.features.offsets.get(key, (0,))) for key, size in sizes.items())

    @property
    def files(self) -> ShardFiles:
        """The place of the episodes: this machine, or an object store."""
        return self.episodes.files

    @property
    def networks(self) -> Collection[Network]:  # type: ignore[override]
        """The networks over which remote files come; see `Source`."""
        return self.episodes.networks

    @property
    def block_records(self) -> int | None:  # type: ignore[override]
        """Number of neighbouring windows that are best read together, as they share bytes; see `Source`."""
        if self.files.are_local:
            return None  # Nothing is opened to find that.
        num_bytes = len(self.episodes) * self.episodes.mean_example_bytes
        return self.episodes.files.block_records(num_bytes // max(1, len(self)))

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Compare the files with the promises of the dataset and with the index; see `Source`."""
        self.episodes.check()
        self._check_stamps()
        len(self)

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return the values of windows in the order asked; see `Source`."""
        index = self._checked(index)
        unknown = next((key for key in fields if key not in self.specs), None)
        if unknown is not None:
            raise ConfigError(f"A window has no field {quoted(unknown)}: its fields are {', '.join(self.specs)}.")
        self._fields = tuple(fields)
        return self.reader.read(index, fields) if len(index) else {key: self._empty_column(key) for key in fields}

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Fetch the episodes of an order's next windows ahead; see `Source`."""
        if not self.episodes.files.are_local:
            locate = self.reader.table.locate
            self.episodes.follow((locate(start)[0], locate(stop - 1)[0] + 1) for start, stop in windows)

    def announce(self, index: Int64Array) -> None:
        """Ask the system to read ahead, for windows, the fields that were read last."""
        if self._fields and len(index):
            self.reader.announce(self._checked(index), self._fields)

    def ids(self, index: Int64Array) -> LazyIds:
        """Return the ids of windows, `<shard file>__<record>/<step>`."""
        return LazyIds(self.reader.names_of, self._checked(index))

    def find(self, id: str) -> int:
        """Return the number of the window that has an id."""
        record, slash, step = id.rpartition("/")
        if not slash or not step.isdecimal() or not step.isascii() or str(int(step)) != step:
            raise not_found(self, id, f"ids have the form '<shard file>__<record>/<step>'{such_as(self)}.")
        episode = self.episodes.find(record)
        number = self.reader.table.find(episode, int(step))
        if number is None:
            steps = int(self.reader.num_steps[episode])
            raise not_found(self, id, f"no window begins there: the episode has {steps} steps, and {self.windows}.")
        return number

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for a window whose content cannot be decoded; see `Source`."""
        return self.reader.undecodable(index, reason)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        self.episodes.close()

    @property
    def _reach(self) -> tuple[int, int]:
        """Numbers of steps that an episode must have before and after the step at which a window begins."""
        if not self.windows.whole:
            return 0, 0
        offsets = [one for own in self.features.offsets.values() for one in own]
        return max([0, *(-one for one in offsets)]), max([0, *offsets])

    @property
    def _first_records(self) -> Int64Array:
        """First record of each file in the index, int64 [number of files]."""
        counts = np.array(self.episodes.table.num_in_file, np.int64)
        return np.cumsum(counts) - counts

    def _open(self) -> WindowReader:
        table = self.episodes.table
        self._check_stamps()
        shards = table.files, self._stamps, table.num_in_file
        index = open_step_index(self.features.layout, self.name, *shards, self.episodes.scan, self.files)
        file, record = table.find(np.arange(len(table), dtype=np.int64))
        records = self._first_records[file] + record
        num_steps = index.num_steps[records].astype(np.int64)
        self._check_offsets(int(num_steps.max(initial=0)))
        windows = WindowTable(num_steps, self.windows.stride, *self._reach)
        if self.windows.whole and num_steps.any() and not len(windows):
            before, after = self._reach
            raise ConfigError(
                f"{self.name}: no window lies whole in its episode: with whole=True it needs {before} steps before its "
                f"own and {after} after it, and the longest episode of the split has {num_steps.max()} steps."
            )
        examples = ExampleReader(self.episodes.specs)
        return WindowReader(self.episodes, self.features, index, records, num_steps, windows, examples)

    def _check_stamps(self) -> None:
        """Raise ShardError where a file changed since the windows were counted."""
        if not self.episodes.files.are_local:
            return  # Objects are compared with their stamps whenever a part of them is fetched.
        for path, stamp in zip(self.episodes.table.files, self._stamps, strict=True):
            changed = difference(stamp, stamp_of(shard_status(path)))
            if changed is not None:
                raise ShardError(
                    f"The shard file {path} changed since its steps were counted: {changed}. Start again with files "
                    f"that no process writes to."
                )

    def _check_offsets(self, longest: int) -> None:
        for key, offsets in self.features.offsets.items():
            nearest = min(offsets, key=abs)
            if longest and abs(nearest) >= longest:
                raise ConfigError(
                    f"{self.name}: the offsets of {quoted(key)} leave every episode: the nearest one is {nearest}, and "
                    f"the longest episode of the split has {longest} steps. Offsets are counted in steps from the "
                    f"window's own."
                )

    def _checked(self, index: Int64Array) -> Int64Array:
        index = np.asarray(index, np.int64)
        outside = (index < 0) | (index >= len(self))
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.name} has no window {index[outside][0]} here: the split has {len(self)} windows, counted from "
                f"0."
            )
        return index

    def _empty_column(self, key: str) -> Any:
        spec = self.specs[key]
        is_array = spec.dtype is not object and None not in spec.shape
        return np.empty((0, *(side or 0 for side in spec.shape)), spec.dtype) if is_array else []
