"""The tf.data graph of a stream: chunks of encoded examples, decoded; its errors as our own."""

import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.direct_chunks import can_read_directly, read_directly
from tfds_torch.pipeline.options import tf_data_options
from tfds_torch.pipeline.painter import ImagePainter
from tfds_torch.pipeline.stream_spec import IMAGES, Chunk, StreamSpec

_WHERE_IN_GRAPH = re.compile(r"\{\{.*?\}\} ?|Error in user-defined function .*? Iterator::\S+: ")


def read_chunks(tf: Any, spec: StreamSpec, position: int, first_row: int) -> Generator[Chunk, None, None]:
    """Yields chunks from a position in the order of delivery on. Some are read ahead until it is closed.

    Args:
        tf: the module tensorflow.
        spec: what is read.
        position: of the first example.
        first_row: where its image is drawn.

    Raises:
        ShardError: a file cannot be read.
        CorruptRecordError: a record, or an image in it, is damaged.
    """
    chunks = read_directly(spec, position) if can_read_directly(spec) else _unpacked(tf, spec, position)
    return chunks if spec.painter is None else _painted(tf, spec, spec.painter, chunks, first_row)


def _unpacked(tf: Any, spec: StreamSpec, position: int) -> Generator[Chunk, None, None]:
    chunks = _decoded(tf, spec, position).as_numpy_iterator()
    while True:
        try:
            occurrences, decoded = next(chunks)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise _explain(tf, error, spec, position) from None
        except UnicodeDecodeError:  # tensorflow's error quotes the bytes of what is no example, and is lost with them.
            index = _find_undecodable(tf, spec, position)
            raise spec.source.describe_undecodable(index, "It is no tf.train.Example.") from None
        columns = {name: column.unpack(decoded[name]) for name, column in spec.columns.items()}
        if spec.painter is not None:
            columns[IMAGES] = decoded[IMAGES]
        position += len(occurrences)
        yield occurrences, columns


def _painted(
    tf: Any, spec: StreamSpec, painter: ImagePainter, chunks: Iterator[Chunk], first_row: int
) -> Generator[Chunk, None, None]:
    """Yields chunks whose images have been painted, some of them ahead.

    Images are decoded and resized by threads of Python, which tensorflow and the canvas let go on meanwhile. Decoding
    them in the graph cost as much, and the graph took 0.1 s more to be built in every epoch.
    """
    painter.start(tf)
    waiting: deque[tuple[Chunk, int, Future[None]]] = deque()
    error: Exception | None = None
    most = spec.num_threads + 1
    threads = ThreadPoolExecutor(spec.num_threads, "painter")
    try:
        while True:
            try:
                occurrences, columns = next(chunks)
            except StopIteration:
                break
            except TfdsTorchError as caught:  # What was read before it comes before it.
                error = caught
                break
            painted = threads.submit(painter.paint, first_row, occurrences, columns.pop(IMAGES))
            waiting.append(((occurrences, columns), first_row, painted))
            first_row += len(occurrences)
            # The first chunks are not kept waiting for those that are read ahead.
            if len(waiting) > most:
                most += most < spec.prefetch_chunks
                yield _finished(painter, *waiting.popleft())
        while waiting:
            yield _finished(painter, *waiting.popleft())
    finally:
        threads.shutdown(cancel_futures=True)
    if error is not None:
        raise error


def _finished(painter: ImagePainter, chunk: Chunk, first_row: int, painted: "Future[None]") -> Chunk:
    """Returns a chunk once it has been painted, with what goes through the same crop."""
    painted.result()
    occurrences, columns = chunk
    if painter.preprocess.also:
        others = {name: columns[name] for name in painter.preprocess.also if name in columns}
        columns |= painter.cut_others(first_row, others)
    return occurrences, columns


def readable_reason(error: Any) -> str:
    """Returns what a `tf.errors.OpError` out of a graph says, without where in the graph it happened."""
    return _WHERE_IN_GRAPH.sub("", str(error.message).splitlines()[0])


def _decoded(tf: Any, spec: StreamSpec, position: int) -> Any:
    """Returns a dataset of (occurrence int64 [n], column name -> tensors), from a position on."""
    # Calls beyond the threads would only take turns with the first one, and so delay it.
    num_parallel = min(spec.prefetch_chunks, spec.num_threads + 1)
    features = _feature_specs(tf, spec)

    def decode(occurrences: Any, encoded: Any) -> tuple[Any, dict[str, Any]]:
        parsed = spec.source.parse(tf, encoded, features)
        decoded: dict[str, Any] = _decode(tf, spec.columns, parsed, encoded, spec.num_threads)
        if spec.painter is not None:
            decoded[IMAGES] = parsed[spec.painter.column.key]
        return occurrences, decoded

    chunks = spec.source.chunks(tf, spec.chunk_size, position, list(features)).prefetch(1)  # Of what is still encoded.
    decoded = chunks.map(tf.autograph.experimental.do_not_convert(decode), num_parallel_calls=num_parallel)
    if spec.painter is None:
        # The parallel map holds as many results ready as it has calls.
        decoded = decoded.prefetch(spec.prefetch_chunks - num_parallel)
    return decoded.with_options(tf_data_options(tf, spec.num_threads))


def _feature_specs(tf: Any, spec: StreamSpec) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    for column in [*spec.columns.values(), *([spec.painter.column] if spec.painter else [])]:
        specs.update(column.feature_specs(tf))
    return specs


def _decode(
    tf: Any, columns: Mapping[str, Column], parsed: Mapping[str, Any], encoded: Any, num_parallel: int
) -> dict[str, tuple[Any, ...]]:
    return {name: column.decode(tf, parsed, encoded, num_parallel) for name, column in columns.items()}


def _explain(tf: Any, error: Any, spec: StreamSpec, num_delivered: int) -> TfdsTorchError:
    """Returns our own error for one of tensorflow's, which no process without tensorflow could unpickle."""
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
    try:
        for occurrences, encoded in examples.take(num_suspected):
            try:
                parsed = spec.source.parse(tf, encoded, _feature_specs(tf, spec))
                _decode(tf, spec.columns, parsed, encoded, spec.num_threads)
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
                return int(occurrences[0]) % spec.num_examples
    except tf.errors.OpError:  # The files have changed since.
        pass
    return None
