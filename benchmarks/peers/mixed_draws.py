"""Whose example comes when several datasets are mixed by weights: ours, Grain's, torchdata's, and independent draws.

Configured: Grain's `MapDataset.mix` over ranges, element by element; torchdata's `MultiNodeWeightedSampler` over
iterators that repeat their member's number, for ever (`CYCLE_FOREVER`), on one rank; numpy's `Generator.choice` with
the weights as probabilities. Each gets the weights as they are, and rounds them in its own way: this package to
1/65,536, Grain to whole multiples of a hundredth of the least weight. All else is a default.
"""

from collections.abc import Callable, Sequence
from itertools import islice, repeat

import numpy as np

from tfds_torch.plan.mixture_order import MixtureMember, MixtureOrder
from tfds_torch.plan.mixture_weights import make_segments
from tfds_torch.plan.order import Int64Array

Draw = Callable[[Sequence[float], int, int], Int64Array]
"""Weights by member, number of examples, seed -> the member of each example, int64 [n]."""

_A_MEMBER = 1 << 40  # Numbers of a range: so many that none ends.


def draw_ours(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """Returns the member of each of the first examples, int64 [num_examples]: those of a ParserMixture."""
    sizes = {str(number): _A_MEMBER for number in range(len(weights))}
    segments, _ = make_segments(sizes, dict(zip(sizes, weights, strict=True)))
    members = tuple(MixtureMember(name, size) for name, size in sizes.items())
    return MixtureOrder(members, segments, num_examples, seed, shuffle=False).at(np.arange(num_examples)).member


def draw_grain(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`; Grain's proportions need no seed."""
    import grain

    ranges = [grain.MapDataset.range(number * _A_MEMBER, (number + 1) * _A_MEMBER) for number in range(len(weights))]
    mixed = grain.MapDataset.mix(ranges, weights)
    return np.fromiter((mixed[slot] for slot in range(num_examples)), np.int64, num_examples) // _A_MEMBER


def draw_torchdata(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`."""
    from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler, StopCriteria

    node = MultiNodeWeightedSampler(
        {str(number): IterableWrapper(repeat(number)) for number in range(len(weights))},
        {str(number): float(weight) for number, weight in enumerate(weights)},
        stop_criteria=StopCriteria.CYCLE_FOREVER,
        rank=0,
        world_size=1,
        seed=seed,
    )
    node.reset()
    return np.fromiter(islice(node, num_examples), np.int64, num_examples)


def draw_independently(weights: Sequence[float], num_examples: int, seed: int) -> Int64Array:
    """As `draw_ours`."""
    shares = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(weights), num_examples, p=shares)


def largest_deviation(member: Int64Array, weights: Sequence[float]) -> float:
    """Returns by how much any prefix of n examples differs at most from n x weight, for any member.

    Args:
        member: int64 [n], whose each example is.
        weights: by member; they need not add up to 1.
    """
    found, numbers, total = 0.0, np.arange(1, len(member) + 1), sum(weights)
    for number, weight in enumerate(weights):
        found = max(found, float(np.abs(np.cumsum(member == number) - numbers * (weight / total)).max()))
    return found
