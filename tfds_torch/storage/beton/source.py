"""BetonSource: the samples of a `.beton` file as a Source."""

import copy
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonArray, BetonField, BetonFloat, BetonInt
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.ids import BetonIds
from tfds_torch.storage.beton.payload_checks import Compared
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.sample_blocks import SampleBlocks
from tfds_torch.storage.network import Network
from tfds_torch.storage.open_files import FileState, ProcessLock, stamp_of, state_of
from tfds_torch.storage.shard_errors import shard_status
from tfds_torch.storage.shard_files import LOCAL, ShardFiles, file_name
from tfds_torch.storage.source import (
    Columns,
    FieldSpec,
    FileInstruction,
    LazyIds,
    ReadByNumber,
    not_found,
    such_as,
)


class BetonSource(ReadByNumber):
    """A `Source` of one `.beton` file. Building it reads the file's head; opening it checks all pointers.

    Values are returned as they are stored: images are JPEG (bytes) or pixels (uint8 [h, w, 3]; `StoredPixels` where all
    have one size), JSON is text.

    Args:
        path: the file.
        handlers: field -> its type, for fields of a custom type (255).
        verify_checksums: whether values are compared with their checksums; files that FFCV itself wrote have none.
        files: where the file lies: on this machine, or in an object store.

    Raises:
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: the file is not a `.beton` file of version 2, or is damaged.
        ConfigError: a custom field has no handler.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        handlers: Mapping[str, BetonField] | None = None,
        *,
        verify_checksums: bool = True,
        files: ShardFiles = LOCAL,
    ) -> None:
        self._path = os.path.abspath(path) if files.are_local else os.fspath(path)
        self._handlers, self.files = dict(handlers or {}), files
        self.verify_checksums = verify_checksums
        # Read first: a file that is written to later has another state.
        state = state_of(shard_status(self._path)) if files.are_local else None
        self.head = read_head(self._path, self._handlers, files)
        self._compared = Compared.nothing(self.head, state or self.head.stamp)  # Here, so that forked workers share it.
        self._reader: BetonReader | None = None
        self._read_last: tuple[str, ...] = ()  # Labels alone must not bring the images into memory.
        self._blocks_of_order: int | None = None
        self._blocks: SampleBlocks | None = None
        self._windows: Iterable[ExampleRanges] | None = None  # The windows of an order of which nothing was read yet.
        self._failure: TfdsTorchError | None = None  # Why they cannot be followed.
        self._is_following = False
        self._lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_ids"}  # Ids lie in mapped memory.
        return {**kept, "_reader": None, "_windows": None, "_failure": None, "_is_following": False}

    @property
    def name(self) -> str:
        """Name of the dataset, if the file has it; else the file's."""
        found = "" if self.head.manifest is None else self.head.manifest.facts.name
        return found or file_name(self._path)

    @cached_property
    def identity(self) -> object:
        """The data that the samples were made from and their ids, if the file has both; else the samples' rows."""
        manifest, fields = self.head.manifest, list(self.head.fields)
        if manifest is None:
            digest = hashlib.blake2b(self.reader.rows.tobytes(), digest_size=16).hexdigest()
            return [len(self), fields, digest]
        facts = manifest.facts
        if facts.fingerprint:
            return [len(self), fields, facts.fingerprint, facts.ids]
        return [len(self), fields, facts.ids, facts.metadata, facts.checksums]

    @property
    def stamps(self) -> object:
        """Size and time of the file."""
        return self.files.stamps([self._path])[0]

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields of the file."""
        return MappingProxyType({name: _spec_of(field) for name, field in self.head.fields.items()})

    @property
    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Field -> names of its labels, where the file has them."""
        return {} if self.head.manifest is None else self.head.manifest.facts.class_names

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """The file, unless it is empty."""
        return (FileInstruction(self._path, 0, len(self), 0, len(self)),) if len(self) else ()

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of a sample, its part of the last page's rest included."""
        return (self.head.table_at - self.head.layout.metadata_at) // max(1, len(self))

    @property
    def networks(self) -> Collection[Network]:  # type: ignore[override]
        """The networks over which remote files come; see `Source`."""
        return self.files.networks

    @property
    def block_records(self) -> int | None:  # type: ignore[override]
        """Number of neighbouring samples that are best read together; see `Source`."""
        return self.files.block_records(self.mean_example_bytes)

    def in_blocks(self, block_records: int | None) -> "BetonSource":
        """Return this source, read in an order of such blocks; see `Source`."""
        if self.files.are_local or block_records == self._blocks_of_order:
            return self
        other = copy.copy(self)  # Like a pickled source, the copy has no open file.
        other._blocks_of_order, other._blocks, other._lock = block_records, None, ProcessLock()
        return other

    def describe_cut(self) -> str | None:
        """Return a text where the file became shorter after it was opened, which may kill a worker; else None."""
        try:
            size = os.stat(self.head.path).st_size
        except OSError:
            return None
        was = self.head.stamp[0]
        return f"{self.head.path} was cut while it was read: it had {was} bytes and has {size}" if size < was else None

    def __len__(self) -> int:
        return self.head.layout.num_samples

    def with_checksums(self, verify_checksums: bool) -> "BetonSource":
        """Return a source of the same file that compares values with their checksums, or does not."""
        if verify_checksums == self.verify_checksums:
            return self
        return BetonSource(self._path, self._handlers, verify_checksums=verify_checksums, files=self.files)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Check all pointers of the file, once; later calls check that it has not changed. See `Source`."""
        # Objects are compared with their stamps whenever a part of them is fetched.
        is_open = self._reader is not None and self.files.are_local
        if is_open and stamp_of(shard_status(self._path)) != self.head.stamp:
            self._reopen()
        _ = self.reader

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of samples in the order asked; see `Source`."""
        reader, index = self.reader, np.asarray(index, np.int64)
        for name in fields:
            if name not in self.head.fields:
                raise ConfigError(
                    f"{self.name} has no field {quoted(name)}: its fields are {', '.join(self.head.fields)}."
                )
        self._read_last = tuple(fields)
        if len(index):
            self._begin_following()
        return {name: reader.read(name, index) for name in fields}

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Fetch the blocks of an order's next windows ahead, from the first read on that needs values in the pages.

        See `Source`. Labels lie in the samples' rows: reading labels alone fetches no images.
        """
        if self.files.are_local:
            return
        with self._lock:
            self._windows, self._failure = windows, None
            if self._reader is not None and self._is_following:
                self._reader.follow((), ())
            self._is_following = False
        if self._read_last:  # Otherwise the fields are not known yet.
            self._begin_following()

    def announce(self, index: Int64Array) -> None:
        """Ask the system to read payloads ahead, of the fields that were read last; only reading reports errors."""
        with suppress(ShardError):
            self._begin_following()
            self.reader.announce(self._read_last, np.asarray(index, np.int64))

    def ids(self, index: Int64Array) -> LazyIds:
        """Return the samples' ids: those of the manifest, else `<file>__<n>`."""
        return LazyIds(self._name_samples, np.asarray(index, np.int64))

    def find(self, id: str) -> int:
        """Return the number of the sample that has an id; the first one, where several have it."""
        found = self._ids.find(id)
        if found is None:
            raise not_found(self, id, f"the file has {len(self)}{such_as(self)}.")
        return found

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for a sample whose content cannot be decoded; see `Source`."""
        (name,) = self.ids(np.array([index], np.int64))
        if self.head.manifest is None:
            cause = ". It has no checksums that are read: it was written that way, or is damaged."
        elif self.verify_checksums:
            cause = ", though its checksum is right: it was written that way."
        else:
            cause = ". Its checksum was not verified (verify_checksums=False): it was written that way, or is damaged."
        return CorruptRecordError(
            f"{self._path}: sample {index} (id {name}) of {self.name} cannot be decoded{cause} {reason}"
        )

    def close(self) -> None:
        """Forget the file; it is closed with the last values that refer to it, and the next read opens it again."""
        self._forget(self._compared.state)

    @property
    def reader(self) -> BetonReader:
        """The open reader of the file."""
        reader = self._reader
        if reader is None:
            with self._lock:
                reader = self._reader = self._reader or self._open()
        return reader

    def _open(self) -> BetonReader:
        if not self.files.are_local and self._blocks is None:
            self._blocks = SampleBlocks(self.head, self._blocks_of_order or self.block_records or 1)
        return BetonReader(
            self.head, verify_checksums=self.verify_checksums, compared=self._compared, blocks=self._blocks
        )

    def _begin_following(self) -> None:
        """Follow the order, if there is one, once the fields are known; raise the error why it cannot be followed."""
        reader = self.reader
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._windows is None or not reader.with_payloads(self._read_last):
                return
            windows, self._windows = self._windows, None
            try:
                reader.follow(self._read_last, windows)
                self._is_following = True
            except TfdsTorchError as error:
                self._failure = error
                raise

    def _reopen(self) -> None:
        """Open a file that was put in the place of the first one, where it holds the same samples."""
        other = BetonSource(self._path, self._handlers)
        was, now = ([list(one.head.fields.items()), digest_of(one.identity)] for one in (self, other))
        if was != now:
            raise ShardError(
                f"{self._path} changed while it was in use: it holds other samples now. Start again with a file that "
                f"no process writes to."
            )
        self.head = other.head
        self._forget(other._compared.state)

    def _forget(self, state: FileState) -> None:
        """Forget all values that were read and compared; `state` is the file's state now."""
        with self._lock:
            self._reader, self._compared = None, Compared.nothing(self.head, state)
            self.__dict__.pop("_ids", None)

    def _name_samples(self, index: Int64Array) -> list[str]:
        return self._ids.names(index)

    @cached_property
    def _ids(self) -> BetonIds:
        return BetonIds(self.head)


def _spec_of(field: BetonField) -> FieldSpec:
    if isinstance(field, BetonInt):
        return FieldSpec((), np.int64)
    if isinstance(field, BetonFloat):
        return FieldSpec((), np.float64)
    if isinstance(field, BetonArray):
        return FieldSpec(field.shape, field.dtype)
    return FieldSpec((), object)
