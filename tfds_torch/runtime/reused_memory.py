"""ReusedMemory: memory of one process for its batches, used over and over."""

import math
import weakref

import numpy as np
from numpy.typing import NDArray


class ReusedMemory:
    """Memory that one process keeps for its own batches. Thread-safe.

    A batch of 128 photographs takes 19 MB. Fresh memory of that size comes from the system page by page, which took a
    sixth of a worker's time, and is given back at once. Here it is used again as soon as nothing refers to what was
    handed out, neither tensors nor arrays nor views.

    Args:
        most_kept: blocks that are kept while nobody uses them.
        kept_bytes: of all of them, up to which more are kept: small batches are made several at a time.
    """

    def __init__(self, most_kept: int = 4, kept_bytes: int = 1 << 24) -> None:
        self._most_kept, self._kept_bytes = most_kept, kept_bytes
        # No lock: garbage collection may give memory back at any moment, also within `take` in the same thread.
        self._blocks: list[NDArray[np.uint8]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Returns memory of any content, uint8, contiguous."""
        num_bytes = math.prod(shape)
        block = self._pop(num_bytes)
        if block is None:
            block = np.empty(num_bytes, np.uint8)
        # A new object over the same memory: it lives as long as any view of it.
        array = np.frombuffer(block.data, np.uint8)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def _pop(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Returns a block that is kept, of this size; None: there is none. Each step is atomic."""
        others: list[NDArray[np.uint8]] = []
        found: NDArray[np.uint8] | None = None
        while found is None and self._blocks:
            try:
                block = self._blocks.pop()
            except IndexError:  # Another thread took it.
                break
            if block.size == num_bytes:
                found = block
            else:
                others.append(block)
        self._blocks.extend(others)
        return found

    def _give_back(self, block: NDArray[np.uint8]) -> None:
        kept = list(self._blocks)
        if len(kept) < self._most_kept or sum(one.size for one in kept) + block.size <= self._kept_bytes:
            self._blocks.append(block)
