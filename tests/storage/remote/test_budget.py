"""Which blocks go where the budget of a cache is used up, and what counts towards it."""

import fcntl
from pathlib import Path

import pytest

from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.budget import Budget
from tfds_torch.storage.remote.cache import Cache
from tfds_torch.storage.remote.cached_blocks import CachedBlocks
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Readers
from tfds_torch.storage.remote.stored_blocks import StoredBlock, disk_bytes, page_bytes, remove_block

BLOCK, NUM_ROOM = 64 << 10, 6


class Fetcher:
    """What a fetcher has of a cache folder with room for six blocks, and one reader of windows of two blocks."""

    def __init__(self, folder: Path, first_window: int = 0) -> None:
        self.cache = Cache(str(folder))
        self.found = self.cache.object_at("http://host/shard", 40 * BLOCK, 0)
        room = NUM_ROOM * disk_bytes(0, BLOCK, page_bytes(str(folder)))
        self.readers = Readers(room * 32 // 31 + 1 + (16 << 10), 1)
        self.published = PublishedReaders(str(folder), self.readers)
        self.budget = Budget(str(folder), self.readers.max_bytes, self.readers, self.published)
        self.readers.begin("reader", 1, self.found.size, [self.found.folder])
        for window in range(first_window, first_window + 4):
            self.readers.announce("reader", window, [self.key(2 * window), self.key(2 * window + 1)])
        self.published.publish()

    def key(self, number: int) -> BlockKey:
        return self.found.folder, number * BLOCK, (number + 1) * BLOCK

    def fetch(self, number: int, *, is_urgent: bool = False) -> bool:
        claim = self.cache.claim(self.found, number * BLOCK, (number + 1) * BLOCK)
        assert claim is not None
        if not self.budget.reserve(self.key(number), is_urgent=is_urgent):
            claim.drop()
            return False
        claim.write(bytes(BLOCK), number * BLOCK)
        claim.finish()
        return True

    def has(self, number: int) -> bool:
        return self.cache.has(self.found, number * BLOCK, (number + 1) * BLOCK)


def test_blocks_of_far_windows_give_way_to_those_that_a_reader_waits_for(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    assert all(fetcher.fetch(number) for number in range(2, 8)), "windows 1, 2 and 3"
    assert fetcher.fetch(0, is_urgent=True)
    assert [number for number in range(8) if fetcher.has(number)] in ([0, 2, 3, 4, 5, 6], [0, 2, 3, 4, 5, 7])


def test_a_far_window_is_not_let_in_while_nearer_ones_lack_room(tmp_path: Path) -> None:
    near, far = Fetcher(tmp_path), Fetcher(tmp_path, first_window=6)
    assert all(far.fetch(number) for number in range(12, 17)), "there was room"
    assert near.fetch(0, is_urgent=True)
    assert not far.fetch(19), "of its fourth window: it would take the room of the first ones of the other"
    assert far.has(12)
    assert far.has(13)


def test_a_block_is_wanted_until_its_window_is_dealt(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path)
    assert fetcher.budget.is_wanted(fetcher.key(0))
    fetcher.readers.note_dealt("reader", 0)
    assert not fetcher.budget.is_wanted(fetcher.key(0)), "it would be fetched for nobody"
    assert fetcher.budget.is_wanted((f"{fetcher.found.folder}-other", 0, BLOCK)), "of an object without an order"
    fetcher.readers.leave("reader")
    assert fetcher.budget.is_wanted(fetcher.key(0))


def test_what_is_given_up_is_never_counted_out_twice(tmp_path: Path) -> None:
    one, other = Fetcher(tmp_path), Fetcher(tmp_path)
    claim = one.cache.claim(one.found, 0, BLOCK)
    assert claim is not None
    assert one.budget.reserve(one.key(0), is_urgent=False)
    one.budget.release(one.key(0))
    with other.budget._locked():
        other.budget._look()  # As another fetcher does that finds no room at this moment.
    claim.drop()
    assert one.budget._count() >= 0
    assert all(other.fetch(number) for number in range(5))
    on_disk = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*"))
    assert on_disk <= one.budget.max_bytes


def test_a_fetcher_that_begins_is_not_taken_for_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others look at its file when it is there and not locked yet, which they remove."""
    others, lock = Fetcher(tmp_path), fcntl.flock

    def look_before(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        others.published.all_needs()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", look_before)
    readers = Readers(1 << 30, 1)
    new = PublishedReaders(str(tmp_path), readers)
    readers.begin("new", 1, BLOCK, [str(tmp_path / "objects" / "of-new")])
    new.publish()
    assert str(tmp_path / "objects" / "of-new") in others.published.all_needs().objects


@pytest.mark.parametrize("verifies", [False, True])
def test_a_block_that_goes_while_it_is_opened_is_not_there_rather_than_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, verifies: bool
) -> None:
    fetcher = Fetcher(tmp_path)
    assert fetcher.fetch(0)
    check, found = CachedBlocks._check, fetcher.found

    def remove_and_check(self: CachedBlocks[int], key: int, descriptor: int, size: int) -> None:
        remove_block(StoredBlock(fetcher.key(0), BLOCK, 0.0, is_part=False))
        check(self, key, descriptor, size)

    monkeypatch.setattr(CachedBlocks, "_check", remove_and_check)
    assert CachedBlocks[int](verifies=verifies).read(0, lambda: found.folder, 0, BLOCK, 0, 10) is None
