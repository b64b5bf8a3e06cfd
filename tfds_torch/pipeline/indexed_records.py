"""Encoded examples fetched by global index, a chunk at a time, as a tf.data stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.pipeline.serialized_examples import SerializedExamples
from tfds_torch.plan.worker_order import WorkerOrder
from tfds_torch.records.record_reader import RecordReader, open_reader
from tfds_torch.records.record_run import RecordRun

_READ_AHEAD_BYTES, _MOST_AHEAD = 8 << 20, 1024  # Bytes, and examples.
_ORDER_SLICE = 2048
_Chunk = tuple[NDArray[np.int64], NDArray[np.object_]]


@dataclass(eq=False)
class IndexedRecords(SerializedExamples):
    """What one pipeline reads by index: an `ExampleSource`.

    Its order is arithmetic. Nothing is shuffled in the graph, and no record is read that is not delivered.

    Attributes:
        dataset: what the shards belong to, for messages.
        runs: the whole split, in the order that `index` counts.
        file_format: of the shards.
        order: the examples of the pipeline, in the order of delivery.
        mean_example_bytes: size of an encoded example, which says how many are read ahead.
        verify_checksums: whether the checksum of every record is verified.
    """

    dataset: str
    runs: Sequence[RecordRun]
    file_format: str
    order: WorkerOrder
    mean_example_bytes: int
    verify_checksums: bool
    _reader: RecordReader | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)

    @property
    def all_runs(self) -> Sequence[RecordRun]:  # noqa: D102
        return self.runs

    def __len__(self) -> int:
        return len(self.order)

    def check(self) -> None:  # noqa: D102
        self._open()

    def chunks(self, tf: Any, chunk_size: int, num_skipped: int, features: Sequence[str]) -> Any:  # noqa: D102
        num_ahead = max(chunk_size, min(_READ_AHEAD_BYTES // max(1, self.mean_example_bytes), _MOST_AHEAD))
        fetches = _Fetches(self._open(), self.order, num_skipped, num_ahead)

        def fetch(start: Any) -> Any:
            index, encoded = tf.numpy_function(
                lambda _: self._noting_failure(fetches.fetch, chunk_size), [start], [tf.int64, tf.string]
            )
            index.set_shape([None])
            encoded.set_shape([None])
            return index, encoded

        # One call after the other: the reader orders what it reads, and asks for the next chunks in advance.
        starts = tf.data.Dataset.range(num_skipped, len(self.order), chunk_size)
        return starts.map(tf.autograph.experimental.do_not_convert(fetch))

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:  # noqa: D102
        kind = type(self._failure).__name__
        # What failed may have been read ahead: the error that came out may be of an example before it.
        if self._failure is None or f"{kind}: " not in str(error.message):
            return None
        if isinstance(self._failure, TfdsTorchError):
            return self._failure
        return ShardError(f"The shards of {self.dataset} could not be read: {kind}: {self._failure}")

    def close(self) -> None:  # noqa: D102
        if self._reader is not None:
            self._reader.close()

    def _open(self) -> RecordReader:
        if self._reader is None:
            self._reader = open_reader(
                self.runs, self.dataset, self.file_format, verify_checksums=self.verify_checksums
            )
        return self._reader

    def _noting_failure(self, fetch: Callable[[int], _Chunk], chunk_size: int) -> _Chunk:
        """Keeps an error whole, of which tensorflow only passes on the text."""
        try:
            return fetch(chunk_size)
        except Exception as error:
            self._failure = error
            raise


class _Fetches:
    """Fetches one chunk after the other, and lets the system read the following ones meanwhile.

    Args:
        reader: of the split.
        order: the examples of the pipeline.
        start: position in the order at which to begin.
        num_ahead: examples that the system is asked to read ahead.
    """

    def __init__(self, reader: RecordReader, order: WorkerOrder, start: int, num_ahead: int) -> None:
        self._reader = reader
        self._order = order
        self._position = self._advised = start
        self._num_ahead = num_ahead
        self._known = np.empty(0, np.int64)  # The examples from `_position` on, as far as they are worked out.

    def fetch(self, chunk_size: int) -> _Chunk:
        """Returns the next chunk's indices, int64 [n], and its encoded examples, object [n]."""
        stop = min(self._position + chunk_size, len(self._order))
        ahead = min(stop + self._num_ahead, len(self._order))
        self._reader.advise(self._examples(self._advised, ahead))
        index = self._examples(self._position, stop)
        encoded = np.empty(len(index), object)
        encoded[:] = self._reader.read(index)
        self._known = self._known[stop - self._position :]
        self._position, self._advised = stop, ahead
        return index, encoded

    def _examples(self, start: int, stop: int) -> NDArray[np.int64]:
        worked_out = self._position + len(self._known)
        if worked_out < stop:
            # A slice of the order costs little more than a single position.
            until = min(max(stop, worked_out + _ORDER_SLICE), len(self._order))
            self._known = np.concatenate([self._known, self._order.examples(worked_out, until)])
        return self._known[start - self._position : stop - self._position]
