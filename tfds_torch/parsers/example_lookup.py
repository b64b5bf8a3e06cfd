"""Which example is meant: a global index, counted from the end when negative, or an id as TFDS gives it."""

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Source


def find_examples(source: Source, split: str, keys: Iterable[Any]) -> Int64Array:
    """Returns the global indices, int64 [n], of examples given by index or by id, in any mix. Reads no example.

    Args:
        source: the examples of a split.
        split: the split expression, for messages.
        keys: integers, -num_examples <= i < num_examples; and ids, `<shard file>__<record>`, or the path below the root
            of an image folder.

    Raises:
        ConfigError: a key is neither.
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
        number = None if isinstance(key, bool | np.bool_) else index(key)
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
