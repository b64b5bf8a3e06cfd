"""Where the values of a serialized `tf.train.Example` lie, found without building its messages.

Source: protobuf's encoding (protobuf.dev/programming-guides/encoding), tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array

LISTS = {0x0A: "bytes", 0x12: "float", 0x1A: "int64"}
"""First byte of a `Feature` -> the kind of its list: the tag of a field that holds a message."""

Encoded = bytes | memoryview
"""An encoded message, or a part of one."""

_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_VALUES = 0x0A  # The field `value` of a list: packed numbers, or one of its bytes values.


class WireError(ValueError):
    """Bytes are not an encoded Example, or not one that TFDS writes; the message is a sentence."""


def find_features(record: Encoded) -> dict[bytes, tuple[int, int]]:
    """Return key -> where the `Feature` of that key begins in a record, and where it ends.

    Raises:
        WireError: the record is not an Example.
    """
    features: dict[bytes, tuple[int, int]] = {}
    for tag, start, stop in _fields(record, 0, len(record)):
        if tag != 0x0A:
            continue
        for entry, first, last in _fields(record, start, stop):
            if entry != 0x0A:
                continue
            key, feature = b"", (first, first)
            for part, begin, end in _fields(record, first, last):
                if part == 0x0A:
                    key = bytes(record[begin:end])
                elif part == 0x12:
                    feature = (begin, end)
            features[key] = feature  # Where a key occurs twice, protobuf takes the last one.
    return features


def find_list(record: Encoded, feature: tuple[int, int]) -> tuple[str, int, int]:
    """Return the kind of the list that a `Feature` holds, and where its message begins and ends.

    The kind is "" where it holds no list.

    Raises:
        WireError: it holds something else, or several lists.
    """
    start, stop = feature
    if start == stop:
        return "", start, start
    kind = LISTS.get(record[start])
    if kind is None:
        raise WireError("It is not a list of bytes, floats or integers.")
    length, begin = _length(record, start + 1, stop)
    if begin + length != stop:
        raise WireError("It holds more than one list.")
    return kind, begin, stop


def find_values(record: Encoded, start: int, stop: int) -> list[tuple[int, int]]:
    """Return where each value of a list of bytes begins and ends.

    Raises:
        WireError: the list is damaged.
    """
    values: list[tuple[int, int]] = []
    at = start
    while at < stop:
        if record[at] != _VALUES:
            raise WireError("Its list holds something else than values.")
        begin = at + 2
        length = record[at + 1] if begin <= stop else 0x80
        if length >= 0x80:
            # Lengths of two bytes, like those of most images: a call for each would take as long as all else here.
            if begin < stop and (more := record[begin]) < 0x80:
                length, begin = length - 0x80 + (more << 7), begin + 1
            else:
                length, begin = _length(record, at + 1, stop)
        at = begin + length
        if at > stop:
            raise WireError("A value of it reaches behind its end.")
        values.append((begin, at))
    return values


def find_packed(record: Encoded, start: int, stop: int) -> tuple[int, int]:
    """Return where the packed numbers of a list begin and end.

    Raises:
        WireError: its numbers are not packed together, or the list is damaged.
    """
    if start == stop:
        return start, start
    if record[start] != _VALUES:
        raise WireError("Its numbers are not packed, as every writer of protobuf 3 packs them.")
    length, begin = _length(record, start + 1, stop)
    if begin + length != stop:
        raise WireError("Its numbers are not packed in one piece.")
    return begin, stop


def varint_stops(content: Encoded) -> Int64Array:
    """Return where each of the packed integers ends, int64 [number of integers]."""
    data = np.frombuffer(content, np.uint8)
    return np.flatnonzero(data < 0x80) + 1


def read_varints(content: bytes) -> Int64Array:
    """Return packed integers, int64 [n]; negative ones take ten bytes.

    Raises:
        WireError: an integer is cut, or longer than ten bytes.
    """
    data = np.frombuffer(content, np.uint8)
    stops = varint_stops(content)
    if len(stops) == len(data):
        return data.astype(np.int64)
    starts = np.concatenate([[0], stops[:-1]])
    lengths = stops - starts
    if not len(stops) or stops[-1] != len(data) or lengths.max() > 10:
        raise WireError("Its integers are cut, or longer than integers are.")
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, lengths))
    parts = (data & np.uint8(0x7F)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


def read_floats(content: bytes) -> NDArray[np.float32]:
    """Return packed floats, float32 [n].

    Raises:
        WireError: the last float is cut.
    """
    if len(content) % 4:
        raise WireError("Its last float is cut.")
    return np.frombuffer(content, "<f4")


def write_example(features: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return an encoded Example of keys and encoded `Feature`s."""
    entries = (_field(0x0A, key) + _field(0x12, feature) for key, feature in features)
    return _field(0x0A, b"".join(_field(0x0A, entry) for entry in entries))


def _fields(record: Encoded, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message: the tag, and where the content of a delimited one begins and ends."""
    at = start
    while at < stop:
        tag, at = _length(record, at, stop)
        kind = tag & 7
        if kind == _DELIMITED:
            length, at = _length(record, at, stop)
            begin, at = at, at + length
        elif kind == 0:
            begin, (_, at) = at, _length(record, at, stop)
        elif kind in _FIXED_BYTES:
            begin, at = at, at + _FIXED_BYTES[kind]
        else:
            raise WireError("It is not a tf.train.Example: a field has an unknown type.")
        if at > stop:
            raise WireError("It is not a tf.train.Example: a field reaches behind the end of its message.")
        yield tag, begin, at


def _length(record: Encoded, at: int, stop: int) -> tuple[int, int]:
    """Return the integer at a place, and the place where it ends."""
    value = shift = 0
    while at < stop and shift < 70:
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("It is not a tf.train.Example: an integer is cut.")


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
