"""Fetching by index: what is read, what is read ahead, and what becomes of errors."""

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from tfds_fixtures import NUM_TRAIN, TRAIN_SHARDS, Datasets, shard_files

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.pipeline import indexed_records
from tfds_torch.pipeline.builder import INDEX, read_stream
from tfds_torch.pipeline.columns import DenseColumn
from tfds_torch.pipeline.indexed_records import IndexedRecords, _Fetches
from tfds_torch.pipeline.stream_spec import StreamSpec
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.worker_order import WorkerOrder
from tfds_torch.plan.world import World
from tfds_torch.records.record_reader import RecordReader, open_reader
from tfds_torch.records.record_run import RecordRun
from tfds_torch.runtime import fresh_process

NUM_EXAMPLES = 1000


class WatchedReader:
    """Notes what is asked of it: ("advise" or "read", example)."""

    def __init__(self) -> None:
        self.num_read = 0
        self.asked: list[tuple[str, int]] = []

    def read(self, index: NDArray[np.int64]) -> list[bytes]:
        self.num_read += len(index)
        self.asked += [("read", example) for example in index.tolist()]
        return [str(example).encode() for example in index.tolist()]

    def advise(self, index: NDArray[np.int64]) -> None:
        self.asked += [("advise", example) for example in index.tolist()]

    def numbers(self, what: str) -> list[int]:
        return [example for kind, example in self.asked if kind == what]


def order_of(num_workers: int = 2, start_batch: int = 0, num_examples: int = NUM_EXAMPLES) -> WorkerOrder:
    world = World(0, 1, 1 % num_workers, num_workers)
    plan = EpochPlan(num_examples, world, 10, Remainder.WRAP, is_training=True, shuffle=True)
    return WorkerOrder(plan, 2, start_batch)


