"""In which order examples came: a sample of epoch 0, and beside it what a shuffle buffer would have done. Pure."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.epoch import EpochPlan

NUM_POINTS = 2_000
BUFFER = 8_192
"""Examples in the shuffle buffer that is compared with."""
_CHUNK = 1 << 20

Int64Array = NDArray[np.int64]


class OrderSample:
    """Which examples came at some positions of the first pass of epoch 0, over all ranks.

    The batches of all ranks stand in the order of training: batch 0 of every rank, then batch 1.

    Args:
        plan: of epoch 0; its seed chooses the positions.
        num_points: positions at most; each of so many equal stretches of the pass has one, drawn at random.
    """

    def __init__(self, plan: EpochPlan, num_points: int = NUM_POINTS) -> None:
        self._plan = plan
        self.num_positions = min(plan.pass_size, plan.num_batches * plan.global_batch_size)
        num_points = min(num_points, self.num_positions)
        starts = np.arange(num_points + 1) * self.num_positions // max(1, num_points)
        self._positions = np.random.default_rng(plan.seed).integers(starts[:-1], starts[1:])
        self._indices = np.full(num_points, -1, np.int64)
        self._num_batches: Counter[int] = Counter()

    def add(self, rank: int, index: Int64Array) -> None:
        """Takes the indices, int64 [n], of a rank's next batch."""
        first = self._num_batches[rank] * self._plan.global_batch_size + rank * self._plan.batch_size
        self._num_batches[rank] += 1
        stop = first + min(len(index), self._plan.batch_size)
        begin, end = np.searchsorted(self._positions, [first, stop])
        self._indices[begin:end] = index[self._positions[begin:end] - first]

    @property
    def came(self) -> tuple[Int64Array, Int64Array]:
        """Positions and the indices that came there, int64 [n] each; what has not come is not among them."""
        has_come = self._indices >= 0
        return self._positions[has_come], self._indices[has_come]


def shuffle_by_buffer(num_examples: int, positions: Int64Array, seed: int, buffer_size: int = BUFFER) -> Int64Array:
    """Returns the indices, int64 [n], that a shuffle buffer yields at some ascending positions, int64 [n].

    tf.data's `shuffle(buffer_size)`, step by step: a buffer is filled with the first examples, then yields one of them,
    drawn at random, and takes the next one in its place; at the end it is emptied in random order.
    """
    found = [np.empty(0, np.int64)]
    start = 0
    for handed_over in _hand_over(num_examples, min(buffer_size, num_examples), np.random.default_rng(seed)):
        begin, end = np.searchsorted(positions, [start, start + len(handed_over)])
        found.append(handed_over[positions[begin:end] - start])
        start += len(handed_over)
    return np.concatenate(found)


def _hand_over(num_examples: int, size: int, random: np.random.Generator) -> Iterator[Int64Array]:
    """Yields the indices in the order in which a buffer of `size` yields them, part by part."""
    buffer = np.arange(size)
    for first in range(size, num_examples, _CHUNK):
        arrived = np.arange(first, min(first + _CHUNK, num_examples))
        slots = random.integers(size, size=len(arrived))
        # What a draw finds in its slot arrived with the latest draw of that slot, or was there before this part.
        order = np.argsort(slots, kind="stable")
        is_first = np.diff(slots[order], prepend=-1) != 0
        handed_over = np.empty_like(arrived)
        handed_over[order] = np.where(is_first, buffer[slots[order]], np.roll(arrived[order], 1))
        buffer[slots] = arrived  # Of equal slots the last one counts.
        yield handed_over
    yield random.permutation(buffer)
