"""ExampleReader: fields of serialized tf.train.Examples, as columns."""

import pickle
import textwrap
from itertools import chain
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from hypothesis import given
from hypothesis import strategies as st
from storage.example_writer import nested_parts, write_example
from tensorflow_datasets.proto import tf_example_pb2
from zygote import tensorflow_zygote

from tfds_torch.errors import ConfigError
from tfds_torch.storage.example import BadExampleError, ExampleReader
from tfds_torch.storage.source import FieldSpec


def read(spec: FieldSpec, *examples: Any) -> Any:
    """Reads one field, `x`, of examples that hold nothing else."""
    records = [write_example({"x": values}) for values in examples]
    return ExampleReader({"x": spec}).read(records, ["x"])["x"]


def test_bytes_are_a_list_and_numbers_an_array_whatever_their_number() -> None:
    reader = ExampleReader(
        {"image": FieldSpec((), object), "label": FieldSpec((), np.int64), "rest": FieldSpec((), object)}
    )
    for count in (0, 1, 63, 64, 65, 200):
        records = [write_example({"image": [b"%d" % i], "label": [i - 5], "rest": [b"x"]}) for i in range(count)]
        columns = reader.read(records, ("label", "image"))
        assert list(columns) == ["label", "image"]
        assert columns["image"] == [b"%d" % i for i in range(count)]
        np.testing.assert_array_equal(columns["label"], np.arange(count) - 5)
        assert columns["label"].dtype == np.int64
        assert columns["label"].shape == (count,)


def test_nothing_is_read_where_no_field_is_asked_for() -> None:
    assert ExampleReader({}).read([write_example({})], []) == {}


@pytest.mark.parametrize(
    ("dtype", "stored", "expected"),
    [
        (np.int64, [-(2**62)], -(2**62)),
        (np.int32, [-7], -7),
        (np.uint8, [255], 255),
        (np.uint64, [-1], 2**64 - 1),
        (np.bool_, [1], True),
        (np.bool_, [0], False),
        (np.float32, [0.1], np.float32(0.1)),
        (np.float64, [0.1], float(np.float32(0.1))),
        (np.float16, [0.5], 0.5),
    ],
)
def test_numbers_come_in_the_type_of_their_spec(dtype: Any, stored: list[Any], expected: Any) -> None:
    for shape in ((), (1,)):
        column = read(FieldSpec(shape, dtype), stored, stored)
        assert column.dtype == np.dtype(dtype)
        assert column.shape == (2, *shape)
        assert column.reshape(-1).tolist() == [expected] * 2


