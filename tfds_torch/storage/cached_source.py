"""CachedSource: a Source of which a `.beton` file holds some values as well, decoded."""

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.runtime.own_folder import ForeignFolderError, check_own_folder
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.network import Network
from tfds_torch.storage.shard_errors import unreadable
from tfds_torch.storage.source import Columns, FieldSpec, FileInstruction, Source
from tfds_torch.storage.stored_pixels import Gather, Pixels, StoredPixels, gather_with_numpy

_logger = logging.getLogger(__name__)

PIXELS = "pixels of the image"
"""The stored field under which decoded images are asked for. The encoded ones keep the name of their feature."""

MakePixels = Callable[[bytes], "NDArray[np.uint8]"]
"""Function: encoded image -> uint8 [h, w, 3], as a cache holds it; it raises ValueError for an undecodable image."""

NoteDamage = Callable[[str, str], None]
"""Called with a cache's path and the damage found, so that the cache is built again; picklable."""

PIXELS_FIELD = "image"
"""Field of the file that holds the images."""

IS_CACHED = "is_cached"
"""Field of the file: 0 where an example could not be decoded and is read from the original files."""


class CachedPixels(StoredPixels):
    """Images out of a cache; where its file was cut since `read`, they come from the original files."""

    __slots__ = ("_decode_original", "_index", "_stored")

    def __init__(
        self,
        stored: StoredPixels,
        index: Int64Array,
        decode_original: Callable[[Int64Array, ShardError], Iterable[Pixels]],
    ) -> None:
        self._stored, self._index, self._decode_original = stored, index, decode_original
        self.shape = stored.shape

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, place: int) -> Pixels: ...

    @overload
    def __getitem__(self, place: slice) -> "CachedPixels": ...

    def __getitem__(self, place: int | slice) -> "Pixels | CachedPixels":
        if isinstance(place, slice):
            return CachedPixels(self._stored[place], self._index[place], self._decode_original)
        one: Pixels = self[place : place + 1 or None].copy()[0]
        return one

    def copy_into(self, out: Pixels, gather: Gather = gather_with_numpy) -> None:
        """Copy all images; see StoredPixels."""
        try:
            self._stored.copy_into(out, gather)
        except ShardError as error:
            for row, image in zip(out, self._decode_original(self._index, error), strict=True):
                row[...] = image


@dataclass
class CachedRows:
    """The numbers of an open file: a write to the file does not change them.

    Attributes:
        reader: the open file.
        numbers: stored field -> its values, [n].
        left_out: int64, numbers of the examples that are read from the original files, in order.
    """

    reader: BetonReader
    numbers: Mapping[str, NDArray[Any]]
    left_out: Int64Array

    def are_kept(self, index: Int64Array) -> NDArray[np.bool_]:
        """Return which examples, int64 [n], are read from the cache, bool [n]."""
        if not len(self.left_out):
            return np.ones(len(index), np.bool_)
        return ~np.isin(index, self.left_out)

    def leave_out_damaged(self, index: Int64Array) -> bool:
        """Note examples, int64 [n], whose images do not have their checksum: they are read from the original files."""
        is_damaged = np.array([self._is_damaged(one) for one in index[:, None]], np.bool_)
        self.left_out = np.union1d(self.left_out, index[is_damaged])
        return bool(is_damaged.any())

    def _is_damaged(self, one: Int64Array) -> bool:
        try:
            self.reader.read(PIXELS_FIELD, one)
        except CorruptRecordError:
            return True
        return False


def read_rows(file: BetonSource, names: Mapping[str, str], dtypes: Mapping[str, DTypeLike]) -> CachedRows:
    """Read the rows of a file that belongs to this user, and compare them with their checksum."""
    _check_own(Path(file.head.path))
    reader = file.reader
    rows = reader.copy_rows()
    members = dict(zip(file.head.fields, rows.dtype.names or (), strict=True))
    numbers = {name: rows[members[place]].astype(dtypes[name]) for name, place in names.items()}
    return CachedRows(reader, numbers, np.flatnonzero(rows[members[IS_CACHED]] == 0).astype(np.int64))


def _check_own(path: Path) -> None:
    try:
        check_own_folder(path.parent)
    except ForeignFolderError as error:
        raise ShardError(f"{error.filename} is not this user's own: {error.strerror}.") from None
    except OSError as error:
        raise unreadable(path, error) from error


