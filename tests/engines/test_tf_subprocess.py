"""stream_elsewhere: the same records, from a process that stays; errors keep their types; nothing is left behind."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest
from tfds_fixtures import NUM_TRAIN, Datasets, shard_files

from engines.test_record_stream import ranges_of
from tfds_torch.engines import record_stream
from tfds_torch.engines.record_stream import RecordRange, RecordStream, stream_elsewhere
from tfds_torch.errors import ShardError
from tfds_torch.storage.tfrecord.framing import read_records


@pytest.fixture(autouse=True, scope="module")
def _end_of_process() -> Iterator[None]:
    yield
    record_stream._process.close()


def stream_of(directory: Path, scheme: str = "") -> RecordStream:
    return RecordStream("shapes:1.0.0", ranges_of(directory, scheme), [], 0, 8, 1, 1, 16, 1 << 16, 1)


def test_the_records_are_those_of_the_files_and_one_process_serves_every_epoch(datasets: Datasets) -> None:
    stored = [record for path in shard_files(datasets.shapes, "train") for record in read_records(path)]
    pids = set()
    for _ in range(2):
        chunks = list(stream_elsewhere(stream_of(datasets.shapes)))
        assert [key for keys, _ in chunks for key in keys.tolist()] == list(range(NUM_TRAIN))
        assert [record for _, records in chunks for record in records] == stored
        pids |= {child.pid for child in psutil.Process().children() if child.is_running()}
    assert record_stream._process._child is not None
    assert record_stream._process._child.process.pid in pids
    assert "tensorflow" not in sys.modules


def test_streams_may_be_read_by_turns_and_given_up(datasets: Datasets) -> None:
    first, second = (stream_elsewhere(stream_of(datasets.shapes)) for _ in range(2))
    for (ours, _), (theirs, _) in islice(zip(first, second, strict=True), 3):
        assert ours.tolist() == theirs.tolist()
    first.close()  # type: ignore[attr-defined]
    assert sum(len(keys) for keys, _ in second) == NUM_TRAIN - 3 * 8


def test_an_error_keeps_its_type_and_the_next_stream_goes_on(datasets: Datasets) -> None:
    missing = replace(stream_of(datasets.shapes), valid=[RecordRange("file:///nowhere/x.tfrecord", 0, 3, 0, 3)])
    with pytest.raises(ShardError, match=r"shapes:1\.0\.0 could not be read"):
        list(stream_elsewhere(missing))
    assert sum(len(keys) for keys, _ in stream_elsewhere(stream_of(datasets.shapes))) == NUM_TRAIN