@pytest.mark.parametrize("size", [6, 60, 600])
def test_a_fixed_shape_gives_one_array_of_them_all(size: int) -> None:
    values = [[float(i + j) for j in range(size)] for i in range(3)]
    column = read(FieldSpec((2, size // 2), np.float32), *values)
    assert column.shape == (3, 2, size // 2)
    np.testing.assert_array_equal(column.reshape(3, -1), values)


def test_bytes_of_a_shape_are_objects() -> None:
    column = read(FieldSpec((2,), object), [b"a\0", b""], [b"c", b"dd"])
    assert column.dtype == object
    assert column.tolist() == [[b"a\0", b""], [b"c", b"dd"]]
    (rows,) = read(FieldSpec((None,), object), [b"a", b"bc"])
    assert rows.dtype == object
    assert rows.tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("shape", [(None,), (None, 2), (2, None), (None, 1, 2)])
@pytest.mark.parametrize("size", [0, 4, 200])
def test_one_side_that_varies_gives_a_list_of_arrays(shape: tuple[int | None, ...], size: int) -> None:
    column = read(FieldSpec(shape, np.int32), list(range(size)), [1, 2])
    assert type(column) is list
    for array, values in zip(column, ([*range(size)], [1, 2]), strict=True):
        assert array.dtype == np.int32
        assert array.reshape(-1).tolist() == values
        fixed = int(np.prod([side for side in shape if side]))
        assert array.shape == tuple(len(values) // fixed if side is None else side for side in shape)


# Nested sequences, as TFDS writes them.


Nested = tuple[Any, tuple[int | None, ...], int, str]  # A value, its shape, levels of sequences, and type.
NESTED: list[Nested] = [
    ([[1, 2, 3], [], [4, 5]], (None, None), 2, "int64"),
    ([], (None, None), 2, "int64"),
    ([[[b"a"], []], [], [[b"b", b"cc"]]], (None, None, None), 3, "object"),
    ([[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]], (None, None, 2), 2, "float32"),
    ([[1, 2, 3], [4]], (2, None), 2, "int64"),
    ([[1, 2, 3], [4, 5, 6]], (None, 3), 2, "int64"),
    ([[1, 2, 3], [4, 5, 6]], (2, 3), 2, "int64"),
]


WRITTEN_BY_TFDS = [  # TFDS 4.9.10, NESTED.
    bytes.fromhex(
        "0a460a210a16782f7261676765645f726f775f6c656e677468735f3012071a050a030300020a210a14782f7261676765645f"
        "666c61745f76616c75657312091a070a050102030405"
    ),
    bytes.fromhex(
        "0a3a0a1c0a16782f7261676765645f726f775f6c656e677468735f3012021a000a1a0a14782f7261676765645f666c61745f"
        "76616c75657312021a00"
    ),
    bytes.fromhex(
        "0a6c0a210a16782f7261676765645f726f775f6c656e677468735f3012071a050a030200010a210a16782f7261676765645f"
        "726f775f6c656e677468735f3112071a050a030100020a240a14782f7261676765645f666c61745f76616c756573120c0a0a"
        "0a01610a01620a026363"
    ),
    bytes.fromhex(
        "0a590a210a16782f7261676765645f726f775f6c656e677468735f3012071a050a030200010a340a14782f7261676765645f"
        "666c61745f76616c756573121c121a0a180000803f0000004000004040000080400000a0400000c040"
    ),
    bytes.fromhex(
        "0a440a200a16782f7261676765645f726f775f6c656e677468735f3012061a040a0203010a200a14782f7261676765645f66"
        "6c61745f76616c75657312081a060a0401020304"
    ),
    bytes.fromhex(
        "0a460a200a16782f7261676765645f726f775f6c656e677468735f3012061a040a0203030a220a14782f7261676765645f66"
        "6c61745f76616c756573120a1a080a06010203040506"
    ),
    bytes.fromhex(
        "0a460a200a16782f7261676765645f726f775f6c656e677468735f3012061a040a0203030a220a14782f7261676765645f66"
        "6c61745f76616c756573120a1a080a06010203040506"
    ),
]


@pytest.mark.slow
def test_tfds_still_writes_the_same() -> None:
    records: list[bytes] = tensorflow_zygote().call(write_by_tfds)
    parse = tf_example_pb2.Example.FromString
    assert list(map(parse, records)) == list(map(parse, WRITTEN_BY_TFDS))


def write_by_tfds() -> list[bytes]:
    """Runs in a child: TFDS loads tensorflow."""
    from tensorflow_datasets.core.example_serializer import ExampleSerializer
    from tensorflow_datasets.core.features.feature import TensorInfo

    records = []
    for value, shape, rank, dtype in NESTED:
        info = TensorInfo(shape=shape, dtype=np.dtype(dtype).type, sequence_rank=rank)
        records.append(ExampleSerializer({"x": info}).serialize_example({"x": value}))
    return records


def plain(value: Any) -> Any:
    return [plain(one) for one in value] if isinstance(value, list) else value.tolist()


def test_nested_sequences_of_tfds_come_back_as_they_were_written() -> None:
    for (value, shape, _, dtype), record in zip(NESTED, WRITTEN_BY_TFDS, strict=True):
        (found,) = ExampleReader({"x": FieldSpec(shape, dtype)}).read([record], ["x"])["x"]
        assert plain(found) == value
        assert isinstance(found, np.ndarray) == (None not in shape[1:])


def test_nested_sequences_are_written_here_as_tfds_does() -> None:
    for (value, shape, rank, _), record in zip(NESTED, WRITTEN_BY_TFDS, strict=True):
        parts = nested_parts("x", value, rank)
        if len(shape) > rank:
            parts["x/ragged_flat_values"] = list(chain.from_iterable(parts["x/ragged_flat_values"]))
        parse = tf_example_pb2.Example.FromString
        assert parse(write_example(parts)) == parse(record)


@given(value=st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=4))
def test_sequences_of_sequences_come_back_as_they_were_written(value: list[list[int]]) -> None:
    reader = ExampleReader({"x": FieldSpec((None, None), np.int64)})
    records = [write_example(nested_parts("x", value, 2))] * 2
    for rows in reader.read(records, ["x"])["x"]:
        assert plain(rows) == value
        assert all(row.dtype == np.int64 for row in rows)


@given(value=st.lists(st.lists(st.lists(st.binary(max_size=3), max_size=3), max_size=3), max_size=3))
def test_three_levels_of_bytes_come_back_as_they_were_written(value: list[list[list[bytes]]]) -> None:
    reader = ExampleReader({"x": FieldSpec((None, None, None), object)})
    record = write_example(nested_parts("x", value, 3))
    if not any(chain.from_iterable(value)):  # No value says of what kind they are.
        return
    (rows,) = reader.read([record], ["x"])["x"]
    assert plain(rows) == value


def test_boxes_in_a_sequence_of_sequences_keep_their_shape() -> None:
    (rows,) = ExampleReader({"x": FieldSpec((None, None, 2), np.float32)}).read([WRITTEN_BY_TFDS[3]], ["x"])["x"]
    assert [row.shape for row in rows] == [(2, 2), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"flat_values": [1, 2], "row_lengths_0": [1]}, "has 2 values, which do not fill rows of the lengths [1]."),
        (
            {"flat_values": [1, 2], "row_lengths_0": [3, -1]},
            "has 2 values, which do not fill rows of the lengths [3, -1].",
        ),
        (
            {"flat_values": [1], "row_lengths_0": [2], "row_lengths_1": [1]},
            "has 1 values, which do not fill rows of the lengths [2], [1].",
        ),
        ({"flat_values": [1]}, "has 1 values, which do not fill rows of the lengths ."),
        ({"flat_values": [b"a"], "row_lengths_0": [1]}, "holds bytes values (1) instead of int64 values."),
    ],
)
def test_nested_sequences_that_contradict_themselves_are_refused(parts: dict[str, list[Any]], reason: str) -> None:
    record = write_example({f"x/ragged_{key}": values for key, values in parts.items()})
    with pytest.raises(BadExampleError) as caught:
        ExampleReader({"x": FieldSpec((None, None, None), np.int64)}).read([record], ["x"])
    assert caught.value.reason == f"Its feature 'x' {reason}"


# Examples that are not what they should be.


BAD: list[tuple[FieldSpec, Any, str]] = [
    (FieldSpec((), object), None, "It lacks the feature 'x'."),
    (FieldSpec((), object), [3], "Its feature 'x' holds int64 values (1) instead of bytes values."),
    (FieldSpec((), np.int64), [0.5, 1.0], "Its feature 'x' holds float values (2) instead of int64 values."),
    (FieldSpec((), np.int64), [1, 2], "Its feature 'x' has 2 values instead of 1."),
    (FieldSpec((), np.int64), [], "Its feature 'x' has 0 values instead of 1."),
    (FieldSpec((2, 2), np.int64), [1, 2, 3], "Its feature 'x' has 3 values instead of 4."),
    (FieldSpec((None,), np.int64), None, "It lacks the feature 'x'."),
    (FieldSpec((None,), np.int64), [b"a"], "Its feature 'x' holds bytes values (1) instead of int64 values."),
    (FieldSpec((None,), object), [], "Its feature 'x' holds int64 values (0) instead of bytes values."),
    (
        FieldSpec((None, 2), np.int64),
        [1, 2, 3],
        "Its feature 'x' has 3 values, which do not fill the shape (None, 2).",
    ),
    (FieldSpec((None, None), np.int64), None, "It lacks the feature 'x'."),
    (FieldSpec((None, None), np.int64), [3], "Its feature 'x' is one list of values instead of nested sequences."),
]


def first_bad_example(spec: FieldSpec, values: Any, position: int) -> tuple[int, str] | None:
    """Returns what is said of records one of which has these values."""
    size = int(np.prod([side or 1 for side in spec.shape]))
    kind = np.dtype(spec.dtype).kind
    good = {"x": [b"v"] * size if kind == "O" else [1] * size}
    if spec.shape.count(None) > 1:
        good = {"x/ragged_flat_values": [1], "x/ragged_row_lengths_0": [1]}
    records = [write_example(good) for _ in range(80)]
    records[position] = write_example({"x": values})
    try:
        ExampleReader({"x": spec}).read(records, ["x"])
    except BadExampleError as error:
        return error.position, error.reason
    return None


@pytest.mark.parametrize("position", [0, 1, 70])
def test_the_first_bad_example_is_named_with_what_was_found(position: int) -> None:
    found = [(spec, values, first_bad_example(spec, values, position), reason) for spec, values, reason in BAD]
    wrong = [case for case in found if case[2] != (position, case[3])]
    assert not wrong, str(wrong)


def test_one_value_too_few_and_one_too_many_do_not_make_up_for_each_other() -> None:
    with pytest.raises(BadExampleError) as caught:
        read(FieldSpec((), np.int64), [1], [], [2, 3])
    assert caught.value.position == 1


def test_what_is_not_an_example_is_named() -> None:
    records = [write_example({"x": [1]}), b"\xff no message", write_example({"x": [1]})]
    with pytest.raises(BadExampleError) as caught:
        ExampleReader({"x": FieldSpec((), np.int64)}).read(records, ["x"])
    assert caught.value.position == 1
    assert caught.value.reason.startswith("It is not a tf.train.Example (")
    assert caught.value.reason.endswith(").")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FieldSpec((), np.int64, 7), [1, 7]),
        (FieldSpec((2,), np.float64, 0.5), [[1.0, 1.0], [0.5, 0.5]]),
        (FieldSpec((), object, b"none"), [b"v", b"none"]),
        (FieldSpec((None,), np.int64, ()), [[1], []]),
        (FieldSpec((None, 2), np.int64, ()), [[[1, 1]], []]),
    ],
)
def test_an_example_that_lacks_a_field_has_its_default(spec: FieldSpec, expected: list[Any]) -> None:
    values = (
        [1.0, 1.0] if spec.dtype == np.float64 else [b"v"] if spec.dtype is object else [1] * (len(spec.shape) or 1)
    )
    column = read(spec, values, None)
    assert [value if isinstance(value, bytes) else value.tolist() for value in column] == expected


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"An example has no field 'y': its fields are x, z\."):
        ExampleReader({"x": FieldSpec((), object), "z": FieldSpec((), object)}).read([], ["y"])


def test_a_reader_travels_by_pickle_after_use() -> None:
    reader = ExampleReader({"x": FieldSpec((), np.int64)})
    records = [write_example({"x": [4]})]
    reader.read(records, ["x"])
    assert pickle.loads(pickle.dumps(reader)).read(records, ["x"])["x"].tolist() == [4]


def test_neither_tensorflow_nor_tfds_is_loaded_and_tfds_may_come_later(run_python: RunPython) -> None:
    code = f"""
    import sys
    import numpy as np
    from tfds_torch.storage.example import ExampleReader
    from tfds_torch.storage.source import FieldSpec
    record = {write_example({"x": [5]})!r}
    print(ExampleReader({{"x": FieldSpec((), np.int64)}}).read([record], ["x"])["x"])
    print(*{{"tensorflow", "tensorflow_datasets", "torch"}} & set(sys.modules))
    from tensorflow_datasets.proto import tf_example_pb2
    print(tf_example_pb2.Example.FromString(record).features.feature["x"].int64_list.value)
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.stdout == "[5]\n\n[5]\n", done.stderr
