"""The message `tf.train.Example`, in which TFDS stores examples: read once for all fields that are asked for.

The message classes are built here, from the layout that tensorflow publishes: neither tensorflow nor TFDS is imported.
Source: tensorflow/core/example/{example,feature}.proto; TFDS's core/example_serializer.py for nested sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.example_fields import BadExampleError, Features, Field, field_reader
from tfds_torch.storage.source import Columns, FieldSpec

_BLOCK = 64  # Records parsed at a time: their messages, as large as they are, are let go of before the next ones.


class ExampleReader:
    """Reads fields of serialized `tf.train.Example`s. Picklable; threads may share one.

    Args:
        specs: key of a feature -> what it holds.
    """

    def __init__(self, specs: Mapping[str, FieldSpec]) -> None:
        self.specs = specs
        self._readers: dict[str, Field] = {}

    def read(self, records: Sequence[bytes], fields: Sequence[str]) -> Columns:
        """Returns the values of fields, in the order of the records.

        Args:
            records: n serialized examples.
            fields: which of the specs.

        Returns:
            For each field, by its shape: `()` of bytes: a list of n bytes. A fixed one: an array [n, *shape] of the
            spec's dtype. One None: a list of n arrays. More of them, or stored as nested sequences: a list of n nested
            lists of arrays. Bytes in arrays are objects.

        Raises:
            ConfigError: there is no such field.
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

    def _reader(self, name: str) -> Field:
        reader = self._readers.get(name)
        if reader is None:
            if name not in self.specs:
                raise ConfigError(f"An example has no field {quoted(name)}: its fields are {', '.join(self.specs)}.")
            reader = self._readers[name] = field_reader(name, self.specs[name])
        return reader


def _parse(records: Sequence[bytes]) -> list[Features]:
    parse = _parser()
    try:
        return [parse(record).features.feature for record in records]
    except (DecodeError, ValueError):
        pass  # Which one is looked for only now: counting them would cost more than parsing a small one.
    for position, record in enumerate(records):
        try:
            parse(record)
        except (DecodeError, ValueError) as error:
            raise BadExampleError(position, f"It is not a tf.train.Example ({str(error).rstrip('.')}).") from None
    raise BadExampleError(0, "It could not be parsed at once, but alone. Try again.")


def _join(parts: list[Any]) -> Any:
    """Returns a column from those of its blocks."""
    if len(parts) == 1:
        return parts[0]
    return list(chain.from_iterable(parts)) if isinstance(parts[0], list) else np.concatenate(parts)


@cache
def _parser() -> Callable[[bytes], Any]:
    """Returns bytes -> the message."""
    pool = descriptor_pool.DescriptorPool()  # Of its own: tensorflow's holds a message of the same name.
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
    entry = features.nested_type.add(name="FeatureEntry")  # What protobuf makes of `map<string, Feature> feature = 1`.
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
