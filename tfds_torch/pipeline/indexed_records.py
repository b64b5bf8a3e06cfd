"""Encoded examples fetched by global index, a chunk at a time, as a tf.data stream."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.pipeline.bytes_array import bytes_array
from tfds_torch.pipeline.serialized_examples import SerializedExamples
from tfds_torch.plan.worker_order import RecordOrder
from tfds_torch.records.record_reader import RecordReader, open_reader
from tfds_torch.records.record_run import RecordRun
from tfds_torch.runtime.clock import Clock

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
        clock: what times are reported to.
    """

    dataset: str
    runs: Sequence[RecordRun]
    file_format: str
    order: RecordOrder
    mean_example_bytes: int
    verify_checksums: bool
    clock: Clock | None = None
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
        self._failure = None  # Of what was read before.
        fetches = self._fetches(chunk_size, num_skipped)

        def fetch(start: Any) -> Any:
            occurrences, encoded = tf.numpy_function(
                lambda _: self._noting_failure(fetches.fetch_array, chunk_size), [start], [tf.int64, tf.string]
            )
            occurrences.set_shape([None])
            encoded.set_shape([None])
            return occurrences, encoded

        # One call after the other: the reader orders what it reads, and asks for the next chunks in advance.
        starts = tf.data.Dataset.range(num_skipped, len(self.order), chunk_size)
        return starts.map(tf.autograph.experimental.do_not_convert(fetch))

    def read(self, chunk_size: int, num_skipped: int) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """Yields (occurrences int64 [n], n records), n = chunk_size but for the last chunk: the same without a graph.

        Raises:
            ShardError: a file cannot be read.
            CorruptRecordError: a record is damaged.
        """
        fetches = self._fetches(chunk_size, num_skipped)
        for _ in range(num_skipped, len(self.order), chunk_size):
            try:
                chunk = fetches.fetch(chunk_size)
            except TfdsTorchError:
                raise
            except Exception as error:
                raise self._unreadable(error) from error
            yield chunk

    def _fetches(self, chunk_size: int, num_skipped: int) -> "_Fetches":
        num_ahead = max(chunk_size, min(_READ_AHEAD_BYTES // max(1, self.mean_example_bytes), _MOST_AHEAD))
        return _Fetches(self._open(), self.order, num_skipped, num_ahead, self.clock)

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:  # noqa: D102
        kind = type(self._failure).__name__
        # What failed may have been read ahead: the error that came out may be of an example before it.
        if self._failure is None or f"{kind}: " not in str(error.message):
            return None
        if isinstance(self._failure, TfdsTorchError):
            return self._failure
        return self._unreadable(self._failure)

    def _unreadable(self, error: Exception) -> ShardError:
        return ShardError(f"The shards of {self.dataset} could not be read: {type(error).__name__}: {error}")

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
    """Fetches one chunk after the other, and lets the system read the following ones meanwhile. One thread at a time.

    Args:
        reader: of the split.
        order: the examples of the pipeline.
        start: position in the order at which to begin.
        num_ahead: examples that the system is asked to read ahead.
        clock: what times are reported to.
    """

    def __init__(
        self, reader: RecordReader, order: RecordOrder, start: int, num_ahead: int, clock: Clock | None = None
    ) -> None:
        self._reader = reader
        self._order = order
        self._position = self._advised = start
        self._num_ahead = num_ahead
        self._clock = clock
        self._known = np.empty(0, np.int64)  # The occurrences from `_position` on, as far as they are worked out.

    def fetch_array(self, chunk_size: int) -> _Chunk:
        """Returns the next chunk's occurrences, int64 [n], and its encoded examples, object [n]."""
        occurrences, encoded = self.fetch(chunk_size)
        return occurrences, bytes_array(encoded)

    def fetch(self, chunk_size: int) -> tuple[NDArray[np.int64], list[bytes]]:
        """Returns the next chunk's occurrences, int64 [n], and its n encoded examples."""
        began_s = time.perf_counter()
        stop = min(self._position + chunk_size, len(self._order))
        ahead = min(stop + self._num_ahead, len(self._order))
        num_examples = self._order.plan.num_examples
        self._reader.advise(self._occurrences(self._advised, ahead) % num_examples)
        occurrences = self._occurrences(self._position, stop)
        index = occurrences % num_examples
        if self._clock is not None:
            self._clock.note_reading(int(index[0]))
        encoded = self._reader.read(index)
        self._known = self._known[stop - self._position :]
        self._position, self._advised = stop, ahead
        if self._clock is not None:
            self._clock.add("read", time.perf_counter() - began_s)
        return occurrences, encoded

    def _occurrences(self, start: int, stop: int) -> NDArray[np.int64]:
        worked_out = self._position + len(self._known)
        if worked_out < stop:
            # A slice of the order costs little more than a single position.
            until = min(max(stop, worked_out + _ORDER_SLICE), len(self._order))
            self._known = np.concatenate([self._known, self._order.occurrences(worked_out, until)])
        return self._known[start - self._position : stop - self._position]
