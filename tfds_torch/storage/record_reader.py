"""RecordReader: the interface that a format of shards with records implements for its RecordSource."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import Stamp


class RecordReader(Protocol):
    """Reads records of shard files by the examples' index; used by several threads, and after a fork."""

    @property
    def stamps(self) -> Sequence[Stamp]:
        """Size in bytes and version of each file when the reader was opened."""

    def read(self, index: Int64Array) -> list[bytes]:
        """Return encoded examples in the order asked."""

    def read_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Return parts of encoded examples in the order asked; the caller compares them with checksums.

        Args:
            index: int64 [n], numbers of the examples; an example may occur many times.
            start: int64 [n], where each part begins within its example, in bytes.
            stop: int64 [n], where each part ends within its example, in bytes.

        Returns:
            n parts; a part is shorter where its example ends earlier.
        """

    def discard(self, index: Int64Array) -> bool:
        """Remove a damaged example, int64 [1], from the cache, once; return whether reading it again may help."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead, where files are remote; see RangeReader."""

    def advise(self, index: Int64Array) -> None:
        """Ask the system to read examples ahead, where it can; return at once."""

    def advise_parts(self, index: Int64Array, start: Int64Array, stop: Int64Array) -> None:
        """Ask the system to read parts of examples ahead, where it can; return at once."""

    def close(self) -> None:
        """Close the files; may be called twice."""
