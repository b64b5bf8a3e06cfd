"""Where values of an Example lie: against what protobuf writes and reads."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage.example_writer import write_example
from tensorflow_datasets.proto import tf_example_pb2

from tfds_torch.storage.episodes import wire
from tfds_torch.storage.episodes.wire import WireError

INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 200))
VALUES = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    st.lists(INTEGERS, max_size=40),
    st.none(),
)
EXAMPLES = st.dictionaries(st.text(max_size=5), VALUES, max_size=6)


def values_of(record: bytes, feature: tuple[int, int]) -> Any:
    """The values of a feature, read where they are said to lie."""
    kind, start, stop = wire.find_list(record, feature)
    if kind == "bytes":
        return [record[first:last] for first, last in wire.find_values(record, start, stop)]
    if kind == "":
        return None
    first, last = wire.find_packed(record, start, stop)
    read = wire.read_floats if kind == "float" else wire.read_varints
    return read(record[first:last]).tolist()


@given(example=EXAMPLES)
def test_values_lie_where_they_are_found(example: dict[str, Any]) -> None:
    record = write_example(example)
    features = wire.find_features(record)
    assert {key.decode(): values_of(record, place) for key, place in features.items()} == example


@given(values=st.lists(INTEGERS, min_size=1, max_size=60))
def test_integers_end_where_they_are_found(values: list[int]) -> None:
    record = write_example({"n": values})
    _, start, stop = wire.find_list(record, wire.find_features(record)[b"n"])
    first, last = wire.find_packed(record, start, stop)
    stops = wire.varint_stops(record[first:last])
    for begin, end, value in zip([0, *stops], stops, values, strict=False):
        read = wire.read_varints(record[first + begin : first + end])
        assert read.dtype == np.int64
        assert read.tolist() == [value]


@given(example=EXAMPLES)
def test_an_example_that_is_put_together_of_features_is_that_example(example: dict[str, Any]) -> None:
    record = write_example(example)
    parts = [(key, record[start:stop]) for key, (start, stop) in wire.find_features(record).items()]
    again = tf_example_pb2.Example.FromString(wire.write_example(parts))
    assert again.features == tf_example_pb2.Example.FromString(record).features


def test_values_of_any_size_are_found() -> None:
    sizes = [0, 127, 128, 16_383, 16_384, 2_100_000, 1]  # At the ends of the lengths of one to four bytes.
    example = {"a": [bytes([number]) * size for number, size in enumerate(sizes)]}
    record = write_example(example)
    assert values_of(record, wire.find_features(record)[b"a"]) == example["a"]


def test_of_a_key_that_stands_there_twice_the_last_one_counts() -> None:
    record = write_example({"a": [b"first"]}) + write_example({"a": [b"second"]})
    assert values_of(record, wire.find_features(record)[b"a"]) == [b"second"]


def test_fields_that_are_not_of_an_example_are_passed_over() -> None:
    unknown = b"\x10\x05" + b"\x19" + bytes(8) + b"\x25" + bytes(4)  # A varint, 8 bytes, 4 bytes.
    record = unknown + write_example({"a": [1]})
    assert values_of(record, wire.find_features(record)[b"a"]) == [1]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (b"\x22\x00", "not a list of bytes, floats or integers"),
        (b"\x12\x00\x12\x00", "more than one list"),
        (b"\x12\x05\x0d" + bytes(4), "not packed"),
        (b"\x1a\x02\x08\x01", "not packed"),
        (b"\x12\x08\x0a\x02ab\x0a\x02cd", "not packed in one piece"),
    ],
)
def test_lists_that_no_writer_of_tfds_makes_are_refused(feature: bytes, message: str) -> None:
    record = wire.write_example([(b"a", feature)])
    with pytest.raises(WireError, match=message):
        values_of(record, wire.find_features(record)[b"a"])


@settings(max_examples=300)
@given(example=EXAMPLES, at=st.integers(0, 10**6), mask=st.integers(1, 255), cut=st.integers(0, 10**6))
def test_damage_is_a_wire_error_or_other_values_and_never_reads_outside(
    example: dict[str, Any], at: int, mask: int, cut: int
) -> None:
    record = bytearray(write_example(example))
    if record:
        record[at % len(record)] ^= mask
    damaged = bytes(record[: cut % (2 * len(record) + 1)])
    with suppress(WireError):
        for place in wire.find_features(damaged).values():
            assert 0 <= place[0] <= place[1] <= len(damaged)
            values_of(damaged, place)


@pytest.mark.parametrize("content", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"])
def test_integers_that_are_cut_or_too_long_are_refused(content: bytes) -> None:
    with pytest.raises(WireError, match="cut, or longer"):
        wire.read_varints(content)
