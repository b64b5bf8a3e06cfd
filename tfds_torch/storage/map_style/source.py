"""MapStyleSource: any dataset with `len` and `[i]` as a Source."""

import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np

from tfds_torch.errors import CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.runtime.user_random import borrowed_generators
from tfds_torch.storage.map_style.items import Layout, UnlikeItemError, pack
from tfds_torch.storage.map_style.pixels import encoded_image, image_beside
from tfds_torch.storage.map_style.rows import Calls, ColumnRows, Rows, UnreadableItemError, rows_of
from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.source import Columns, FieldSpec, FileInstruction, ItemCalls, LazyIds, ReadByNumber, not_found

WHOLE_ITEM = "<item>"
"""The stored field that is a whole item, as the dataset returns it."""

_ENCODED_IMAGE, _IMAGE_BESIDE = "image:", "beside:"
_MOST_TRIED = 16  # Number of items that are tried to find the first readable one.
_ITEM_BYTES = 1 << 10  # The assumed size, in bytes, of an item that was not read yet.
_MOST_DIGITS = 19

_locks: "weakref.WeakValueDictionary[int, ProcessLock]" = weakref.WeakValueDictionary()
"""`id` of a dataset -> the lock of all its sources; the sources keep dataset and lock alive."""


def encoded_image_key(name: str) -> str:
    """Return the stored field that is the encoded image of a field."""
    return f"{_ENCODED_IMAGE}{name}"


def image_beside_key(name: str) -> str:
    """Return the stored field that is a further image, besides the image: encoded, or as its numbers."""
    return f"{_IMAGE_BESIDE}{name}"


