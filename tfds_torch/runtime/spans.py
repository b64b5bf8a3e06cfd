"""SpanRings: what the threads of a loader's processes did, and when; the latest of it, in memory that they share."""

import threading
import weakref
from array import array
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple

from tfds_torch.errors import ConfigError

_IN_READERS = ("read", "download", "decode", "resize", "transform", "fetch", "collate", "slot_wait")
SPANS = (*_IN_READERS, "hand_over", "pin", "device_copy", "waiting", "consumer")
"""What is a span of a trace: stages of `LoaderStats`, what is part of one, and a worker's wait."""

MAIN, DECODE, COPY, DEVICE, OTHER = range(5)
LANES = ("main", "decode", "copy to the device", "device", "thread")
"""Kinds of lanes: the main thread, threads that decode, one that copies, the device's own time, other threads."""

_NUMBERS = {name: number for number, name in enumerate(SPANS)}
_THREADS = {"tfds_torch-decode": DECODE, "tfds_torch.device_copy": COPY}  # How the names of our threads begin.
_MOST_LANES = 1 << 16  # Of a kind.
_SPAN = 5  # Numbers of a span in memory, as the fields of `Span`.
MOST_OF_PROCESS, MOST_OF_LOADER = 32_768, 200_000
"""Spans that are kept of a process, and of all processes of a loader together."""


class Span(NamedTuple):
    """One thing that a thread did.

    Attributes:
        name: one of SPANS.
        kind: kind of its lane, an index of LANES.
        lane: number of its lane among those of its kind.
        began_at: by the machine's monotonic clock, seconds.
        seconds: how long it took.
        number: of a batch or a worker; -1: none.
    """

    name: str
    kind: int
    lane: int
    began_at: float
    seconds: float
    number: int


class SpanRings:
    """A ring of spans for each process of a loader, in memory that they share: the newest take the oldest's places.

    Any thread of a process may note spans in its ring, while another process reads them. Rings are inherited by forked
    workers and travel to spawned ones.

    Args:
        num_rings: how many processes there are.
    """

    def __init__(self, num_rings: int) -> None:
        self.num_rings = num_rings
        self.capacity = max(1, min(MOST_OF_PROCESS, MOST_OF_LOADER // num_rings))
        self._ring = 1 + _SPAN * self.capacity  # How many were noted, and the latest of them.
        # Of the spawn context: it can be handed to any kind of worker.
        self._numbers: Any = get_context("spawn").RawArray("d", self._ring * num_rings)
        self.bind(num_rings - 1)

    def bind(self, ring: int) -> None:
        """Lets this process note its spans in a ring."""
        self._first = ring * self._ring
        self._lock, self._lanes = threading.Lock(), _Lanes()

    def note(self, name: str, began_at: float, seconds: float, number: int = -1, kind: int | None = None) -> None:
        """Notes a span of this thread; with `kind`, of a lane of that kind that is not a thread's."""
        found = _NUMBERS.get(name)
        if found is None:
            raise ConfigError(f"There is no span {name!r}: spans are {', '.join(SPANS)}.")
        lane = self._lanes.current() if kind is None else kind * _MOST_LANES
        with self._lock:
            num_noted = int(self._numbers[self._first])
            place = self._first + 1 + _SPAN * (num_noted % self.capacity)
            self._numbers[place : place + _SPAN] = (found, lane, began_at, seconds, number)
            self._numbers[self._first] = num_noted + 1

    def read(self, ring: int) -> "NotedSpans":
        """Returns the spans of a process, as far as they are still there."""
        first = ring * self._ring
        stop = int(self._numbers[first])
        numbers = array("d", self._numbers[first + 1 : first + 1 + _SPAN * min(stop, self.capacity)])
        # What was written over meanwhile, or is being written over now, is lost.
        lost = max(0, int(self._numbers[first]) - self.capacity + 1)
        num_kept, start = max(0, stop - lost), lost % self.capacity
        ordered = numbers[_SPAN * start :] + numbers[: _SPAN * start]
        return NotedSpans(ordered[: _SPAN * num_kept], lost)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("num_rings", "capacity", "_ring", "_numbers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.bind(self.num_rings - 1)  # Until it is bound.


class NotedSpans(NamedTuple):
    """The spans of one process, in the order in which they ended.

    Attributes:
        numbers: of each span.
        num_lost: how many were noted before these, and are lost.
    """

    numbers: "array[float]"
    num_lost: int

    def __len__(self) -> int:
        return len(self.numbers) // _SPAN

    @property
    def complete_from(self) -> float:
        """Since when all spans are here, by the machine's monotonic clock, seconds."""
        return self.numbers[2] + self.numbers[3] if self.num_lost and self.numbers else 0.0

    def spans(self) -> Iterator[Span]:
        """Yields the spans."""
        fields = [iter(self.numbers)] * _SPAN
        for name, lane, began_at, seconds, number in zip(*fields, strict=True):
            kind, place = divmod(int(lane), _MOST_LANES)
            yield Span(SPANS[int(name)], kind, place, began_at, seconds, int(number))


class _Lanes:
    """Numbers the threads of this process; a thread that has ended leaves its lane to the next one of its kind."""

    def __init__(self) -> None:
        self._own, self._lock = threading.local(), threading.Lock()
        self._threads: dict[int, weakref.ref[threading.Thread]] = {}

    def current(self) -> int:
        """Returns the lane of this thread."""
        lane: int | None = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = self._assign(threading.current_thread())
        return lane

    def _assign(self, thread: threading.Thread) -> int:
        kind = MAIN if thread is threading.main_thread() else OTHER
        kind = next((number for name, number in _THREADS.items() if thread.name.startswith(name)), kind)
        with self._lock:
            lane = kind * _MOST_LANES
            while (held := self._threads.get(lane)) and (other := held()) and other.is_alive():
                lane += 1
            self._threads[lane] = weakref.ref(thread)
        return lane
