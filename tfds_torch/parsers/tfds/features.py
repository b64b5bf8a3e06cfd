"""TFDS features without tensorflow: what an example of them stores, and how a structured one is put together.

Structured is what is neither an image nor a tensor of fixed shape that is stored as it is: sequences, nested
dictionaries, nested datasets, encoded tensors, images inside any of them.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import tensorflow_datasets as tfds
from numpy.typing import NDArray

from tfds_torch.engines.fields import ClassLabelField
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.parsers.tfds.image_values import ImageValues
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Columns, FieldSpec

Array = NDArray[Any]


def stored_specs(features: Any) -> dict[str, FieldSpec]:
    """Returns what an example consists of, as it is stored: key -> its spec.

    Args:
        features: TFDS `FeaturesDict`, or a sequence of one.
    """
    return {key: _field_spec(info) for key, info in _flatten(features.get_serialized_info())}


class StructuredField:
    """A feature that is decoded in Python, example by example.

    A dictionary becomes a `dict`. A sequence becomes an array with one dimension more, or a list where its elements
    have different sizes; a sequence of sequences a list of arrays; a sequence of dictionaries a dictionary of
    sequences. A nested dataset (`tfds.features.Dataset`) becomes a list of its steps. Texts are bytes.

    Thread-safe; can be pickled where the dataset's own connectors can.

    Args:
        features: TFDS `FeaturesDict`, or a sequence of one.
        path: of the feature: keys from the top level down, through sequences and nested datasets.

    Raises:
        ConfigError: only tensorflow can decode a feature.
    """

    keys: tuple[str, ...]
    """The stored fields that `decode` needs."""

    def __init__(self, features: Any, path: Sequence[str]) -> None:
        connector, depth = features, 0
        for part in path:
            while isinstance(connector, tfds.features.Sequence):
                connector, depth = connector.feature, depth + 1
            connector = connector[part]
        self._values = _values_of(connector, "/".join(path), depth)
        self.keys = self._values.keys

    def decode(self, columns: Columns) -> list[Any]:
        """Returns the values of n examples.

        Args:
            columns: stored field -> its n values, for `keys`.

        Raises:
            ValueError: a value cannot be decoded; the message is a sentence about the example.
        """
        return self._values.decode(columns)


class _Values(Protocol):
    """The values of one node of the tree of features."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    def decode(self, columns: Columns) -> list[Any]: ...


@dataclass(frozen=True)
class _Stored:
    """Values that are stored as they are."""

    key: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def decode(self, columns: Columns) -> list[Any]:
        return list(columns[self.key])


@dataclass(frozen=True)
class _Decoded:
    """Values that are decoded element by element.

    Attributes:
        name: of the feature, for messages.
        keys: the stored fields of an element.
        decode_element: called with an element's stored fields, in the order of `keys`.
        info: shape and dtype of an element, TFDS `TensorInfo` or a dictionary of them.
        depth: number of sequences around an element.
    """

    name: str
    keys: tuple[str, ...]
    decode_element: Callable[..., Any]
    info: Any
    depth: int

    def decode(self, columns: Columns) -> list[Any]:
        try:
            return [self._decode_example(fields) for fields in zip(*(columns[key] for key in self.keys), strict=True)]
        except (TfdsTorchError, MemoryError):
            raise
        except Exception as error:  # A connector may raise anything.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(f"Its feature {quoted(self.name)} cannot be decoded. {reason}.") from error

    def _decode_example(self, fields: Sequence[Any]) -> Any:
        if not self.depth:
            return _as_declared(self.decode_element(*fields), self.info)
        elements = zip(*(_elements(field, self.depth) for field in fields), strict=True)
        decoded = _stack([_as_declared(self.decode_element(*element), self.info) for element in elements], self.info)
        return _nest(decoded, fields[0], self.depth)


@dataclass(frozen=True)
class _Dictionary:
    """A nested dictionary of features."""

    values: dict[str, _Values]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for values in self.values.values() for key in values.keys)

    def decode(self, columns: Columns) -> list[Any]:
        decoded = [values.decode(columns) for values in self.values.values()]
        return [dict(zip(self.values, example, strict=True)) for example in zip(*decoded, strict=True)]


@dataclass(frozen=True)
class _Steps:
    """A nested dataset.

    Attributes:
        name: of the feature, for messages.
        values: of its steps, as of a sequence.
    """

    name: str
    values: _Values

    @property
    def keys(self) -> tuple[str, ...]:
        return self.values.keys

    def decode(self, columns: Columns) -> list[Any]:
        return [self._split(value) for value in self.values.decode(columns)]

    def _split(self, value: Any) -> list[Any]:
        lengths = set(_lengths(value))
        if len(lengths) > 1:
            raise ValueError(
                f"The fields of its feature {quoted(self.name)} have different numbers of steps: {lengths}."
            )
        return [_step(value, i) for i in range(max(lengths, default=0))]


def _values_of(connector: Any, key: str, depth: int) -> _Values:
    """Returns the node for a connector inside `depth` sequences."""
    f = tfds.features
    if isinstance(connector, f.FeaturesDict):
        return _Dictionary({k: _values_of(inner, f"{key}/{k}", depth) for k, inner in sorted(connector.items())})
    if isinstance(connector, f.Dataset) and not depth:
        return _Steps(key, _values_of(connector.feature, key, 1))
    if isinstance(connector, f.Sequence):
        return _values_of(connector.feature, key, depth + 1)
    if (number := num_classes(connector)) is not None:
        return ClassLabelField(_leaf_of(connector, key, depth), number)
    return _leaf_of(connector, key, depth)


