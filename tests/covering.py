"""Few of many combinations: every pair of values (or triple) of different factors comes together in one of them."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def tuples_of(values: Sequence[Any], strength: int = 2) -> list[tuple[tuple[int, Any], ...]]:
    """Returns the pairs (or triples) of numbered values of a combination."""
    return list(combinations(enumerate(values), strength))


def covering(
    candidates: Sequence[T],
    factors: Callable[[T], Sequence[Any]],
    strength: int = 2,
    cost: Callable[[T], float] = lambda _: 1.0,
) -> list[T]:
    """Returns candidates in which all that comes together in some candidate comes together, greedily, in their order.

    Args:
        candidates: combinations that can be.
        factors: a candidate's values, hashable, one for each factor.
        strength: how many values come together: 2 pairs, 3 triples.
        cost: of a candidate, above 0: the next one is that which adds most for its cost.
    """
    numbers: dict[Any, int] = {}
    ids = np.array(
        [[numbers.setdefault(one, len(numbers)) for one in tuples_of(factors(each), strength)] for each in candidates]
    )
    costs = np.array([cost(each) for each in candidates])
    is_missing, chosen = np.ones(len(numbers), bool), []
    while is_missing.any():
        best = int(np.argmax(is_missing[ids].sum(axis=1) / costs))
        is_missing[ids[best]] = False
        chosen.append(best)
    return [candidates[at] for at in sorted(chosen)]
