"""What a reader waits for is fetched first, and the rest of its block behind it, each byte once."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from tfds_torch.errors import StallError
from tfds_torch.storage.open_files import ReadRanges
from tfds_torch.storage.remote import fetcher_socket, hold, scheduler
from tfds_torch.storage.remote.block_job import BlockJob
from tfds_torch.storage.remote.cache import RemoteObject
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]
MIB = 1 << 20
CONTENT = random.Random(0).randbytes(16 * MIB)


def files_of(store: ObjectStore, url: str) -> RemoteFiles:
    return RemoteFiles(store, [url], [store.look([url])[0].stamp])


def wait_for_blocks(store: ObjectStore, number: int) -> None:
    for _ in range(5000):
        if store.stats()["blocks_cached"] == number:
            return
    raise AssertionError("the blocks did not arrive")


def covers_once(asked: list[tuple[int, int]], start: int, stop: int) -> bool:
    bounds = sorted(asked)
    return bounds[0][0] == start and bounds[-1][1] == stop and all(one[1] == two[0] for one, two in pairwise(bounds))


def test_a_read_is_answered_before_its_block_is_there(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)
    assert files.read(0, 3 * MIB, 1000) == CONTENT[3 * MIB : 3 * MIB + 1000]
    assert (3 * MIB, 3 * MIB + 1000) in server.asked["shard"], "no more than that is waited for"
    wait_for_blocks(store, 1)
    assert covers_once(server.asked["shard"], 0, 8 * MIB)
    assert files.read(0, 0, 8 * MIB) == CONTENT[: 8 * MIB]
    assert server.sent["shard"] == 8 * MIB


def test_the_first_advice_is_fetched_by_ranges_and_later_advice_by_blocks(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)

    def advise(*starts: int) -> None:
        start = np.array(starts)
        files.advise_ranges(lambda: ReadRanges(np.zeros(len(start), np.int64), start, start + 1000))

    advise(MIB, 3 * MIB, 5 * MIB)
    wait_for_blocks(store, 1)
    asked = server.asked["shard"]
    assert sorted(asked[:3]) == [(at, at + 1000) for at in (MIB, 3 * MIB, 5 * MIB)]
    assert covers_once(asked, 0, 8 * MIB)
    advise(9 * MIB, 12 * MIB)
    wait_for_blocks(store, 2)
    assert asked[-1] == (8 * MIB, 16 * MIB)
    advise(9 * MIB)
    assert files.read(0, 0, 16 * MIB) == CONTENT
    assert server.sent["shard"] == 16 * MIB


def test_threads_that_wait_for_different_blocks_do_not_wait_for_each_other(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    files = files_of(make_store(), url)
    found: dict[int, bytes] = {}

    def read(start: int) -> None:
        found[start] = files.read(0, start, 1000)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 16 * MIB, MIB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {start: CONTENT[start : start + 1000] for start in range(0, 16 * MIB, MIB)}
    assert server.sent["shard"] <= 16 * MIB


def test_blocks_of_an_order_are_fetched_as_wholes_also_where_readers_outrun_them(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    server.bytes_s = 8e6
    store = make_store(connections=4)
    cuts = np.arange(0, 17) * MIB
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp], lambda _: cuts)
    files.follow([(0, [(0, block) for block in range(16)])])
    for block in reversed(range(16)):  # Those come last that are read first.
        assert files.read(0, block * MIB + 1000, 1000) == CONTENT[block * MIB + 1000 : block * MIB + 2000]
    assert sorted(server.asked["shard"]) == [(start, start + MIB) for start in range(0, 16 * MIB, MIB)]


def test_two_that_begin_with_each_others_blocks_do_not_wait_for_each_other(server, make_store: MakeStore) -> None:
    """Neither follows its order before it has its first batch, and each has claimed blocks that the other reads."""
    url = server.put("shard", CONTENT)
    readers = [files_of(make_store(), url) for _ in range(2)]
    server.delay_s = 0.2
    starts = np.array([0, 9 * MIB]), np.array([9 * MIB + 5000, 5000])
    for reader, start in zip(readers, starts, strict=True):
        reader.advise_ranges(partial(ReadRanges, np.zeros(2, np.int64), start, start + 1000))
    began_at = time.monotonic()
    for reader, start in zip(readers, starts, strict=True):
        found = list(reader.read_all([(0, at, 1000) for at in start.tolist()]))
        assert found == [CONTENT[at : at + 1000] for at in start.tolist()]
    assert time.monotonic() - began_at < hold.LONGEST_S - 1


def test_an_object_that_is_scanned_is_asked_for_as_a_whole(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp], lambda _: np.array([0, 16 * MIB]))
    assert files.fetch(0, 0)
    assert covers_once(server.asked["shard"], 0, 16 * MIB)
    num_asked = len(server.headers)
    assert files.fetch(0, 0)
    assert files.read(0, 5, 100) == CONTENT[5:105]
    parts = RemoteFiles(store, [url], [store.look([url])[0].stamp])
    assert parts.read(0, 9 * MIB, 100) == CONTENT[9 * MIB : 9 * MIB + 100], "its blocks are parts of it"
    assert [one["method"] for one in server.headers[num_asked:]] == ["HEAD"]


def test_there_may_be_no_room_for_an_object_as_a_whole(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store(max_bytes=9 * MIB)
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp], lambda _: np.array([0, 16 * MIB]))
    assert not files.fetch(0, 0)
    assert files.read(0, 5, 100) == CONTENT[5:105]


@pytest.mark.parametrize("ranges", [[(5, 10)], [(0, 3)], [(200_000, 300_000), (250_000, 400_000)], [(0, 1_000_000)]])
def test_urgent_and_other_segments_cover_a_block_once(ranges) -> None:
    job = BlockJob(RemoteObject("http://host/a", 1_000_000, 0, "/none"), 0, 1_000_000, (0,))
    for start, stop in ranges:
        job.make_urgent(start, stop)
    assert covers_once(job.urgent + job.pending, 0, 1_000_000)
    for start, stop in ranges:
        assert any(begin <= start < end for begin, end in job.urgent)
        assert any(begin < stop <= end for begin, end in job.urgent)


def test_a_stopped_fetcher_is_an_error_and_not_a_hang(
    server, make_store: MakeStore, forked_fetchers, monkeypatch
) -> None:
    monkeypatch.setattr(fetcher_socket, "SILENCE_S", 0.3)
    store = make_store()
    store.start()
    (fetcher,) = forked_fetchers
    os.kill(fetcher.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StallError, match=r"gave no sign of life .* Is its process stopped\?"):
            store.look([f"{server.root}/a"])
    finally:
        os.kill(fetcher.pid, signal.SIGCONT)


@pytest.mark.slow
def test_bytes_that_a_stopped_process_claims_are_read_past_the_cache(
    server, make_store: MakeStore, forked_fetchers
) -> None:
    url = server.put("shard", CONTENT)
    server.bytes_s = 1e6
    first = make_store()
    files_of(first, url).advise_ranges(lambda: ReadRanges(np.array([0]), np.array([5]), np.array([10])))
    while not server.sent["shard"]:
        pass
    (stopped,) = forked_fetchers
    os.kill(stopped.pid, signal.SIGSTOP)
    server.bytes_s = None
    try:
        assert scheduler._PATIENCE_S < 60
        assert files_of(make_store(), url).read(0, 3 * MIB, 1000) == CONTENT[3 * MIB : 3 * MIB + 1000]
    finally:
        os.kill(stopped.pid, signal.SIGCONT)


def test_advice_about_cached_blocks_asks_nobody(server, make_store: MakeStore, forked_fetchers) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    stamps = [store.look([url])[0].stamp]
    files = RemoteFiles(store, [url], stamps, verifies=False)
    assert files.read(0, 0, 16 * MIB) == CONTENT
    store.close()
    num_asked = len(server.headers)
    again = RemoteFiles(make_store(), [url], stamps, verifies=False)
    start = np.arange(0, 16 * MIB, MIB)
    again.advise_ranges(lambda: ReadRanges(np.zeros(len(start), np.int64), start, start + 1000))
    assert again.read(0, 3 * MIB, 1000) == CONTENT[3 * MIB : 3 * MIB + 1000]
    again.close()
    again.advise_ranges(lambda: ReadRanges(np.zeros(1, np.int64), start[:1], start[:1] + 1000))
    assert len(server.headers) == num_asked
    assert len(forked_fetchers) == 1, "no other fetcher was started"
