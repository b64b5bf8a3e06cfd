"""How the values of one field are taken out of parsed `tf.train.Example`s, all records of a call at a time.

A column of numbers becomes one array with a single call of numpy. What a feature holds is looked at closely only where
it has not the expected number of values.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

Feature = Any  # A message `tf.train.Feature`.
Features = Mapping[str, Feature]  # Of one example. Asked for a key that it lacks, it answers with an empty message.
Array = NDArray[Any]

_MANY_VALUES = 64  # From here on, numpy reads protobuf's lists faster than Python's loops do.
_NAMES = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


class BadExampleError(Exception):
    """A record that is not an example, or whose field does not hold what it should; never leaves this room.

    Args:
        position: of the example among those that were to be read.
        reason: a sentence.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


class Field(ABC):
    """One field.

    Args:
        key: of the feature.
        spec: what it holds.
    """

    def __init__(self, key: str, spec: FieldSpec) -> None:
        self.key, self.shape, self.default = key, spec.shape, spec.default
        kind = np.dtype(spec.dtype).kind
        self.dtype = np.dtype(object) if kind in "OSU" else np.dtype(spec.dtype)
        # TFDS stores bool as int64, and all kinds of floats as float32.
        self.stored = np.dtype(object if kind in "OSU" else np.int64 if kind in "biu" else np.float32)
        self.list_name = {"O": "bytes_list", "i": "int64_list", "f": "float_list"}[self.stored.kind]

    @abstractmethod
    def read(self, examples: Sequence[Features]) -> Any:
        """Returns the column.

        Raises:
            BadExampleError: an example does not hold what it should.
        """

    def lists(self, examples: Sequence[Features]) -> list[Sequence[Any]]:
        """Returns the values that each example has, as protobuf's lists."""
        key = self.key
        if self.list_name == "bytes_list":  # Names that stand here are looked up in half of getattr's time.
            return [features[key].bytes_list.value for features in examples]
        if self.list_name == "int64_list":
            return [features[key].int64_list.value for features in examples]
        return [features[key].float_list.value for features in examples]

    def array(self, values: Sequence[Any]) -> Array:
        """Returns values as they are stored, as an array [n] of the spec's dtype."""
        if self.stored.kind == "O":
            array = np.empty(len(values), object)
            array[:] = values
            return array
        many = len(values) >= _MANY_VALUES
        array = np.array(values, self.stored) if many else np.fromiter(values, self.stored, len(values))
        return array.astype(self.dtype, copy=False)

    def missing(self, position: int, feature: Feature) -> BadExampleError:
        """Returns the error for a feature that is not there, or holds values of another kind."""
        found = feature.WhichOneof("kind")
        if found is None:
            return BadExampleError(position, f"It lacks the feature {quoted(self.key)}.")
        if found == self.list_name:
            return BadExampleError(
                position, f"Its feature {quoted(self.key)} is one list of values instead of nested sequences."
            )
        count = len(getattr(feature, found).value)
        return BadExampleError(
            position,
            f"Its feature {quoted(self.key)} holds {_NAMES[found]} values ({count}) instead of "
            f"{_NAMES[self.list_name]} "
            f"values.",
        )

    def has_kind(self, feature: Feature) -> bool:
        """Whether a feature holds a list of the right kind, be it empty."""
        return bool(feature.WhichOneof("kind") == self.list_name)


class FixedField(Field):
    """Values of one shape: a list of bytes, or an array [n, *shape]."""

    def __init__(self, key: str, spec: FieldSpec) -> None:
        super().__init__(key, spec)
        self._sides = tuple(side or 0 for side in spec.shape)
        self._size = math.prod(self._sides)

    def read(self, examples: Sequence[Features]) -> Any:  # noqa: D102
        lists = self.lists(examples)
        sizes = list(map(len, lists))
        if sizes.count(self._size) != len(sizes):
            lists = [self._checked(place, example) for place, example in enumerate(examples)]
        if not self._sides:
            scalars = [values[0] for values in lists]
            return scalars if self.stored.kind == "O" else self.array(scalars)
        if self.stored.kind == "O" or self._size < _MANY_VALUES:
            return self.array(list(chain.from_iterable(lists))).reshape(len(lists), *self._sides)
        rows = np.empty((len(lists), self._size), self.stored)
        for row, values in zip(rows, lists, strict=True):
            row[:] = values
        return rows.astype(self.dtype, copy=False).reshape(len(lists), *self._sides)

    def _checked(self, position: int, example: Features) -> Sequence[Any]:
        """Returns the values of one example, or the default's; the slow way."""
        feature, size = example[self.key], self._size
        values: Sequence[Any] = getattr(feature, self.list_name).value
        if len(values) == size:
            return values
        if not values and not self.has_kind(feature):
            nested = read_nested(self, position, example)
            if nested is not None and nested[0].size == size:
                flat: list[Any] = nested[0].reshape(-1).tolist()
                return flat
            if feature.WhichOneof("kind") is not None or self.default is None:
                raise self.missing(position, feature)
        elif values or self.default is None:
            raise BadExampleError(
                position, f"Its feature {quoted(self.key)} has {len(values)} values instead of {size}."
            )
        default: list[Any] = np.broadcast_to(np.asarray(self.default, self.stored), self._sides).reshape(-1).tolist()
        return default


