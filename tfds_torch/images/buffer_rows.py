"""Which rows of batch buffers images belong to, and how many are written at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfds_torch.images.batch_buffer import BatchBuffer
from tfds_torch.images.decoding import Pixels


@dataclass(frozen=True)
class BufferRows:
    """Rows `start` to `stop` - 1 of a batch buffer, which images belong to."""

    buffer: BatchBuffer
    start: int
    stop: int


class BadImageError(Exception):
    """One of several images cannot be used.

    Args:
        position: which one.
        reason: why, in a sentence.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


class OtherSizeError(BadImageError):
    """An image is not of the size of its batch."""


def single_rows(rows: Sequence[BufferRows]) -> Iterator[tuple[BatchBuffer, int]]:
    """Yields each row by itself."""
    for part in rows:
        for row in range(part.start, part.stop):
            yield part.buffer, row


def write_rows(rows: Sequence[BufferRows], pixels: Pixels) -> None:
    """Writes n images, uint8 [n, H, W, C], into their n rows."""
    start = 0
    for part in rows:
        stop = start + part.stop - part.start
        part.buffer.pixels[part.start : part.stop] = pixels[start:stop]
        start = stop
