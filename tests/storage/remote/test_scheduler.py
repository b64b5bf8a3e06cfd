"""What goes wrong inside the fetcher: nothing stays claimed or counted, and nobody waits for ever."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfds_torch.errors import ConfigError, TfdsTorchError, WorkerError
from tfds_torch.storage.remote import scheduler
from tfds_torch.storage.remote.budget import Budget
from tfds_torch.storage.remote.cache import Cache, Claim, RemoteObject
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Readers
from tfds_torch.storage.remote.scheduler import Scheduler
from tfds_torch.storage.remote.stored_blocks import StoredBlock, stored_blocks

BLOCK, NUM_BLOCKS = 256 << 10, 8
CONTENT = os.urandom(NUM_BLOCKS * BLOCK)
FULL = OSError(errno.ENOSPC, "No space left on device")


class Panic(BaseException):
    """What a Rust library raises where it panics: no Exception."""


class MemoryTransfers:
    """Fetches from memory what a server would send, in two pieces."""

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.delay_s = 0.0
        self.num_now = self.most = self.most_parts = 0
        self.count_parts: Callable[[], int] = lambda: 0

    async def fetch(
        self, found: object, start: int, stop: int, write: Callable[[bytes, int], None], give_way: Any = None
    ) -> None:
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        try:
            await asyncio.sleep(self.delay_s)
            self.most_parts = max(self.most_parts, self.count_parts())
            fault, self.fault = self.fault, None
            if fault is not None:
                raise fault
            middle = (start + stop) // 2
            for first, last in ((start, middle), (middle, stop)):
                write(CONTENT[first:last], first)
        finally:
            self.num_now -= 1


class Fetcher:
    """A scheduler with its cache folder."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 30) -> None:
        self.cache = Cache(str(folder))
        readers = Readers(max_bytes, 1)
        self.budget = Budget(self.cache.folder, max_bytes, readers, PublishedReaders(self.cache.folder, readers))
        self.transfers = MemoryTransfers()
        self.transfers.count_parts = lambda: sum(block.is_part for block in self.blocks())
        self.scheduler = Scheduler(self.cache, self.budget, self.transfers, 2)  # type: ignore[arg-type]
        self.found = self.cache.object_at("http://host/shard", len(CONTENT), 0)

    async def read(self, number: int) -> bytes | None:
        """Returns the first bytes of a block; None: it lies in the cache."""
        start = number * BLOCK
        async with asyncio.timeout(scheduler._PATIENCE_S / 2):
            return await self.scheduler.get(self.found, start, start + BLOCK, start, start + 10)

    async def fetch_whole(self) -> None:
        assert await self.scheduler.fetch(self.found, 0, len(CONTENT))

    def blocks(self) -> list[StoredBlock]:
        return list(stored_blocks(self.cache.folder))

    def is_counted_right(self) -> bool:
        counted = self.budget._count()
        self.budget._look()
        return counted == self.budget._count()


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path / "cache")