class CachedSource:
    """The examples of another Source, and their decoded images: from a cache, else from the original files.

    Values do not depend on whether there is a cache: number, order and ids are those of the original, and so are all
    values except images that a cache holds in a smaller size: without a cache, images are resized to that size here.

    Numbers are held in this process's memory, compared with their checksum. Damaged images are read from the original
    files, with one warning. Where the cache's file was cut, cannot be read any more, or may have been written by
    another user, all images are read from the original files from then on.

    Args:
        original: the encoded examples.
        image_key: stored field of the image.
        file: the cache's file, with as many samples as there are examples; None: there is no cache.
        names: stored field of a number -> name of its field in the file.
        max_resolution: longest side of the images, in pixels; None: images keep their size.
        make_pixels: decodes images that the file lacks.
        note_damage: called for a damaged cache, so that it is built again.
    """

    can_stream = False
    is_one_threaded = False
    block_records: int | None = None
    networks: Collection[Network] = ()

    def __init__(
        self,
        original: Source,
        image_key: str,
        file: BetonSource | None,
        names: Mapping[str, str],
        max_resolution: int | None,
        make_pixels: MakePixels,
        note_damage: NoteDamage,
    ) -> None:
        self.original, self.image_key, self.file = original, image_key, file
        self._names = dict(names)
        self._max_resolution, self._make_pixels, self._note_damage = max_resolution, make_pixels, note_damage
        self._rows: CachedRows | None = None
        self._reads_original = self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None, "_reads_original": False, "_has_warned": False}

    def in_blocks(self, block_records: int | None) -> "CachedSource":
        """Return this source: a cache reads equally well in any order."""
        return self

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Do nothing: a cache lies on this machine."""

    def with_checksums(self, verify_checksums: bool) -> "CachedSource":
        """Return the same cache over the same examples, whose files are compared with their checksums or not."""
        other = copy.copy(self)  # Like a pickled source, the copy has read nothing.
        other.original = self.original.with_checksums(verify_checksums)
        return other

    @property
    def name(self) -> str:
        """Name of the original's dataset."""
        return self.original.name

    @property
    def identity(self) -> object:
        """Identity of the original, with the size of images that the cache holds smaller."""
        identity = self.original.identity
        return identity if self._max_resolution is None else (identity, f"max_resolution {self._max_resolution}")

    @property
    def stamps(self) -> object:
        """Stamps of the original files."""
        return self.original.stamps

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """Specs of the original's fields, and of the decoded images."""
        return MappingProxyType({**self.original.specs, PIXELS: FieldSpec((), object)})

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """File instructions of the original."""
        return self.original.instructions

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of a sample of the cache, else of an encoded example."""
        return (self.file or self.original).mean_example_bytes

    @property
    def obstacle(self) -> str | None:
        """Why the original cannot be read by number; None: it can."""
        return self.original.obstacle

    @property
    def has_shards(self) -> bool:
        """Whether the original has shards."""
        return self.original.has_shards

    def describe_cut(self) -> str | None:
        """Return that the cache is shorter than when it was opened; see BetonSource."""
        return None if self.file is None else self.file.describe_cut()

    def __len__(self) -> int:
        return len(self.original)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Check the cache, and the original files where they are read."""
        if self.file is not None:
            try:
                self.file.check()
            except ShardError as error:
                self._give_up(error)
        if self.file is None or self._reads_original:
            self.original.check()

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return values of examples in the order asked; see `Source`."""
        index = np.asarray(index, np.int64)
        cached = [name for name in fields if name == PIXELS or name in self._names]
        others = [name for name in fields if name not in cached]
        columns = None if self.file is None else self._read_cached(self.file, index, cached)
        if columns is None:
            return self._read_original(index, fields)
        return columns | self._read_original(index, others) if others else columns

    def parse(self, records: Sequence[bytes], index: Int64Array, fields: Sequence[str]) -> Columns:
        """Parse records as the original does: they have no decoded images."""
        return self.original.parse(records, index, fields)

    def announce(self, index: Int64Array) -> None:
        """Announce examples to the files that will be read."""
        if self.file is not None:
            self.file.announce(index)
        if self.file is None or self._reads_original:
            self.original.announce(index)

    def ids(self, index: Int64Array) -> Sequence[str]:
        """Return the ids of the original."""
        return self.original.ids(index)

    def find(self, id: str) -> int:
        """Return the number that the original finds."""
        return self.original.find(id)

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error of the original source: a cache holds decoded images only."""
        return self.original.undecodable(index, reason)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        if self.file is not None:
            self.file.close()
        self.original.close()

    def _read_cached(self, file: BetonSource, index: Int64Array, fields: Sequence[str]) -> dict[str, Any] | None:
        """Return values from the file; None where the file cannot be read any more."""
        try:
            rows = self._rows_of(file)
            rows.reader.check_index(index)
            columns: dict[str, Any] = {name: rows.numbers[name][index] for name in fields if name != PIXELS}
            if PIXELS in fields:
                columns[PIXELS] = self._read_pixels(file, rows, index)
        except ShardError as error:
            self._give_up(error)
            return None
        left_out = np.flatnonzero(~rows.are_kept(index))
        if fields and len(left_out):
            columns = _with(columns, left_out, self._read_original(index[left_out], fields))
        return columns

    def _rows_of(self, file: BetonSource) -> CachedRows:
        """Return the rows of the samples, which are read once for each opening of the file."""
        rows = self._rows
        if rows is None or rows.reader is not file.reader:
            dtypes = {name: self.original.specs[name].dtype for name in self._names}
            rows = self._rows = read_rows(file, self._names, dtypes)
        return rows

    def _read_pixels(self, file: BetonSource, rows: CachedRows, index: Int64Array) -> Sequence[Any]:
        """Return n images; None in the place of images that are left out or found damaged."""
        is_kept = rows.are_kept(index)
        try:
            found = file.read(index[is_kept], [PIXELS_FIELD])[PIXELS_FIELD]
        except CorruptRecordError as error:
            rows.reader.copy_rows()  # Raises an error where something else than an image is damaged.
            if not rows.leave_out_damaged(index[is_kept]):
                raise
            self._warn_of_damage(file, error)
            is_kept = rows.are_kept(index)
            found = file.read(index[is_kept], [PIXELS_FIELD])[PIXELS_FIELD]
        if is_kept.all():
            return CachedPixels(found, index, self._decode_original) if isinstance(found, StoredPixels) else found
        images: list[Any] = [None] * len(index)
        for place, image in zip(np.flatnonzero(is_kept).tolist(), found, strict=True):
            images[place] = image
        return images

    def _read_original(self, index: Int64Array, fields: Sequence[str]) -> dict[str, Any]:
        columns = self._read_encoded(index, [self.image_key if name == PIXELS else name for name in fields])
        found = {name: columns[self.image_key if name == PIXELS else name] for name in fields}
        if PIXELS in found and self._max_resolution is not None:
            found[PIXELS] = [_pixels_of(image, self._make_pixels) for image in found[PIXELS]]
        return found

    def _read_encoded(self, index: Int64Array, keys: Sequence[str]) -> Columns:
        if not self._reads_original:
            self.original.check()
            self._reads_original = True
        return self.original.read(index, list(dict.fromkeys(keys)))

    def _decode_original(self, index: Int64Array, error: ShardError) -> Iterator["NDArray[np.uint8]"]:
        """Yield images, uint8 [h, w, 3], from the original files, where the cache was cut after `read` returned."""
        self._give_up(error)
        images = self._read_encoded(index, [self.image_key])[self.image_key]
        for number, image in zip(index.tolist(), images, strict=True):
            try:
                yield self._make_pixels(image)
            except ValueError as problem:
                raise self.original.undecodable(number, str(problem)) from None

    def _warn_of_damage(self, file: BetonSource, error: CorruptRecordError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "The decoded cache of %s is damaged: what is damaged is read from the original files, and the next "
                "start builds it again: %s",
                self.name,
                error,
            )
        if file.stamps == file.head.stamp:  # Otherwise another file is in its place by now.
            self._note_damage(file.head.path, str(error))

    def _give_up(self, error: ShardError) -> None:
        if self.file is None:
            return
        self.file = None
        _logger.warning(
            "The decoded cache of %s cannot be read any more, and its images are decoded from the original files: %s",
            self.name,
            error,
        )


def _pixels_of(image: bytes, make_pixels: MakePixels) -> Any:
    try:
        return make_pixels(image)
    except ValueError:
        return image  # The decoder reports which example is damaged.


def _with(columns: Mapping[str, Any], places: Int64Array, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of columns with other values at some places."""
    changed: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            changed[name] = values.copy()
            changed[name][places] = others[name]
            continue
        changed[name] = list(values)
        for place, value in zip(places.tolist(), others[name], strict=True):
            changed[name][place] = value
    return changed
