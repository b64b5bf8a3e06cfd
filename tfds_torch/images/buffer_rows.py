"""Which rows of batch buffers images belong to, and how many are written at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfds_torch.images.batch_buffer import BatchBuffer
from tfds_torch.images.decoding import Pixels
from tfds_torch.storage.stored_pixels import StoredPixels

_BLOCK_BYTES = 3 << 17
"""Pixels of small images that are cut at a time. More scratch memory is given back to the system, and faulted in again:
blocks of twice the size take twice the time."""


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


def blocks_of(rows: Sequence[BufferRows]) -> Iterator[tuple[BatchBuffer, int, int, int]]:
    """Yields (buffer, start, stop, number of the first image) of a few rows each, whose scratch memory stays small."""
    first = 0
    for part in rows:
        step = max(1, _BLOCK_BYTES // part.buffer.pixels[0].nbytes)
        for start in range(part.start, part.stop, step):
            stop = min(start + step, part.stop)
            yield part.buffer, start, stop, first
            first += stop - start


def copy_stored(images: StoredPixels, rows: Sequence[BufferRows]) -> None:
    """Copies n images into their n rows.

    Raises:
        OtherSizeError: they are of another size.
    """
    start = 0
    for part in rows:
        out = part.buffer.pixels[part.start : part.stop]
        if images.shape != out.shape[1:]:
            raise OtherSizeError(
                start, f"It has [H, W, C] = {list(images.shape)}, and the first {list(out.shape[1:])}."
            )
        images[start : start + len(out)].copy_into(out, part.buffer.gather)
        start += len(out)


def write_rows(rows: Sequence[BufferRows], pixels: Pixels) -> None:
    """Writes n images, uint8 [n, H, W, C], into their n rows."""
    start = 0
    for part in rows:
        stop = start + part.stop - part.start
        part.buffer.pixels[part.start : part.stop] = pixels[start:stop]
        start = stop
