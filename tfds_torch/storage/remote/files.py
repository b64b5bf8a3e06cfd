"""RemoteFiles: reads any part of objects, from blocks in the cache that the fetcher fills."""

import itertools
import os
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError, TfdsTorchError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import ProcessLock, ReadRanges, Span, Stamp
from tfds_torch.storage.remote.cached_blocks import CachedBlocks, DamagedBlockError
from tfds_torch.storage.remote.layout import GRID_BYTES, object_folder
from tfds_torch.storage.remote.protocol import Answer, Message, answers
from tfds_torch.storage.remote.read_ahead import ReadAhead, Schedule
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.urls import without_secrets

_NUM_TRIES = 4  # Tries to open a block that is removed at once; after them its bytes are read past the cache.
_Block = tuple[int, int]  # Position of a file, and number of one of its blocks.
_WHOLE = -1  # Number of the block that is an object as a whole: such a block exists where the object was scanned.


class _Piece(NamedTuple):
    """Bytes first..last-1 of an object, which lie in its block start..stop-1."""

    block: _Block
    start: int
    stop: int
    first: int
    last: int


class RemoteFiles:
    """Reads any part of any of these objects; the counterpart of `OpenFiles` for object stores.

    A block that lies in the cache is opened and read without the fetcher. For other blocks the fetcher is asked:
    the wanted bytes come first, the rest of the block after them.

    Threads: reads of cached blocks are served one after another; reads that wait for the network wait side by side.
    Forks: the child continues to use the open files, and asks the fetcher over its own connections.

    Args:
        store: the store that is asked for the objects.
        urls: URLs of the objects.
        stamps: size in bytes and pin (a hash of ETag and time) that each object must have.
        cuts: position of an object -> int64 [k + 1], offsets at which its blocks begin, 0 first, its size last; called
            when a byte of it is first needed. None: blocks of 8 MiB.
        verifies: whether the checksum of a block is compared when this process first opens it; for formats that have
            no checksums.
    """

    def __init__(
        self,
        store: ObjectStore,
        urls: Sequence[str],
        stamps: Sequence[Stamp],
        cuts: Callable[[int], Int64Array] | None = None,
        *,
        verifies: bool = True,
    ) -> None:
        self._store, self._urls, self._stamps, self._find_cuts = store, urls, stamps, cuts
        self._cuts: dict[int, list[int]] = {}
        self._folders: dict[int, str] = {}
        self._lock = ProcessLock()
        self._blocks: CachedBlocks[_Block] = CachedBlocks(verifies=verifies)
        self._advised: set[_Block] = set()
        self._damaged: set[_Block] = set()
        self._is_first_advice = True
        self._ahead: ReadAhead | None = None
        self._finalizer = weakref.finalize(self, self._blocks.close)
        self._finalizer.atexit = False  # Threads may still read at that time.

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return these bytes of an object; fewer only where the object ends.

        Raises:
            ShardError: the object is missing, changed, or cannot be read.
            ConfigError: the reader is closed, or options are wrong.
            CorruptRecordError: a block of the cache is damaged again, after it was fetched a second time.
        """
        return next(self.read_all([(file, offset, size)]))

    def read_all(self, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yield the bytes of several spans, as `read` returns them; missing ones are fetched side by side."""
        pieces = [self._pieces(*span) for span in spans]
        contents = self._fetch_missing([piece for parts in pieces for piece in parts])
        for parts in pieces:
            content = b"".join([_taken(contents.pop(piece, None)) or self._read_piece(piece) for piece in parts])
            self._store.count(len(content))
            yield content

    def advise_ranges(self, find: Callable[[], ReadRanges]) -> None:
        """Ask for ranges ahead; missing blocks are fetched, of the first ones the ranges themselves first."""
        ranges = find()
        wanted: dict[_Block, list[tuple[int, int]]] = {}
        for first, last in ranges.bounds:
            file = ranges.file[first]
            self._add_blocks(wanted, file, ranges.start[first], max(ranges.end[first:last]))
        with_ranges, self._is_first_advice = self._is_first_advice, False
        is_beginning = with_ranges and self._ahead is None
        missing = {block: parts for block, parts in wanted.items() if not self._is_cached(block)}
        with self._lock:
            if not self._finalizer.alive:
                return
            for block, parts in wanted.items():
                if block not in missing:
                    self._blocks.advise(block, self._folder(block[0]), *self._span(block), parts)
        if not missing:
            return
        if not with_ranges:
            missing = {block: [] for block in missing if block not in self._advised}
        self._advised.update(missing)
        if missing:
            self._store.tell({"op": "advise", "files": self._described(missing), "is_beginning": is_beginning})

    def fetch(self, file: int, offset: int) -> bool:
        """Fetch the block of an offset, and wait for it; return False where it is not in the cache after that.

        Raises:
            ShardError: the object is missing, changed, or cannot be read.
            ConfigError: options are wrong.
        """
        block = (file, bisect_right(self._cuts_of(file), offset) - 1)
        if self._is_cached(block):
            return True
        began_at = time.monotonic()
        reply, _ = self._store.ask(self._object(file) | {"op": "fetch", "block": self._span(block)})
        self._store.count(0, time.monotonic() - began_at)
        return bool(reply["is_there"])

    def follow(self, schedule: Schedule) -> None:
        """Fetch the blocks of an order's next windows while it is read; a new call replaces the last one.

        A window counts as dealt when a block of the second window after it is read, or when `dealt` says so.

        Args:
            schedule: yields lazily, in the order of reading, the number of each window and its blocks: (position of the
                object, number of the block among its cuts).

        Raises:
            ConfigError: the budget of the cache is too small for two windows and the blocks in flight.
        """
        self.unfollow()
        schedule = iter(schedule)
        first = next(schedule, None)
        if first is None:
            return
        schedule = itertools.chain([first], schedule)
        self._is_first_advice = True
        self._advised.clear()
        list(self._stamps)  # At once: one after the other, each object would take the time of a request.
        objects = list(map(self._object, range(len(self._urls))))
        ahead = ReadAhead(self._store, schedule, self._described, self._bytes_of, objects, self._forget)
        ahead.begin()
        self._ahead = ahead

    def dealt(self, window: int) -> None:
        """Say that all examples of a window have been read: its blocks may be removed."""
        if self._ahead is not None:
            self._ahead.note_dealt(window)

    def unfollow(self) -> None:
        """Say that the order is not read any further."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()

    def discard(self, file: int, offset: int) -> bool:
        """Remove the damaged block of an offset from the cache, so that it is fetched again.

        Returns:
            False where that happened before: then the cache is not the cause of the damage.
        """
        block = (file, bisect_right(self._cuts_of(file), offset) - 1)
        if block in self._damaged:
            return False
        self._drop(block)
        return True

    def changed(self, file: int) -> str | None:
        """Return how an object differs from its stamp, as a clause, or None."""
        try:
            found = self._store.look([self._urls[file]])[0].stamp
        except TfdsTorchError as error:
            return str(error)
        if found == self._stamps[file]:
            return None
        if found[0] != self._stamps[file][0]:
            return f"it had {self._stamps[file][0]} bytes and has {found[0]}"
        return "its ETag or the time of its last change is another one"

    def close(self) -> None:
        """Close every file; reading afterwards is an error."""
        self.unfollow()
        with self._lock:
            self._finalizer()

    def _cuts_of(self, file: int) -> list[int]:
        cuts = self._cuts.get(file)
        if cuts is None:
            size = self._stamps[file][0]
            if self._find_cuts is None:
                cuts = [*range(0, size, GRID_BYTES), size]
            else:
                cuts = self._find_cuts(file).tolist()
                if cuts[0] != 0 or cuts[-1] != size:
                    found = f"its index is about bytes {cuts[0]} to {cuts[-1]}"
                    raise ShardError(f"{self._name(file)} has {size} bytes, and {found}. Build its index anew.")
            self._cuts[file] = cuts
        return cuts

    def _pieces(self, file: int, offset: int, size: int) -> list[_Piece]:
        """Return the parts of blocks that make up a span."""
        stop = min(offset + size, self._stamps[file][0])
        cuts = self._cuts_of(file) if offset < stop else []
        pieces, number = [], bisect_right(cuts, offset) - 1
        while offset < stop:
            end = min(stop, cuts[number + 1])
            pieces.append(_Piece((file, number), cuts[number], cuts[number + 1], offset, end))
            offset, number = end, number + 1
        return pieces

    def _fetch_missing(self, pieces: Sequence[_Piece]) -> dict[_Piece, Answer]:
        """Return the fetcher's answers to pieces that are not in the cache, where there are several."""
        missing = [piece for piece in pieces if not self._is_cached(piece.block)] if len(pieces) > 1 else []
        if len(missing) < 2:
            return {}
        self._note_read(missing)
        return dict(zip(missing, self._ask(missing), strict=True))

    def _read_piece(self, piece: _Piece) -> bytes:
        """Return part of a block, from the cache or from the fetcher."""
        self._note_read([piece])
        for attempt in range(_NUM_TRIES + 1):
            is_last = attempt == _NUM_TRIES
            content = self._read_cached(piece) or _taken(self._ask([piece], is_direct=is_last)[0])
            if content:
                return content
        raise AssertionError("What is read past the cache is bytes, or an error.")

    def _note_read(self, pieces: Iterable[_Piece]) -> None:
        ahead = self._ahead
        if ahead is not None:
            for piece in pieces:
                ahead.note_read(piece.block)

    def _read_cached(self, piece: _Piece) -> bytes | None:
        """Return part of a block; None: the block is not in the cache."""
        block = piece.block
        with self._lock:
            if not self._finalizer.alive:
                raise ConfigError("The reader was closed: open another one to read on.")
            try:
                found = self._blocks.read(block, lambda: self._folder(block[0]), *piece[1:])
                if found is None:
                    whole, size = (block[0], _WHOLE), self._stamps[block[0]][0]
                    found = self._blocks.read(whole, lambda: self._folder(block[0]), 0, size, *piece[3:])
                return found
            except DamagedBlockError as error:
                clause = str(error)
        if block in self._damaged:
            raise CorruptRecordError(
                f"{self._name(block[0])}, bytes {piece.start}-{piece.stop - 1}: the block in the cache "
                f"{self._store.cache} is damaged again after it was fetched again ({clause}). Check the disk and the "
                f"memory of this machine."
            )
        self._drop(block)
        return None

    def _ask(self, pieces: Sequence[_Piece], *, is_direct: bool = False) -> list[Answer]:
        """Return the fetcher's answer to each piece."""
        began_at = time.monotonic()
        parts = [self._object(piece.block[0]) | {"block": piece[1:3], "range": piece[3:]} for piece in pieces]
        reply, body = self._store.ask({"op": "get", "parts": parts, "is_direct": is_direct})
        self._store.count(0, time.monotonic() - began_at)
        return answers(reply["answers"], body)

    def _drop(self, block: _Block) -> None:
        """Remove a damaged block from the cache, so that it is fetched again."""
        with self._lock:
            self._damaged.add(block)
            self._blocks.forget(block)
            self._blocks.forget((block[0], _WHOLE))
        self._store.ask(self._object(block[0]) | {"op": "discard", "block": self._span(block)})

    def _forget(self, blocks: Iterable[_Block]) -> None:
        """Close the files of blocks that may be removed."""
        with self._lock:
            for block in blocks:
                self._blocks.forget(block)
                self._blocks.forget((block[0], _WHOLE))  # It may have been cut into blocks.

    def _add_blocks(self, wanted: dict[_Block, list[tuple[int, int]]], file: int, start: int, stop: int) -> None:
        cuts = self._cuts_of(file)
        stop = min(stop, cuts[-1])
        number = bisect_right(cuts, start) - 1
        while start < stop:
            end = min(stop, cuts[number + 1])
            wanted.setdefault((file, number), []).append((start, end))
            start, number = end, number + 1

    def _is_cached(self, block: _Block) -> bool:
        folder, whole = self._folder(block[0]), (block[0], _WHOLE)
        is_there = self._blocks.is_there(block, folder, *self._span(block))
        return is_there or self._blocks.is_there(whole, folder, 0, self._stamps[block[0]][0])

    def _described(self, blocks: dict[_Block, list[tuple[int, int]]]) -> list[Message]:
        """Return blocks, and the ranges of them that are read first, in the form of a message to the fetcher."""
        files: dict[int, list[object]] = {}
        for (file, number), parts in blocks.items():
            cuts = self._cuts_of(file)
            files.setdefault(file, []).append([cuts[number], cuts[number + 1], parts])
        return [self._object(file) | {"blocks": parts} for file, parts in files.items()]

    def _bytes_of(self, block: _Block) -> int:
        start, stop = self._span(block)
        return stop - start

    def _span(self, block: _Block) -> tuple[int, int]:
        """Return where a block begins and ends."""
        cuts = self._cuts_of(block[0])
        return cuts[block[1]], cuts[block[1] + 1]

    def _object(self, file: int) -> Message:
        return {"url": self._urls[file], "stamp": self._stamps[file]}

    def _folder(self, file: int) -> str:
        folder = self._folders.get(file)
        if folder is None:
            folder = self._folders[file] = self._find_folder(file)
        return folder

    def _find_folder(self, file: int) -> str:
        return object_folder(self._store.cache, self._urls[file], *self._stamps[file])

    def _name(self, file: int) -> str:
        return without_secrets(os.fspath(self._urls[file]))


def _taken(answer: Answer) -> bytes | None:
    """Return the bytes of an answer; None: their block lies in the cache now."""
    if isinstance(answer, TfdsTorchError):
        raise answer
    return answer
