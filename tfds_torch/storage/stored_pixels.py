"""StoredPixels: images of one size that are stored as pixels in a mapped file, and read in place."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

Gather = Callable[[Pixels, NDArray[np.int64], Pixels], None]
"""Function that copies pieces of one length out of memory; see `gather_with_numpy`."""


def gather_with_numpy(memory: Pixels, starts: NDArray[np.int64], out: Pixels) -> None:
    """Copy pieces of one length out of memory, in one call.

    Args:
        memory: uint8 [m].
        starts: int64 [n], where each piece begins; the whole piece lies inside of memory.
        out: uint8 [n, length], of which every row is contiguous.
    """
    length = out.shape[1]
    out[...] = np.ndarray((len(memory) - length + 1, length), np.uint8, memory, 0, (1, 1))[starts]


class StoredPixels(Sequence[Pixels]):
    """n images, each uint8 [H, W, C]. Nothing is read before it is asked for. Threads may share it.

    Args:
        memory: uint8 [m], memory of the mapped file.
        starts: int64 [n], where each image begins; the whole image lies inside of memory.
        shape: [H, W, C].
        check: called before and after memory is copied; raises ShardError where the file was cut. None: it cannot be
            cut.
    """

    __slots__ = ("_check", "_memory", "_starts", "shape")

    def __init__(
        self,
        memory: Pixels,
        starts: NDArray[np.int64],
        shape: tuple[int, int, int],
        check: Callable[[], object] | None = None,
    ) -> None:
        self._memory, self._starts, self.shape, self._check = memory, starts, shape, check

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> Pixels: ...

    @overload
    def __getitem__(self, place: slice) -> "StoredPixels": ...

    def __getitem__(self, place: int | slice) -> "Pixels | StoredPixels":
        if isinstance(place, slice):
            return StoredPixels(self._memory, self._starts[place], self.shape, self._check)
        self._check_file()
        start = int(self._starts[place])
        return self._memory[start : start + math.prod(self.shape)].reshape(self.shape).copy()

    def __iter__(self) -> Iterator[Pixels]:
        return iter(list(self.copy()))

    def copy(self) -> Pixels:
        """Return a copy of all images, uint8 [n, H, W, C]."""
        out = np.empty((len(self), *self.shape), np.uint8)
        self.copy_into(out)
        return out

    def copy_into(self, out: Pixels, gather: Gather = gather_with_numpy) -> None:
        """Copy all images, each once.

        Args:
            out: uint8 [n, H, W, C], of which every row is contiguous.
            gather: function that copies them.
        """
        self._check_file()
        gather(self._memory, self._starts, out.reshape(len(self), math.prod(self.shape)))
        self._check_file()  # Bytes that were cut off meanwhile read as zeros, up to the end of their page.

    def _check_file(self) -> None:
        if self._check is not None:
            self._check()

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)


class MergedPixels(StoredPixels):
    """Images of one size out of several files, as one sequence.

    Args:
        parts: the images of each file, at least one file.
        places: for each file, int64 [k], the places of its images in the sequence, ascending.
    """

    __slots__ = ("_parts", "_places")

    def __init__(self, parts: Sequence[StoredPixels], places: Sequence[NDArray[np.int64]]) -> None:
        self._parts, self._places, self.shape = parts, places, parts[0].shape

    def __len__(self) -> int:
        return sum(map(len, self._places))

    @overload
    def __getitem__(self, place: int) -> Pixels: ...

    @overload
    def __getitem__(self, place: slice) -> "MergedPixels": ...

    def __getitem__(self, place: int | slice) -> "Pixels | MergedPixels":
        if not isinstance(place, slice):
            one: Pixels = self[place : place + 1 or None].copy()[0]
            return one
        start, stop, _ = place.indices(len(self))
        parts, places = [], []
        for part, where in zip(self._parts, self._places, strict=True):
            first, last = np.searchsorted(where, (start, stop)).tolist()
            if first < last:
                parts.append(part[first:last])
                places.append(where[first:last] - start)
        return MergedPixels(parts or [self._parts[0][:0]], places or [self._places[0][:0]])

    def copy_into(self, out: Pixels, gather: Gather = gather_with_numpy) -> None:
        """Copy all images; see StoredPixels."""
        for part, where in zip(self._parts, self._places, strict=True):
            copied = np.empty((len(part), *self.shape), np.uint8)
            part.copy_into(copied, gather)
            out[where] = copied
