"""StoredPixels: images that are stored as pixels, all of one size, where they lie in a mapped file."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
_SMALLEST_UNIT = 32  # Bytes that are copied at a time, where images lie at multiples of it.


class StoredPixels(Sequence[Pixels]):
    """n images, each uint8 [H, W, C]. Nothing is read before it is asked for. Threads may share it.

    Args:
        memory: uint8 [m], the mapped file.
        starts: int64 [n], where each image begins; the whole image lies inside of memory.
        shape: [H, W, C].
        unit: bytes of which the starts of all images of the file, and their size, are multiples.
        check: called before and after memory is copied; raises ShardError where the file was cut. None: it cannot be.
    """

    __slots__ = ("_check", "_memory", "_starts", "_unit", "shape")

    def __init__(
        self,
        memory: Pixels,
        starts: NDArray[np.int64],
        shape: tuple[int, int, int],
        unit: int = 1,
        check: Callable[[], object] | None = None,
    ) -> None:
        self._memory, self._starts, self.shape, self._unit, self._check = memory, starts, shape, unit, check

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> Pixels: ...

    @overload
    def __getitem__(self, place: slice) -> "StoredPixels": ...

    def __getitem__(self, place: int | slice) -> "Pixels | StoredPixels":
        if isinstance(place, slice):
            return StoredPixels(self._memory, self._starts[place], self.shape, self._unit, self._check)
        self._check_file()
        start = int(self._starts[place])
        return self._memory[start : start + math.prod(self.shape)].reshape(self.shape).copy()

    def __iter__(self) -> Iterator[Pixels]:
        return iter(list(self.copy()))

    def copy(self) -> Pixels:
        """Returns all of them, uint8 [n, H, W, C]."""
        out = np.empty((len(self), *self.shape), np.uint8)
        self.copy_into(out)
        return out

    def copy_into(self, out: Pixels) -> None:
        """Copies all of them, each once, into memory uint8 [n, H, W, C] of which every row is contiguous."""
        self._check_file()
        size = math.prod(self.shape)
        if self._unit >= _SMALLEST_UNIT and out.flags["C_CONTIGUOUS"]:
            unit = np.dtype((np.void, self._unit))
            units = self._memory[: len(self._memory) // self._unit * self._unit].view(unit)
            places = (self._starts // self._unit)[:, None] + np.arange(size // self._unit)
            np.take(units, places, out=out.reshape(len(self), size).view(unit), mode="clip")
        else:
            images = as_strided(self._memory, (len(self._memory) - size + 1, size), (1, 1), writeable=False)
            out.reshape(len(self), size)[...] = images[self._starts]
        self._check_file()  # Up to the end of its page, what was cut off meanwhile reads as zeros.

    def _check_file(self) -> None:
        if self._check is not None:
            self._check()

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)
