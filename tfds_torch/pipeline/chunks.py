"""The tf.data graph of a stream: chunks of encoded examples, decoded; its errors as our own."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.options import tf_data_options
from tfds_torch.pipeline.stream_spec import StreamSpec

Chunk = tuple[NDArray[np.int64], dict[str, Any]]
"""The occurrences, int64 [n], and column name -> n values."""

_PAINTED = "painted"
_WHERE_IN_GRAPH = re.compile(r"\{\{.*?\}\} ?|Error in user-defined function .*? Iterator::\S+: ")


def read_chunks(tf: Any, spec: StreamSpec, position: int, first_row: int) -> Iterator[Chunk]:
    """Yields chunks from a position in the order of delivery on.

    Args:
        tf: the module tensorflow.
        spec: what is read.
        position: of the first example.
        first_row: where its image is drawn.

    Raises:
        ShardError: a file cannot be read.
        CorruptRecordError: a record, or an image in it, is damaged.
    """
    chunks = _decoded(tf, spec, position, first_row).as_numpy_iterator()
    while True:
        try:
            occurrences, decoded = next(chunks)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise _explain(tf, error, spec, position) from None
        columns = {name: column.unpack(decoded[name]) for name, column in spec.columns.items()}
        if spec.painting is not None:
            spec.painting.finish(first_row, columns)
        position += len(occurrences)
        first_row += len(occurrences)
        yield occurrences, columns


def readable_reason(error: Any) -> str:
    """Returns what a `tf.errors.OpError` out of a graph says, without where in the graph it happened."""
    return _WHERE_IN_GRAPH.sub("", str(error.message).splitlines()[0])


def _decoded(tf: Any, spec: StreamSpec, position: int, first_row: int) -> Any:
    """Returns a dataset of (occurrence int64 [n], column name -> tensors), from a position on."""
    # Calls beyond the threads would only take turns with the first one, and so delay it.
    num_parallel = min(spec.prefetch_chunks, spec.num_threads + 1)

    def decode(number: Any, chunk: tuple[Any, Any]) -> tuple[Any, dict[str, Any]]:
        occurrences, encoded = chunk
        parsed = spec.source.parse(tf, encoded, _feature_specs(tf, spec))
        decoded = _decode(tf, spec.columns, parsed, encoded, spec.num_threads)
        if spec.painting is not None:
            row = number * spec.chunk_size + first_row
            decoded[_PAINTED] = (spec.painting.add(tf, parsed[spec.painting.column.key], occurrences, row),)
        return occurrences, decoded

    return (
        spec.source.chunks(tf, spec.chunk_size, position, list(_feature_specs(tf, spec)))
        .prefetch(1)  # Reading goes on while a chunk is decoded; what waits here is still encoded.
        .enumerate()
        .map(tf.autograph.experimental.do_not_convert(decode), num_parallel_calls=num_parallel)
        .prefetch(spec.prefetch_chunks - num_parallel)  # The parallel map holds as many results ready as it has calls.
        .with_options(tf_data_options(tf, spec.num_threads))
    )


def _feature_specs(tf: Any, spec: StreamSpec) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    for column in [*spec.columns.values(), *([spec.painting.column] if spec.painting else [])]:
        specs.update(column.feature_specs(tf))
    return specs


def _decode(
    tf: Any, columns: Mapping[str, Column], parsed: Mapping[str, Any], encoded: Any, num_parallel: int
) -> dict[str, tuple[Any, ...]]:
    return {name: column.decode(tf, parsed, encoded, num_parallel) for name, column in columns.items()}


def _explain(tf: Any, error: Any, spec: StreamSpec, num_delivered: int) -> TfdsTorchError:
    """Returns our own error for one of tensorflow's, which no process without tensorflow could unpickle."""
    failure = spec.painting.painter.failure if spec.painting is not None else None
    if failure is not None and f"{type(failure).__name__}: " in str(error.message):
        if isinstance(failure, TfdsTorchError):
            return failure
        raise failure
    reason = readable_reason(error)
    explained = spec.source.explain(tf, error, reason, num_delivered)
    if explained is not None:
        return explained
    index = _find_undecodable(tf, spec, num_delivered)
    return spec.source.describe_undecodable(index, f"tensorflow says: {reason}")


def _find_undecodable(tf: Any, spec: StreamSpec, num_delivered: int) -> int | None:
    """Returns the index of the first example after the delivered ones that cannot be decoded by itself."""
    num_suspected = spec.chunk_size * (spec.prefetch_chunks + 1)
    examples = spec.source.chunks(tf, 1, num_delivered, list(_feature_specs(tf, spec)))
    columns = dict(spec.columns) | ({_PAINTED: spec.painting.column} if spec.painting else {})
    try:
        for occurrences, encoded in examples.take(num_suspected):
            parsed = spec.source.parse(tf, encoded, _feature_specs(tf, spec))
            try:
                _decode(tf, columns, parsed, encoded, spec.num_threads)
            except tf.errors.InvalidArgumentError:
                return int(occurrences[0]) % spec.num_examples
    except tf.errors.OpError:  # The files have changed since.
        pass
    return None
