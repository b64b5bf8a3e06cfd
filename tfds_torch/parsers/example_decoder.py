"""Single examples by global index, read and decoded in this process: no pipeline, and nothing that reads ahead."""

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.parsers.class_map import ClassMap
from tfds_torch.parsers.dataset_fields import DatasetFields
from tfds_torch.parsers.example_files import ExampleFiles, Indices, RecordShards
from tfds_torch.parsers.image_folder import FolderFiles
from tfds_torch.parsers.parser import Batch
from tfds_torch.pipeline.bytes_array import bytes_array
from tfds_torch.pipeline.chunks import readable_reason
from tfds_torch.pipeline.columns import Column
from tfds_torch.pipeline.image_files import FILENAME, IMAGE, LABEL
from tfds_torch.pipeline.options import ReadOptions, tf_data_options
from tfds_torch.pipeline.stream_spec import ExampleSource
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow
from tfds_torch.records.record_reader import RecordReader, open_reader
from tfds_torch.records.record_run import RecordRun

_CHUNK_BYTES = 3 * 2**19  # Encoded; what is decoded at a time, and so held in memory by any one of its examples.
_RECORD = "record"

Encoded = dict[str, Any]
"""n encoded examples: `record`, or the features of an image folder -> array [n] of bytes or int64."""


@dataclass(frozen=True, eq=False)
class Example:
    """One example, in numpy.

    Attributes:
        image: uint8 [H, W, C]; None when not asked for.
        label: None when not asked for, or when the target is no scalar integer: it is among the features then.
        index: position in the split.
        id: as TFDS gives it, `<shard file>__<record>`; of an image folder, the path below its root.
        features: the other features asked for: name -> value.
    """

    image: Any
    label: int | None
    index: int
    id: str
    features: dict[str, Any] = field(default_factory=dict)


class ExampleDecoder:
    """Reads and decodes any examples of a split in this process. Loads tensorflow. Threads may share it.

    Args:
        files: that hold the examples.
        fields: what can be asked for.
        image_mode: of the field `image`.
        class_map: new labels for the target.
        read: how examples are read.
    """

    def __init__(
        self,
        files: ExampleFiles,
        fields: DatasetFields,
        image_mode: str | None,
        class_map: ClassMap | None,
        read: ReadOptions,
    ) -> None:
        self._files = files
        self._fields = fields
        self._image_mode = image_mode
        self._class_map = class_map
        self._read = read
        self._lock = threading.Lock()
        self._graphs: dict[tuple[str, ...], _Graph] = {}
        self._reader: RecordReader | None = None

    def read(self, index: Indices, names: tuple[str, ...], num_parallel: int) -> list[Example]:
        """Returns examples, all fetched at once.

        Args:
            index: int64 [n], in any order.
            names: the fields to decode.
            num_parallel: examples decoded at the same time.

        Raises:
            ConfigError: the class map lacks a label.
            ShardError: a file is missing, or holds another number of examples than promised.
            CorruptRecordError: a record or an image is damaged.
        """
        with self._lock:
            graph = self._graphs.get(names)
            if graph is None:
                columns = {name: self._fields.column(name, self._image_mode) for name in names}
                graph = self._graphs[names] = _Graph(self._files, columns, self._read, num_parallel)
            encoded = self._fetch(index, graph.keys)
            return [
                example
                for part in cut(len(index), self._files.mean_example_bytes, _CHUNK_BYTES)
                for example in self._examples(index[part], graph, {key: encoded[key][part] for key in encoded})
            ]

    def _examples(self, index: Indices, graph: "_Graph", encoded: Encoded) -> Iterator[Example]:
        columns = graph.decode(index, encoded)
        has_label = "label" in columns and self._fields.has_integer_target
        batch = Batch(
            image=columns.pop("image", None),
            label=columns.pop("label").astype(np.int64) if has_label else None,
            valid=np.ones(len(index), np.bool_),
            index=index,
            id=self._files.ids(index),
            features=columns,
        )
        if "label" in graph.columns and self._class_map is not None:
            (batch,) = self._class_map.remap(iter([batch]))
        labels = [None] * len(batch) if batch.label is None else batch.label.tolist()
        for i, (label, number) in enumerate(zip(labels, index.tolist(), strict=True)):
            image = None if batch.image is None else batch.image[i]
            features = {name: values[i] for name, values in batch.features.items()}
            yield Example(image, label, number, batch.id[i], features)

    def _fetch(self, index: Indices, keys: Sequence[str]) -> Encoded:
        if isinstance(self._files, FolderFiles):
            return _fetch_images(self._files, index, keys, self._read)
        if not keys:
            return {}
        if self._reader is None:
            files = self._files
            if not isinstance(files, RecordShards):
                raise ShardError(f"{files.dataset}: examples of its kind of files cannot be fetched one by one.")
            self._reader = open_reader(
                files.runs, files.dataset, files.file_format, verify_checksums=self._read.verify_checksums
            )
            weakref.finalize(self, self._reader.close)
        return {_RECORD: bytes_array(self._reader.read(index))}


