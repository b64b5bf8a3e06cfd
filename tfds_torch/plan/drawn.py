"""The order of examples that are drawn by weights, with replacement: an endless row of independent draws."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.mixed import MixtureSlots
from tfds_torch.plan.order import LARGEST_KEY, Int64Array, draw_uniforms
from tfds_torch.plan.subset import ArrayValue, Subset, as_array
from tfds_torch.plan.weights import MOST_SLOTS
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted


class DrawWeights(ArrayValue):
    """Weights of n examples: float64 [n], finite, >= 0, with a sum > 0."""

    def at(self, uniforms: NDArray[np.float64]) -> Int64Array:
        """Returns which examples are drawn by numbers in 0..1, [n] each."""
        found: Int64Array = np.searchsorted(self._cumulative, uniforms, side="right")
        return found

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        sums = np.cumsum(self.values / self.values.max())
        cumulative: NDArray[np.float64] = sums / sums[-1]
        # What rounding leaves behind the last positive weight belongs to that one.
        cumulative[np.flatnonzero(self.values)[-1] :] = np.inf
        return cumulative


@dataclass(frozen=True)
class WeightedOrder:
    """A row of slots, each with an example that is drawn by weights; epoch e is slots [e E, (e + 1) E).

    A slot's draw depends on the seed and the slot alone. Nothing grows with the slot.

    Attributes:
        num_examples: examples of the split.
        weights: of the examples that are drawn.
        epoch_size: E, slots of an epoch, >= 1.
        seed: of the draws.
        subset: the examples that the weights are of; None: all of the split.
    """

    num_examples: int
    weights: DrawWeights
    epoch_size: int
    seed: int = 42
    subset: Subset | None = None

    shuffle = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))

    def at(self, slots: Int64Array) -> MixtureSlots:
        """Returns what lies in any slots, int64 [n]: each draw is a pass of its own, with random numbers of its own."""
        drawn = self.weights.at(draw_uniforms(slots, self._seed, 1)[:, 0])
        index = drawn if self.subset is None else self.subset.numbers[drawn]
        return MixtureSlots(np.zeros_like(index), slots, index, index)

    @property
    def num_keyed(self) -> int:
        """How many slots have sample keys that fit into int64."""
        return LARGEST_KEY // max(1, self.num_examples)

    @cached_property
    def _seed(self) -> int:
        """A seed of its own, so that draws and crops do not depend on each other."""
        key = f"tfds_torch weighted 1: seed {self.seed}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")


def make_draw_weights(weights: object, num_examples: int) -> DrawWeights:
    """Returns weights that a caller gives, [n].

    Raises:
        ConfigError: they are not `num_examples` finite numbers >= 0, or all of them are 0.
    """
    found = as_array(weights)
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        raise ConfigError(
            f"weights={quoted(weights)} must be a list of numbers, one for each example; it has the shape "
            f"{found.shape} and the type {found.dtype}."
        )
    if len(found) != num_examples:
        raise ConfigError(
            f"weights: {len(found):,} were given, and there are {num_examples:,} examples: give one for each, in the "
            f"order of parser.indices. Weights of classes, an array, become those of examples by "
            f"weights[parser.targets()]."
        )
    values = found.astype(np.float64, copy=True)
    is_bad = ~np.isfinite(values) | (values < 0)
    if is_bad.any():
        at = int(np.flatnonzero(is_bad)[0])
        raise ConfigError(f"weights: {values[at]} at place {at:,} must be a finite number >= 0.")
    if not values.any():
        raise ConfigError("weights: all of them are 0, so that nothing can be drawn. Make one positive.")
    values.setflags(write=False)
    return DrawWeights(values)