def once(patch: pytest.MonkeyPatch, owner: object, name: str, error: BaseException) -> None:
    """Has a method raise an error the next time."""
    method, errors = getattr(owner, name), [error]

    def fail(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return method(*arguments, **options)

    patch.setattr(owner, name, fail)


@pytest.mark.parametrize(
    ("owner", "name"), [(Budget, "reserve"), (Claim, "write"), (Claim, "finish"), (Cache, "claim")]
)
@pytest.mark.parametrize("error", [FULL, MemoryError()], ids=["full disk", "no memory"])
def test_a_block_that_could_not_be_written_can_be_fetched_by_the_next_reader(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    async def read() -> None:
        # The first bytes are answered before the block is finished: all of it is asked for.
        with pytest.raises(ConfigError if error is FULL else WorkerError, match=r"http://host/shard"):
            async with asyncio.timeout(scheduler._PATIENCE_S / 2):
                await fetcher.scheduler.get(fetcher.found, 0, BLOCK, 0, BLOCK)
        assert fetcher.blocks() == []
        assert fetcher.is_counted_right()
        await fetcher.read(0)
        await fetcher.scheduler.fetch(fetcher.found, 0, BLOCK)
        assert [(block.key[1:], block.is_part) for block in fetcher.blocks()] == [((0, BLOCK), False)]
        assert fetcher.is_counted_right()

    once(monkeypatch, owner, name, error)
    asyncio.run(read())


def test_a_block_can_be_fetched_again_though_nothing_could_be_counted(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        with pytest.raises(ConfigError, match=r"http://host/shard"):
            async with asyncio.timeout(scheduler._PATIENCE_S / 2):
                await fetcher.scheduler.get(fetcher.found, 0, BLOCK, 0, BLOCK)
        assert fetcher.blocks() == []
        async with asyncio.timeout(scheduler._PATIENCE_S / 2):
            assert await fetcher.scheduler.fetch(fetcher.found, 0, BLOCK)

    once(monkeypatch, Claim, "finish", FULL)
    once(monkeypatch, Budget, "release", FULL)
    asyncio.run(read())


def test_no_reader_waits_for_a_client_that_panics(fetcher: Fetcher) -> None:
    async def read() -> None:
        fetcher.transfers.fault = Panic("a lock is poisoned")
        with pytest.raises(WorkerError, match=r"failed at http://host/shard: Panic\('a lock is poisoned'\)"):
            await fetcher.read(0)
        assert await fetcher.read(0) == CONTENT[:10]

    asyncio.run(read())


@pytest.mark.parametrize("name", ["copy", "claim"])
def test_a_disk_that_is_full_while_an_object_is_cut_leaves_it_whole(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cuts = list(range(0, len(CONTENT) + 1, BLOCK))

    async def cut() -> None:
        await fetcher.fetch_whole()
        with monkeypatch.context() as patch:
            once(patch, Cache, name, FULL)
            with pytest.raises(ConfigError, match=r"No space left on device\. Make room there"):
                await fetcher.scheduler.cut(fetcher.found, cuts, None)
        assert [block.key[1:] for block in fetcher.blocks()] == [(0, len(CONTENT))]
        assert fetcher.is_counted_right()
        await fetcher.scheduler.cut(fetcher.found, cuts, None)
        assert len(fetcher.blocks()) == NUM_BLOCKS
        assert fetcher.is_counted_right()

    asyncio.run(cut())


def test_a_block_that_another_process_finished_is_counted_once(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Cache.claim

    def finish_before(cache: Cache, found: RemoteObject, start: int, stop: int) -> Claim | None:
        others = claim(cache, found, start, stop)
        assert others is not None
        assert fetcher.budget.reserve((found.folder, start, stop), is_urgent=False)
        assert cache.copy(found, others)
        others.finish()
        return claim(cache, found, start, stop)

    async def cut() -> None:
        await fetcher.fetch_whole()
        with monkeypatch.context() as patch:
            patch.setattr(Cache, "claim", finish_before)
            await fetcher.scheduler.cut(fetcher.found, [0, BLOCK, len(CONTENT)], None)
        assert sorted(block.key[1:] for block in fetcher.blocks()) == [(0, BLOCK), (BLOCK, len(CONTENT))]
        assert fetcher.is_counted_right()

    asyncio.run(cut())


def test_damaged_blocks_take_no_room_while_readers_have_them_open(fetcher: Fetcher) -> None:
    async def discard() -> None:
        await fetcher.fetch_whole()
        (block,) = fetcher.blocks()
        with open(block.path, "rb") as reader:
            fetcher.scheduler.discard(fetcher.found, 0, BLOCK)
            assert os.fstat(reader.fileno()).st_size == 0
        assert fetcher.blocks() == []
        assert fetcher.is_counted_right()

    asyncio.run(discard())


def test_readers_read_on_in_an_object_that_is_cut(fetcher: Fetcher) -> None:
    async def cut() -> None:
        await fetcher.fetch_whole()
        (block,) = fetcher.blocks()
        with open(block.path, "rb") as reader:
            await fetcher.scheduler.cut(fetcher.found, [0, BLOCK, len(CONTENT)], None)
            assert reader.read(len(CONTENT)) == CONTENT
        assert sorted(block.key[1:] for block in fetcher.blocks()) == [(0, BLOCK), (BLOCK, len(CONTENT))]

    asyncio.run(cut())


def test_open_blocks_are_bounded_and_what_more_readers_wait_for_comes_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "most_open_files", lambda: 3)
    fetcher = Fetcher(tmp_path / "cache")
    fetcher.transfers.delay_s = 0.05

    async def read() -> None:
        found = await asyncio.gather(*map(fetcher.read, range(NUM_BLOCKS)))
        assert found == [CONTENT[number * BLOCK : number * BLOCK + 10] for number in range(NUM_BLOCKS)]
        assert fetcher.transfers.most_parts == 3
        assert fetcher.transfers.most <= 4, "two connections for blocks, and as many past the cache"
        async with asyncio.timeout(10):
            while any(block.is_part for block in fetcher.blocks()):
                await asyncio.sleep(0.01)
        for start in range(0, len(CONTENT), BLOCK):
            assert await fetcher.scheduler.fetch(fetcher.found, start, start + BLOCK), "closed ones do not count"

    asyncio.run(read())


def test_blocks_of_an_order_wait_until_others_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "most_open_files", lambda: 1)
    fetcher = Fetcher(tmp_path / "cache")
    fetcher.transfers.delay_s = 0.01

    async def follow() -> None:
        for number in range(NUM_BLOCKS):
            fetcher.scheduler.want(fetcher.found, number * BLOCK, (number + 1) * BLOCK, (0,))
        fetcher.scheduler.pump()
        async with asyncio.timeout(10):
            while fetcher.scheduler.num_cached < NUM_BLOCKS:
                await asyncio.sleep(0.01)
        assert fetcher.is_counted_right()

    asyncio.run(follow())


def test_errors_of_ours_reach_the_reader_as_they_are(fetcher: Fetcher) -> None:
    async def read() -> None:
        fetcher.transfers.fault = TfdsTorchError("it is so")
        with pytest.raises(TfdsTorchError, match=r"^it is so$"):
            await fetcher.read(0)

    asyncio.run(read())
