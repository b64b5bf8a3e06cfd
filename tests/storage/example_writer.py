"""Serialized `tf.train.Example`s of all kinds of values, written with TFDS's copy of the message."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tensorflow_datasets.proto import tf_example_pb2


def write_example(values: Mapping[str, Sequence[Any] | None]) -> bytes:
    """Returns an example: bytes, floats and integers go to lists of their kind.

    Args:
        values: key -> values of one kind; an empty list gives a list of integers, None a feature without a list.
    """
    example = tf_example_pb2.Example()
    for key, own in values.items():
        feature = example.features.feature[key]
        if own is None:
            continue
        if own and isinstance(own[0], bytes):
            feature.bytes_list.value.extend(own)
        elif own and isinstance(own[0], float):
            feature.float_list.value.extend(own)
        else:
            feature.int64_list.SetInParent()
            feature.int64_list.value.extend(own)
    return example.SerializeToString()


def nested_parts(key: str, value: list[Any], rank: int) -> dict[str, list[Any]]:
    """Returns what TFDS writes for sequences of sequences, as arguments of `write_example`.

    Args:
        key: of the feature.
        value: lists of lists; what the innermost ones hold is flat.
        rank: levels of lists, >= 2.
    """
    parts: dict[str, list[Any]] = {}
    for level in range(rank - 1):
        parts[f"{key}/ragged_row_lengths_{level}"] = [len(row) for row in value]
        value = list(chain.from_iterable(value))
    return {**parts, f"{key}/ragged_flat_values": value}
