"""CachedPixels: images that a mapped cache may lose between being asked for and being copied."""

from collections.abc import Callable, Iterable
from typing import overload

from tfds_torch.errors import ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.stored_pixels import Gather, Pixels, StoredPixels, gather_with_numpy


class CachedPixels(StoredPixels):
    """Images out of a cache; where it was cut since they were asked for, they come from the original files.

    Args:
        stored: n images.
        index: int64 [n], of their examples.
        decode_original: yields images of examples, and is given the error for the file.
    """

    __slots__ = ("_decode_original", "_index", "_stored")

    def __init__(
        self,
        stored: StoredPixels,
        index: Int64Array,
        decode_original: Callable[[Int64Array, ShardError], Iterable[Pixels]],
    ) -> None:
        self._stored, self._index, self._decode_original = stored, index, decode_original
        self.shape = stored.shape

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, place: int) -> Pixels: ...

    @overload
    def __getitem__(self, place: slice) -> "CachedPixels": ...

    def __getitem__(self, place: int | slice) -> "Pixels | CachedPixels":
        if isinstance(place, slice):
            return CachedPixels(self._stored[place], self._index[place], self._decode_original)
        one: Pixels = self[place : place + 1 or None].copy()[0]
        return one

    def copy_into(self, out: Pixels, gather: Gather = gather_with_numpy) -> None:
        """See StoredPixels.

        Raises:
            ShardError: the cache was cut, and the original files cannot be read either.
        """
        try:
            self._stored.copy_into(out, gather)
        except ShardError as error:
            for row, image in zip(out, self._decode_original(self._index, error), strict=True):
                row[...] = image