class MapStyleSource(ReadByNumber):
    """A `Source` of the user's own dataset. Building it reads no item.

    Its stored fields are: those of the items, with unchanged values; those of `encoded_image_key` and
    `image_beside_key`, with images in the form that decoders accept; and WHOLE_ITEM.

    One thread at a time asks the dataset for items, also where several sources read it. The dataset is pickled with the
    source.

    Args:
        dataset: a dataset with `__len__` and `__getitem__`, a dictionary of columns of one length, or a DataFrame.
        names: names of the fields, for items that are tuples or single values.
        version: identifies the content, together with the length; None: the type and the length identify it.

    Raises:
        ConfigError: the dataset has no items by number, or no length.
    """

    is_one_threaded = True
    has_shards = False

    def __init__(self, dataset: Any, names: Sequence[str] | None, version: str | None) -> None:
        self.dataset, self._names, self._version = dataset, names, version
        self._rows: Rows = rows_of(dataset)
        self._size = len(self._rows)
        self._layout: Layout | None = None
        self._empty: dict[str, Int64Array] = {}
        self._lock = _locks.setdefault(id(dataset), ProcessLock())

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_lock": None}
        state.pop("name", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = _locks.setdefault(id(self.dataset), ProcessLock())

    @cached_property
    def name(self) -> str:
        """The type of the dataset."""
        return type(self.dataset).__name__

    @property
    def identity(self) -> object:
        """The version that was passed, or the type; and the length."""
        return [self._version or type(self.dataset).__qualname__, self._size]

    @property
    def stamps(self) -> object:
        """The length that the dataset has now."""
        return len(self._rows)

    @property
    def calls_functions(self) -> bool:
        """Whether reading an item calls functions of the user; see `DrawingSource`."""
        return self._rows.calls_functions

    @property
    def has_columns(self) -> bool:
        """Whether the dataset is a dictionary of columns, or a DataFrame."""
        return isinstance(self._rows, ColumnRows)

    @property
    def layout(self) -> Layout:
        """The layout of items, as the first readable item shows it.

        Raises:
            ExampleNotFoundError: there is no item.
            CorruptRecordError: none of the first items can be read.
        """
        if self._layout is None:
            with self._lock:
                self._layout = self._layout or self._find_layout()
        return self._layout

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields of the items."""
        if not self._size:
            return {}
        return MappingProxyType({name: one.spec for name, one in self.layout.kinds.items()})

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """The dataset as a whole."""
        return (FileInstruction(f"<{self.name}>", 0, self._size, 0, self._size),) if self._size else ()

    @property
    def mean_example_bytes(self) -> int:
        """Approximate size of the first item in bytes, once it was read."""
        return _ITEM_BYTES if self._layout is None else max(1, self._layout.num_bytes)

    def __len__(self) -> int:
        return self._size

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Raise ShardError where the dataset has become shorter; see `Source`."""
        found = len(self._rows)
        if found < self._size:
            raise ShardError(
                f"{self.name} had {self._size} items when it was opened, and has {found} now: the plan counts with the "
                f"first number. Make a new parser of it, and do not change a dataset while it is read."
            )

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return values of items in the order asked; see `Source`."""
        return self.read_calling(index, fields, None)

    def read_calling(self, index: Int64Array, fields: Sequence[str], calls: ItemCalls | None) -> Columns:
        """Return the same as `read`, with seeds and notes set before each item; see `DrawingSource`."""
        numbers = self._checked(index).tolist()
        if not numbers:
            return {name: [] for name in fields}
        layout = None if WHOLE_ITEM in fields and len(fields) == 1 else self.layout
        with self._lock, self._borrowing(calls):
            return self._read(numbers, fields, layout, calls)

    def _borrowing(self, calls: ItemCalls | None) -> AbstractContextManager[None]:
        """Keep the state of the process's random generators, except where a user's functions draw without seeds."""
        are_free = not self.calls_functions or (calls is not None and calls.seeds is None)
        return nullcontext() if are_free else borrowed_generators()

    def _read(self, numbers: list[int], fields: Sequence[str], layout: Layout | None, calls: Calls) -> dict[str, Any]:
        images = [name for name in fields if name.startswith((_ENCODED_IMAGE, _IMAGE_BESIDE))]
        values = [name for name in fields if name != WHOLE_ITEM and name not in images]
        found: dict[str, Any] = {}
        try:
            if WHOLE_ITEM in fields:
                found[WHOLE_ITEM] = self._rows.items(numbers, calls)
            if layout is not None:
                found |= self._read_fields(numbers, values, images, layout, calls)
        except UnreadableItemError as error:
            raise self._unreadable(error) from error.__cause__
        except UnlikeItemError as error:
            raise self.undecodable(numbers[error.position], error.reason) from None
        return found

    def _read_fields(
        self, numbers: list[int], values: Sequence[str], images: Sequence[str], layout: Layout, calls: Calls
    ) -> dict[str, Any]:
        of_images = {key: key.partition(":")[2] for key in images}
        names = list(dict.fromkeys([*values, *of_images.values()]))
        columns = self._rows.columns(numbers, names)
        if columns is None:
            items = self._rows.parts(numbers, names, set(of_images.values()), calls)
            if not self._rows.has_schema:
                layout.check(items)
            columns = {name: layout.column(items, name) for name in names}
        found = {name: _packed(columns[name], name, layout) for name in values}
        return found | {key: _encoded_images(columns[name], name, key) for key, name in of_images.items()}

    def empty(self, field: str) -> Int64Array:
        """Return the numbers of the items that have None in a field, int64 [n], as far as known without reading."""
        found = self._empty.get(field)
        if found is None:  # A list is searched once.
            found = self._empty[field] = self._rows.empty(field)
        return found

    def announce(self, index: Int64Array) -> None:
        """Do nothing: a dataset is only asked for items when they are needed."""

    def ids(self, index: Int64Array) -> LazyIds:
        """Return the numbers of items as texts."""
        return LazyIds(_names_of, self._checked(index))

    def find(self, id: str) -> int:
        """Return the number that an id stands for."""
        number = int(id) if id.isascii() and id.isdigit() and len(id) < _MOST_DIGITS else self._size
        if number >= self._size or str(number) != id:
            there = f"'0' to '{self._size - 1}'" if self._size else "none"
            raise not_found(self, id, f"its ids are the numbers of its items as texts, {there}.")
        return number

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for an item that cannot be used; see `Source`."""
        return CorruptRecordError(f"{self.name}: item {index} cannot be used. {reason}")

    def close(self) -> None:
        """Do nothing: the owner of the dataset closes it."""

    def _unreadable(self, error: UnreadableItemError) -> CorruptRecordError:
        cause = error.__cause__
        return CorruptRecordError(
            f"{self.name}: item {error.number} cannot be read: {type(cause).__name__}: {cause}. It was raised by "
            f"{self.name}[{error.number}]."
        )

    def _find_layout(self) -> Layout:
        """Return the layout of the first readable item."""
        self._checked(np.zeros(1, np.int64))
        first: CorruptRecordError | None = None
        for number in range(min(self._size, _MOST_TRIED)):
            try:
                with self._borrowing(None):
                    (item,) = self._rows.items([number])
            except UnreadableItemError as error:
                first = first or self._unreadable(error)
                first.__cause__ = first.__cause__ or error.__cause__
                continue
            return Layout.of(item, self._names, number, lambda name: len(self.empty(name)) > 0)
        assert first is not None  # noqa: S101 (a dataset with items has a first one)
        raise first

    def _checked(self, index: Int64Array) -> Int64Array:
        index = np.asarray(index, np.int64)
        outside = (index < 0) | (index >= self._size)
        if outside.any():
            raise ExampleNotFoundError(f"{self.name} has no item {index[outside][0]}: it has {self._size} items.")
        return index


def _names_of(index: Int64Array) -> list[str]:
    return list(map(str, index.tolist()))


def _packed(column: Any, name: str, layout: Layout) -> Any:
    is_packed = isinstance(column, np.ndarray) and is_numeric(column.dtype)
    return column if is_packed else pack(column, name, layout)


def _encoded_images(column: Sequence[Any], name: str, key: str) -> list[Any]:
    convert = image_beside if key.startswith(_IMAGE_BESIDE) else encoded_image
    images: list[Any] = []
    for value in column:
        try:
            images.append(convert(value))
        except Exception as error:  # Pillow may raise any exception for a file that it opens late.
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}."
            raise UnlikeItemError(len(images), f"Its {quoted(name)} is not an image. {reason}") from error
    return images
