"""The message `tf.train.Example`, in which TFDS stores examples: read once for all fields that are asked for.

The message classes are built here, from the layout that tensorflow publishes: neither tensorflow nor TFDS is imported.
A column of numbers becomes one array with a single call of numpy; a feature is looked at closely only where it does not
have the expected number of values.
Source: tensorflow/core/example/{example,feature}.proto; TFDS's core/example_serializer.py for nested sequences.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.storage.source import Columns, FieldSpec

Feature = Any  # A message `tf.train.Feature`.
Features = Mapping[str, Feature]  # The features of one example. For a key that it lacks, it returns an empty message.
Array = NDArray[Any]

_MANY_VALUES = 64  # From so many values on, numpy reads protobuf's lists faster than Python's loops do.
_NAMES = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_BLOCK = 64  # Records parsed at a time: their messages, as large as they are, are freed before the next ones.


class BadExampleError(Exception):
    """A record is not an example, or a field does not hold what it should; never leaves this room."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


class ExampleReader:
    """Reads fields of serialized `tf.train.Example`s. Picklable; threads may share one."""

    def __init__(self, specs: Mapping[str, FieldSpec]) -> None:
        self.specs = specs
        self._readers: dict[str, _Field] = {}

    def read(self, records: Sequence[bytes], fields: Sequence[str]) -> Columns:
        """Return the values of fields, in the order of the records.

        Args:
            records: n serialized examples.
            fields: names of the wanted fields, out of the specs.

        Returns:
            For each field a column, which depends on the shape of the field. `()` of bytes: a list of n bytes. A fixed
            shape: an array [n, *shape] of the spec's dtype. A shape with one None: a list of n arrays. More of them,
            or a field stored as nested sequences: a list of n nested lists of arrays. Bytes in arrays are objects.

        Raises:
            ConfigError: there is no field of such a name.
            BadExampleError: a record is not an example, lacks a field, or has other values than its spec says.
        """
        readers = [self._reader(name) for name in fields]
        parts: list[list[Any]] = [[] for _ in readers]
        for start in range(0, len(records), _BLOCK) or (0,):
            try:
                examples = _parse(records[start : start + _BLOCK])
                for reader, part in zip(readers, parts, strict=True):
                    part.append(reader.read(examples))
            except BadExampleError as error:
                raise BadExampleError(start + error.position, error.reason) from None
        return dict(zip(fields, map(_join, parts), strict=True))

    def _reader(self, name: str) -> "_Field":
        reader = self._readers.get(name)
        if reader is None:
            spec = self.specs.get(name)
            if spec is None:
                raise ConfigError(f"An example has no field {quoted(name)}: its fields are {', '.join(self.specs)}.")
            reader = self._readers[name] = (_VaryingField if None in spec.shape else _FixedField)(name, spec)
        return reader


