"""Chunks that are read without a graph are those that the graph gives."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import Datasets, call_reader, shard_files, write_shard

from tfds_torch.errors import TfdsTorchError
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.pipeline import chunks, direct_chunks
from tfds_torch.pipeline.preprocess import EvalPreprocess
from tfds_torch.records.tfrecord import read_records

PLAIN = (
    "image",
    "label",
    "caption",
    "weight",
    "precise",
    "flag",
    "file_name",
    "image/filename",
    "nested/count",
    "small",
    "vector",
)
SETTINGS = {"batch_size": 16, "is_training": True, "preprocess": EvalPreprocess(8, crop_pct=1.0)}


def read_both(root: Any, fields: Sequence[str]) -> tuple[list[Any], list[Any], int, int]:
    """Returns what comes directly and through the graph, and how often the direct way was taken. Loads tensorflow."""
    times = []
    for is_direct in (True, False):
        calls = mock.Mock(side_effect=direct_chunks.read_directly)
        can = direct_chunks.can_read_directly if is_direct else lambda spec: False
        with mock.patch.object(chunks, "can_read_directly", can), mock.patch.object(chunks, "read_directly", calls):
            parser = ParserTfds(None, root, **SETTINGS)
            batches = list(parser.batches(fields=fields))
        times.append((batches, calls.call_count))
    (direct, num_direct), (graph, num_graph) = times
    return direct, graph, num_direct, num_graph


def test_what_comes_directly_is_what_the_graph_gives(datasets: Datasets) -> None:
    direct, graph, num_direct, num_graph = call_reader(read_both, datasets.shapes, PLAIN)
    assert (num_direct, num_graph) == (1, 0)
    assert len(direct) == len(graph) > 1
    for ours, theirs in zip(direct, graph, strict=True):
        for name in ("image", "label", "valid", "index"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        assert ours.features.keys() == theirs.features.keys()
        for name, values in ours.features.items():
            assert type(values) is type(theirs.features[name]), name
            np.testing.assert_array_equal(np.array(values), np.array(theirs.features[name]), name)
            assert getattr(values, "dtype", None) == getattr(theirs.features[name], "dtype", None), name


def test_a_feature_of_another_kind_takes_the_graph(datasets: Datasets) -> None:
    *_, num_direct, _ = call_reader(read_both, datasets.shapes, ("image", "label", "objects"))
    assert num_direct == 0


def without(key: str) -> Callable[[Any], None]:
    return lambda example: example.features.feature.pop(key)


def with_two_labels(example: Any) -> None:
    example.features.feature["label"].int64_list.value.append(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("image"), "Its feature 'image' has 0 values instead of 1."),
        (without("label"), "Its feature 'label' has 0 values instead of 1."),
        (with_two_labels, "Its feature 'label' has 2 values instead of 1."),
        (None, "It is no tf.train.Example: "),
    ],
)
def test_a_record_that_lacks_a_feature_is_named(
    datasets: Datasets, tmp_path: Path, damage: Callable[[Any], None] | None, message: str
) -> None:
    own = tmp_path / "shapes" / "1.0.0"
    shutil.copytree(datasets.shapes, own)
    path = shard_files(own, "train")[0]
    records = list(read_records(path))
    if damage is None:
        records[7] = b"\xff no message"
    else:
        example = tf_example_pb2.Example.FromString(records[7])
        damage(example)
        records[7] = example.SerializeToString()
    write_shard(path, records)
    with pytest.raises(TfdsTorchError) as caught:
        call_reader(read_both, own, ("image", "label"))
    assert f"{path}: record 7 (index 7, id {path.name}__7) of shapes:1.0.0 cannot be decoded" in str(caught.value)
    assert message in str(caught.value)
