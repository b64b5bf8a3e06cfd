"""RecordStream: TFRecord files as a tf.data graph that yields encoded records, and its errors as our own."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tfds_torch.engines.tensorflow_runtime import load_tensorflow, readable_reason
from tfds_torch.errors import ShardError, TfdsTorchError, WorkerError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.subprocess_call import FreshProcess
from tfds_torch.storage.source import is_local
from tfds_torch.storage.tfrecord.framing import read_records

_BLOCK_LENGTH = 16  # Records read from one file before the next file's turn.
_ENDS_EARLY = "tfds_torch: the shard ends early: "


@dataclass(frozen=True)
class RecordRange:
    """Consecutive records of a file.

    Attributes:
        path: path of the file, local or a URL that tensorflow can read.
        skip: records before the first one.
        take: number of records.
        first_key: sample key of the first one.
        num_in_file: number of records of the whole file according to `dataset_info.json`.
    """

    path: str
    skip: int
    take: int
    first_key: int
    num_in_file: int


@dataclass(frozen=True)
class RecordStream:
    """The records that one pipeline streams.

    Attributes:
        dataset: `name/config:version`, for messages.
        valid: the records of the epoch; shuffled when `shuffle_buffer` > 1.
        fill: the records that come after them, in this order.
        num_skipped: number of records of the (shuffled) stream that are passed over.
        chunk_size: number of records that are handed over at a time.
        shuffle_buffer: number of encoded records among which the next one is drawn; 1 keeps the order.
        seed: seed of the shuffle.
        cycle_length: number of files that a shuffled stream reads in turns; an unshuffled one reads one after another.
        read_buffer_bytes: read-ahead per open file, bytes.
        num_threads: size of the pipeline's thread pool.
    """

    dataset: str
    valid: Sequence[RecordRange]
    fill: Sequence[RecordRange]
    num_skipped: int
    chunk_size: int
    shuffle_buffer: int
    seed: int
    cycle_length: int
    read_buffer_bytes: int
    num_threads: int

    @property
    def ranges(self) -> list[RecordRange]:
        """All ranges that are streamed."""
        return [*self.valid, *self.fill]

    def __len__(self) -> int:
        return sum(part.take for part in self.ranges)


def stream_records(stream: RecordStream) -> Iterator[tuple[Int64Array, list[bytes]]]:
    """Yield sample keys, int64 [n], and n records; only in a process that may use tensorflow.

    Raises:
        ShardError: a file cannot be read, or ends early.
        CorruptRecordError: a record is damaged.
    """
    tf = load_tensorflow("reading a stream")
    with tf.device("CPU:0"):  # Where the user's program has shown tensorflow a GPU.
        chunks = _graph(tf, stream).as_numpy_iterator()
    while True:
        try:
            keys, records = next(chunks)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise _explain(stream, str(error.message)) from None
        yield keys, list(records)


def _graph(tf: Any, stream: RecordStream) -> Any:
    """Return a dataset of (sample keys int64 [n], records string [n])."""
    is_shuffled = stream.shuffle_buffer > 1
    records = _records(tf, stream, stream.valid, cycle_length=stream.cycle_length if is_shuffled else 1)
    if is_shuffled and stream.valid:
        records = _shuffle(tf, records, stream.shuffle_buffer, stream.seed)
    if stream.fill:
        fill = _records(tf, stream, stream.fill, cycle_length=1)
        records = records.concatenate(fill) if stream.valid else fill
    records = records.skip(stream.num_skipped) if stream.num_skipped else records
    return records.batch(stream.chunk_size).prefetch(1).with_options(tf_data_options(tf, stream.num_threads))


def tf_data_options(tf: Any, num_threads: int) -> Any:
    """Return the `tf.data.Options` of a worker's pipeline."""
    options = tf.data.Options()
    # With autotune an iterator can only be destroyed when autotune's timer fires, up to 40 s after the last batch.
    options.autotune.enabled = False
    options.deterministic = True
    options.threading.private_threadpool_size = num_threads
    options.threading.max_intra_op_parallelism = 1  # Records are small: parallelism is across files.
    return options


