"""Decode structured features of TFDS from their stored parts, without TFDS and tensorflow.

A feature is structured if it is neither an image nor a tensor of fixed shape that is stored as it is: sequences, nested
dictionaries, nested datasets, encoded tensors, images inside any of them.
"""

import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import ClassLabelField, FieldDecoder, OneKeyField
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.parsers.tfds.audio_files import decode_audio
from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Leaf, Repeated, features_by_key
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Columns, FieldSpec

Array = NDArray[Any]


def structured_field(features: Feature, path: Sequence[str]) -> FieldDecoder:
    """Return the decoder of a feature in Python, example by example.

    A dictionary becomes a `dict`. A sequence becomes an array with one dimension more, or a list where its elements
    have different sizes; a sequence of sequences a list of arrays; a sequence of dictionaries a dictionary of
    sequences. A nested dataset (`tfds.features.Dataset`) becomes a list of its steps; one within another becomes a
    dictionary of arrays. Texts are bytes.

    It is thread-safe, and can be pickled where the dataset's own connectors can.

    Args:
        features: the features of the dataset.
        path: keys from the top level down, through sequences and nested datasets.
    """
    feature, depth = features, 0
    for part in path:
        while isinstance(feature, Repeated):
            feature, depth = feature.feature, depth + 1
        feature = features_by_key(feature)[part]
    return _values_of(feature, "/".join(path), depth)


@dataclass(frozen=True)
class _Stored(OneKeyField):
    """Values that are stored as they are."""

    def decode(self, columns: Columns) -> list[Any]:
        return list(columns[self.key])


@dataclass(frozen=True)
class _Decoded:
    """Values that are decoded element by element."""

    name: str
    keys: tuple[str, ...]
    decode_element: Callable[..., Any]
    spec: Any
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
            return _as_declared(self.decode_element(*fields), self.spec)
        elements = zip(*(_elements(field, self.depth) for field in fields), strict=True)
        decoded = _stack([_as_declared(self.decode_element(*element), self.spec) for element in elements], self.spec)
        return _nest(decoded, fields[0], self.depth)


@dataclass(frozen=True)
class _Fields:
    """A nested dictionary of features."""

    values: dict[str, FieldDecoder]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for values in self.values.values() for key in values.keys)

    def decode(self, columns: Columns) -> list[Any]:
        decoded = [values.decode(columns) for values in self.values.values()]
        return [dict(zip(self.values, example, strict=True)) for example in zip(*decoded, strict=True)]


@dataclass(frozen=True)
class _Steps:
    """A nested dataset."""

    name: str
    values: FieldDecoder

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


def _values_of(feature: Feature, key: str, depth: int) -> FieldDecoder:
    """Return the node for a feature inside `depth` sequences."""
    if isinstance(feature, Dictionary):
        return _Fields({k: _values_of(inner, f"{key}/{k}", depth) for k, inner in sorted(feature.features.items())})
    if isinstance(feature, Repeated) and feature.is_dataset and not depth:
        return _Steps(key, _values_of(feature.feature, key, 1))
    if isinstance(feature, Repeated):
        return _values_of(feature.feature, key, depth + 1)
    if not isinstance(feature, Leaf):
        raise TypeError(f"{feature!r} is not a feature that can be decoded.")
    if (number := num_classes(feature)) is not None:
        return ClassLabelField(_leaf_of(feature, key, depth), number)
    return _leaf_of(feature, key, depth)


def _leaf_of(leaf: Leaf, key: str, depth: int) -> FieldDecoder:
    """Return the node for a feature that holds no others, inside `depth` sequences."""
    if leaf.only_tensorflow is not None:
        raise ConfigError(
            f"The feature {quoted(key)} can be decoded by tensorflow only: {leaf.only_tensorflow} does not "
            f"define decode_example_np. Implement it there, beside decode_example, or leave the feature out of "
            f"fields."
        )
    if leaf.decode is None:
        return _Stored(key)
    keys = (key,) if isinstance(leaf.stored, FieldSpec) else tuple(f"{key}/{part}" for part in leaf.stored)
    return _Decoded(key, keys, leaf.decode, leaf.spec, depth)


def num_classes(feature: Feature) -> int | None:
    """Return the number of classes of a label; None if it is unknown, or the feature is not a label."""
    if not isinstance(feature, Leaf) or feature.kind != "label":
        return None
    number = feature.num_classes or len(feature.class_names or ())  # features.json has 0 where there is no number.
    return number if number > 0 else None


def decode_tensor(encoding: str, spec: FieldSpec, *fields: Any) -> Array:
    """Return a tensor that is stored with an encoding, or with its shape beside it.

    Args:
        encoding: `none`, `bytes` or `zlib`.
        spec: the FieldSpec that the feature declares.
        fields: its bytes or values; before them its shape, where more than one side of it varies.
    """
    value, shape = fields[-1], fields[0] if len(fields) > 1 else [-1 if side is None else side for side in spec.shape]
    if encoding == "zlib":
        value = zlib.decompress(value)
    if encoding != "none":
        value = np.frombuffer(value, spec.dtype).copy()  # An array over bytes is read-only.
    return np.asarray(value, spec.dtype).reshape(shape)


def decode_audio_file(spec: FieldSpec, content: bytes) -> Array:
    """Return the samples of an audio file, [samples], or [samples, channels] where channels are declared."""
    samples: Array = decode_audio(content, spec.shape[1] if len(spec.shape) > 1 else None)
    return samples.astype(spec.dtype)


class OwnDecoder:
    """Decode an element with a connector that the dataset defines: a worker imports its code at the first element."""

    def __init__(self, connector: Any, parts: tuple[str, ...] | None) -> None:
        self._connector, self._parts = connector, parts
        self._pickled: bytes | None = None

    def __call__(self, *fields: Any) -> Any:
        """Decode the stored fields of an element with the connector."""
        if self._connector is None and self._pickled is not None:
            self._connector = pickle.loads(self._pickled)  # noqa: S301 (from our own __getstate__)
        return self._connector.decode_example_np(
            fields[0] if self._parts is None else dict(zip(self._parts, fields, strict=True))
        )

    def __getstate__(self) -> dict[str, Any]:
        pickled = pickle.dumps(self._connector) if self._pickled is None else self._pickled
        return {"_connector": None, "_parts": self._parts, "_pickled": pickled}


def _as_declared(value: Any, spec: Any) -> Any:
    """Return a value as tensorflow would return it: an array or a scalar of the declared type."""
    if isinstance(spec, dict):
        return {key: _as_declared(value[key], inner) for key, inner in spec.items()}
    return np.asarray(value, spec.dtype)[()]


def _stack(values: list[Any], spec: Any) -> Any:
    """Return elements as one array, or as a list if they differ in size."""
    if isinstance(spec, dict):
        return {key: _stack([value[key] for value in values], inner) for key, inner in spec.items()}
    if not values:
        return np.zeros((0, *(side or 0 for side in spec.shape)), spec.dtype)
    if len({np.shape(value) for value in values}) > 1:
        return values
    return np.array(values, spec.dtype).reshape(len(values), *np.shape(values[0]))


def _elements(value: Any, depth: int) -> Iterator[Any]:
    if depth == 1:
        yield from value
    else:
        for row in value:
            yield from _elements(row, depth - 1)


def _nest(flat: Any, like: Any, depth: int) -> Any:
    """Return elements nested as their stored values are: lists, with arrays innermost."""
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
