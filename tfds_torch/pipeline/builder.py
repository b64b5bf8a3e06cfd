"""Encoded examples from TFRecord files, streamed in chunks of decoded columns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.options import tf_data_options
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow
from tfds_torch.records.shard_check import check_shards
from tfds_torch.records.tfrecord import read_records

INDEX = "index"
"""Name of the column that holds each example's index."""

_BLOCK_LENGTH = 16  # Records read from one file before the next file's turn.
_WHERE_IN_GRAPH = re.compile(r"\{\{.*?\}\} ?|Error in user-defined function .*? Iterator::\S+: ")
_ENDS_EARLY = "tfds_torch: the shard ends early: "


@dataclass(frozen=True)
class RecordRun:
    """Consecutive records of one shard file.

    Attributes:
        path: the shard, a local path or a URL that tensorflow can read.
        skip: records before the first one.
        take: number of records.
        first_index: index of the first one in the split.
        num_in_shard: records that the whole shard holds by `dataset_info.json`.
    """

    path: str
    skip: int
    take: int
    first_index: int
    num_in_shard: int


@dataclass(frozen=True)
class StreamSpec:
    """What one pipeline reads, and how.

    Attributes:
        dataset: what the shards belong to, for messages.
        runs: the records of the epoch; shuffled when `shuffle_buffer` > 1.
        fill: the records that come after them, in this order.
        columns: name -> how the field is decoded.
        chunk_size: examples that are decoded and handed over at a time.
        num_skipped: examples of the (shuffled) stream that are passed over without being decoded.
        shuffle_buffer: encoded examples among which the next one is drawn; 1 keeps the order.
        seed: of the shuffle.
        cycle_length: files that a shuffled stream reads by turns; an unshuffled one reads them one after the other.
        read_buffer_bytes: read-ahead per open file.
        num_threads: size of the pipeline's thread pool.
        prefetch_chunks: decoded chunks held ready; no other decoded images are held.
    """

    dataset: str
    runs: Sequence[RecordRun]
    fill: Sequence[RecordRun]
    columns: Mapping[str, Column]
    chunk_size: int
    num_skipped: int
    shuffle_buffer: int
    seed: int
    cycle_length: int
    read_buffer_bytes: int
    num_threads: int
    prefetch_chunks: int


def read_stream(spec: StreamSpec) -> Iterator[dict[str, Any]]:
    """Yields chunks of up to `chunk_size` examples: column name -> its n values; `index` is int64 [n].

    Raises:
        ShardError: a shard is missing, or holds another number of examples than promised.
        CorruptRecordError: a record, or an image in it, is damaged.
    """
    if not (spec.runs or spec.fill):
        return
    check_shards({run.path: run.num_in_shard for run in [*spec.runs, *spec.fill] if is_local(run.path)}, spec.dataset)
    tf = load_tensorflow()
    chunks = _decoded(tf, spec).as_numpy_iterator()
    num_delivered = 0
    while True:
        try:
            index, columns = next(chunks)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise _explain(tf, error, spec, num_delivered) from None
        num_delivered += len(index)
        yield {INDEX: index} | {name: column.unpack(columns[name]) for name, column in spec.columns.items()}


def is_local(path: str) -> bool:
    """Whether a path names a file of this machine rather than a URL (`gs://...`)."""
    return "://" not in path


def _decoded(tf: Any, spec: StreamSpec) -> Any:
    """Returns a dataset of (index int64 [n], column name -> tensors)."""
    # Calls beyond the threads would only take turns with the first one, and so delay it.
    num_parallel = min(spec.prefetch_chunks, spec.num_threads + 1)
    return (
        _encoded(tf, spec)
        .batch(spec.chunk_size)
        .prefetch(1)  # Reading goes on while a chunk is decoded; what waits here is still encoded.
        .map(
            tf.autograph.experimental.do_not_convert(lambda index, serialized: (index, _decode(tf, spec, serialized))),
            num_parallel_calls=num_parallel,
        )
        .prefetch(spec.prefetch_chunks - num_parallel)  # The parallel map holds as many results ready as it has calls.
        .with_options(tf_data_options(tf, spec.num_threads))
    )


def _encoded(tf: Any, spec: StreamSpec) -> Any:
    """Returns a dataset of (index int64 [], serialized string []), in the order of delivery."""
    is_shuffled = spec.shuffle_buffer > 1
    stream = _records(tf, spec, spec.runs, cycle_length=spec.cycle_length if is_shuffled else 1)
    if is_shuffled and spec.runs:
        stream = _shuffle(tf, stream, spec.shuffle_buffer, spec.seed)
    if spec.fill:
        fill = _records(tf, spec, spec.fill, cycle_length=1)
        stream = stream.concatenate(fill) if spec.runs else fill
    return stream.skip(spec.num_skipped) if spec.num_skipped else stream


