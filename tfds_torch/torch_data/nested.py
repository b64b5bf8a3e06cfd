"""Batches that are nested: dictionaries, lists, tuples and named tuples of tensors."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Returns a batch of the same structure and types, with a function's results in place of its tensors.

    Dictionaries (also other mappings), lists, tuples and named tuples are gone through, in their order; everything else
    (strings, numbers, numpy arrays) stays the very object it is.

    Args:
        value: a tensor, or a batch of any depth.
        function: called once with every tensor.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(item, function) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        changed = copy.copy(value)  # A subclass may hold more than its items: a default, an order.
        changed.update(items)
        return changed
    if isinstance(value, tuple):
        parts = [map_tensors(item, function) for item in value]
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, list):
        entries = [map_tensors(item, function) for item in value]
        if type(value) is list:
            return entries
        changed_list = copy.copy(value)
        changed_list[:] = entries
        return changed_list
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors of a batch, in the order in which `map_tensors` goes through them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
