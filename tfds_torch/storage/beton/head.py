"""The head of a file: its header, the descriptors of its fields, and its manifest. It is a small part of the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonField, field_of, payload_fields
from tfds_torch.storage.beton.format import (
    ALLOCATION,
    CUSTOM_ID,
    DESCRIPTOR,
    HEADER,
    IMAGE_ID,
    LONGEST_NAME,
    MOST_FIELDS,
    VERSION,
    Layout,
    is_page_size,
    make_row_type,
)
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.manifest import HEAD_MAGIC, TAIL_BYTES, Manifest, Tail, read_facts, read_tail
from tfds_torch.storage.beton.manifest import VERSION as MANIFEST_VERSION
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_files import LOCAL, Cuts, HeadReader, Mapped, ShardFiles

_GRID_BYTES = 8 << 20


@dataclass(frozen=True)
class Head:
    """The head of a file: fields by name, where its parts lie, and its manifest.

    A file has no manifest where FFCV itself or an earlier version of this package (`has_old_manifest`) wrote it.
    """

    path: str
    stamp: Stamp
    fields: Mapping[str, BetonField]
    layout: Layout
    table_at: int
    manifest: Manifest | None
    has_old_manifest: bool = False
    files: ShardFiles = LOCAL

    def map(self, cuts: Cuts | None = None) -> Mapped:
        """Return the file, to be read in place; a remote file is fetched in blocks of `cuts` (None: of `grid`)."""
        return self.files.map(self.path, self.stamp, cuts or (lambda _: self.grid))

    @property
    def pages_stop(self) -> int:
        """Where the pages end, if there are any: at the manifest, or at the table."""
        return self.table_at if self.manifest is None else self.manifest.at

    @property
    def grid(self) -> Int64Array:
        """Where blocks of 8 MiB begin, int64 [k + 1], 0 first, the size last.

        A block ends where the rows end, and blocks begin and end where the pages do: the bytes between rows and pages
        are never fetched.
        """
        stop = self.pages_stop
        bounds = [0, *(min(at, stop) for at in (self.layout.metadata_end, self.layout.pages_at)), stop, self.stamp[0]]
        parts = [np.arange(first, last, _GRID_BYTES, dtype=np.int64) for first, last in pairwise(bounds)]
        return np.append(np.concatenate(parts), bounds[-1])

    @property
    def index_ranges(self) -> tuple[Int64Array, Int64Array]:
        """Offsets and sizes in bytes of the parts that say where values lie, and whether values are whole."""
        layout, manifest = self.layout, self.manifest
        parts = [(layout.metadata_at, layout.metadata_end), (self.table_at, self.stamp[0])]
        if manifest is not None:
            parts.append((manifest.checksums_at, manifest.checksums_at + manifest.facts.checksums[0]))
        starts, stops = np.array(parts, np.int64).T
        return starts, stops - starts

    @property
    def num_allocations(self) -> int:
        """Rows of the allocation table."""
        return (self.stamp[0] - self.table_at) // ALLOCATION.itemsize


def check_fields(fields: Mapping[str, BetonField]) -> None:
    """Raise ConfigError for fields that a `.beton` file cannot have."""
    if not 1 <= len(fields) <= MOST_FIELDS:
        raise ConfigError(f"There are {len(fields)} fields: a file has 1 to {MOST_FIELDS:,}.")
    for name, field in fields.items():
        is_plain = isinstance(name, str) and name.isascii() and name.isprintable()
        if not is_plain or not 1 <= len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"The field name {quoted(name)} cannot be stored: the format has room for {LONGEST_NAME} printable "
                f"ASCII characters (FFCV cuts longer ones off without a word). Choose a shorter name."
            )
        if not isinstance(field, BetonField):
            raise ConfigError(
                f"Field {quoted(name)}: {quoted(field)} is not a field such as BetonImage() or BetonInt()."
            )
        if len(field.binary()) > DESCRIPTOR["arguments"].itemsize:
            raise ConfigError(
                f"Field {quoted(name)}: its arguments take {len(field.binary())} bytes, and 1,024 is the most."
            )


def encode_head(fields: Mapping[str, BetonField], layout: Layout, table_at: int) -> bytes:
    """Return header and descriptors as they are written."""
    header = np.zeros((), HEADER)
    numbers = (VERSION, len(fields), layout.page_size, layout.num_samples, table_at)
    for name, value in zip(HEADER.names or (), numbers, strict=True):
        header[name] = value
    descriptors = np.zeros(len(fields), DESCRIPTOR)
    for place, (name, field) in enumerate(fields.items()):
        arguments = np.frombuffer(field.binary().ljust(DESCRIPTOR["arguments"].itemsize, b"\0"), "V1024")
        descriptors[place] = (field.type_id, name.encode("ascii"), arguments[0])
    return header.tobytes() + descriptors.tobytes()


def read_head(path: str, handlers: Mapping[str, BetonField] | None = None, files: ShardFiles = LOCAL) -> Head:
    """Read the head of a file; even of a hostile file no more is read than its size.

    Args:
        path: the file.
        handlers: field -> its type, for fields of type 255; see BetonSource.
        files: where it lies.

    Raises:
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: the file is not a `.beton` file of version 2, or is damaged.
        ConfigError: a custom field has no handler, or a handler has no field.
    """
    (stamp,) = files.stamps([path])
    reader = files.open_head(path, stamp)
    try:
        return _HeadReader(path, stamp, reader, dict(handlers or {}), files).read()
    finally:
        reader.close()


def damaged(path: str, what: str) -> CorruptRecordError:
    """Return the error for a damaged file; `what` is a clause."""
    return CorruptRecordError(f"{path} is not a whole .beton file: {what}. Write it again from its dataset.")


class _HeadReader:
    def __init__(
        self, path: str, stamp: Stamp, reader: HeadReader, handlers: dict[str, BetonField], files: ShardFiles
    ) -> None:
        self._path, self._stamp, self._reader, self._handlers, self._files = path, stamp, reader, handlers, files

    def read(self) -> Head:
        head = self._bytes(0, HEADER.itemsize, "its header")
        version, num_fields, page_size, num_samples, table_at = (int(one) for one in np.frombuffer(head, HEADER)[0])
        size = self._stamp[0]
        if version != VERSION:
            raise self._damaged(f"its first bytes name version {version}, and {VERSION} is read")
        if not is_page_size(page_size):
            raise self._damaged(f"its pages have {page_size} bytes")
        if not num_fields:
            raise self._damaged("it has no fields")
        if table_at == 0:
            raise self._damaged("its header names no allocation table: its writer did not finish")
        described = self._bytes(
            HEADER.itemsize, num_fields * DESCRIPTOR.itemsize, f"the descriptors of {num_fields} fields"
        )
        tail = self._tail(table_at)
        has_old_manifest = tail is not None and tail.version < MANIFEST_VERSION
        tail = None if has_old_manifest else tail
        if tail is not None and google_crc32c.value(head + described) != tail.head_crc:
            raise self._damaged("its header does not have its checksum")
        fields = self._fields(np.frombuffer(described, DESCRIPTOR))
        row_type = make_row_type([field.row_type for field in fields.values()])
        layout = Layout(num_samples, num_fields, row_type, page_size)
        if not layout.metadata_end <= table_at <= size:
            raise self._damaged(
                f"its allocation table is said to begin at {table_at}, where {num_samples} samples end at "
                f"{layout.metadata_end} and the file at {size}"
            )
        if (size - table_at) % ALLOCATION.itemsize:
            raise self._damaged("its allocation table ends inside a row")
        manifest = None
        if tail is not None:
            manifest = self._manifest(tail, table_at, layout, num_samples * len(payload_fields(fields)))
        return Head(self._path, self._stamp, fields, layout, table_at, manifest, has_old_manifest, self._files)

    def _tail(self, table_at: int) -> Tail | None:
        if not TAIL_BYTES <= table_at <= self._stamp[0]:
            return None
        try:
            return read_tail(self._bytes(table_at - TAIL_BYTES, TAIL_BYTES, "its manifest"))
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def _fields(self, descriptors: NDArray[np.void]) -> dict[str, BetonField]:
        found: dict[str, BetonField] = {}
        for type_id, encoded, arguments in descriptors.tolist():
            name = encoded.decode("ascii", "replace")
            if not name or not name.isascii() or not name.isprintable() or name in found:
                raise self._damaged(f"a field's name is {encoded!r}")
            found[name] = self._field(type_id, name, bytes(arguments))
        unknown = sorted(set(self._handlers) - set(found))
        if unknown:
            raise ConfigError(
                f"{self._path} has no field {quoted(unknown[0])}, for which there is a handler: {list(found)}."
            )
        return found

    def _field(self, type_id: int, name: str, arguments: bytes) -> BetonField:
        if name in self._handlers:
            return self._handlers[name]
        if type_id == IMAGE_ID:
            return BetonImage()
        if type_id == CUSTOM_ID:
            raise ConfigError(
                f"{self._path}: the field {quoted(name)} is of a type of its own: give its BetonCustom, "
                f"handlers={{{quoted(name)}: ...}}. The rest of the file cannot be read without it."
            )
        try:
            field = field_of(type_id, arguments)
        except ValueError as error:
            raise self._damaged(f"of field {quoted(name)}, {error}") from None
        if field is None:
            raise self._damaged(f"the field {quoted(name)} is of type {type_id}, which does not exist")
        return field

    def _manifest(self, tail: Tail, table_at: int, layout: Layout, num_payloads: int) -> Manifest:
        at = table_at - tail.num_bytes
        text = self._bytes(table_at - TAIL_BYTES - tail.text_bytes, tail.text_bytes, "its manifest")
        try:
            facts = read_facts(text, tail)
        except ValueError as error:
            raise self._damaged(str(error)) from None
        manifest = Manifest(facts, at)
        num_bytes = (manifest.checksums_at - at) + facts.checksums[0] + tail.text_bytes + TAIL_BYTES
        num_stops = 0 if facts.id_stops is None else layout.num_samples
        is_fitting = (
            at == layout.pages_end(facts.num_pages)
            and num_bytes == tail.num_bytes
            and facts.num_samples == layout.num_samples
            and facts.checksums[0] == 4 * num_payloads
            and (0 if facts.id_stops is None else facts.id_stops[0]) == 8 * num_stops
            and self._bytes(at, len(HEAD_MAGIC), "its manifest") == HEAD_MAGIC
        )
        if not is_fitting:
            raise self._damaged("its manifest and its header contradict each other")
        return manifest

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > self._stamp[0]:
            raise self._damaged(f"it ends at {self._stamp[0]} bytes, inside {what}")
        data = self._reader.read(0, offset, size)
        if len(data) < size:
            raise self._damaged(f"it ends inside {what}")
        return data

    def _damaged(self, what: str) -> CorruptRecordError:
        return damaged(self._path, what)
