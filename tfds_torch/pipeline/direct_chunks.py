"""Chunks read without a graph: records by index, parsed here, their images still encoded.

Images that are painted need nothing of tf.data, which would copy each of them three times on its way: in and out of
tensorflow's strings, and out of the record. Plain features beside them (labels, numbers, texts) are read here as well;
anything else takes the graph.
"""

from collections.abc import Generator
from typing import Any

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
    plain = {name: column for name, column in spec.columns.items() if isinstance(column, DenseColumn)}
    for occurrences, records in source.read(spec.chunk_size, position):
        images: list[bytes] = []
        values: dict[str, list[Any]] = {name: [] for name in plain}
        for place, record in enumerate(records):
            try:
                features = parse(record).features.feature
            except Exception as error:  # protobuf has its own types of errors, in several implementations.
                index = int(occurrences[place]) % spec.num_examples
                raise source.describe_undecodable(index, f"It is no tf.train.Example: {error}.") from None
            try:
                images.append(painter.column.read(features))
                for name, column in plain.items():
                    values[name].append(column.read(features))
            except ValueError as error:
                index = int(occurrences[place]) % spec.num_examples
                raise source.describe_undecodable(index, str(error)) from None
        columns: dict[str, Any] = {name: column.unpack(column.stack(values[name])) for name, column in plain.items()}
        yield occurrences, {IMAGES: images, **columns}