def _records(tf: Any, stream: RecordStream, ranges: Sequence[RecordRange], *, cycle_length: int) -> Any:
    """Return a dataset of (sample key int64 [], record string [])."""
    if not ranges:
        return None
    table = {
        "path": [part.path for part in ranges],
        "skip": tf.constant([part.skip for part in ranges], tf.int64),
        "take": tf.constant([part.take for part in ranges], tf.int64),
        "first": tf.constant([part.first_key for part in ranges], tf.int64),
    }

    def read_range(part: Mapping[str, Any]) -> Any:
        records = tf.data.TFRecordDataset(part["path"], buffer_size=stream.read_buffer_bytes).skip(part["skip"])
        # A shard that was cut on a record boundary ends without an error: what follows its last record is one.
        early_end = tf.data.Dataset.from_tensors(part["path"]).map(lambda path: _raise_early_end(tf, path))
        records = records.concatenate(early_end).take(part["take"])
        return tf.data.Dataset.zip((tf.data.Dataset.range(part["first"], part["first"] + part["take"]), records))

    num_parallel = min(cycle_length, stream.num_threads, len(ranges))
    return tf.data.Dataset.from_tensor_slices(table).interleave(
        tf.autograph.experimental.do_not_convert(read_range),
        cycle_length=min(cycle_length, len(ranges)),
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=num_parallel if num_parallel > 1 else None,
        deterministic=True if num_parallel > 1 else None,
    )


def _shuffle(tf: Any, records: Any, buffer_size: int, seed: int) -> Any:
    """Return `records.shuffle(...)`, but with an order that does not depend on `tf.random.set_seed`."""
    flat_spec = tf.nest.flatten(records.element_spec)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(records),
        buffer_size=buffer_size,
        seed=seed,
        seed2=buffer_size,  # Two zeros would mean a random seed.
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[spec.dtype for spec in flat_spec],
        output_shapes=[spec.shape for spec in flat_spec],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, records.element_spec)


def _raise_early_end(tf: Any, path: Any) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [tf.strings.join([_ENDS_EARLY, path])])]):
        return tf.identity(path)


def _explain(stream: RecordStream, message: str) -> TfdsTorchError:
    """Return our own error for one of tensorflow's, which no process without tensorflow could unpickle."""
    num_in_file = {part.path: part.num_in_file for part in stream.ranges}
    for path in filter(is_local, num_in_file):
        try:
            found = sum(1 for _ in read_records(path))
        except ShardError as damage:
            return damage
        if found != num_in_file[path]:
            return ShardError(f"{path} holds {found} of {num_in_file[path]} examples: it changed while it was read.")
    for path, expected in num_in_file.items():
        if f"{_ENDS_EARLY}{path}]" in message:
            return ShardError(f"{path} holds fewer than the {expected} examples that dataset_info.json promises.")
    return ShardError(f"The shards of {stream.dataset} could not be read. tensorflow says: {readable_reason(message)}")


# A process that was forked after tensorflow ran must not use it: another process streams for it. That one stays from
# epoch to epoch: only the first epoch waits for the import of tensorflow.

_Request = tuple[int, RecordStream | None, list[int]]
"""The number of a stream; the stream itself, where it begins; the numbers of other streams that were given up."""


class _Streams:
    """Answers each request with the next chunk of a stream; None: the stream has ended."""

    def __init__(self) -> None:
        self._streams: dict[int, Iterator[tuple[Int64Array, list[bytes]]]] = {}

    def __call__(self, request: _Request) -> Any:
        number, stream, given_up = request
        for other in given_up:
            self._streams.pop(other, None)
        if stream is not None:
            self._streams[number] = stream_records(stream)
        if number not in self._streams:
            raise WorkerError("The process that streamed these records died. Iterate again: it is started anew.")
        chunk = next(self._streams[number], None)
        if chunk is None:
            del self._streams[number]
        return chunk


_process = FreshProcess(_Streams)
_numbers = count()
_given_up: deque[int] = deque()  # Told with the next request: garbage collection may close a stream at any moment.


def stream_elsewhere(stream: RecordStream) -> Iterator[tuple[Int64Array, list[bytes]]]:
    """Yield records that a fresh process streams, as `stream_records` does in this process."""
    number = next(_numbers)
    chunk = _ask(number, stream)
    try:
        while chunk is not None:
            yield chunk
            chunk = _ask(number, None)
    finally:
        if chunk is not None:
            _given_up.append(number)


def _ask(number: int, stream: RecordStream | None) -> Any:
    given_up = [_given_up.popleft() for _ in range(len(_given_up))]
    return _process.ask((number, stream, given_up))
