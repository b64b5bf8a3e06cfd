"""Drawn: examples drawn by weights, with replacement, as an endless row of independent draws."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import LARGEST_KEY, MOST_SLOTS, Int64Array, Order, Promise, draw_uniforms
from tfds_torch.plan.subset import ArrayValue, Subset, as_array
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.identity import Identity
from tfds_torch.runtime.printable import quoted


class DrawWeights(ArrayValue):
    """Weights of n examples: float64 [n], finite, >= 0, with a sum > 0."""

    def at(self, uniforms: NDArray[np.float64]) -> Int64Array:
        """Return which examples are drawn by numbers in 0..1: int64 [n] for float64 [n]."""
        found: Int64Array = np.searchsorted(self._cumulative, uniforms, side="right")
        return found

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        sums = np.cumsum(self.values / self.values.max())
        cumulative: NDArray[np.float64] = sums / sums[-1]
        # The rest that rounding leaves behind the last positive weight belongs to that weight.
        cumulative[np.flatnonzero(self.values)[-1] :] = np.inf
        return cumulative


@dataclass(frozen=True)
class Drawn(Order):
    """Examples that are drawn by weights, with replacement.

    A slot's draw depends on the seed and the slot alone. Each draw is its own pass, and so has its own random numbers.

    Attributes:
        n: number of examples of the dataset.
        weights: weights of the examples that are drawn.
        epoch_size: E, slots of an epoch, >= 1.
        seed: seed of the draws, >= 0.
        subset: the examples that the weights are of; None: all N.
    """

    n: int
    weights: DrawWeights
    epoch_size: int
    seed: int = 42
    subset: Subset | None = None

    shuffle = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))

    @property
    def num_examples(self) -> int:  # noqa: D102
        return self.n

    @property
    def num_slots(self) -> int:  # noqa: D102
        return self.epoch_size

    @property
    def is_endless(self) -> bool:  # noqa: D102
        return True

    @property
    def num_keyed(self) -> int:
        """Slots from 0 on whose sample keys fit into int64: each is a pass."""
        return LARGEST_KEY // max(1, self.n)

    def at(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:  # noqa: D102
        drawn = self.weights.at(draw_uniforms(slots, self._seed, 1)[:, 0])
        return slots, drawn if self.subset is None else self.subset.numbers[drawn]

    def identity(self) -> Identity:  # noqa: D102
        return {
            "kind": "drawn",
            "num_examples": self.n,
            "num_slots": self.epoch_size,
            "seed": self.seed,
            "shuffle": True,
            "weights": self.weights.digest,
            "subset": None if self.subset is None else self.subset.digest,
        }

    def promise(self) -> Promise:  # noqa: D102
        return Promise(
            who="every example",
            often="as often as the order of the weights draws it",
            pass_size=self.n,
            remedy="Leave out the weights: every example then comes exactly once.",
            count=self._count,
        )

    def _count(self, num_slots: int) -> tuple[Int64Array, Int64Array]:
        drawn = np.bincount(self.at(np.arange(num_slots, dtype=np.int64))[1], minlength=self.n)
        return drawn, drawn

    @cached_property
    def _seed(self) -> int:
        """The seed of the draws, another one than that of crops, so that neither depends on the other."""
        key = f"tfds_torch weighted 1: seed {self.seed}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")


def make_draw_weights(weights: object, num_examples: int) -> DrawWeights:
    """Return the weights [n] that a caller passes, checked.

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
