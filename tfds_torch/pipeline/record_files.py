"""Encoded examples from TFRecord files, as a tf.data stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.pipeline.serialized_examples import SerializedExamples
from tfds_torch.records.record_run import RecordRun, is_local
from tfds_torch.records.shard_check import check_shards
from tfds_torch.records.tfrecord import read_records

_BLOCK_LENGTH = 16  # Records read from one file before the next file's turn.
_ENDS_EARLY = "tfds_torch: the shard ends early: "


@dataclass(frozen=True)
class RecordFiles(SerializedExamples):
    """What one pipeline reads from TFRecord files: an `ExampleSource`.

    Attributes:
        dataset: what the shards belong to, for messages.
        num_in_split: examples of a pass.
        runs: the records of the epoch; shuffled when `shuffle_buffer` > 1.
        fill: the records that come after them, in this order.
        shuffle_buffer: encoded examples among which the next one is drawn; 1 keeps the order.
        seed: of the shuffle.
        cycle_length: files that a shuffled stream reads by turns; an unshuffled one reads them one after the other.
        read_buffer_bytes: read-ahead per open file.
        num_threads: size of the pipeline's thread pool.
    """

    dataset: str
    num_in_split: int
    runs: Sequence[RecordRun]
    fill: Sequence[RecordRun]
    shuffle_buffer: int
    seed: int
    cycle_length: int
    read_buffer_bytes: int
    num_threads: int

    def __len__(self) -> int:
        return sum(run.take for run in self.all_runs)

    def check(self) -> None:  # noqa: D102
        check_shards({run.path: run.num_in_shard for run in self.all_runs if is_local(run.path)}, self.dataset)

    def chunks(self, tf: Any, chunk_size: int, num_skipped: int, features: Sequence[str]) -> Any:  # noqa: D102
        is_shuffled = self.shuffle_buffer > 1
        stream = self._records(tf, self.runs, cycle_length=self.cycle_length if is_shuffled else 1)
        if is_shuffled and self.runs:
            stream = _shuffle(tf, stream, self.shuffle_buffer, self.seed)
        if self.fill:
            fill = self._records(tf, self.fill, cycle_length=1)
            stream = stream.concatenate(fill) if self.runs else fill
        return (stream.skip(num_skipped) if num_skipped else stream).batch(chunk_size)

    def explain(self, tf: Any, error: Any, reason: str, num_delivered: int) -> TfdsTorchError | None:  # noqa: D102
        is_early_end = _ENDS_EARLY in str(error.message)
        if isinstance(error, tf.errors.InvalidArgumentError) and not is_early_end:
            return None
        num_in_shard = {run.path: run.num_in_shard for run in self.all_runs}
        for path in filter(is_local, num_in_shard):
            try:
                found = sum(1 for _ in read_records(path))
            except ShardError as damage:
                return damage
            if found != num_in_shard[path]:
                return ShardError(
                    f"{path} holds {found} of {num_in_shard[path]} examples: it changed while it was read."
                )
        for path, expected in num_in_shard.items():
            if is_early_end and f"{_ENDS_EARLY}{path}]" in str(error.message):
                return ShardError(f"{path} holds fewer than the {expected} examples that dataset_info.json promises.")
        return ShardError(f"The shards of {self.dataset} could not be read. tensorflow says: {reason}")

    def close(self) -> None:
        """Does nothing: tensorflow opens and closes the files."""

    @property
    def all_runs(self) -> list[RecordRun]:  # noqa: D102
        return [*self.runs, *self.fill]

    def _records(self, tf: Any, runs: Sequence[RecordRun], *, cycle_length: int) -> Any:
        """Returns a dataset of (occurrence int64 [], serialized string [])."""
        if not runs:
            return None
        table = {
            "path": [run.path for run in runs],
            "skip": tf.constant([run.skip for run in runs], tf.int64),
            "take": tf.constant([run.take for run in runs], tf.int64),
            "first": tf.constant([run.pass_number * self.num_in_split + run.first_index for run in runs], tf.int64),
        }

        def read_run(run: Mapping[str, Any]) -> Any:
            records = tf.data.TFRecordDataset(run["path"], buffer_size=self.read_buffer_bytes).skip(run["skip"])
            # A shard that was cut on a record boundary ends without an error: what follows its last record is one.
            early_end = tf.data.Dataset.from_tensors(run["path"]).map(lambda path: _raise_early_end(tf, path))
            records = records.concatenate(early_end).take(run["take"])
            return tf.data.Dataset.zip((tf.data.Dataset.range(run["first"], run["first"] + run["take"]), records))

        num_parallel = min(cycle_length, self.num_threads, len(runs))
        return tf.data.Dataset.from_tensor_slices(table).interleave(
            tf.autograph.experimental.do_not_convert(read_run),
            cycle_length=min(cycle_length, len(runs)),
            block_length=_BLOCK_LENGTH,
            num_parallel_calls=num_parallel if num_parallel > 1 else None,
            deterministic=True if num_parallel > 1 else None,
        )


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


def _raise_early_end(tf: Any, path: Any) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [tf.strings.join([_ENDS_EARLY, path])])]):
        return tf.identity(path)
