"""The tf.data graph: what it holds ready, how it is tuned, and what it does about files that are not as promised."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import NUM_TRAIN, TRAIN_SHARDS, Datasets, record_offsets, shard_files

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline import chunks as chunk_graphs
from tfds_torch.pipeline import record_files
from tfds_torch.pipeline.builder import INDEX, read_stream
from tfds_torch.pipeline.columns import DenseColumn
from tfds_torch.pipeline.record_files import RecordFiles
from tfds_torch.pipeline.stream_spec import StreamSpec
from tfds_torch.pipeline.tensorflow_runtime import load_tensorflow
from tfds_torch.records.record_run import RecordRun
from tfds_torch.runtime import fresh_process

DEADLINE_S = 20.0


@dataclass(frozen=True)
class CountingColumn:
    """Counts the chunks whose decoding began."""

    started: list[int] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def feature_specs(self, tf: Any) -> Mapping[str, Any]:
        return {}

    def decode(self, tf: Any, parsed: Mapping[str, Any], serialized: Any, num_parallel: int) -> tuple[Any, ...]:
        def count(texts: Any) -> Any:
            with self.lock:
                self.started.append(len(texts))
            return texts

        return (tf.numpy_function(count, [serialized], tf.string),)

    def unpack(self, arrays: tuple[Any, ...]) -> Any:
        return list(arrays[0])


def runs_of(directory: Path, scheme: str = "") -> list[RecordRun]:
    firsts = itertools.accumulate(TRAIN_SHARDS, initial=0)
    return [
        RecordRun(f"{scheme}{path}", 0, length, first, length)
        for path, length, first in zip(shard_files(directory, "train"), TRAIN_SHARDS, firsts, strict=False)
    ]


def spec_of(directory: Path, scheme: str = "", **changes: Any) -> StreamSpec:
    files = RecordFiles(
        dataset="shapes/1.0.0",
        num_in_split=NUM_TRAIN,
        runs=runs_of(directory, scheme),
        fill=[],
        shuffle_buffer=64,
        seed=1,
        cycle_length=16,
        read_buffer_bytes=1 << 16,
        num_threads=changes.get("num_threads", 4),
    )
    of_files = {field.name for field in dataclasses.fields(RecordFiles)} - {"num_threads"}
    spec = StreamSpec(
        source=dataclasses.replace(files, **{name: value for name, value in changes.items() if name in of_files}),
        num_examples=NUM_TRAIN,
        columns={"label": DenseColumn("label", "int64")},
        painter=None,
        chunk_size=8,
        num_skipped=0,
        num_threads=4,
        prefetch_chunks=2,
    )
    return dataclasses.replace(spec, **{name: value for name, value in changes.items() if name not in of_files})


def indices(chunks: Iterator[dict[str, Any]]) -> list[int]:
    return [index for chunk in chunks for index in chunk[INDEX].tolist()]


# Everything that needs tensorflow runs in one child.


def look_ahead(directory: Path, prefetch_chunks: int) -> dict[str, Any]:
    """Reads an epoch, each time waiting until the expected number of chunks is decoded ahead."""
    column = CountingColumn()
    chunks = read_stream(spec_of(directory, columns={"raw": column}, prefetch_chunks=prefetch_chunks))
    num_chunks = -(-NUM_TRAIN // 8)
    ahead = []
    for num_taken in range(1, num_chunks + 1):
        next(chunks)
        wait_until(column, min(num_chunks, num_taken + prefetch_chunks))
        ahead.append(len(column.started) - num_taken)
    return {"ahead": ahead, "started": len(column.started), "decoded": sum(column.started)}


def wait_until(column: CountingColumn, expected: int) -> None:
    """Waits for the expected count, then for a few turns in which nothing more happens."""
    deadline, quiet = time.monotonic() + DEADLINE_S, 0
    while quiet < 5 and time.monotonic() < deadline:
        quiet = quiet + 1 if len(column.started) >= expected else 0
        time.sleep(0.002)


def attempt(spec: StreamSpec) -> tuple[str, str, int]:
    """Returns the type and the message of the error, and how many examples came before it."""
    count = 0
    try:
        for chunk in read_stream(spec):
            count += len(chunk[INDEX])
    except TfdsTorchError as error:
        return type(error).__name__, str(error), count
    return "", "", count


def look(directory: Path, cut: Path) -> dict[str, Any]:
    tf = load_tensorflow()
    options = chunk_graphs._decoded(tf, spec_of(directory, num_threads=3), 0).options()
    seen: dict[str, Any] = {
        "options": (
            options.autotune.enabled,
            options.deterministic,
            options.threading.private_threadpool_size,
            options.threading.max_intra_op_parallelism,
        ),
        "ahead": {number: look_ahead(directory, number) for number in (1, 3)},
        "in order": indices(read_stream(spec_of(directory, shuffle_buffer=1))),
        "shuffled": indices(read_stream(spec_of(directory))),
        "shuffled again": indices(read_stream(spec_of(directory))),
        "another seed": indices(read_stream(spec_of(directory, seed=2))),
        "other parallelism": indices(read_stream(spec_of(directory, num_threads=3, prefetch_chunks=1))),
        "skipped": indices(read_stream(spec_of(directory, num_skipped=19))),
        "nothing": indices(read_stream(spec_of(directory, runs=[]))),
        "fill": indices(read_stream(spec_of(directory, runs=runs_of(directory)[:1], fill=runs_of(directory)[1:2]))),
        "fill alone": indices(read_stream(spec_of(directory, runs=[], fill=runs_of(directory)[1:2]))),
        "remote": indices(read_stream(spec_of(directory, "file://"))),
        "remote, cut": attempt(spec_of(cut, "file://")),
        "remote, cut, in order": attempt(spec_of(cut, "file://", shuffle_buffer=1)),
        "remote, behind the cut": attempt(
            spec_of(cut, runs=[dataclasses.replace(runs_of(cut, "file://")[2], skip=50, take=11)])
        ),
        "remote, missing": attempt(spec_of(cut, "file:///nowhere")),
        "local, cut": attempt(spec_of(cut)),
    }
    record_files.check_shards = lambda *_: None  # As if the file was cut after it had been checked.
    seen["cut later"] = attempt(spec_of(cut))
    return seen


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
    return fresh_process.call(look, datasets.shapes, cut)


def test_autotune_is_off_and_the_thread_pool_private(seen: dict[str, Any]) -> None:
    assert seen["options"] == (False, True, 3, 1)


@pytest.mark.parametrize("prefetch_chunks", [1, 3])
def test_no_more_chunks_are_decoded_ahead_than_asked_for(seen: dict[str, Any], prefetch_chunks: int) -> None:
    """Read with `prefetch_chunks` to come: of 27 chunks, those taken and at most 1 + prefetch_chunks more."""
    ahead = seen["ahead"][prefetch_chunks]
    assert max(ahead["ahead"]) <= prefetch_chunks
    assert ahead["ahead"][0] == prefetch_chunks, "and so many are made ready"
    assert (ahead["started"], ahead["decoded"]) == (27, NUM_TRAIN)


def test_the_stream_keeps_the_order_without_a_shuffle(seen: dict[str, Any]) -> None:
    assert seen["in order"] == list(range(NUM_TRAIN))


def test_the_shuffle_repeats_and_depends_on_the_seed_alone(seen: dict[str, Any]) -> None:
    assert sorted(seen["shuffled"]) == list(range(NUM_TRAIN))
    assert seen["shuffled"] == seen["shuffled again"]
    assert seen["shuffled"] != seen["another seed"]


def test_what_is_skipped_is_the_head_of_the_shuffled_stream(seen: dict[str, Any]) -> None:
    assert seen["skipped"] == seen["shuffled"][19:]


def test_the_fill_comes_last_and_in_order(seen: dict[str, Any]) -> None:
    assert sorted(seen["fill"][:40]) == list(range(40))
    assert seen["fill"][40:] == seen["fill alone"] == [40, 41, 42]
    assert seen["nothing"] == []


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


@pytest.mark.parametrize("case", ["local, cut", "cut later"])
def test_a_local_shard_cut_on_a_record_boundary_is_an_error(seen: dict[str, Any], cut: Path, case: str) -> None:
    kind, message, _ = seen[case]
    assert kind == "ShardError"
    assert str(shard_files(cut, "train")[2]) in message
    assert "20 of 61" in message
