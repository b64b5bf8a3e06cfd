"""Rebatching: chunks of any numbers of rows, taken as batches of another number."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a fetcher returned.

    Attributes:
        arrays: one for each name; all have `num_rows` along their batch axis.
        num_rows: >= 1.
    """

    arrays: Arrays
    num_rows: int


class RowQueue:
    """Chunks in their order, taken by rows. Nothing is copied: what is taken are views. For one thread at a time.

    Appending takes constant time, and taking is linear in the chunks that are touched: what is left of a chunk stays
    where it is, as a chunk and a number.

    Args:
        axes: the batch axis of each array.
    """

    def __init__(self, axes: Sequence[int]) -> None:
        self.num_rows = 0
        self._axes = axes
        self._chunks: deque[Chunk] = deque()
        self._start = 0  # Rows of the first chunk that are taken.

    def __len__(self) -> int:
        """Chunks of which there are rows left."""
        return len(self._chunks)

    def append(self, chunk: Chunk) -> None:
        """Puts a chunk behind the others."""
        self._chunks.append(chunk)
        self.num_rows += chunk.num_rows

    def take(self, num_rows: int) -> list[Arrays]:
        """Returns the next rows, no more than there are, in pieces: each from one chunk, an array for each name."""
        pieces = []
        self.num_rows -= num_rows
        while num_rows:
            chunk, start = self._chunks[0], self._start
            stop = min(chunk.num_rows, start + num_rows)
            num_rows -= stop - start
            if stop == chunk.num_rows:
                self._chunks.popleft()
                self._start = 0
            else:
                self._start = stop
            pieces.append(chunk.arrays if stop - start == chunk.num_rows else self._views(chunk, start, stop))
        return pieces

    def take_chunk(self) -> list[Arrays]:
        """Returns the next chunk, as one piece."""
        chunk = self._chunks.popleft()
        self.num_rows -= chunk.num_rows
        return [chunk.arrays]

    def clear(self) -> None:
        """Drops all rows."""
        self._chunks.clear()
        self._start = self.num_rows = 0

    def _views(self, chunk: Chunk, start: int, stop: int) -> Arrays:
        return tuple(
            array[(slice(None),) * (axis % array.ndim) + (slice(start, stop),)]
            for array, axis in zip(chunk.arrays, self._axes, strict=True)
        )


def join_pieces(pieces: Sequence[Arrays], names: Sequence[str], axes: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Returns a batch: name -> array. Rows of one chunk are a view of it, those of several are copied, once.

    Args:
        pieces: at least one, as `RowQueue.take` returns them.
        names: of the arrays.
        axes: along which each is joined.
    """
    if len(pieces) == 1:
        return dict(zip(names, pieces[0], strict=True))
    return {
        name: np.concatenate([piece[number] for piece in pieces], axis=axis)
        for number, (name, axis) in enumerate(zip(names, axes, strict=True))
    }
