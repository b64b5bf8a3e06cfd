"""Chunks read without a graph: records by index, parsed here, their images still encoded.

Images that are painted need nothing of tf.data, which would copy each of them three times on its way: in and out of
tensorflow's strings, and out of the record. Plain features beside them (labels, numbers, texts) are read here as well;
anything else takes the graph.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.bytes_array import bytes_array
from tfds_torch.pipeline.columns import DenseColumn
from tfds_torch.pipeline.indexed_records import IndexedRecords
from tfds_torch.pipeline.stream_spec import IMAGES, Chunk, StreamSpec


def can_read_directly(spec: StreamSpec) -> bool:
    """Whether a stream can be read without a graph."""
    is_plain = all(isinstance(column, DenseColumn) for column in spec.columns.values())
    return spec.painter is not None and spec.parse is not None and isinstance(spec.source, IndexedRecords) and is_plain


def read_directly(spec: StreamSpec, position: int) -> Generator[Chunk, None, None]:
    """Yields chunks from a position in the order of delivery on, with encoded images.

    Raises:
        ShardError: a file cannot be read.
        CorruptRecordError: a record is damaged.
    """
    source, painter, parse = spec.source, spec.painter, spec.parse
    assert isinstance(source, IndexedRecords)  # noqa: S101 (`can_read_directly`)
    assert painter is not None  # noqa: S101
    assert parse is not None  # noqa: S101
    for occurrences, records in source.read(spec.chunk_size, position):
        values: dict[str, list[Any]] = {name: [] for name in (IMAGES, *spec.columns)}
        for occurrence, record in zip(occurrences.tolist(), records, strict=True):
            index = occurrence % spec.num_examples
            try:
                features = parse(record).features.feature
            except Exception as error:  # protobuf has its own types of errors, in several implementations.
                raise source.describe_undecodable(index, f"It is no tf.train.Example: {error}.") from None
            values[IMAGES].append(_bytes(features, painter.column.key, source, index))
            for name, column in spec.columns.items():
                assert isinstance(column, DenseColumn)  # noqa: S101
                values[name].append(_plain(features, column, source, index))
        columns: dict[str, Any] = {IMAGES: values[IMAGES]}
        for name, column in spec.columns.items():
            assert isinstance(column, DenseColumn)  # noqa: S101
            columns[name] = column.unpack((_stack(values[name], column),))
        yield occurrences, columns


def _bytes(features: Mapping[str, Any], key: str, source: IndexedRecords, index: int) -> bytes:
    found: Sequence[bytes] = features[key].bytes_list.value if key in features else ()
    if len(found) != 1:
        raise _wrong_size(source, index, key, len(found), 1)
    return found[0]


def _plain(features: Mapping[str, Any], column: DenseColumn, source: IndexedRecords, index: int) -> list[Any]:
    """Returns the values of a feature of fixed shape, one after the other."""
    kind = np.dtype(column.dtype).kind
    field = "bytes_list" if kind in "OSU" else "float_list" if kind == "f" else "int64_list"
    found: Any = getattr(features[column.key], field).value if column.key in features else ()
    size = math.prod(column.shape)
    if not found and size and column.default is not None:
        found = np.broadcast_to(column.default, column.shape).reshape(-1).tolist()
    if len(found) != size:
        raise _wrong_size(source, index, column.key, len(found), size)
    return list(found)


def _wrong_size(source: IndexedRecords, index: int, key: str, found: int, size: int) -> TfdsTorchError:
    return source.describe_undecodable(index, f"Its feature {key!r} has {found} values instead of {size}.")


def _stack(rows: list[list[Any]], column: DenseColumn) -> Any:
    """Returns the values of n examples as tensorflow would give them, [n, *shape]."""
    kind = np.dtype(column.dtype).kind
    flat = [value for row in rows for value in row]
    values = bytes_array(flat) if kind in "OSU" else np.array(flat, np.float32 if kind == "f" else np.int64)
    shaped = values.reshape(len(rows), *column.shape)
    return shaped if kind in "OSU" else shaped.astype(column.dtype)