def _leaf_of(connector: Any, key: str, depth: int) -> _Values:
    """Returns the node for a connector that holds no others, inside `depth` sequences."""
    f = tfds.features
    stored, info = connector.get_serialized_info(), connector.get_tensor_info()
    decoder = type(connector).decode_example_np
    if decoder is f.Image.decode_example_np:
        return _Decoded(key, (key,), ImageValues(connector.shape, connector.np_dtype).decode, info, depth)
    if decoder in (f.Tensor.decode_example_np, f.Text.decode_example_np) and not _needs_tensorflow(connector):
        if not isinstance(stored, dict) and (stored.shape, stored.np_dtype) == (info.shape, info.np_dtype):
            return _Stored(key)
        decode: Callable[..., Any] = partial(_decode_tensor, connector._encoding, info)
        return _Decoded(key, _element_keys(stored, key), decode, info, depth)
    if decoder is f.FeatureConnector.decode_example_np or _needs_tensorflow(connector):
        kind = f"{type(connector).__module__}.{type(connector).__name__}"
        raise ConfigError(
            f"The feature {quoted(key)} can be decoded by tensorflow only: {kind} has no decode_example_np of its own. "
            f"Implement it there, beside decode_example, or leave the feature out of fields."
        )
    decode = partial(_decode_by, connector, tuple(stored) if isinstance(stored, dict) else None)
    return _Decoded(key, _element_keys(stored, key), decode, info, depth)


def num_classes(connector: Any) -> int | None:
    """Returns the number of classes of a TFDS `ClassLabel`; None: it is unknown, or the feature is another one."""
    if not isinstance(connector, tfds.features.ClassLabel):
        return None
    number = connector.num_classes or len(connector._int2str or ())  # features.json has 0 where there is no number.
    return number if number > 0 else None


def _needs_tensorflow(connector: Any) -> bool:
    """Whether a connector decodes in a way of its own that it has for tensorflow only."""
    ways = ({"decode_example_np"}, {"decode_example"})
    with_numpy, with_tensorflow = (
        next(i for i, cls in enumerate(type(connector).__mro__) if way & vars(cls).keys()) for way in ways
    )
    return with_tensorflow < with_numpy


def _element_keys(stored: Any, key: str) -> tuple[str, ...]:
    return tuple(f"{key}/{part}" for part in stored) if isinstance(stored, dict) else (key,)


def _decode_tensor(encoding: Any, info: Any, *fields: Any) -> Array:
    """Returns a tensor that is stored with an encoding, or with its shape beside it.

    Args:
        encoding: TFDS `Encoding`.
        info: what the feature declares.
        fields: its bytes or values; before them its shape, where more than one side of it varies.
    """
    value, shape = fields[-1], fields[0] if len(fields) > 1 else [-1 if side is None else side for side in info.shape]
    if encoding == tfds.features.Encoding.ZLIB:
        value = zlib.decompress(value)
    if encoding != tfds.features.Encoding.NONE:
        value = np.frombuffer(value, info.np_dtype).copy()  # Bytes cannot be written to.
    return np.asarray(value, info.np_dtype).reshape(shape)


def _decode_by(connector: Any, parts: tuple[str, ...] | None, *fields: Any) -> Any:
    """Returns what a dataset's own connector makes of an element."""
    return connector.decode_example_np(fields[0] if parts is None else dict(zip(parts, fields, strict=True)))


def _as_declared(value: Any, info: Any) -> Any:
    """Returns a value as tensorflow would give it: an array or a scalar of the declared type."""
    if isinstance(info, dict):
        return {key: _as_declared(value[key], inner) for key, inner in info.items()}
    return np.asarray(value, info.np_dtype)[()]


def _stack(values: list[Any], info: Any) -> Any:
    """Returns elements as one array; a list, where they differ in size."""
    if isinstance(info, dict):
        return {key: _stack([value[key] for value in values], inner) for key, inner in info.items()}
    if not values:
        return np.zeros((0, *(side or 0 for side in info.shape)), info.np_dtype)
    if len({np.shape(value) for value in values}) > 1:
        return values
    return np.array(values, info.np_dtype).reshape(len(values), *np.shape(values[0]))


def _elements(value: Any, depth: int) -> Iterator[Any]:
    if depth == 1:
        yield from value
    else:
        for row in value:
            yield from _elements(row, depth - 1)


def _nest(flat: Any, like: Any, depth: int) -> Any:
    """Returns elements in the nesting that their stored values have: lists, with arrays innermost."""
    if isinstance(flat, dict):
        return {key: _nest(inner, like, depth) for key, inner in flat.items()}
    start = 0

    def take(like: Any, depth: int) -> Any:
        nonlocal start
        if depth > 1:
            return [take(row, depth - 1) for row in like]
        start += len(like)
        return flat[start - len(like) : start]

    return take(like, depth)


def _lengths(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _lengths(inner)
    else:
        yield len(value)


def _step(value: Any, number: int) -> Any:
    return {key: _step(inner, number) for key, inner in value.items()} if isinstance(value, dict) else value[number]


def _flatten(info: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in info.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{key}/")
        else:
            yield prefix + key, inner


def _field_spec(info: Any) -> FieldSpec:
    dtype = np.dtype(info.np_dtype)
    # As TFDS's own parser has it, a sequence that an example lacks is empty.
    default = () if info.default_value is None and None in info.shape else info.default_value
    return FieldSpec(tuple(info.shape), object if dtype.kind in "OSU" else dtype, default)
