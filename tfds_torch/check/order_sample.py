"""In which order examples came: a sample of epoch 0. Pure."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.epoch import EpochPlan

NUM_POINTS = 2_000

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
        self.num_positions = min(plan.order.num_slots, plan.num_batches * plan.global_batch_size)
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
