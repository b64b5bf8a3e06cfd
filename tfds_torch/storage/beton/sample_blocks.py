"""SampleBlocks: where the blocks of a remote file begin. Each holds neighbouring samples and is fetched as a whole."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import Int64Array, unique
from tfds_torch.storage.beton.allocations import PayloadSizes, pointers_of
from tfds_torch.storage.beton.fields import payload_fields
from tfds_torch.storage.beton.head import Head
from tfds_torch.storage.open_files import ProcessLock

_LEAST_MEAN_BYTES = 256 << 10  # Smaller blocks cost more, for their requests, than shared bytes.


class SampleBlocks:
    """The blocks of one file in an object store.

    A block of an order, `block_records` neighbouring samples, is one range of bytes where the file has its samples in
    order, and several ranges where several processes wrote it, each its own pages. Where those would be many small
    ranges, the file is cut into a grid of 8 MiB blocks, which blocks of the order share.

    Args:
        head: the head of the file.
        block_records: number of samples in a block of the order.
    """

    def __init__(self, head: Head, block_records: int) -> None:
        self._head, self._block_records = head, block_records
        self._cuts: Int64Array | None = None
        self._lock = ProcessLock()

    def cuts(self, file: int = 0) -> Int64Array:
        """Return where blocks begin, int64 [k + 1], 0 first, the size last; see `Cuts`. The samples' rows are read."""
        with self._lock:
            if self._cuts is None:
                self._cuts = self._find_cuts()
            return self._cuts

    def holding(self, names: tuple[str, ...], sizes: PayloadSizes, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks of the payloads of some fields of samples start..stop-1: the file, 0, and their number."""
        index = np.arange(start, stop, dtype=np.int64)
        places = [(sizes.pointers(name, index), sizes.sizes(name, index)) for name in names]
        found = [self._blocks_of(pointers, num_bytes) for pointers, num_bytes in places]
        yield from ((0, number) for number in unique(np.concatenate([np.empty(0, np.int64), *found])).values.tolist())

    def _blocks_of(self, pointers: Int64Array, num_bytes: Int64Array) -> Int64Array:
        """Return the blocks of payloads, int64 [m]."""
        first = pointers[num_bytes > 0]
        last = first + num_bytes[num_bytes > 0] - 1
        low, high = (np.searchsorted(self.cuts(), offsets, side="right") - 1 for offsets in (first, last))
        counts = high - low + 1
        return np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())

    def _find_cuts(self) -> Int64Array:
        head = self._head
        if head.layout.pages_at >= head.pages_stop:
            return head.grid
        mapped = head.map()
        mapped.advise(*head.index_ranges)
        rows = mapped.part(head.layout.metadata_at, head.layout.metadata_end).view(head.layout.row_type)
        starts = self._block_starts(rows)
        num_bytes = head.pages_stop - head.layout.pages_at
        most = 2 * -(-len(rows) // self._block_records) + num_bytes // head.layout.page_size
        if len(starts) > max(most, num_bytes // _LEAST_MEAN_BYTES):
            return head.grid
        others = head.grid[(head.grid <= head.layout.pages_at) | (head.grid >= head.pages_stop)]
        return unique(np.concatenate([others, starts])).values

    def _block_starts(self, rows: NDArray[np.void]) -> Int64Array:
        """Return where runs of samples of one block begin in the pages; the result for damaged rows is arbitrary."""
        head, limit = self._head, self._head.pages_stop
        first = np.full(len(rows), limit, np.int64)
        members = dict(zip(head.fields, head.layout.row_type.names or (), strict=True))
        for name in payload_fields(head.fields):
            pointers = pointers_of(rows[members[name]], head.fields[name])
            is_inside = (pointers >= head.layout.pages_at) & (pointers < limit)
            first = np.where(is_inside, np.minimum(first, pointers.astype(np.int64)), first)
        samples = np.argsort(first, kind="stable")
        samples = samples[first[samples] < limit]
        begins = np.diff(samples // self._block_records, prepend=-1) != 0
        starts: Int64Array = first[samples[begins]]
        return starts
