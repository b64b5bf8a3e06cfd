"""Rows: reads any dataset with a length by number, whatever its library; no such library is imported."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import array_of_tensor, is_tensor, native
from tfds_torch.runtime.user_random import calling, seed_generators
from tfds_torch.storage.image_formats import EXTENSIONS
from tfds_torch.storage.source import ItemCalls

Calls = ItemCalls | None
"""Seeds and notes for each of n items, which are set before the item is read; None: nothing is set."""

_logger = logging.getLogger(__name__)
_FOLDER = "torchvision.datasets.folder"
_READABLE = tuple(f".{extension}" for extension in EXTENSIONS)


class UnreadableItemError(Exception):
    """A dataset raised an exception for an item: the `__cause__` of this error; `number` is the item's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Rows(Protocol):
    """The items of a dataset, by number; for one thread at a time.

    `has_schema` says whether the library promises that all items have the same fields.
    """

    has_schema: bool

    @property
    def calls_functions(self) -> bool:
        """Whether reading an item calls functions of the user, which may draw random numbers."""

    def __len__(self) -> int:
        """Return the number of items."""

    def items(self, numbers: Sequence[int], calls: Calls = None) -> list[Any]:
        """Return items as the dataset returns them, in the order asked.

        Args:
            numbers: numbers of the items.
            calls: seeds and notes to set before each item; None: nothing is set.

        Raises:
            UnreadableItemError: the dataset raised an exception for an item.
            TfdsTorchError: the dataset raised this exception for an item.
        """

    def parts(
        self, numbers: Sequence[int], fields: Sequence[str], images: Collection[str], calls: Calls = None
    ) -> Sequence[Any]:
        """Return items as `items` does; only some fields are needed, and images among them may stay encoded."""

    def columns(self, numbers: Sequence[int], fields: Sequence[str]) -> Mapping[str, Any] | None:
        """Return field -> n values where the dataset stores columns; None where it stores items."""

    def empty(self, field: str) -> Int64Array:
        """Return the numbers of the items that have None in a field, int64 [n], as far as known without reading."""


def rows_of(dataset: Any) -> Rows:
    """Return the rows of a dataset.

    Raises:
        ConfigError: the dataset has no length, or no items by number; or it is a dictionary of columns of several
            lengths, or of values that are not columns.
    """
    if is_pandas(dataset):
        if not hasattr(dataset, "columns"):
            return ItemRows(dataset.to_numpy())
        dataset = {name: dataset[name] for name in _check_column_names(dataset)}
    if isinstance(dataset, Mapping) and dataset and all(isinstance(key, str) for key in dataset):
        return ColumnRows(dataset)
    if isinstance(dataset, Mapping) and not all(number in dataset for number in range(len(dataset))):
        other = next(key for key in dataset if not isinstance(key, str))
        raise ConfigError(
            f"ParserMapStyle: a dictionary has a column for each name, or an item for each number from 0 to "
            f"{len(dataset) - 1}, and this one has the key {quoted(other)}. Give columns names that are texts, and "
            f"items as a list."
        )
    if isinstance(dataset, str | os.PathLike):
        raise ConfigError(
            f"ParserMapStyle: {quoted(dataset)} is a path, and a dataset is wanted: datasets.load_from_disk(path) of "
            f"Hugging Face opens what its save_to_disk wrote, torchvision.datasets.ImageFolder(path) a folder of "
            f"images. TFDS's datasets are opened by ParserTfds(path, name)."
        )
    if isinstance(dataset, bytes | type) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"ParserMapStyle: {quoted(dataset)} has no items by number: it must have __getitem__ and __len__, such as "
            f"a map-style dataset of torch, a datasets.Dataset, a list, or a dictionary of arrays."
        )
    kinds = {HuggingFaceRows: _is_hugging_face, FolderRows: _is_folder}
    rows = next((kind for kind, is_kind in kinds.items() if is_kind(dataset)), ItemRows)(dataset)
    try:
        len(rows)
    except Exception as error:
        raise ConfigError(
            f"ParserMapStyle: {type(dataset).__name__} has no length ({type(error).__name__}: {error}), and a plan "
            f"needs one: give it a __len__ that returns its number of items. What can only be iterated goes into "
            f"create_loader(dataset, batch_size=...), without a state."
        ) from error
    return rows


class ItemRows:
    """A dataset with `__len__` and `__getitem__`, or `__getitems__`, which torch calls for several items at once."""

    has_schema = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def calls_functions(self) -> bool:  # noqa: D102
        return isinstance(getattr(type(self.dataset), "__getitem__", None), FunctionType)

    def __len__(self) -> int:
        return len(self.dataset)

    def items(self, numbers: Sequence[int], calls: Calls = None) -> list[Any]:  # noqa: D102
        return read_items(self.dataset, numbers, calls)

    def parts(  # noqa: D102
        self, numbers: Sequence[int], fields: Sequence[str], images: Collection[str], calls: Calls = None
    ) -> Sequence[Any]:
        return self.items(numbers, calls)

    def columns(self, numbers: Sequence[int], fields: Sequence[str]) -> Mapping[str, Any] | None:  # noqa: D102
        return None

    def empty(self, field: str) -> Int64Array:  # noqa: D102
        return np.empty(0, np.int64)


