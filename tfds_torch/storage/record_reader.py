"""RecordReader: what a format of shards with records does for its RecordSource."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import Stamp


class RecordReader(Protocol):
    """Reads records of shard files by the examples' index; used by several threads, and after a fork."""

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size in bytes and version of each file, as it was when the reader was opened."""

    def read(self, index: Int64Array) -> list[bytes]:
        """Returns encoded examples in the order asked."""

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Returns parts of encoded examples in the order asked; the caller compares them with checksums.

        Args:
            index: int64 [n], of examples; one may be asked for many times.
            start: int64 [n], where each part begins within its example, in bytes.
            stop: int64 [n], where it ends.

        Returns:
            n parts, shorter ones where an example ends earlier.
        """

    def discard(self, index: Int64Array) -> bool:
        """Takes a damaged example, int64 [1], out of a cache, once; returns whether it may be read another way now."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetches the blocks of an order's next windows ahead, where files are far away; see RangeReader."""

    def advise(self, index: Int64Array) -> None:
        """Asks the system to read examples ahead, where it can; returns at once."""

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Asks the same for parts of examples."""

    def close(self) -> None:
        """Closes the files; may be called twice."""
