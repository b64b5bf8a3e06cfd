"""The tf.data graph of records: its order, how it is tuned, files that are not as promised, and another process."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tfds_fixtures import NUM_TRAIN, TRAIN_SHARDS, Datasets, record_offsets, shard_files
from zygote import tensorflow_zygote

from tfds_torch.engines import record_stream
from tfds_torch.engines.record_stream import RecordRange, RecordStream, stream_elsewhere, stream_records
from tfds_torch.engines.tensorflow_runtime import load_tensorflow
from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.storage.tfrecord.framing import read_records


def ranges_of(directory: Path, scheme: str = "") -> list[RecordRange]:
    firsts = itertools.accumulate(TRAIN_SHARDS, initial=0)
    return [
        RecordRange(f"{scheme}{path}", 0, length, first, length)
        for path, length, first in zip(shard_files(directory, "train"), TRAIN_SHARDS, firsts, strict=False)
    ]


def stream_of(directory: Path, scheme: str = "", **changes: Any) -> RecordStream:
    stream = RecordStream(
        dataset="shapes/1.0.0",
        valid=ranges_of(directory, scheme),
        fill=[],
        num_skipped=0,
        chunk_size=8,
        shuffle_buffer=64,
        seed=1,
        cycle_length=16,
        read_buffer_bytes=1 << 16,
        num_threads=4,
    )
    return replace(stream, **changes)


def keys_of(stream: RecordStream) -> list[int]:
    return [key for keys, _ in stream_records(stream) for key in keys.tolist()]


# Everything that needs tensorflow runs in one child.


def attempt(stream: RecordStream) -> tuple[str, str, int]:
    """Returns the type and the message of the error, and how many records came before it."""
    count = 0
    try:
        for keys, _ in stream_records(stream):
            count += len(keys)
    except TfdsTorchError as error:
        return type(error).__name__, str(error), count
    return "", "", count


def look(directory: Path, cut: Path) -> dict[str, Any]:
    tf = load_tensorflow("this test")
    options = record_stream._graph(tf, stream_of(directory, num_threads=3)).options()
    ranges = ranges_of(directory)
    return {
        "options": (
            options.autotune.enabled,
            options.deterministic,
            options.threading.private_threadpool_size,
            options.threading.max_intra_op_parallelism,
        ),
        "in order": keys_of(stream_of(directory, shuffle_buffer=1)),
        "records": [
            record for _, records in stream_records(stream_of(directory, shuffle_buffer=1)) for record in records
        ],
        "shuffled": keys_of(stream_of(directory)),
        "shuffled again": keys_of(stream_of(directory)),
        "another seed": keys_of(stream_of(directory, seed=2)),
        "other parallelism": keys_of(stream_of(directory, num_threads=3)),
        "skipped": keys_of(stream_of(directory, num_skipped=19)),
        "fill": keys_of(stream_of(directory, valid=ranges[:1], fill=ranges[1:2])),
        "fill alone": keys_of(stream_of(directory, valid=[], fill=ranges[1:2])),
        "remote": keys_of(stream_of(directory, "file://")),
        "remote, cut": attempt(stream_of(cut, "file://")),
        "remote, cut, in order": attempt(stream_of(cut, "file://", shuffle_buffer=1)),
        "remote, behind the cut": attempt(
            stream_of(cut, valid=[replace(ranges_of(cut, "file://")[2], skip=50, take=11)])
        ),
        "remote, missing": attempt(stream_of(cut, "file:///nowhere")),
        "cut later": attempt(stream_of(cut)),
    }


@pytest.fixture(scope="module")
def cut(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose third shard ends after 20 of its 61 records."""
    directory = tmp_path_factory.mktemp("cut")
    for path in shard_files(datasets.shapes, "train"):
        (directory / path.name).write_bytes(path.read_bytes())
    path = shard_files(directory, "train")[2]
    path.write_bytes(path.read_bytes()[: record_offsets(path)[20]])
    return directory


@pytest.fixture(scope="module")
def seen(datasets: Datasets, cut: Path) -> dict[str, Any]:
    return tensorflow_zygote().call(look, datasets.shapes, cut)


def test_autotune_is_off_and_the_thread_pool_private(seen: dict[str, Any]) -> None:
    assert seen["options"] == (False, True, 3, 1)


def test_the_stream_keeps_the_order_without_a_shuffle(seen: dict[str, Any]) -> None:
    assert seen["in order"] == list(range(NUM_TRAIN))


