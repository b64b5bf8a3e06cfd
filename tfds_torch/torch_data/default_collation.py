"""DefaultCollation: torch's default collation of examples, whose errors name the field that does not make a batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.torch_data.batch_rows import collate_around
from tfds_torch.torch_data.batches import NumberedColumns, NumberedItems, tensor_of
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
from tfds_torch.torch_data.wrapped_datasets import unwrap


class _Difference(NamedTuple):
    """Where and how the values of examples differ, in words, and the positions of two that differ.

    Both positions are the same where a single value cannot be in any batch.
    """

    where: str
    what: str
    positions: tuple[int, int] | None = None


class DefaultCollation:
    """Makes a batch of examples, as torch's `default_collate`; errors name the field of our datasets. Picklable.

    Items of a map-style dataset are named by their numbers. Dictionaries must have equal keys: torch would leave out
    the keys that the first one lacks.

    Args:
        dataset: the dataset, for errors.
        are_rows: whether images may be the rows of one batch of ours, which is then handed on.
    """

    def __init__(self, dataset: Any, *, are_rows: bool = False) -> None:
        self._dataset, self._are_rows = dataset, are_rows

    def __call__(self, examples: list[Any] | NumberedColumns) -> Any:
        """Return the batch; ConfigError where the values of a field differ, so that they do not make one."""
        if isinstance(examples, NumberedColumns):
            return {name: self._collate_column(name, values, examples) for name, values in examples.items()}
        if isinstance(examples, NumberedItems):
            other = _find_other_keys(examples)
            if other is not None:
                raise self._error(examples, other)
        try:
            return collate_around(examples, default_collate) if self._are_rows else default_collate(examples)
        except MemoryError:
            raise
        except Exception as error:
            found = _find_in_fields(examples, self._fields(examples))
            if found is None:  # Like no space in shared memory.
                raise
            raise self._error(examples, found, f" ({type(error).__name__}: {error})") from error

    def _collate_column(self, name: str, values: Any, columns: NumberedColumns) -> Any:
        if isinstance(values, np.ndarray) and is_numeric(values.dtype):
            return tensor_of(values)  # As torch makes it of their single values.
        try:
            return default_collate(list(values))
        except Exception as error:
            found = _find(values, f"the column {name!r}")
            if found is None:
                raise
            items = NumberedItems(values, columns.numbers)
            raise self._error(items, found, f" ({type(error).__name__}: {error})") from error

    def _fields(self, examples: list[Any]) -> tuple[str, ...]:
        if isinstance(examples, NumberedItems):
            return ()
        ours = (layer for layer in unwrap(self._dataset) if isinstance(layer, ImageDataset | IndexedImageDataset))
        return next((layer.fields for layer in ours), ())

    def _error(self, examples: list[Any], found: _Difference, raised: str = "") -> ConfigError:
        fields, which = self._fields(examples), ""
        if isinstance(examples, NumberedItems) and found.positions is not None:
            first, other = (int(examples.numbers[position]) for position in found.positions)
            items = f"item {first}" if first == other else f"items {first} and {other}"
            which = f", {items} of {self._dataset.parser.dataset_name}"
        leave_out = f"leave it out of fields={fields}" if fields else "let the dataset leave it out"
        windows = " Steps of episodes make batches as windows: ParserTfds(..., windows=Windows('steps', ...))."
        return ConfigError(
            f"create_loader: torch's default collation cannot make a batch of these {len(examples)} examples: "
            f"{found.where} {found.what}{which}{raised}. Give create_loader a collate_fn=, which makes a batch of a "
            f"list of examples (collate_fn='list' leaves the values of each field a list); or {leave_out}, or make its "
            f"values alike.{windows if _have_steps(examples) else ''}"
        )


def collate_lists(examples: list[Any]) -> Any:
    """Return the values of examples as they are: of tuples and dictionaries, a list for each field."""
    first = examples[0]
    if isinstance(first, Mapping):
        return {key: [example[key] for example in examples] for key in first}
    return tuple(map(list, zip(*examples, strict=True))) if isinstance(first, tuple) else list(examples)


def _have_steps(examples: list[Any]) -> bool:
    """Return whether a value of the first example is the steps of an episode: a list of dictionaries."""
    first = examples[0]
    values = first.values() if isinstance(first, Mapping) else first if isinstance(first, tuple) else ()
    return any(isinstance(value, list) and value and isinstance(value[0], Mapping) for value in values)


def _find_other_keys(items: list[Any]) -> _Difference | None:
    """Return where one of several dictionaries has other keys than the first one."""
    if not items or not isinstance(items[0], Mapping):
        return None
    keys = items[0].keys()
    for position, item in enumerate(items):
        if isinstance(item, Mapping) and item.keys() != keys:
            return _other_keys("example", items, position)
    return None


def _find_in_fields(examples: list[Any], fields: tuple[str, ...]) -> _Difference | None:
    """Return the first difference within examples that do not make a batch."""
    if any(not isinstance(example, tuple) or len(example) != len(fields) for example in examples):
        return _find(examples, "example")
    columns = zip(fields, zip(*examples, strict=True), strict=True)
    return _first((f"the field {name!r}", column) for name, column in columns)


def _find(values: Sequence[Any], where: str) -> _Difference | None:
    """Return the first difference within values that do not make a batch; None: they do, or there is none."""
    try:
        default_collate(list(values))
    except Exception:
        return _find_difference(values, where)
    return None


def _find_difference(values: Sequence[Any], where: str) -> _Difference | None:
    if all(isinstance(value, Mapping) for value in values):
        other = next((at for at, value in enumerate(values) if value.keys() != values[0].keys()), None)
        if other is not None:
            return _other_keys(where, values, other)
        return _first((f"{where}[{key!r}]", [value[key] for value in values]) for key in values[0])
    if all(isinstance(value, list | tuple) for value in values):
        other = next((at for at, value in enumerate(values) if len(value) != len(values[0])), None)
        if other is not None:
            sizes = len(values[0]), len(values[other])
            return _Difference(where, f"has {sizes[0]} values in one of them and {sizes[1]} in another", (0, other))
        return _first((f"{where}[{number}]", column) for number, column in enumerate(zip(*values, strict=True)))
    kinds = list(map(_kind, values))
    other = next((at for at, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        return _Difference(where, f"is {kinds[0]} in one of them and {kinds[other]} in another", (0, other))
    large = next((at for at, value in enumerate(values) if isinstance(value, int) and not _fits(value)), None)
    if large is not None:
        return _Difference(where, f"is {quoted(values[large])}, which 64 bits do not hold", (large, large))
    is_taken = isinstance(values[0], torch.Tensor | np.ndarray | np.generic | int | float | str | bytes)
    is_number = not isinstance(values[0], np.ndarray | np.generic) or values[0].dtype.kind in "biufc"
    return None if is_taken and is_number else _Difference(where, f"is {kinds[0]}, of which it makes no batch")


def _other_keys(where: str, values: Sequence[Mapping[Any, Any]], other: int) -> _Difference:
    first, last = (sorted(map(repr, values[at])) for at in (0, other))
    what = f"has the keys {_listed(first)} in one of them and {_listed(last)} in another"
    return _Difference(where, what, (0, other))


def _first(parts: Iterable[tuple[str, Sequence[Any]]]) -> _Difference | None:
    return next((found for where, values in parts if (found := _find(values, where)) is not None), None)


def _kind(value: Any) -> str:
    """Return the properties of a value that all values of a batch must share, in words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {list(value.shape)}"
    if isinstance(value, Image.Image):
        return (
            "a PIL image (end the dataset's transform with a conversion to tensors, or let ParserMapStyle(dataset, "
            "preprocess=...) make the pixels)"
        )
    return "None" if value is None else f"of type {type(value).__name__}"


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _listed(keys: Sequence[str]) -> str:
    return f"{{{', '.join(keys)}}}"
