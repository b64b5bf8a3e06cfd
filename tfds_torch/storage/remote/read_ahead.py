"""ReadAhead: tells the fetcher which blocks the next windows of an order need, and which windows have been dealt."""

import itertools
import os
import secrets
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfds_torch.storage.open_files import ProcessLock
from tfds_torch.storage.remote.protocol import Message
from tfds_torch.storage.remote.store import ObjectStore

_Block = tuple[int, int]
Window = tuple[int, Sequence[_Block]]
Schedule = Iterable[Window]

_MOST_AHEAD_BYTES = 512 << 20
_numbers = itertools.count()


@dataclass(frozen=True)
class _Known:
    """A window that was announced: its number, its blocks in order, their bytes. Others may have the same blocks."""

    number: int
    blocks: Mapping[_Block, None]
    num_bytes: int


class ReadAhead:
    """One pass of one reader over the windows of an order.

    Windows are announced up to `ahead_bytes` beyond the current window, at least one. Threads may share it. A forked
    process that continues to read is another reader to the fetcher.

    Args:
        store: the store whose fetcher is told.
        schedule: yields windows lazily, in the order of reading.
        describe: function: blocks with ranges -> their form in a message to the fetcher.
        bytes_of: function: block -> its length in bytes.
        objects: all objects, in the form of a message to the fetcher.
        forget: function that is called with the blocks of windows that have been dealt.
    """

    def __init__(
        self,
        store: ObjectStore,
        schedule: Schedule,
        describe: Callable[[dict[_Block, list[tuple[int, int]]]], list[Message]],
        bytes_of: Callable[[_Block], int],
        objects: list[Message],
        forget: Callable[[Iterable[_Block]], None],
    ) -> None:
        self._store, self._describe, self._bytes_of, self._forget = store, describe, bytes_of, forget
        self._schedule: Iterator[Window] = iter(schedule)
        self._objects, self._total = objects, sum(one["stamp"][0] for one in objects)
        options = store.options
        limit = _MOST_AHEAD_BYTES if options.max_bytes is None else min(_MOST_AHEAD_BYTES, options.max_bytes // 4)
        self._ahead_bytes = options.ahead_bytes or limit
        self._lock = ProcessLock()
        self._number, self._process = next(_numbers), os.getpid()
        self._id = self._new_id()
        self._windows: deque[_Known] = deque()  # Windows that are not dealt yet.
        self._current: int | None = None
        self._current_blocks: Container[_Block] = ()
        self._is_exhausted = False

    def begin(self) -> None:
        """Announce the first windows; raise the error that the fetcher reports for them."""
        with self._lock:
            self._take_windows()
            self._announce_all()

    def note_read(self, block: _Block) -> None:
        """Note that a block is read: the first window that has the block becomes the current one, if it is a later one.

        Where windows share blocks, the current window may be noted too late, never too early: no block that is still
        read is removed.
        """
        if block in self._current_blocks:
            return
        with self._lock:
            window = next((one for one in self._windows if block in one.blocks), None)
            if window is None or (self._current is not None and window.number <= self._current):
                return
            before = [one.number for one in self._windows if one.number < window.number]
            self._current_blocks = window.blocks
            self._advance(window.number, dealt=before[-2] if len(before) > 1 else None)

    def note_dealt(self, window: int) -> None:
        """Note that a window, and those before it, have been dealt."""
        with self._lock:
            self._advance(self._current, dealt=window)

    def end(self) -> None:
        """Tell the fetcher that this reader reads no more."""
        with self._lock:
            self._store.tell({"op": "leave", "reader": self._id}, starts=False)

    def _advance(self, current: int | None, dealt: int | None) -> None:
        self._current = current
        gone: list[_Block] = []
        while dealt is not None and self._windows and self._windows[0].number <= dealt:
            gone += self._windows.popleft().blocks
        gone = [block for block in gone if not any(block in one.blocks for one in self._windows)]
        if gone:
            self._forget(gone)
        message = self._message("windows", self._take_windows()) | {"dealt": dealt}
        is_forked = self._process != os.getpid()  # A forked process is another reader.
        if is_forked or not self._store.ask(message)[0]["is_known"]:  # A new fetcher knows nothing.
            self._announce_all()

    def _announce_all(self) -> None:
        """Announce this reader with all windows that it has not dealt."""
        if self._process != os.getpid():
            self._process, self._id = os.getpid(), self._new_id()
        message = self._message("follow", self._windows)
        self._store.ask(message | {"total": self._total, "objects": self._objects})

    def _take_windows(self) -> "list[_Known]":
        """Take the next windows from the schedule, and return them."""
        taken = []
        current = self._current
        later = [one for one in self._windows if current is None or one.number > current]
        ahead, beyond = sum(one.num_bytes for one in later), len(later)
        while not self._is_exhausted and (beyond < 2 or ahead < self._ahead_bytes):
            found = next(self._schedule, None)
            if found is None:
                self._is_exhausted = True
                break
            blocks = dict.fromkeys((int(file), int(block)) for file, block in found[1])
            window = _Known(found[0], blocks, sum(map(self._bytes_of, blocks)))
            self._windows.append(window)
            taken.append(window)
            ahead, beyond = ahead + window.num_bytes, beyond + 1
        return taken

    def _message(self, operation: str, windows: "Iterable[_Known]") -> Message:
        described = [[one.number, self._describe({block: [] for block in one.blocks})] for one in windows]
        return {"op": operation, "reader": self._id, "pid": os.getpid(), "windows": described}

    def _new_id(self) -> str:
        return f"{os.getpid()}-{self._number}-{secrets.token_hex(4)}"
