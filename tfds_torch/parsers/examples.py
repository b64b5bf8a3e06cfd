"""Single examples, found by an index or an id."""

from collections.abc import Iterable
from operator import index as as_index
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.plan.order import MOST_SLOTS, Int64Array
from tfds_torch.plan.subset import Subset
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Source

_CHUNK_BYTES = 3 * 2**19  # Encoded bytes that are decoded at a time; any of their examples keeps all in memory.


def examples_at_once(source: Source) -> int:
    """Return how many examples are read and decoded at a time, so that they take little memory."""
    return max(1, _CHUNK_BYTES // max(1, source.mean_example_bytes))


def find_examples(source: Source, split: str, keys: Iterable[Any]) -> Int64Array:
    """Return the global indices, int64 [n], of examples given by index or by id, in any mix; read no example.

    Args:
        source: the examples of a split.
        split: the split expression, for messages.
        keys: integers, -num_examples <= i < num_examples; and ids, `<shard file>__<record>`, or the path below the root
            of an image folder.

    Raises:
        ConfigError: a key is neither an index nor an id.
        ExampleNotFoundError: the split has no such example.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise ConfigError(f"Examples are asked for by a list of indices and ids, not by {quoted(keys)} alone.")
    where = f"{source.name}, split {quoted(split)}"
    found = [_find_id(source, where, key) if isinstance(key, str) else _find_index(source, where, key) for key in keys]
    return np.array(found, np.int64)


def _find_id(source: Source, where: str, key: str) -> int:
    try:
        return source.find(key)
    except ExampleNotFoundError as error:  # The source knows no split expression.
        raise ExampleNotFoundError(f"{where}{str(error).removeprefix(source.name)}") from None


def _find_index(source: Source, where: str, key: Any) -> int:
    try:
        number = None if isinstance(key, bool | np.bool_) else as_index(key)
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{where}: {quoted(key)} names no example: give its index (an integer) or its id (a string).")
    num_examples = len(source)
    if not -num_examples <= number < num_examples:
        there = f"its indices are 0 to {num_examples - 1}, or -{num_examples} to -1 from the end"
        raise ExampleNotFoundError(
            f"{where}: there is no example {number}: {there if num_examples else 'it is empty'}."
        )
    return number % num_examples


def find_place(subset: Subset, where: str, place: Any) -> int:
    """Return a place in a subset, counted from its beginning.

    Raises:
        ConfigError: it is not an integer.
        ExampleNotFoundError: there is no such place.
    """
    number = check_integer(f"{where}: place", place, -MOST_SLOTS, MOST_SLOTS)
    if not -len(subset) <= number < len(subset):
        there = f"its places are 0 to {len(subset) - 1}" if len(subset) else "it is empty"
        raise ExampleNotFoundError(f"{where}: there is no place {number} in the subset: {there}.")
    return number % len(subset)


def check_are_in(subset: Subset, where: str, numbers: Int64Array) -> None:
    """Raise ExampleNotFoundError where an example of the split is not in the subset."""
    is_other = subset.places_of(numbers) < 0
    if is_other.any():
        raise ExampleNotFoundError(
            f"{where}: example {int(numbers[is_other][0])} of the split is not one of the subset's {len(subset):,}."
        )
