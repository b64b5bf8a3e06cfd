"""Single examples: found by an index or an id, and decoded in this process, as `parser[i]` returns them."""

from collections.abc import Iterable, Iterator
from operator import index as as_index
from typing import Any

import numpy as np

from tfds_torch.engines.batch import Batch, Example
from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.plan.order import MOST_SLOTS, Int64Array
from tfds_torch.plan.subset import Subset
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Source

_CHUNK_BYTES = 3 * 2**19  # Encoded bytes that are decoded at a time; any of their examples keeps all in memory.


def decode_examples(
    source: Source,
    content: Content,
    class_map: ClassMap | None,
    read: ReadOptions,
    keys: Int64Array,
    *,
    seed: int = 0,
    context: ReadContext = ReadContext(),
) -> list[Example]:
    """Returns examples by their sample keys, int64 [n], in this order, with the class map applied."""
    if not len(keys):
        return []
    chunk_size = examples_at_once(source)
    num_threads = 1 if len(keys) <= chunk_size else read.threads_of_worker(1)
    return [
        example
        for part, decoded in read_examples(source, content, keys, num_threads, chunk_size, seed=seed, context=context)
        for example in _examples(source, content, class_map, part, dict(decoded))
    ]


def _examples(
    source: Source, content: Content, class_map: ClassMap | None, index: Int64Array, columns: dict[str, Any]
) -> Iterator[Example]:
    has_label = "label" in columns
    label = np.asarray(columns.pop("label"), np.int64) if content.has_label else None
    image = columns.pop("image", None)
    batch = Batch(image, label, np.ones(len(index), np.bool_), index, source.ids(index), columns)
    if has_label and class_map is not None:
        (batch,) = class_map.remap(iter([batch]))
    labels = [None] * len(index) if batch.label is None else batch.label.tolist()
    for i, (one, number, name) in enumerate(zip(labels, index.tolist(), batch.id, strict=True)):
        features = {key: values[i] for key, values in batch.features.items()}
        yield Example(None if image is None else image[i], one, number, name, features)


def examples_at_once(source: Source) -> int:
    """Returns how many examples are read and decoded at a time, so that little memory is taken."""
    return max(1, _CHUNK_BYTES // max(1, source.mean_example_bytes))


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
    """Returns a place in a subset, counted from its beginning.

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
    """Raises ExampleNotFoundError where an example of the split is not one of the subset."""
    is_other = subset.places_of(numbers) < 0
    if is_other.any():
        raise ExampleNotFoundError(
            f"{where}: example {int(numbers[is_other][0])} of the split is not one of the subset's {len(subset):,}."
        )