class HuggingFaceRows(ItemRows):
    """A `datasets.Dataset`: only the wanted columns are read, and images are left encoded.

    A dataset with its own format or transform returns whole items, which are used as they are.
    """

    has_schema = True

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._parts: dict[tuple[tuple[str, ...], frozenset[str]], Any] = {}

    @property
    def calls_functions(self) -> bool:  # noqa: D102
        return bool(self.dataset.format.get("type") == "custom")  # Its transform.

    def parts(  # noqa: D102
        self, numbers: Sequence[int], fields: Sequence[str], images: Collection[str], calls: Calls = None
    ) -> Sequence[Any]:
        if self.dataset.format.get("type") is not None:
            return self.items(numbers, calls)
        wanted = tuple(fields), frozenset(images)
        part = self._parts.get(wanted)
        if part is None:
            part = self.dataset.select_columns(list(fields))
            for name in images:
                feature = part.features[name]
                if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
                    part = part.cast_column(name, type(feature)(decode=False))
            self._parts[wanted] = part
        return read_items(part, numbers)

    def empty(self, field: str) -> Int64Array:  # noqa: D102
        table = getattr(self.dataset, "data", None)
        if table is None or field not in table.column_names or not table.column(field).null_count:
            return super().empty(field)
        column = self.dataset.with_format("arrow").select_columns([field])[:]
        return np.flatnonzero(column[field].is_null().to_numpy()).astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": {}}


class FolderRows(ItemRows):
    """An `ImageFolder` of torchvision without a transform: images are left in their files, by their paths."""

    calls_functions = False

    def parts(  # noqa: D102
        self, numbers: Sequence[int], fields: Sequence[str], images: Collection[str], calls: Calls = None
    ) -> Sequence[Any]:
        if not images:
            return self.items(numbers, calls)
        found = []
        for number in numbers:
            path, target = self.dataset.samples[number]
            if not path.lower().endswith(_READABLE):
                found += self.items([number])
                continue
            try:
                change = self.dataset.target_transform
                found.append(({"bytes": None, "path": path}, target if change is None else change(target)))
            except Exception as error:
                raise UnreadableItemError(number) from error
        return found


class ColumnRows:
    """A dictionary of columns of one length: arrays, tensors on the CPU, lists, Series of pandas by position."""

    has_schema = True
    calls_functions = False

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: _as_column(name, column) for name, column in columns.items()}
        sizes = {name: len(column) for name, column in self._columns.items()}
        (first, size), *others = sizes.items()
        for name, other in others:
            if other != size:
                raise ConfigError(
                    f"ParserMapStyle: the columns of a dictionary must be of one length: {quoted(first)} has {size} "
                    f"values, and {quoted(name)} {other}."
                )
        self._size = size

    def __len__(self) -> int:
        return self._size

    def items(self, numbers: Sequence[int], calls: Calls = None) -> list[Any]:  # noqa: D102
        columns = self.columns(numbers, list(self._columns))
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def parts(  # noqa: D102
        self, numbers: Sequence[int], fields: Sequence[str], images: Collection[str], calls: Calls = None
    ) -> Sequence[Any]:
        return self.items(numbers, calls)

    def columns(self, numbers: Sequence[int], fields: Sequence[str]) -> Mapping[str, Any]:  # noqa: D102
        index = np.array(numbers, np.int64)
        found: dict[str, Any] = {}
        for name in fields:
            column = self._columns[name]
            if not isinstance(column, np.ndarray):
                found[name] = [column[one] for one in numbers]
            elif column.dtype.kind in "US":
                found[name] = column[index].tolist()
            else:
                found[name] = column[index]
        return found

    def empty(self, field: str) -> Int64Array:  # noqa: D102
        column = self._columns[field]
        if isinstance(column, np.ndarray) and column.dtype.kind != "O":
            return np.empty(0, np.int64)
        return np.array([number for number, value in enumerate(column) if value is None], np.int64)