@pytest.mark.parametrize("chunk_size", [1, 16, 7, 2000])
@pytest.mark.parametrize("num_ahead", [1, 40, 5000])
def test_every_example_is_fetched_in_order_and_announced_before(chunk_size: int, num_ahead: int) -> None:
    order, reader = order_of(), WatchedReader()
    fetches = _Fetches(reader, order, 0, num_ahead)
    chunks = [fetches.fetch(chunk_size) for _ in range(0, len(order), chunk_size)]
    expected = order.examples(0, len(order)).tolist()
    occurrences = order.occurrences(0, len(order)).tolist()
    assert [occurrence for found, _ in chunks for occurrence in found.tolist()] == occurrences
    assert [occurrence % NUM_EXAMPLES for occurrence in occurrences] == expected
    assert [int(record) for _, encoded in chunks for record in encoded] == expected
    assert reader.numbers("read") == reader.numbers("advise") == expected
    for position in range(0, len(expected), 13):
        # Announced with the first chunk that ends `num_ahead` examples before it, or later.
        chunk = max(0, (position - num_ahead) // chunk_size)
        announced = reader.asked.index(("advise", expected[position]))
        assert sum(kind == "read" for kind, _ in reader.asked[:announced]) == chunk * chunk_size


def test_nothing_before_the_start_is_read_or_announced() -> None:
    order, reader = order_of(start_batch=90), WatchedReader()
    fetches = _Fetches(reader, order, 0, 20)
    assert len(order) == 50
    for _ in range(2):
        fetches.fetch(10)
    whole = order_of().examples(450, 500).tolist()
    assert reader.numbers("read") == whole[:20]
    assert reader.numbers("advise") == whole[:40]


def test_the_order_is_worked_out_once_and_many_positions_at_a_time() -> None:
    order = order_of(num_workers=1, num_examples=10_000)
    asked: list[tuple[int, int]] = []

    class WatchedOrder:
        plan = order.plan

        def __len__(self) -> int:
            return len(order)

        def occurrences(self, start: int, stop: int) -> NDArray[np.int64]:
            asked.append((start, stop))
            return order.occurrences(start, stop)

    fetches = _Fetches(WatchedReader(), WatchedOrder(), 0, 100)
    for _ in range(0, 10_000, 16):
        fetches.fetch(16)
    assert [start for start, _ in asked] == [0, *(stop for _, stop in asked[:-1])]
    assert asked[-1][1] == 10_000
    assert len(asked) <= 6


def records_of(directory: Path, order: WorkerOrder) -> IndexedRecords:
    firsts = itertools.accumulate(TRAIN_SHARDS, initial=0)
    runs = [
        RecordRun(str(path), 0, length, first, length)
        for path, length, first in zip(shard_files(directory, "train"), TRAIN_SHARDS, firsts, strict=False)
    ]
    return IndexedRecords("shapes:1.0.0", runs, "tfrecord", order, 2000, verify_checksums=True)


def spec_of(source: IndexedRecords) -> StreamSpec:
    columns = {"label": DenseColumn("label", "int64")}
    return StreamSpec(source, NUM_TRAIN, columns, None, 8, 0, 1, 2)


def look(directory: Path) -> dict[str, Any]:
    """Runs in a child: everything that needs tensorflow."""
    order = order_of(num_workers=1, num_examples=NUM_TRAIN)
    readers: list[Any] = []

    def open_and_note(*args: Any, **kwargs: Any) -> RecordReader:
        readers.append(open_reader(*args, **kwargs))
        readers[-1].num_closed = 0
        close = readers[-1].close

        def count_and_close() -> None:
            readers[-1].num_closed += 1
            close()

        readers[-1].close = count_and_close
        return readers[-1]

    found: dict[str, Any] = {}
    with mock.patch.object(indexed_records, "open_reader", open_and_note):
        found["indices"] = [i for chunk in read_stream(spec_of(records_of(directory, order))) for i in chunk[INDEX]]
        found["whole"] = (readers[-1].num_read, readers[-1].num_closed)
        chunks = read_stream(spec_of(records_of(directory, order)))
        next(chunks)
        chunks.close()
        found["abandoned"] = (readers[-1].num_read, readers[-1].num_closed)
        with mock.patch.object(_Fetches, "fetch", side_effect=MemoryError("no room")):
            found["bug"] = outcome(records_of(directory, order))
        with mock.patch.object(_Fetches, "fetch", side_effect=CorruptRecordError("file x: offset 12")):
            found["damage"] = outcome(records_of(directory, order))
        found["failed"] = readers[-1].num_closed
    return found


def outcome(source: IndexedRecords) -> tuple[str, str]:
    try:
        list(read_stream(spec_of(source)))
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing was raised", ""


@pytest.fixture(scope="module")
def seen(datasets: Datasets) -> dict[str, Any]:
    return fresh_process.call(look, datasets.shapes)


def test_the_stream_is_the_order_and_reads_each_record_once(seen: dict[str, Any]) -> None:
    order = order_of(num_workers=1, num_examples=NUM_TRAIN)
    assert seen["indices"] == order.examples(0, len(order)).tolist()
    assert Counter(seen["indices"]).keys() == set(range(NUM_TRAIN))
    assert seen["whole"] == (len(order), 1)


def test_an_abandoned_stream_read_no_more_than_it_holds_ready_and_closes_its_files(seen: dict[str, Any]) -> None:
    num_read, num_closed = seen["abandoned"]
    # One chunk was taken; two are decoded ahead, one more is being decoded, and two wait encoded.
    assert 8 <= num_read <= 6 * 8
    assert num_closed == 1
    assert seen["failed"] == 1


def test_an_error_of_the_reader_comes_out_as_it_is(seen: dict[str, Any]) -> None:
    assert seen["damage"] == (CorruptRecordError.__name__, "file x: offset 12")


def test_any_other_failure_is_a_shard_error_that_names_it(seen: dict[str, Any]) -> None:
    kind, message = seen["bug"]
    assert kind == ShardError.__name__
    assert message == "The shards of shapes:1.0.0 could not be read: MemoryError: no room"


def test_as_much_is_read_ahead_as_the_size_of_the_examples_allows() -> None:
    for mean_example_bytes, expected in ((100, 1024), (100_000, 83), (10**9, 16), (0, 1024)):
        source = IndexedRecords("x", [], "tfrecord", order_of(), mean_example_bytes, verify_checksums=True)
        tf = mock.MagicMock()
        reader = SimpleNamespace(close=lambda: None)
        with (
            mock.patch.object(indexed_records, "open_reader", return_value=reader),
            mock.patch.object(indexed_records, "_Fetches") as fetches,
        ):
            source.chunks(tf, 16, 0, [])
        assert fetches.call_args.args[3] == expected, mean_example_bytes