def cut(num_examples: int, mean_example_bytes: int, num_bytes: int) -> Iterator[slice]:
    """Yields consecutive slices of `num_examples`, each of examples of about `num_bytes` in all."""
    size = max(1, num_bytes // max(1, mean_example_bytes))
    for start in range(0, num_examples, size):
        yield slice(start, min(num_examples, start + size))


class _Graph:
    """The decoding of some fields, as a function that is traced once."""

    def __init__(
        self, files: ExampleFiles, columns: Mapping[str, Column], read: ReadOptions, num_parallel: int
    ) -> None:
        self.columns = columns
        self._tf = tf = load_tensorflow()
        self._files = files
        self._read = read
        self._num_parallel = num_parallel
        self._source = _source(files, (), read)
        self._specs: dict[str, Any] = {}
        for column in columns.values():
            self._specs.update(column.feature_specs(tf))
        is_folder = isinstance(files, FolderFiles)
        self.keys = tuple(self._specs) if is_folder else (_RECORD,) if columns else ()
        self._dtypes = {key: tf.int64 if is_folder and key == LABEL else tf.string for key in self.keys}
        signature = {key: tf.TensorSpec([None], dtype) for key, dtype in self._dtypes.items()}
        self._function = tf.function(self._decode, input_signature=[signature], autograph=False) if columns else None

    def decode(self, index: Indices, encoded: Encoded) -> dict[str, Any]:
        """Returns field name -> n values."""
        if self._function is None:
            return {}
        tf = self._tf
        with tf.device("CPU:0"):  # Where a program of the user's own has shown tensorflow a GPU.
            tensors = {key: tf.constant(values, self._dtypes[key]) for key, values in encoded.items()}
            try:
                decoded = self._function(tensors)
            except tf.errors.OpError as error:
                raise self._explain(index, tensors, error) from None
        return {
            name: column.unpack(tuple(tensor.numpy() for tensor in decoded[name]))
            for name, column in self.columns.items()
        }

    def _decode(self, encoded: Any) -> dict[str, tuple[Any, ...]]:
        tf = self._tf
        examples = encoded.get(_RECORD, encoded)
        parsed = self._source.parse(tf, examples, self._specs)
        return {name: column.decode(tf, parsed, examples, self._num_parallel) for name, column in self.columns.items()}

    def _explain(self, index: Indices, encoded: Any, error: Any) -> TfdsTorchError:
        """Returns our error for the first example that cannot be decoded by itself."""
        tf = self._tf
        # A stream of its own says more clearly than the function what is wrong.
        stream = tf.data.Dataset.from_tensor_slices(encoded).batch(1)
        stream = stream.map(tf.autograph.experimental.do_not_convert(self._decode))
        examples = stream.with_options(tf_data_options(tf, 1)).as_numpy_iterator()
        source = _source(self._files, self._files.runs, self._read)
        for number in index.tolist():
            try:
                next(examples)
            except tf.errors.OpError as own:
                return source.describe_undecodable(number, f"tensorflow says: {readable_reason(own)}")
        return source.describe_undecodable(None, f"tensorflow says: {readable_reason(error)}")


def _source(files: ExampleFiles, runs: Sequence[RecordRun], read: ReadOptions) -> ExampleSource:
    """Returns what parses encoded examples, and describes bad ones of the given runs."""
    return files.source(runs, (), seed=None, read=read, num_workers=1)


def _fetch_images(files: FolderFiles, index: Indices, keys: Sequence[str], read: ReadOptions) -> Encoded:
    paths = files.paths(index)
    encoded: Encoded = {}
    if IMAGE in keys:
        images = []
        for number, path in zip(index.tolist(), paths, strict=True):
            try:
                images.append(Path(path).read_bytes())
            except OSError as error:
                raise _source(files, files.runs, read).describe_undecodable(number, str(error)) from None
        encoded[IMAGE] = bytes_array(images)
    if LABEL in keys:
        encoded[LABEL] = files.labels(index)
    if FILENAME in keys:
        encoded[FILENAME] = bytes_array([os.fsencode(path) for path in paths])
    return encoded
