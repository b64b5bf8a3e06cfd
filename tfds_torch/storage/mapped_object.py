"""MappedObject: an object of a store that is read as if it were mapped."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import FileState, ReadRanges, Stamp
from tfds_torch.storage.shard_files import RangeReader, discard_range


class MappedObject:
    """An object that is read as if it were mapped; parts that were asked for stay in memory. See MappedFile."""

    def __init__(self, reader: RangeReader, stamp: Stamp) -> None:
        self._reader, self._stamp = reader, stamp
        self._parts: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def check(self) -> FileState:
        """Returns the object's only state: when it changes, its blocks cannot be fetched any more."""
        return self._stamp

    def part(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns bytes start..stop-1."""
        found = self._parts.get((start, stop))
        if found is None:
            self.advise(np.array([start], np.int64), np.array([stop - start], np.int64))  # All its blocks at once.
            found = self._parts[start, stop] = np.frombuffer(self.read(start, stop - start), np.uint8)
        return found

    def gathered(self, starts: Int64Array, num_bytes: int) -> tuple[NDArray[np.uint8], Int64Array]:
        """Returns a copy of pieces of one size, one behind the other, and where each begins."""
        spans = [(0, start, num_bytes) for start in starts.tolist()]
        pieces = b"".join(self._reader.read_all(spans)) or bytes(num_bytes)
        return np.frombuffer(pieces, np.uint8), np.arange(len(starts), dtype=np.int64) * num_bytes

    def read(self, start: int, size: int) -> bytes:
        """Returns bytes of the object, fewer where it ends."""
        return self._reader.read(0, start, size)

    def advise(self, starts: Int64Array, sizes: Int64Array) -> None:
        """Has the blocks of pieces fetched ahead; of the first ones, the pieces themselves first."""
        order = np.argsort(starts, kind="stable")
        first, last = starts[order], starts[order] + sizes[order]
        self._reader.advise_ranges(lambda: ReadRanges(np.zeros(len(first), np.int64), first, last))

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Has the blocks of an order's next windows fetched ahead; see RangeReader."""
        self._reader.follow(schedule)

    def discard(self, start: int, stop: int) -> bool:
        """Has the blocks of damaged bytes fetched again, once."""
        self._parts.clear()
        return discard_range(self._reader, 0, start, stop)

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Returns where content first begins among bytes start..stop-1; -1: nowhere."""
        for (first, last), part in self._parts.items():
            if first <= start and stop <= last:
                place = part.tobytes().find(content, start - first, stop - first)
                return place if place < 0 else first + place
        return self.read(start, stop - start).find(content) + start if start < stop else -1

    def give_back(self) -> None:
        """Does nothing: what was asked for as a part is used again."""