def read_items(dataset: Any, numbers: Sequence[int], calls: Calls = None) -> list[Any]:
    """Return items of a dataset: by its `__getitems__`, which torch calls too, or one by one.

    With seeds, random numbers are seeded before each item. Where the user's own `__getitems__` reads several items at
    once, they are seeded once, with the seed of the first item. Items are noted where they are read one by one.

    Raises:
        ConfigError: `__getitems__` returns more or fewer items than wanted.
        UnreadableItemError: the dataset raised an exception for an item.
        TfdsTorchError: the dataset raised this exception for an item.
    """
    fetch, seeds = getattr(dataset, "__getitems__", None), None if calls is None else calls.seeds
    if callable(fetch) and len(numbers) > 1 and (seeds is None or _fetches_by_itself(dataset)):
        try:
            if seeds is not None:
                seed_generators(seeds[0])
            with nullcontext() if seeds is None else calling():
                return _fetch(dataset, fetch, numbers)
        except (TfdsTorchError, MemoryError):
            raise
        except Exception:  # Reading one by one shows which item raised the error.
            _logger.debug("%s.__getitems__ failed for %d items.", type(dataset).__name__, len(numbers), exc_info=True)
    found: list[Any] = []
    values, cells = ((), None) if calls is None or calls.notes is None else calls.notes
    try:
        with nullcontext() if seeds is None else calling():
            for place, number in enumerate(numbers):
                if seeds is not None:
                    seed_generators(seeds[place])
                if cells is not None:
                    cells[0] = values[place]
                found.append(_fetch(dataset, fetch, [number])[0] if callable(fetch) else dataset[number])
    except (TfdsTorchError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableItemError(numbers[len(found)]) from error
    return found


def _fetches_by_itself(dataset: Any) -> bool:
    """Return whether `__getitems__` is the user's own, rather than a library's that calls `__getitem__`."""
    fetch = getattr(type(dataset), "__getitems__", None)
    library = getattr(fetch, "__module__", "").partition(".")[0]
    if library != "torch":
        return fetch is not None and library != "datasets"
    within = getattr(dataset, "datasets", None) or [dataset.dataset]  # For a StackDataset, or a Subset.
    return any(map(_fetches_by_itself, within.values() if isinstance(within, Mapping) else within))


def _fetch(dataset: Any, fetch: Callable[[list[int]], Any], numbers: Sequence[int]) -> list[Any]:
    found = list(fetch(list(numbers)))
    if len(found) != len(numbers):
        raise ConfigError(
            f"{type(dataset).__name__}.__getitems__ was asked for {len(numbers)} items ({quoted(list(numbers))}), and "
            f"returned {len(found)}: it must return one for each number, in the order asked."
        )
    return found


def _is_hugging_face(dataset: Any) -> bool:
    return all(hasattr(dataset, name) for name in ("features", "select_columns", "cast_column", "format"))


def _is_folder(dataset: Any) -> bool:
    """Return whether a dataset reads items as torchvision's `DatasetFolder` does, with torchvision's image loader."""
    functions = type(dataset).__getitem__, getattr(dataset, "loader", None)
    names = [f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', '')}" for one in functions]
    return names == [f"{_FOLDER}.DatasetFolder.__getitem__", f"{_FOLDER}.default_loader"] and dataset.transform is None


def is_pandas(dataset: Any) -> bool:
    """Return whether a dataset is a DataFrame or Series of pandas, whose `[i]` takes a label instead of a position."""
    return all(hasattr(dataset, name) for name in ("iloc", "to_numpy", "index"))


def _check_column_names(frame: Any) -> list[str]:
    names = list(frame.columns)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or len(set(names)) < len(names):
        what = f"the name {quoted(wrong[0])}" if wrong else "two columns of one name"
        raise ConfigError(
            f"ParserMapStyle: the columns of a DataFrame need different names that are texts, and this one has {what}: "
            f"frame.columns = [...] names them."
        )
    return names


def _as_column(name: str, column: Any) -> Any:
    if is_pandas(column):
        dtype = getattr(column, "dtype", None)
        is_plain = dtype is None or (isinstance(dtype, np.dtype) and dtype.kind != "O")
        if is_plain or not column.isna().any():
            return native(column.to_numpy())
        return column.to_numpy(dtype=object, na_value=None)  # NaN, pandas.NA: None.
    values = array_of_tensor(column) if is_tensor(type(column)) else None
    if values is not None:
        return values
    if isinstance(column, np.ndarray) and column.ndim:
        return native(column)
    if _is_hugging_face(column):
        raise ConfigError(
            f"ParserMapStyle: this is a dictionary of datasets: give one of them, such as dataset[{quoted(name)}]."
        )
    if isinstance(column, str | bytes) or not (hasattr(column, "__getitem__") and hasattr(column, "__len__")):
        raise ConfigError(
            f"ParserMapStyle: {quoted(name)} of the dictionary is {quoted(column)}, and must be a column: an array, or "
            f"a list with a value for each example."
        )
    if isinstance(column, np.ndarray) and not column.ndim:
        raise ConfigError(f"ParserMapStyle: {quoted(name)} of the dictionary is a single number, and must be a column.")
    return column