def _shuffle(tf: Any, stream: Any, buffer_size: int, seed: int) -> Any:
    """Returns `stream.shuffle(...)`, but with an order that does not depend on `tf.random.set_seed`."""
    flat_spec = tf.nest.flatten(stream.element_spec)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(stream),
        buffer_size=buffer_size,
        seed=seed,
        seed2=buffer_size,  # Two zeros would mean a random seed.
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[spec.dtype for spec in flat_spec],
        output_shapes=[spec.shape for spec in flat_spec],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, stream.element_spec)


def _records(tf: Any, spec: StreamSpec, runs: Sequence[RecordRun], *, cycle_length: int) -> Any:
    """Returns a dataset of (index int64 [], serialized string [])."""
    if not runs:
        return None
    table = {
        "path": [run.path for run in runs],
        "skip": tf.constant([run.skip for run in runs], tf.int64),
        "take": tf.constant([run.take for run in runs], tf.int64),
        "first_index": tf.constant([run.first_index for run in runs], tf.int64),
    }

    def read_run(run: Mapping[str, Any]) -> Any:
        records = tf.data.TFRecordDataset(run["path"], buffer_size=spec.read_buffer_bytes).skip(run["skip"])
        # A shard that was cut on a record boundary ends without an error: what follows its last record is one.
        early_end = tf.data.Dataset.from_tensors(run["path"]).map(lambda path: _raise_early_end(tf, path))
        records = records.concatenate(early_end).take(run["take"])
        return tf.data.Dataset.zip(
            (tf.data.Dataset.range(run["first_index"], run["first_index"] + run["take"]), records)
        )

    num_parallel = min(cycle_length, spec.num_threads, len(runs))
    return tf.data.Dataset.from_tensor_slices(table).interleave(
        tf.autograph.experimental.do_not_convert(read_run),
        cycle_length=min(cycle_length, len(runs)),
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=num_parallel if num_parallel > 1 else None,
        deterministic=True if num_parallel > 1 else None,
    )


def _raise_early_end(tf: Any, path: Any) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [tf.strings.join([_ENDS_EARLY, path])])]):
        return tf.identity(path)


def _decode(tf: Any, spec: StreamSpec, serialized: Any) -> dict[str, tuple[Any, ...]]:
    specs: dict[str, Any] = {}
    for column in spec.columns.values():
        specs.update(column.feature_specs(tf))
    parsed = tf.io.parse_example(serialized, specs) if specs else {}
    return {name: column.decode(tf, parsed, serialized, spec.num_threads) for name, column in spec.columns.items()}


def _explain(tf: Any, error: Any, spec: StreamSpec, num_delivered: int) -> TfdsTorchError:
    """Returns our own error for one of tensorflow's, which no process without tensorflow could unpickle."""
    reason = _WHERE_IN_GRAPH.sub("", str(error.message).splitlines()[0])
    is_early_end = _ENDS_EARLY in str(error.message)
    if isinstance(error, tf.errors.InvalidArgumentError) and not is_early_end:
        return CorruptRecordError(
            f"{_find_undecodable(tf, spec, num_delivered)} of {spec.dataset} cannot be decoded, though its checksum is "
            f"right: it was written that way. tensorflow says: {reason}"
        )
    num_in_shard = {run.path: run.num_in_shard for run in [*spec.runs, *spec.fill]}
    for path in filter(is_local, num_in_shard):
        try:
            found = sum(1 for _ in read_records(path))
        except ShardError as damage:
            return damage
        if found != num_in_shard[path]:
            return ShardError(f"{path} holds {found} of {num_in_shard[path]} examples: it changed while it was read.")
    for path, expected in num_in_shard.items():
        if is_early_end and f"{_ENDS_EARLY}{path}]" in str(error.message):
            return ShardError(f"{path} holds fewer than the {expected} examples that dataset_info.json promises.")
    return ShardError(f"The shards of {spec.dataset} could not be read. tensorflow says: {reason}")


def _find_undecodable(tf: Any, spec: StreamSpec, num_delivered: int) -> str:
    """Returns the name of the first example after the delivered ones that cannot be decoded by itself."""
    num_suspected = spec.chunk_size * (spec.prefetch_chunks + 1)
    for index, serialized in _encoded(tf, spec).skip(num_delivered).take(num_suspected):
        try:
            _decode(tf, spec, serialized[tf.newaxis])
        except tf.errors.InvalidArgumentError:
            return _name_record(spec, int(index))
    return "An example"


def _name_record(spec: StreamSpec, index: int) -> str:
    run = next(run for run in [*spec.runs, *spec.fill] if 0 <= index - run.first_index < run.take)
    return f"{run.path}: record {run.skip + index - run.first_index}"
