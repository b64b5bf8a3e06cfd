"""Which read mode is taken, and which are refused, by the files and the world."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import Datasets, as_remote, call_reader

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}


def open_remote(root: Path, **arguments: Any) -> ParserTfds:
    """Returns a parser of files whose paths have a scheme."""
    return as_remote(ParserTfds(root, "shapes", **arguments))


def test_auto_takes_index_where_files_are_local(datasets: Datasets) -> None:
    for root in (datasets.root, datasets.gaps, datasets.array_record):
        for world in (World(), World(num_replicas=2, num_workers=40)):
            assert ParserTfds(root, "shapes", **TRAINING).read_mode(world) == "index"
        assert ParserTfds(root, "shapes", batch_size=4).read_mode(World()) == "index"


def test_auto_takes_files_in_remote_training_when_there_are_enough(datasets: Datasets) -> None:
    parser = open_remote(datasets.root, **TRAINING)
    assert parser.read_mode(World(num_replicas=7)) == "files"
    assert parser.read_mode(World(num_replicas=2, num_workers=4)) == "examples"
    assert open_remote(datasets.root, **TRAINING, remainder="pad").read_mode(World()) == "examples"
    gaps = open_remote(datasets.gaps, **TRAINING)
    assert gaps.read_mode(World(num_workers=3)) == "files"
    assert gaps.read_mode(World(num_workers=4)) == "examples", "empty shards must not be counted"
    assert open_remote(datasets.root, batch_size=4).read_mode(World()) == "examples"


def read_remote(root: str, bucket: str, **arguments: Any) -> tuple[list[int], str]:
    """Returns the indices of an epoch of files with a scheme, and the error that ended it. Loads tensorflow."""
    parser, index = as_remote(ParserTfds(root, "shapes", **arguments), bucket), []
    try:
        for batch in parser.batches(fields=("label",)):
            index += batch.index.tolist()
    except ShardError as error:
        return index, str(error)
    return index, ""


@pytest.mark.parametrize("split", ["train", "train[30:90]+test"])
def test_remote_files_are_streamed_in_order(split: str, datasets: Datasets) -> None:
    arguments: dict[str, Any] = {"split": split, "batch_size": 16}
    index, error = call_reader(read_remote, str(datasets.root), "file://", **arguments)
    assert not error
    assert index == list(range(len(ParserTfds(datasets.root, "shapes", **arguments))))


def test_a_remote_file_that_cannot_be_read_is_named_without_tensorflows_graph(datasets: Datasets) -> None:
    index, error = call_reader(read_remote, str(datasets.root), "nosuch://bucket", batch_size=16)
    assert index == []
    file = f"nosuch://bucket{datasets.shapes}/shapes-train.tfrecord-00000-of-00007"
    assert error == (
        f"The shards of shapes:1.0.0 could not be read. tensorflow says: File system scheme 'nosuch' not implemented "
        f"(file: '{file}')"
    )


def refusal(parser: ParserTfds) -> str:
    with pytest.raises(ConfigError) as caught:
        parser.batches()
    return str(caught.value)


def test_index_of_remote_files_is_refused_with_the_modes_that_work(datasets: Datasets) -> None:
    message = refusal(open_remote(datasets.root, read=ReadOptions(mode="index")))
    assert "gs://bucket" in message
    assert "-00000-of-00007 is remote" in message
    assert "can read shapes:1.0.0 are 'files' (training) and 'examples'" in message


def test_nothing_reads_remote_array_records(datasets: Datasets) -> None:
    for mode, what in (("index", "none: copy it to this machine"), ("auto", "only read by index")):
        message = refusal(open_remote(datasets.array_record, read=ReadOptions(mode=mode)))
        assert "is remote" in message
        assert what in message
        assert "copy it to this machine" in message


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_a_stream_of_array_records_is_refused(datasets: Datasets, mode: str) -> None:
    message = refusal(ParserTfds(datasets.array_record, "shapes", **TRAINING, read=ReadOptions(mode=mode)))
    assert f"{mode!r} streams TFRecord files" in message
    assert "shapes:1.0.0" in message
    assert message.endswith("Use mode 'index' or 'auto'.")


def test_blocks_are_for_mode_index(datasets: Datasets) -> None:
    blocks = ReadOptions(block_records=5)
    assert ParserTfds(datasets.root, "shapes", **TRAINING, read=blocks).read_mode(World()) == "index"
    message = refusal(ParserTfds(datasets.root, "shapes", **TRAINING, read=replace(blocks, mode="files")))
    assert "block_records=5" in message
    assert "the read mode is 'files'." in message
    message = refusal(open_remote(datasets.root, **TRAINING, read=blocks))
    assert "is remote, so 'index' cannot be used" in message