class VaryingField(Field):
    """Values one of whose sides varies, or several: a list of arrays, or of nested lists of arrays."""

    def read(self, examples: Sequence[Features]) -> Any:  # noqa: D102
        if self.shape.count(None) > 1:
            return [self._nested(position, example) for position, example in enumerate(examples)]
        shape = [-1 if side is None else side for side in self.shape]
        row = math.prod(side for side in self.shape if side is not None)
        column = []
        for position, (example, values) in enumerate(zip(examples, self.lists(examples), strict=True)):
            if not values and not self.has_kind(example[self.key]):
                column.append(self._nested(position, example))
            elif row == 0 or len(values) % row:
                raise BadExampleError(
                    position,
                    f"Its feature {quoted(self.key)} has {len(values)} values, which do not fill the shape "
                    f"{self.shape}.",
                )
            else:
                shape_here = [len(values) // row if side == -1 else side for side in shape]
                column.append(self.array(values).reshape(shape_here))
        return column

    def _nested(self, position: int, example: Features) -> Any:
        found = read_nested(self, position, example)
        if found is not None:
            flat, lengths = found
            return self._split(flat, lengths)
        feature = example[self.key]
        if self.default is None or feature.WhichOneof("kind") is not None:
            raise self.missing(position, feature)
        return self.default if self.shape.count(None) > 1 else self._default_array()

    def _default_array(self) -> Array:
        sides = [0 if side is None else side for side in self.shape]
        default = np.asarray(self.default, self.dtype)
        return default if default.size else default.reshape(sides)

    def _split(self, flat: Array, lengths: Sequence[Array]) -> Any:
        """Returns nested lists, built from the innermost sequence outwards; an array where only their number varies."""
        if self.shape.count(None) == 1 and self.shape[0] is None:
            return flat.reshape(-1, *(side or 0 for side in self.shape[1:]))
        rows: Any = flat
        for own in reversed(lengths):
            stops = np.cumsum(own).tolist()
            rows = [rows[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
        return rows


def field_reader(key: str, spec: FieldSpec) -> Field:
    """Returns what reads a field."""
    return VaryingField(key, spec) if None in spec.shape else FixedField(key, spec)


def read_nested(field: Field, position: int, example: Features) -> tuple[Array, list[Array]] | None:
    """Returns a feature that TFDS stores as nested sequences.

    It is written as `<key>/ragged_flat_values` and `<key>/ragged_row_lengths_<k>`, k from the outermost sequence
    inwards; a sequence of sequences has one k.

    Returns:
        The values [number, *inner shape], and for every k the lengths int64 [rows]; None where there is no such
        feature.

    Raises:
        BadExampleError: its parts contradict each other.
    """
    name = f"{field.key}/ragged_flat_values"
    if name not in example:
        return None
    lengths: list[Array] = []
    while (key := f"{field.key}/ragged_row_lengths_{len(lengths)}") in example:
        lengths.append(np.array(example[key].int64_list.value, np.int64))
    feature = example[name]
    if feature.WhichOneof("kind") not in (field.list_name, None):
        raise field.missing(position, feature)
    values = field.array(getattr(feature, field.list_name).value)
    inner = [-1 if side is None else side for side in field.shape[len(lengths) + 1 :]]
    size = math.prod(inner)
    fits = size > 0 and len(values) % size == 0
    num_rows = [len(own) for own in lengths[1:]] + [len(values) // size if fits else -1]
    if (
        not fits
        or not lengths
        or any(bool((own < 0).any()) or int(own.sum()) != count for own, count in zip(lengths, num_rows, strict=True))
    ):
        sizes = ", ".join(str(own.tolist()) for own in lengths)
        raise BadExampleError(
            position,
            f"Its feature {quoted(field.key)} has {len(values)} values, which do not fill rows of the lengths {sizes}.",
        )
    return values.reshape(-1, *inner), lengths
