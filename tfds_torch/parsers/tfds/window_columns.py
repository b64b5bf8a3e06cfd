"""Fields of all windows as arrays: the values at each window's own step. No byte of a stored image is read."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content, FieldDecoder
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.parsers.tfds.feature_tree import Leaf
from tfds_torch.parsers.tfds.fields import is_image
from tfds_torch.parsers.tfds.window_fields import FeatureRow, WindowFields
from tfds_torch.plan.order import Int64Array
from tfds_torch.plan.windows import window_rows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import EPISODE
from tfds_torch.storage.source import FieldSpec

_MOST_AT_ONCE = 1 << 14  # Steps that are read together: the arithmetic of more of them leaves the processor's cache.
_BYTES_AT_ONCE = 8 << 20
_READ_AHEAD = 16  # This many times more steps are announced to the operating system at once.


def read_columns(
    fields: WindowFields, source: WindowSource, names: Sequence[str], index: Int64Array, read: ReadOptions
) -> dict[str, NDArray[Any]]:
    """Return the values of fields at the windows' own steps, whatever the offsets.

    Args:
        fields: the fields of the windows.
        source: the windows.
        names: the fields that are asked for.
        index: int64 [n], the windows.
        read: how many threads read and decode.

    Returns:
        Name -> values in the order asked: numbers [n, ...] of the declared dtype, or objects [n]: str for texts, else
        bytes.

    Raises:
        ConfigError: a field does not exist, is an image, or has no fixed size.
        ShardError, CorruptRecordError: as reading raises them.
    """
    num_threads = read.threads_of_worker(1)
    order = None if (np.diff(index) >= 0).all() else np.argsort(index, kind="stable")
    episode, step = source.reader.table.locate(index if order is None else index[order])
    num_steps = source.reader.num_steps
    columns: dict[str, NDArray[Any]] = {}
    of_steps: dict[str, _Column] = {}
    of_episodes: dict[str, _Column] = {}
    for name in names:
        row = fields.row(name)
        if isinstance(row, FeatureRow):
            (of_steps if row.is_of_steps else of_episodes)[name] = _column(fields, source, name, row)
        elif row.offsets is not None:
            columns[name] = window_rows(step, num_steps[episode], row.offsets)[1]
        else:
            columns[name] = episode if row.key == EPISODE else step
    first = np.cumsum(num_steps) - num_steps  # The number of each episode's first step among all of them.
    if of_steps:
        columns |= _read_steps(source, of_steps, first[episode] + step, num_threads)
    if of_episodes:
        distinct, back = np.unique(episode, return_inverse=True)
        of_distinct = _read_steps(source, of_episodes, first[distinct], num_threads)
        columns |= {name: values[back] for name, values in of_distinct.items()}
    if order is not None:
        columns = {name: _reordered(values, order) for name, values in columns.items()}
    return {name: columns[name] for name in names}


class _Column(NamedTuple):
    """How a field of steps, or of episodes, is read: bytes become str where it is a text."""

    decoder: FieldDecoder
    spec: FieldSpec
    is_text: bool


def _column(fields: WindowFields, source: WindowSource, name: str, row: FeatureRow) -> _Column:
    """Return how a field is read; raise ConfigError where it cannot be one array."""
    if is_image(row.leaf):
        why = (
            "is an image: columns are the numbers and texts of all steps, read without a byte of an image. Images come "
            "in batches()"
        )
        raise ConfigError(f"{source.name}: columns: the field {quoted(name)} {why}.")
    (decoder, _, spec, _), layout = fields.encoded_field(name, own_step=True), source.features.layout
    if row.is_of_steps:
        has_one = all(key in layout.values or key in layout.numbers for key in decoder.keys)
    else:
        has_one = not row.found.sequence_depth
    is_leaf = isinstance(row.found.feature, Leaf) and isinstance(spec, FieldSpec) and None not in spec.shape
    if not has_one or not is_leaf or (np.dtype(spec.dtype).kind in "OSU" and spec.shape):
        why = (
            f"is {quoted(row.found.feature)}, which does not have one size in every step: it cannot be one array. It "
            f"comes in batches()"
        )
        raise ConfigError(f"{source.name}: columns: the field {quoted(name)} {why}.")
    return _Column(decoder, spec, row.leaf.kind == "text" or row.is_text)


def _read_steps(
    source: WindowSource, columns: Mapping[str, _Column], numbers: Int64Array, num_threads: int
) -> dict[str, NDArray[Any]]:
    """Return fields of steps by their numbers among all steps of the split, int64 [n], ascending."""
    found = {name: _empty(one.spec, len(numbers)) for name, one in columns.items()}
    content = Content({name: one.decoder for name, one in columns.items()}, has_label=False)
    # The size of a text is a guess.
    step_bytes = sum(64 if own.dtype == object else 8 * prod(own.shape[1:]) for own in found.values())
    size = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, step_bytes)))
    texts = {name: dict[bytes | str, str]() for name, one in columns.items() if one.is_text}
    steps, stop = source.steps(), 0
    for at in range(0, len(numbers), size * _READ_AHEAD):
        part = numbers[at : at + size * _READ_AHEAD]
        with suppress(ShardError):  # Reading raises it.
            steps.reader.announce(part, content.keys)
        for index, decoded in read_examples(steps, content, part, num_threads, size):
            start, stop = stop, stop + len(index)
            for name, own in found.items():
                own[start:stop] = _texts_of(decoded[name], texts[name]) if name in texts else decoded[name]
    return found


def _texts_of(values: Sequence[bytes | str], known: dict[bytes | str, str]) -> list[str]:
    """Return bytes as str, with one object for all equal values: a text of an episode comes once for every step."""
    for value in set(values) - known.keys():
        known[value] = value if isinstance(value, str) else value.decode(errors="replace")
    return [known[value] for value in values]


def _empty(spec: FieldSpec, size: int) -> NDArray[Any]:
    dtype = np.dtype(spec.dtype)
    return np.empty((size, *spec.shape), object if dtype.kind in "OSU" else dtype)  # type: ignore[arg-type]


def _reordered(values: NDArray[Any], order: Int64Array) -> NDArray[Any]:
    """Return values [n, ...] in another order: the i-th value is moved to the place order[i]."""
    found = np.empty_like(values)
    found[order] = values
    return found


# Columns that transforms make.

_UNLIKE = "does not give values of one size and dtype in every window"


def make_column(
    fields: WindowFields, source: WindowSource, content: Content, name: str, index: Int64Array, read: ReadOptions
) -> NDArray[Any]:
    """Return a column that transforms make: the value in a batch at each window's own step, [n, ...].

    Args:
        fields: the fields of the windows, as they are stored.
        source: the windows.
        content: the content to decode, with the transforms for the field.
        name: the field.
        index: int64 [n], the windows, in the order asked.
        read: how many threads read and decode.

    Raises:
        ConfigError: a function failed, or makes values that differ in size, or no value of the own step.
        ShardError, CorruptRecordError: as reading raises them.
    """
    if not len(source):
        return np.empty(0)
    asked = index if len(index) else np.zeros(1, np.int64)  # The first window shows shape and dtype.
    parts: list[NDArray[Any]] = []
    for _, decoded in read_examples(source, content, asked, read.threads_of_worker(1), examples_at_once(source)):
        parts.append(_own_steps(name, fields, content, decoded[name]))
        if (parts[-1].dtype, parts[-1].shape[1:]) != (parts[0].dtype, parts[0].shape[1:]):
            raise _not_a_column(fields, name, _UNLIKE)
    return np.concatenate(parts)[: len(index)]


def _own_steps(name: str, fields: WindowFields, content: Content, values: Any) -> NDArray[Any]:
    """Return the values of a field at the own step of n windows, [n, ...]."""
    if not isinstance(values, np.ndarray):
        if not all(isinstance(one, str) for one in values) and not all(isinstance(one, bytes) for one in values):
            raise _not_a_column(fields, name, _UNLIKE)
        texts = np.empty(len(values), object)
        texts[:] = values
        return texts
    step = _own_step(name, fields, content, values.shape[1:])
    own: NDArray[Any] = values if step is None else values[:, step]
    if own.dtype == np.uint8 and own.ndim > 3:
        why = "gives images, and columns are numbers and texts. Images come in batches()"
        raise _not_a_column(fields, name, why)
    return own


def _own_step(name: str, fields: WindowFields, content: Content, shape: tuple[int, ...]) -> int | None:
    """Return the place of a window's own step in a value; None where it is one value, without an axis of time.

    The steps are those of the dataset's field of this name, where there is one; else those of the fields that are read.
    """
    rows = map(fields.row, [name] if fields.has(name) else content.fields)
    times = {row.offsets for row in rows if isinstance(row, FeatureRow) and row.offsets is not None}
    fitting = [offsets for offsets in times if shape and len(offsets) == shape[0]]
    if not fitting:
        return None
    places = {offsets.index(0) if 0 in offsets else None for offsets in fitting}
    if len(places) > 1 or None in places:
        steps = " or ".join(str(list(offsets)) for offsets in fitting)
        raise _not_a_column(
            fields,
            name,
            f"gives values of the steps {steps}, counted from the window's own, and a column is of the own one. Give "
            f"it the name of a field whose offsets have 0, or read batches()",
        )
    return places.pop()


def _not_a_column(fields: WindowFields, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{fields.dataset}: columns: the transform that gives {quoted(name)} {why}. What is stored of a field comes "
        f"with stored=True."
    )