def test_records_leave_the_graph_as_they_are_stored(seen: dict[str, Any], datasets: Datasets) -> None:
    stored = [record for path in shard_files(datasets.shapes, "train") for record in read_records(path)]
    assert seen["records"] == stored


def test_the_shuffle_repeats_and_depends_on_the_seed_alone(seen: dict[str, Any]) -> None:
    assert sorted(seen["shuffled"]) == list(range(NUM_TRAIN))
    assert seen["shuffled"] == seen["shuffled again"]
    assert seen["shuffled"] != seen["another seed"]


def test_what_is_skipped_is_the_head_of_the_shuffled_stream(seen: dict[str, Any]) -> None:
    assert seen["skipped"] == seen["shuffled"][19:]


def test_the_fill_comes_last_and_in_order(seen: dict[str, Any]) -> None:
    assert sorted(seen["fill"][:40]) == list(range(40))
    assert seen["fill"][40:] == seen["fill alone"] == [40, 41, 42]


def test_the_order_does_not_depend_on_parallelism(seen: dict[str, Any]) -> None:
    assert seen["other parallelism"] == seen["shuffled"]


def test_remote_shards_give_the_same_stream(seen: dict[str, Any]) -> None:
    assert seen["remote"] == seen["shuffled"]


@pytest.mark.parametrize("case", ["remote, cut", "remote, cut, in order", "remote, behind the cut"])
def test_a_remote_shard_cut_on_a_record_boundary_is_an_error(seen: dict[str, Any], cut: Path, case: str) -> None:
    kind, message, count = seen[case]
    assert kind == "ShardError"
    assert f"file://{shard_files(cut, 'train')[2]}" in message
    assert "61" in message
    assert count < NUM_TRAIN


def test_a_missing_remote_shard_is_an_error_with_its_name(seen: dict[str, Any], cut: Path) -> None:
    kind, message, count = seen["remote, missing"]
    assert kind == "ShardError"
    assert "file:///nowhere" in message
    assert count == 0


def test_a_local_shard_that_was_cut_after_it_was_checked_is_an_error(seen: dict[str, Any], cut: Path) -> None:
    kind, message, _ = seen["cut later"]
    assert kind == "ShardError"
    assert str(shard_files(cut, "train")[2]) in message
    assert "20 of 61" in message


# From another process


@pytest.fixture(scope="module")
def _end_of_process() -> Iterator[None]:
    yield
    record_stream._process.close()


@pytest.mark.usefixtures("_end_of_process")
def test_the_records_are_those_of_the_files_and_one_process_serves_every_epoch(datasets: Datasets) -> None:
    stored = [record for path in shard_files(datasets.shapes, "train") for record in read_records(path)]
    pids = set()
    for _ in range(2):
        chunks = list(stream_elsewhere(stream_of(datasets.shapes, shuffle_buffer=1)))
        assert [key for keys, _ in chunks for key in keys.tolist()] == list(range(NUM_TRAIN))
        assert [record for _, records in chunks for record in records] == stored
        pids |= {child.pid for child in psutil.Process().children() if child.is_running()}
    assert record_stream._process._child is not None
    assert record_stream._process._child.process.pid in pids
    assert "tensorflow" not in sys.modules


@pytest.mark.usefixtures("_end_of_process")
def test_streams_may_be_read_by_turns_and_given_up(datasets: Datasets) -> None:
    first, second = (stream_elsewhere(stream_of(datasets.shapes, shuffle_buffer=1)) for _ in range(2))
    for (ours, _), (theirs, _) in itertools.islice(zip(first, second, strict=True), 3):
        assert ours.tolist() == theirs.tolist()
    first.close()
    assert sum(len(keys) for keys, _ in second) == NUM_TRAIN - 3 * 8


@pytest.mark.usefixtures("_end_of_process")
def test_an_error_keeps_its_type_and_the_next_stream_goes_on(datasets: Datasets) -> None:
    missing = replace(
        stream_of(datasets.shapes, shuffle_buffer=1), valid=[RecordRange("file:///nowhere/x.tfrecord", 0, 3, 0, 3)]
    )
    with pytest.raises(ShardError, match=r"shapes/1\.0\.0 could not be read"):
        list(stream_elsewhere(missing))
    assert sum(len(keys) for keys, _ in stream_elsewhere(stream_of(datasets.shapes, shuffle_buffer=1))) == NUM_TRAIN