class _Field(ABC):
    """One field."""

    def __init__(self, key: str, spec: FieldSpec) -> None:
        self.key, self.shape, self.default = key, spec.shape, spec.default
        kind = np.dtype(spec.dtype).kind
        if kind not in "OSU" and not is_numeric(np.dtype(spec.dtype)):  # float8 and int4 of ml_dtypes.
            raise ConfigError(f"The field {quoted(key)} is {spec.dtype}, which is not read: leave it out of fields.")
        self.dtype = np.dtype(object) if kind in "OSU" else np.dtype(spec.dtype)
        # TFDS stores bool as int64, and all kinds of floats as float32.
        self.stored = np.dtype(object if kind in "OSU" else np.int64 if kind in "biu" else np.float32)
        self.list_name = {"O": "bytes_list", "i": "int64_list", "f": "float_list"}[self.stored.kind]

    @abstractmethod
    def read(self, examples: Sequence[Features]) -> Any:
        """Return the column."""

    def lists(self, examples: Sequence[Features]) -> list[Sequence[Any]]:
        """Return the values of each example, as protobuf's lists."""
        key = self.key
        if self.list_name == "bytes_list":  # An attribute written out is looked up in half of getattr's time.
            return [features[key].bytes_list.value for features in examples]
        if self.list_name == "int64_list":
            return [features[key].int64_list.value for features in examples]
        return [features[key].float_list.value for features in examples]

    def array(self, values: Sequence[Any]) -> Array:
        """Return stored values as an array [n] of the spec's dtype."""
        if self.stored.kind == "O":
            array = np.empty(len(values), object)
            array[:] = values
            return array
        many = len(values) >= _MANY_VALUES
        array = np.array(values, self.stored) if many else np.fromiter(values, self.stored, len(values))
        return array.astype(self.dtype, copy=False)

    def missing(self, position: int, feature: Feature) -> BadExampleError:
        """Return the error for a feature that is not there, or holds values of another kind."""
        found = feature.WhichOneof("kind")
        if found is None:
            return BadExampleError(position, f"It lacks the feature {quoted(self.key)}.")
        if found == self.list_name:
            return self.bad(position, "is one list of values instead of nested sequences")
        count = len(getattr(feature, found).value)
        return self.bad(position, f"holds {_NAMES[found]} values ({count}) instead of {_NAMES[self.list_name]} values")

    def bad(self, position: int, problem: str) -> BadExampleError:
        """Return the error for a feature that does not hold what it should; `problem` is a clause."""
        return BadExampleError(position, f"Its feature {quoted(self.key)} {problem}.")

    def has_kind(self, feature: Feature) -> bool:
        """Return whether a feature holds a list of the right kind, be it empty."""
        return bool(feature.WhichOneof("kind") == self.list_name)

    def nested(self, position: int, example: Features) -> tuple[Array, list[Array]] | None:
        """Return a feature that TFDS stores as nested sequences.

        It is written as `<key>/ragged_flat_values` and `<key>/ragged_row_lengths_<k>`, k from the outermost sequence
        inwards; a sequence of sequences has one k.

        Returns:
            The values [number, *inner shape], and for every k the lengths, int64 [rows]; None where there is no such
            feature.
        """
        name = f"{self.key}/ragged_flat_values"
        if name not in example:
            return None
        lengths: list[Array] = []
        while (key := f"{self.key}/ragged_row_lengths_{len(lengths)}") in example:
            lengths.append(np.array(example[key].int64_list.value, np.int64))
        feature = example[name]
        if feature.WhichOneof("kind") not in (self.list_name, None):
            raise self.missing(position, feature)
        values = self.array(getattr(feature, self.list_name).value)
        inner = [-1 if side is None else side for side in self.shape[len(lengths) + 1 :]]
        size = math.prod(inner)
        fits = size > 0 and len(values) % size == 0
        num_rows = [len(own) for own in lengths[1:]] + [len(values) // size if fits else -1]
        if not (fits and lengths and all(map(_are_lengths, lengths, num_rows))):
            sizes = ", ".join(str(own.tolist()) for own in lengths)
            raise self.bad(position, f"has {len(values)} values, which do not fill rows of the lengths {sizes}")
        return values.reshape(-1, *inner), lengths


class _FixedField(_Field):
    """A field whose values have one shape: its column is a list of bytes, or an array [n, *shape]."""

    def __init__(self, key: str, spec: FieldSpec) -> None:
        super().__init__(key, spec)
        self._sides = tuple(side or 0 for side in spec.shape)
        self._size = math.prod(self._sides)

    def read(self, examples: Sequence[Features]) -> Any:
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
        """Return the values of one example, or those of the default, with all checks; this is slow."""
        feature, size = example[self.key], self._size
        values: Sequence[Any] = getattr(feature, self.list_name).value
        if len(values) == size:
            return values
        if not values and not self.has_kind(feature):
            nested = self.nested(position, example)
            if nested is not None and nested[0].size == size:
                flat: list[Any] = nested[0].reshape(-1).tolist()
                return flat
            if feature.WhichOneof("kind") is not None or self.default is None:
                raise self.missing(position, feature)
        elif values or self.default is None:
            raise self.bad(position, f"has {len(values)} values instead of {size}")
        default: list[Any] = np.broadcast_to(np.asarray(self.default, self.stored), self._sides).reshape(-1).tolist()
        return default


class _VaryingField(_Field):
    """A field whose values vary in one side or more: its column is a list of arrays, or of nested lists of arrays."""

    def read(self, examples: Sequence[Features]) -> Any:
        if self.shape.count(None) > 1:
            return [self._nested_or_default(position, example) for position, example in enumerate(examples)]
        shape = [-1 if side is None else side for side in self.shape]
        row = math.prod(side for side in self.shape if side is not None)
        column = []
        for position, (example, values) in enumerate(zip(examples, self.lists(examples), strict=True)):
            if not values and not self.has_kind(example[self.key]):
                column.append(self._nested_or_default(position, example))
            elif row == 0 or len(values) % row:
                raise self.bad(position, f"has {len(values)} values, which do not fill the shape {self.shape}")
            else:
                shape_here = [len(values) // row if side == -1 else side for side in shape]
                column.append(self.array(values).reshape(shape_here))
        return column

    def _nested_or_default(self, position: int, example: Features) -> Any:
        found = self.nested(position, example)
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
        """Return nested lists, built from the innermost sequence outwards; an array where only their number varies."""
        if self.shape.count(None) == 1 and self.shape[0] is None:
            return flat.reshape(-1, *(side or 0 for side in self.shape[1:]))
        rows: Any = flat
        for own in reversed(lengths):
            stops = np.cumsum(own).tolist()
            rows = [rows[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
        return rows


def _are_lengths(lengths: Array, total: int) -> bool:
    return bool((lengths >= 0).all() and lengths.sum() == total)


def _parse(records: Sequence[bytes]) -> list[Features]:
    parse = _parser()
    try:
        return [parse(record).features.feature for record in records]
    except (DecodeError, ValueError):
        pass  # The bad record is looked for only now: counting records would cost more than parsing a small one.
    for position, record in enumerate(records):
        try:
            parse(record)
        except (DecodeError, ValueError) as error:
            raise BadExampleError(position, f"It is not a tf.train.Example ({str(error).rstrip('.')}).") from None
    raise BadExampleError(0, "It could not be parsed at once, but alone. Try again.")


def _join(parts: list[Any]) -> Any:
    """Return one column, joined from the columns of its blocks."""
    if len(parts) == 1:
        return parts[0]
    return list(chain.from_iterable(parts)) if isinstance(parts[0], list) else np.concatenate(parts)


@cache
def _parser() -> Callable[[bytes], Any]:
    """Return the function that parses bytes to a message."""
    pool = descriptor_pool.DescriptorPool()  # A separate pool: tensorflow's pool holds a message of the same name.
    pool.Add(_layout())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
    parse: Callable[[bytes], Any] = kind.FromString
    return parse


def _layout() -> descriptor_pb2.FileDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, scalar in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=scalar, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        added = _add_message(feature, name, number, kind)
        added.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")  # For `map<string, Feature> feature = 1`.
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    _add_message(entry, "value", 2, "Feature")
    _add_message(features, "feature", 1, "Features.FeatureEntry").label = field.LABEL_REPEATED
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


def _add_message(message: Any, name: str, number: int, kind: str) -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    return message.field.add(
        name=name, number=number, type=field.TYPE_MESSAGE, type_name=f".tensorflow.{kind}", label=field.LABEL_OPTIONAL
    )
