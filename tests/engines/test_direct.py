"""The direct engine: what is read and announced, in what order, and what becomes of errors."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_fixtures import save
from PIL import Image

from engines.made_source import MadeSource, request_of
from tfds_torch.engines import direct
from tfds_torch.engines.direct import _ChunkReader, end_of_chunk, read_examples, read_in_index_mode
from tfds_torch.engines.fields import Content, ImageField, StoredField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage import network
from tfds_torch.storage.source import Columns

IMAGE = save(Image.new("RGB", (4, 6)), "PNG")
TWO_WORKERS = World(0, 1, 1, 2)


@pytest.mark.parametrize("mean_example_bytes", [10, 400_000, 10**7])
@pytest.mark.parametrize("batch_size", [1, 3, 10, 50])
def test_every_example_is_read_once_in_order_and_announced_before(mean_example_bytes: int, batch_size: int) -> None:
    source = MadeSource(1000, mean_example_bytes)
    request = request_of(source, world=TWO_WORKERS, batch_size=batch_size)
    order = WorkerOrder(request.plan, 0, 0)
    chunks = list(_ChunkReader(request, order).chunks())
    keys = order.sample_keys(0, len(order)).tolist()
    assert [key for chunk in chunks for key in chunk.keys.tolist()] == keys
    assert [int(number) for chunk in chunks for number in chunk.columns["number"]] == [key % 1000 for key in keys]
    assert source.numbers("read") == source.numbers("announce") == [key % 1000 for key in keys]
    read_at, announced_at = 0, 0
    for kind, _ in source.asked:
        announced_at += kind == "announce"
        read_at += kind == "read"
        assert read_at <= announced_at


def test_nothing_before_the_start_is_read_or_announced() -> None:
    source = MadeSource(1000, 10**6)
    request = request_of(source, world=TWO_WORKERS, start_batch=90)
    order = WorkerOrder(request.plan, 0, 90)
    assert len(order) == 50
    chunks = _ChunkReader(request, order).chunks()
    next(chunks)
    whole = WorkerOrder(request.plan, 0, 0).planned(450, 500).index.tolist()
    assert source.numbers("read") == whole[: len(source.numbers("read"))] != []
    assert source.numbers("announce") == whole[: len(source.numbers("announce"))] != []


@pytest.mark.parametrize(("mean_example_bytes", "expected"), [(100, 1024), (100_000, 83), (10**9, 16), (0, 1024)])
def test_as_much_is_announced_as_the_size_of_the_examples_allows(mean_example_bytes: int, expected: int) -> None:
    source = MadeSource(5000, mean_example_bytes)
    request = request_of(source, batch_size=16)
    with mock.patch.object(type(request), "chunk_size", 16):
        chunks = _ChunkReader(request, WorkerOrder(request.plan, 0)).chunks()
        next(chunks)
        assert len(source.numbers("announce")) == 16, "the first batch has the disk or the link for itself"
        next(chunks)
    assert len(source.numbers("announce")) == 32 + expected


def test_the_order_is_worked_out_once_and_many_positions_at_a_time() -> None:
    request = request_of(MadeSource(10_000, 10**5), batch_size=16)
    asked: list[tuple[int, int]] = []

    class WatchedOrder(WorkerOrder):
        def sample_keys(self, start: int, stop: int) -> NDArray[np.int64]:
            asked.append((start, stop))
            return super().sample_keys(start, stop)

    order = WatchedOrder(request.plan, 0)
    assert sum(map(len, _ChunkReader(request, order).chunks())) == len(order)
    assert [start for start, _ in asked] == [0, *(stop for _, stop in asked[:-1])]
    assert asked[-1][1] == len(order)
    assert len(asked) <= 6


def are_good_chunks(num_examples: int, batch_size: int, chunk_size: int) -> bool:
    ends = [0]
    while ends[-1] < num_examples:
        ends.append(end_of_chunk(ends[-1], num_examples, batch_size, chunk_size))

    def is_good(start: int, stop: int) -> bool:
        is_within = start // batch_size == (stop - 1) // batch_size
        is_whole = start % batch_size == 0 and (stop % batch_size == 0 or stop == num_examples)
        return (is_within or is_whole) and stop - start <= max(chunk_size, 1)

    covered = [i for start, stop in pairwise(ends) for i in range(start, stop)]
    return covered == list(range(num_examples)) and all(is_good(start, stop) for start, stop in pairwise(ends))


def test_a_chunk_lies_within_a_batch_or_is_several_whole_ones() -> None:
    wrong = [case for case in product((0, 1, 9, 10, 25, 30), (1, 4, 10), (1, 3, 10, 20)) if not are_good_chunks(*case)]
    assert not wrong, str(wrong)


def test_files_are_checked_once_an_iteration_before_the_first_example() -> None:
    source = MadeSource()
    batches = read_in_index_mode(request_of(source))
    assert source.num_checks == 0, "nothing is done before the first batch is asked for"
    next(batches)
    list(batches)
    assert source.num_checks == 1


def test_an_iteration_that_is_given_up_read_no_more_than_it_decodes_ahead() -> None:
    source = MadeSource(4000, mean_example_bytes=400_000)  # Chunks of 5.
    request = request_of(source, batch_size=10)
    batches = read_in_index_mode(request)
    next(batches)
    num_ahead = request.num_chunks_ahead + request.num_threads + 2
    assert 10 <= len(source.numbers("read")) <= 10 + num_ahead * request.chunk_size
    batches.close()


@pytest.mark.parametrize("mean_example_bytes", [1, 400_000])
def test_as_much_is_decoded_ahead_as_was_asked_for(mean_example_bytes: int) -> None:
    source = MadeSource(1000, mean_example_bytes)
    request = request_of(source, options=ReadOptions(num_threads=1, prefetch_batches=3))
    num_delivered, ahead = 0, []
    for batch in read_in_index_mode(request):
        num_delivered += len(batch)
        ahead.append(len(source.numbers("read")) - num_delivered)
    assert request.chunk_size == (30 if mean_example_bytes == 1 else 4)
    assert max(ahead) <= 3 * max(10, request.chunk_size) + request.chunk_size  # Batches of a chunk come one by one.
    assert min(ahead[20:60]) >= 2 * 10 - request.chunk_size


@pytest.mark.parametrize("at_once", [0, 40], ids=["chunk by chunk", "all at once"])
@pytest.mark.parametrize("place", [25, 20, 29, 35])
@pytest.mark.parametrize("is_read", [True, False], ids=["decoding fails", "reading fails"])
def test_what_was_read_before_a_damaged_example_comes_before_its_error(is_read: bool, place: int, at_once: int) -> None:
    source = MadeSource(40, mean_example_bytes=40_000 if at_once else 400_000)
    content = Content({"label": StoredField("number"), "image": ImageField("image")}, True)
    request = request_of(source, content, read_at_once=at_once)
    damaged = int(WorkerOrder(request.plan, 0).planned(place, place + 1).index[0])
    source.damaged = frozenset() if is_read else frozenset([damaged])
    source.images = [b"" if number == damaged else IMAGE for number in range(40)]
    batches, came = read_in_index_mode(request), []
    with pytest.raises(CorruptRecordError, match=f"example {damaged} "):
        came.extend(batch.batch for batch in batches)
    assert came == list(range(place // 10))


def test_any_other_error_of_a_source_comes_as_it_is() -> None:
    source = MadeSource()
    with mock.patch.object(MadeSource, "read", side_effect=ShardError("gone")), pytest.raises(ShardError, match="gone"):
        list(read_in_index_mode(request_of(source)))
    with mock.patch.object(MadeSource, "read", side_effect=MemoryError("full")), pytest.raises(MemoryError):
        list(read_in_index_mode(request_of(source)))


def test_a_pipeline_without_batches_opens_nothing() -> None:
    source = MadeSource(5)
    request = request_of(source, world=World(0, 1, 1, 2), batch_size=10)
    assert list(read_in_index_mode(request)) == []
    assert source.num_checks == 0


@pytest.mark.parametrize("num_threads", [1, 3])
def test_single_examples_come_in_the_order_asked_for(num_threads: int) -> None:
    source = MadeSource()
    content = request_of(source).content
    index = np.array([5, 3, 5, 39, 0, 7, 8])
    parts = list(read_examples(source, content, index, num_threads, chunk_size=2))  # type: ignore[arg-type]
    assert np.concatenate([part for part, _ in parts]).tolist() == index.tolist()
    assert [text for _, decoded in parts for text in decoded["text"]] == [str(number) for number in index.tolist()]


def test_waits_for_the_network_are_told_apart_from_reading() -> None:
    class FarSource(MadeSource):
        def read(self, index: NDArray[np.int64], fields: Sequence[str]) -> Columns:
            network.add_wait(100.0)
            return super().read(index, fields)

    seconds = {}
    for source in (MadeSource(40), FarSource(40, networks=("a network",))):
        metrics, request = StageMetrics(0), request_of(source, batch_size=40)
        list(read_in_index_mode(replace(request, context=replace(request.context, metrics=metrics))))
        seconds[type(source)] = metrics.seconds(0)
    assert seconds[MadeSource]["download"] == 0
    assert seconds[FarSource]["download"] % 100 == 0 < seconds[FarSource]["download"]
    assert seconds[FarSource]["read"] < 100


def test_the_context_changes_nothing_of_what_is_read() -> None:
    whole = [batch.index.tolist() for batch in read_in_index_mode(request_of(MadeSource()))]
    other = request_of(MadeSource(), options=ReadOptions(num_threads=5, prefetch_batches=1))
    context = replace(other.context, num_local_ranks=2)
    assert [batch.index.tolist() for batch in read_in_index_mode(replace(other, context=context))] == whole
    assert direct._MOST_AHEAD == 1024
