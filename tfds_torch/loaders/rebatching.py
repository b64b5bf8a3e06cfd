"""Rebatching: chunks of any numbers of rows, checked, and taken as batches of another number."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import WorkerError
from tfds_torch.loaders.feed_options import FeedOptions

Arrays = tuple[NDArray[Any], ...]
_Form = tuple[str, tuple[int, ...]]

_NO_ROWS = "fetched arrays without rows. Raise StopIteration where there is no more data."


@dataclass(frozen=True, slots=True)
class Chunk:
    """The arrays that a fetcher returned, one for each name, with `num_rows` >= 1 along their batch axis."""

    arrays: Arrays
    num_rows: int


class RowQueue:
    """Chunks in their order, taken by rows, as views: nothing is copied. For one thread at a time.

    Appending takes constant time, and taking is linear in the chunks that are touched: the rest of a chunk stays where
    it is, as a chunk and a number of rows.
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
        """Put a chunk behind the others."""
        self._chunks.append(chunk)
        self.num_rows += chunk.num_rows

    def take(self, num_rows: int) -> list[Arrays]:
        """Return the next rows, no more than there are, in pieces: each from one chunk, an array for each name."""
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
        """Return the next chunk, as one piece."""
        chunk = self._chunks.popleft()
        self.num_rows -= chunk.num_rows
        return [chunk.arrays]

    def clear(self) -> None:
        """Drop all rows."""
        self._chunks.clear()
        self._start = self.num_rows = 0

    def _views(self, chunk: Chunk, start: int, stop: int) -> Arrays:
        return tuple(
            array[(slice(None),) * (axis % array.ndim) + (slice(start, stop),)]
            for array, axis in zip(chunk.arrays, self._axes, strict=True)
        )


def join_pieces(pieces: Sequence[Arrays], names: Sequence[str], axes: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return a batch: name -> array. Rows of one chunk are a view of it, those of several are copied, once."""
    if len(pieces) == 1:
        return dict(zip(names, pieces[0], strict=True))
    return {
        name: np.concatenate([piece[number] for piece in pieces], axis=axis)
        for number, (name, axis) in enumerate(zip(names, axes, strict=True))
    }


class ChunkCheck:
    """Makes a `Chunk` of the value that a fetcher returned. Any thread may call it.

    With rebatching, all chunks must have the same dtypes, and the same shapes but for the batch axis: a chunk that does
    not fit into one array with the others is an error of the fetcher that returned it, not of the batch.
    """

    def __init__(self, options: FeedOptions) -> None:
        self._options = options
        self._first: dict[str, tuple[_Form, ...]] = {}  # One entry: what the first chunk looked like.

    def __call__(self, fetched: Any) -> Chunk:  # noqa: D102
        arrays = self._find_arrays(fetched)
        options = self._options
        if not options.rebatch:
            return Chunk(arrays, self._count_whole(arrays))
        counts = [self._count_rows(array, number) for number, array in enumerate(arrays)]
        if len(set(counts)) > 1:
            found = ", ".join(f"{name} {count}" for name, count in zip(options.names, counts, strict=True))
            raise WorkerError(
                f"fetched arrays with unequal numbers of rows along batch_axes={options.axes}: {found}. Each must have "
                f"as many as the others."
            )
        if counts[0] == 0:
            raise WorkerError(_NO_ROWS)
        self._compare(arrays)
        return Chunk(arrays, counts[0])

    def _find_arrays(self, fetched: Any) -> Arrays:
        names = self._options.names
        wanted = f"a list of {len(names)} numpy array{'s' if len(names) > 1 else ''}, for {', '.join(names)}"
        if fetched is None:
            raise WorkerError(f"fetched None instead of {wanted}. Raise StopIteration where there is no more data.")
        if isinstance(fetched, Mapping):
            if set(fetched) != set(names):
                raise WorkerError(f"fetched a dictionary of {sorted(map(str, fetched))} instead of {wanted}.")
            arrays = tuple(fetched[name] for name in names)
        elif isinstance(fetched, list | tuple):
            arrays = tuple(fetched)
        else:
            raise WorkerError(f"fetched {_describe(fetched)} instead of {wanted}, or a dictionary of them.")
        if len(arrays) != len(names):
            raise WorkerError(f"fetched {len(arrays)} arrays instead of {wanted}.")
        for name, array in zip(names, arrays, strict=True):
            if not isinstance(array, np.ndarray):
                raise WorkerError(f"fetched {_describe(array)} for {name!r}: it must be a numpy array.")
        return arrays

    def _count_rows(self, array: NDArray[Any], number: int) -> int:
        axis = self._options.axes[number]
        if not -array.ndim <= axis < array.ndim:
            raise WorkerError(
                f"fetched an array of shape {list(array.shape)} for {self._options.names[number]!r}, which has no "
                f"batch axis {axis}: see batch_axes."
            )
        return int(array.shape[axis])

    def _count_whole(self, arrays: Arrays) -> int:
        """Return the rows of a chunk that is delivered as it is, whose arrays need no batch axis."""
        if any(array.size == 0 for array in arrays):
            raise WorkerError(_NO_ROWS)
        axis = self._options.axes[0]
        return arrays[0].shape[axis] if -arrays[0].ndim <= axis < arrays[0].ndim else 1

    def _compare(self, arrays: Arrays) -> None:
        forms = tuple(_form(array, axis) for array, axis in zip(arrays, self._options.axes, strict=True))
        first = self._first.setdefault("", forms)  # In one step: fetchers are several.
        if first == forms:
            return
        for name, array, ours, others in zip(self._options.names, arrays, forms, first, strict=True):
            if ours != others:
                raise WorkerError(
                    f"fetched {_describe(array)} for {name!r}, where the source's first chunk had dtype {others[0]} "
                    f"and, without its rows, shape {list(others[1])}. Rows of several chunks become one array: they "
                    f"must be alike, or rebatch=False."
                )


def _form(array: NDArray[Any], axis: int) -> _Form:
    dtype, shape = array.dtype, array.shape
    kind = dtype.kind if dtype.kind in "SU" else dtype.str  # Strings of other lengths are joined as they are.
    axis %= array.ndim
    return kind, shape[:axis] + shape[axis + 1 :]


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {list(value.shape)}"
    return f"an object of type {type(value).__name__}"
