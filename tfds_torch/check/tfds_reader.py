"""The example that TFDS's own reader finds at a position of a split: the reference for our index.

No code of `storage`, `engines` or `parsers` reads anything here.
"""

import functools
import hashlib
import logging
import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from tfds_torch.engines.tensorflow_runtime import is_tensorflow_installed
from tfds_torch.errors import ShardError
from tfds_torch.runtime import subprocess_call


@dataclass(frozen=True)
class ReferenceExample:
    """The example that TFDS finds at a position.

    Attributes:
        id: `<shard file>__<record>`; None where TFDS has no ids.
        digest: of the encoded bytes: of the image that is compared, or of the whole record.
        image: the encoded image; None if the example has none.
    """

    id: str | None
    digest: str
    image: bytes | None = None


@dataclass(frozen=True)
class Question:
    """Which examples TFDS is asked for.

    Attributes:
        data_dir: the dataset's version directory.
        split: a TFDS split expression.
        positions: within the split, in the order that TFDS reads it in.
        compared_key: the feature whose encoded image is compared, from `find_image_key`; None: whole records are.
        image_key: the feature whose image is returned.
    """

    data_dir: str
    split: str
    positions: Sequence[int]
    compared_key: str | None
    image_key: str | None = None


def ask_tfds(questions: Sequence[Question]) -> list[list[ReferenceExample]]:
    """Return TFDS's examples, from this process if tensorflow is already loaded, else from a fresh one for all.

    Raises:
        ShardError: TFDS could not read a split.
        WorkerError: the process that read it died.
    """
    return _ask_each(questions) if "tensorflow" in sys.modules else subprocess_call.call(_ask_each, list(questions))


def why_not_opened(data_dir: str) -> str | None:
    """Return why TFDS's own reader cannot be asked about a dataset: a newer one may have written it; None: it can."""
    try:
        builder = tfds.builder_from_directory(data_dir)
    except Exception as error:  # It reads its metadata unchecked.
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
        return f"TFDS's own reader cannot open it ({reason})"
    if _is_array_record(builder) or is_tensorflow_installed():
        return None
    return "TFDS's own reader needs tensorflow, which is not installed"


def find_image_key(data_dir: str, image_key: str | None) -> str | None:
    """Return the feature whose encoded image can be compared.

    That is the image key if it names a top-level image of TFRecord files, which TFDS returns undecoded; else None.
    """
    builder = tfds.builder_from_directory(data_dir)
    is_image = isinstance(dict(builder.info.features.items()).get(image_key), tfds.features.Image)
    return image_key if is_image and not _is_array_record(builder) else None


def digest(record: bytes, compared_key: str | None) -> str:
    """Return the digest of a record, or of its encoded image, as a `ReferenceExample` has it."""
    compared = record if compared_key is None else image_of(record, compared_key)
    return hashlib.blake2b(compared or b"", digest_size=16).hexdigest()


def image_of(record: bytes, key: str | None) -> bytes | None:
    """Return the encoded image of a record, None where the feature does not hold exactly one value of bytes."""
    features = tf_example_pb2.Example.FromString(record).features.feature
    values = list(features[key].bytes_list.value) if key is not None and key in features else []
    return values[0] if len(values) == 1 else None


def _ask_each(questions: Sequence[Question]) -> list[list[ReferenceExample]]:
    for name in ("absl", "tensorflow"):  # TFDS uses functions of tensorflow that are deprecated.
        logging.getLogger(name).setLevel(logging.ERROR)
    return [_ask(question) for question in questions]


def _ask(question: Question) -> list[ReferenceExample]:
    builder = tfds.builder_from_directory(question.data_dir)
    try:
        if _is_array_record(builder):
            raw = tfds.core.decode.DeserializeMethod.RAW_BYTES
            source = builder.as_data_source(split=question.split, deserialize_method=raw)
            records = [source[position] for position in question.positions]
            key = question.image_key
            return [ReferenceExample(None, digest(record, None), image_of(record, key)) for record in records]
        return _ask_tf_data(builder, question)
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ShardError(
            f"TFDS's own reader cannot read split {question.split!r} of {question.data_dir}: {reason}"
        ) from error


def _is_array_record(builder: Any) -> bool:
    return builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD


def _ask_tf_data(builder: Any, question: Question) -> list[ReferenceExample]:
    compared_key, image_key = question.compared_key, question.image_key
    key = compared_key or sorted(builder.info.features)[0]
    decoders = {key: tfds.decode.SkipDecoding()} if compared_key else None
    dataset = builder.as_dataset(
        split=functools.reduce(operator.add, _single_examples(builder, question.split, question.positions)),
        # One file after the other: in the order of the positions.
        read_config=tfds.ReadConfig(add_tfds_id=True, interleave_cycle_length=1, try_autocache=False),
        shuffle_files=False,
        decoders=tfds.decode.PartialDecoding({key: True}, decoders=decoders),
    )
    examples = list(dataset.as_numpy_iterator())
    ids = [example["tfds_id"].decode() for example in examples]
    if compared_key:
        found = [example[key] for example in examples]
        images = found if compared_key == image_key else [None] * len(found)
    else:
        found = _records(builder, ids)
        images = [image_of(record, image_key) for record in found]
    return [ReferenceExample(id, digest(data, None), image) for id, data, image in zip(ids, found, images, strict=True)]


def _single_examples(builder: Any, split: str, positions: Sequence[int]) -> list[Any]:
    """Return a split instruction for each position, as TFDS resolves the expression."""
    parts = []
    for part in tfds.core.ReadInstruction.from_spec(split).to_absolute(builder.info.splits):
        first, stop = part.from_ or 0, part.to
        stop = builder.info.splits[part.splitname].num_examples if stop is None else stop
        parts.append((part.splitname, first, stop))
    instructions = []
    for position in positions:
        for name, first, stop in parts:
            if position < stop - first:
                start = first + position
                instructions.append(tfds.core.ReadInstruction(name, from_=start, to=start + 1, unit="abs"))
                break
            position -= stop - first
    return instructions


def _records(builder: Any, ids: Sequence[str]) -> list[bytes]:
    """Return whole records, read by tf.data from the places that TFDS's ids name."""
    import tensorflow as tf

    shards, numbers = zip(*(id.rpartition("__")[::2] for id in ids), strict=True)
    paths = [os.path.join(builder.data_dir, shard) for shard in shards]
    places = tf.data.Dataset.from_tensor_slices((paths, [int(number) for number in numbers]))
    records = places.flat_map(
        lambda path, number: tf.data.TFRecordDataset(path).skip(tf.cast(number, tf.int64)).take(1)
    )
    return list(records.as_numpy_iterator())
