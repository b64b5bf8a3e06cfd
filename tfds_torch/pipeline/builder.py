"""Examples from any source, streamed in chunks of decoded columns."""

import atexit
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.options import tf_data_options
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow

INDEX = "index"
"""Name of the column that holds each example's index."""

_open_streams: "WeakSet[Generator[dict[str, Any], None, None]]" = WeakSet()
_WHERE_IN_GRAPH = re.compile(r"\{\{.*?\}\} ?|Error in user-defined function .*? Iterator::\S+: ")


class ExampleSource(Protocol):
    """What one pipeline reads in an epoch, in the order of delivery."""

    def __len__(self) -> int:
        """Number of examples."""

    def check(self) -> None:
        """Holds what can be checked before reading against what was promised. Loads no tensorflow.

        Raises:
            ShardError: a file is missing, or holds another number of examples than promised.
        """

    def chunks(self, tf: Any, chunk_size: int, num_skipped: int, features: Sequence[str]) -> Any:
        """Returns a dataset of (index int64 [n], n encoded examples), n = chunk_size but for the last chunk.

        Args:
            tf: the module tensorflow.
            chunk_size: examples of a chunk.
            num_skipped: examples that are passed over.
            features: keys of the features that `parse` will be asked for.
        """

    def parse(self, tf: Any, encoded: Any, specs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds to the graph what takes features out of a chunk of encoded examples.

        Args:
            tf: the module tensorflow.
            encoded: n encoded examples, batched.
            specs: feature key -> what `tf.io.parse_example` would need to know.

        Returns:
            Feature key -> tensor [n, ...].
        """

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:
        """Returns our own error for one of tensorflow's about reading; None when it is about decoding.

        Args:
            tf: the module tensorflow.
            error: a `tf.errors.OpError`.
            reason: its message, made readable.
            num_delivered: examples that were read before, those passed over included.
        """

    def describe_undecodable(self, index: int | None, reason: str) -> TfdsTorchError:
        """Returns the error for an example, given by its index where that is known, that cannot be decoded."""

    def close(self) -> None:
        """Lets go of what is open. Called once nothing is read any more."""


@dataclass(frozen=True)
class StreamSpec:
    """What one pipeline reads, and how.

    Attributes:
        source: where the examples come from.
        columns: name -> how the field is decoded.
        chunk_size: examples that are decoded and handed over at a time.
        num_skipped: examples of the (shuffled) stream that are passed over without being decoded.
        num_threads: size of the pipeline's thread pool.
        prefetch_chunks: decoded chunks held ready; no other decoded images are held.
    """

    source: ExampleSource
    columns: Mapping[str, Column]
    chunk_size: int
    num_skipped: int
    num_threads: int
    prefetch_chunks: int


def read_stream(spec: StreamSpec) -> Iterator[dict[str, Any]]:
    """Yields chunks of up to `chunk_size` examples: column name -> its n values; `index` is int64 [n].

    Raises:
        ShardError: a file is missing, or holds another number of examples than promised.
        CorruptRecordError: a record, or an image in it, is damaged.
    """
    chunks = _read(spec)
    _open_streams.add(chunks)
    return chunks


def _read(spec: StreamSpec) -> Generator[dict[str, Any], None, None]:
    if not len(spec.source):
        return
    try:
        spec.source.check()
        tf = load_tensorflow()
        atexit.unregister(_close_streams)
        atexit.register(_close_streams)  # Anew, so that it runs before what tensorflow has registered.
        yield from _read_chunks(tf, spec)
    finally:
        spec.source.close()


def _close_streams() -> None:
    """Ends what is still being read while Python is alive: tensorflow's threads may be calling it."""
    for chunks in list(_open_streams):
        with suppress(ValueError):  # Another thread is in it.
            chunks.close()


def readable_reason(error: Any) -> str:
    """Returns what a `tf.errors.OpError` out of a graph says, without where in the graph it happened."""
    return _WHERE_IN_GRAPH.sub("", str(error.message).splitlines()[0])


def _read_chunks(tf: Any, spec: StreamSpec) -> Iterator[dict[str, Any]]:
    chunks = _decoded(tf, spec).as_numpy_iterator()
    num_delivered = 0
    while True:
        try:
            index, columns = next(chunks)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise _explain(tf, error, spec, spec.num_skipped + num_delivered) from None
        num_delivered += len(index)
        yield {INDEX: index} | {name: column.unpack(columns[name]) for name, column in spec.columns.items()}


def _decoded(tf: Any, spec: StreamSpec) -> Any:
    """Returns a dataset of (index int64 [n], column name -> tensors)."""
    # Calls beyond the threads would only take turns with the first one, and so delay it.
    num_parallel = min(spec.prefetch_chunks, spec.num_threads + 1)
    return (
        spec.source.chunks(tf, spec.chunk_size, spec.num_skipped, list(_feature_specs(tf, spec)))
        .prefetch(1)  # Reading goes on while a chunk is decoded; what waits here is still encoded.
        .map(
            tf.autograph.experimental.do_not_convert(lambda index, encoded: (index, _decode(tf, spec, encoded))),
            num_parallel_calls=num_parallel,
        )
        .prefetch(spec.prefetch_chunks - num_parallel)  # The parallel map holds as many results ready as it has calls.
        .with_options(tf_data_options(tf, spec.num_threads))
    )


def _feature_specs(tf: Any, spec: StreamSpec) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    for column in spec.columns.values():
        specs.update(column.feature_specs(tf))
    return specs


def _decode(tf: Any, spec: StreamSpec, encoded: Any) -> dict[str, tuple[Any, ...]]:
    parsed = spec.source.parse(tf, encoded, _feature_specs(tf, spec))
    return {name: column.decode(tf, parsed, encoded, spec.num_threads) for name, column in spec.columns.items()}


def _explain(tf: Any, error: Any, spec: StreamSpec, num_delivered: int) -> TfdsTorchError:
    """Returns our own error for one of tensorflow's, which no process without tensorflow could unpickle."""
    reason = readable_reason(error)
    explained = spec.source.explain(tf, error, reason, num_delivered)
    if explained is not None:
        return explained
    return spec.source.describe_undecodable(_find_undecodable(tf, spec, num_delivered), reason)


def _find_undecodable(tf: Any, spec: StreamSpec, num_delivered: int) -> int | None:
    """Returns the index of the first example after the delivered ones that cannot be decoded by itself."""
    num_suspected = spec.chunk_size * (spec.prefetch_chunks + 1)
    examples = spec.source.chunks(tf, 1, num_delivered, list(_feature_specs(tf, spec)))
    try:
        for index, encoded in examples.take(num_suspected):
            try:
                _decode(tf, spec, encoded)
            except tf.errors.InvalidArgumentError:
                return int(index[0])
    except tf.errors.OpError:  # The files have changed since.
        pass
    return None
