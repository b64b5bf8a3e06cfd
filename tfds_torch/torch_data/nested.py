"""Batches that are nested: dictionaries, lists, tuples and named tuples of tensors."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a batch of the same structure and types, with a function's results in place of its tensors.

    Dictionaries (also other mappings), lists, tuples and named tuples are gone through, in their order; everything else
    (strings, numbers, numpy arrays) stays the same object.
    """
    if isinstance(value, Tensor):
        return function(value)
    return _map_items(value, lambda item: map_tensors(item, function))


def _map_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of the same type with its items changed; everything else as it is."""
    if isinstance(value, Mapping):
        items = {key: change(item) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        changed = copy.copy(value)  # A subclass may hold more than its items: a default, an order.
        changed.update(items)
        return changed
    if isinstance(value, tuple):
        parts = [change(item) for item in value]
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, list):
        entries = [change(item) for item in value]
        if type(value) is list:
            return entries
        changed_list = copy.copy(value)
        changed_list[:] = entries
        return changed_list
    return value


def with_tensors(value: Any) -> Any:
    """Return a batch with tensors in place of its numpy arrays of numbers, in their memory where it may be written."""
    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(value if value.flags.writeable else value.copy())
        except (TypeError, ValueError):  # Texts, objects, and numbers or strides that torch does not know.
            return value
    if isinstance(value, Tensor):
        return value
    return _map_items(value, with_tensors)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in the order in which `map_tensors` goes through them."""
    return (item for item in tensors_and_arrays(value) if isinstance(item, Tensor))


def tensors_and_arrays(value: Any) -> Iterator[Tensor | NDArray[Any]]:
    """Yield the tensors and the numpy arrays of a batch, in the order of `tensors`."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_and_arrays(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_and_arrays(item)


def replace_value(value: Any, old: object, new: Any) -> Any:
    """Return a batch of the same structure and types with a new object in the place of an old one."""
    return new if value is old else _map_items(value, lambda item: replace_value(item, old, new))


def count_examples(batch: Any) -> int:
    """Return B of a batch that a dataset made: the size of its first tensor, or of its first list; else 1."""
    of_tensors = (tensor.size(0) for tensor in tensors(batch) if tensor.ndim)  # Nested ones have no shape.
    entries = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    of_lists = (len(entry) for entry in entries if isinstance(entry, list))
    return next(chain(of_tensors, of_lists), 1)
