"""DefaultCollation: torch's default collation of examples, whose errors name the field that makes no batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
from tfds_torch.torch_data.wrapped_datasets import unwrap

_Difference = tuple[str, str]
"""Where the values of examples differ, and how, in words."""


class DefaultCollation:
    """Makes a batch of examples, as torch's `default_collate`; errors name the field of our datasets. Picklable."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, examples: list[Any]) -> Any:
        """Returns the batch; ConfigError where the values of a field differ, so that they do not make one."""
        try:
            return default_collate(examples)
        except MemoryError:
            raise
        except Exception as error:
            ours = (layer for layer in unwrap(self._dataset) if isinstance(layer, ImageDataset | IndexedImageDataset))
            fields = next((layer.fields for layer in ours), ())
            found = _find_in_fields(examples, fields)
            if found is None:  # Such as no space in shared memory.
                raise
            where, what = found
            leave_out = f"leave it out of fields={fields}" if fields else "let the dataset leave it out"
            raise ConfigError(
                f"create_loader: torch's default collation cannot make a batch of these {len(examples)} examples: "
                f"{where} {what} ({type(error).__name__}: {error}). Give create_loader a collate_fn=, which makes a "
                f"batch of a list of examples; or {leave_out}, or make its values alike."
            ) from error


def _find_in_fields(examples: list[Any], fields: tuple[str, ...]) -> _Difference | None:
    """Returns the first difference within examples that do not make a batch."""
    if any(not isinstance(example, tuple) or len(example) != len(fields) for example in examples):
        return _find(examples, "example")
    columns = zip(fields, zip(*examples, strict=True), strict=True)
    return _first((f"the field {name!r}", column) for name, column in columns)


def _find(values: Sequence[Any], where: str) -> _Difference | None:
    """Returns the first difference within values that do not make a batch; None: they do, or there is none."""
    try:
        default_collate(list(values))
    except Exception:
        return _find_difference(values, where)
    return None


def _find_difference(values: Sequence[Any], where: str) -> _Difference | None:
    if all(isinstance(value, Mapping) for value in values):
        keys = sorted({tuple(sorted(map(repr, value))) for value in values})
        if len(keys) > 1:
            return where, f"has the keys {_listed(keys[0])} in one of them and {_listed(keys[1])} in another"
        return _first((f"{where}[{key!r}]", [value[key] for value in values]) for key in values[0])
    if all(isinstance(value, list | tuple) for value in values):
        sizes = sorted({len(value) for value in values})
        if len(sizes) > 1:
            return where, f"has {sizes[0]} values in one of them and {sizes[1]} in another"
        return _first((f"{where}[{number}]", column) for number, column in enumerate(zip(*values, strict=True)))
    kinds = list(dict.fromkeys(_kind(value) for value in values))
    if len(kinds) > 1:
        return where, f"is {kinds[0]} in one of them and {kinds[1]} in another"
    (kind,) = kinds
    is_taken = isinstance(values[0], torch.Tensor | np.ndarray | np.generic | int | float | str | bytes)
    is_number = not isinstance(values[0], np.ndarray | np.generic) or values[0].dtype.kind in "biufc"
    return None if is_taken and is_number else (where, f"is {kind}, of which it makes no batch")


def _first(parts: Iterable[tuple[str, Sequence[Any]]]) -> _Difference | None:
    return next((found for where, values in parts if (found := _find(values, where)) is not None), None)


def _kind(value: Any) -> str:
    """Returns the properties of a value that all values of a batch must share, in words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {list(value.shape)}"
    if isinstance(value, Image.Image):
        return "a PIL image (end the dataset's transform with a conversion to tensors)"
    return "None" if value is None else f"of type {type(value).__name__}"


def _listed(keys: Sequence[str]) -> str:
    return f"{{{', '.join(keys)}}}"
