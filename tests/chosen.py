"""Some of 41 numbered examples, chosen in every way that a parser offers, and what each must deliver.

Importable by every child. What is promised is arithmetic of its own: it knows nothing of the package's plan.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numbered_episodes import EPOCH_SIZE, MEMBERS, member_ranges

NUM_NUMBERED = 41
SUBSET = list(range(40, 10, -1))
WEIGHTS = np.arange(41.0)

CHOICES: dict[str, Callable[[Any], Any]] = {
    "subset": lambda parser: parser.subset(SUBSET),
    "subset of a subset": lambda parser: parser.subset(np.arange(41) % 3 > 0).subset(np.arange(27) < 20),
    "balanced": lambda parser: parser.subset(range(20)).balanced(epoch_size=33),
    "classes": lambda parser: parser.balanced(),
    "classes of a subset": lambda parser: parser.subset(SUBSET).balanced(epoch_size=33),
    "weighted": lambda parser: parser.weighted(WEIGHTS, epoch_size=33),
}


def choose(parser: Any, how: str) -> Any:
    """Returns a parser of some examples; `all`: of all of them."""
    return parser if how == "all" else CHOICES[how](parser)


def class_of(number: int) -> int:
    """Returns the class of an example, where examples have classes: of 1, 6, 11 and 23 examples, scattered."""
    return sum(number * 7 % NUM_NUMBERED >= first for first in (1, 7, 18))


@dataclass(frozen=True)
class Promise:
    """What an endless training delivers.

    Attributes:
        epoch_size: examples of an epoch; what comes behind them fills its last batch.
        groups: sets of examples, each of which goes through passes of its own, with every example once in each.
        others: examples that may come at any time.
        shares: of each group, of every beginning of the training; none: they are not promised.
    """

    epoch_size: int
    groups: Sequence[Sequence[int]]
    others: Sequence[int] = ()
    shares: Sequence[float] = ()

    def distance(self, row: Sequence[int]) -> float:
        """Returns how many examples a group is from its share, at most, in the beginnings of a row."""
        farthest = 0.0
        for group, share in zip(self.groups, self.shares, strict=bool(self.shares)):
            came = np.cumsum([one in group for one in row])
            farthest = max(farthest, float(np.abs(came - share * np.arange(1, len(row) + 1)).max(initial=0)))
        return farthest

    def count(self, row: Sequence[int]) -> tuple[int, int]:
        """Returns how many examples are lost, and how many come twice or need not come, in epochs without their fill.

        The last pass of a group may be cut off.
        """
        known = {*self.others}.union(*self.groups)
        lost, twice = 0, sum(one not in known for one in row)
        for group in self.groups:
            found = count_passes([one for one in row if one in group], group)
            lost, twice = lost + found[0], twice + found[1]
        return lost, twice


def count_passes(row: Sequence[int], members: Sequence[int]) -> tuple[int, int]:
    """Returns how many examples the whole passes of a row lack, and how many come twice within a pass."""
    lost = twice = 0
    for start in range(0, len(row), len(members)):
        came = row[start : start + len(members)]
        repeated = (Counter(came) - Counter(set(came))).total()
        twice += repeated
        lost += repeated if len(came) == len(members) else 0
    return lost, twice


def classes_of(numbers: Iterable[int]) -> list[list[int]]:
    """Returns the examples of each class."""
    return [list(group) for _, group in groupby(sorted(numbers, key=class_of), key=class_of)]


PROMISES = {
    "all": Promise(NUM_NUMBERED, [range(NUM_NUMBERED)]),
    "first 24": Promise(24, [range(24)]),
    "subset": Promise(len(SUBSET), [SUBSET]),
    "classes": Promise(NUM_NUMBERED, classes_of(range(NUM_NUMBERED))),
    "classes of a subset": Promise(33, classes_of(SUBSET)),
    "by weights": Promise(EPOCH_SIZE, member_ranges(), shares=[one.weight for one in MEMBERS.values()]),
    "weighted": Promise(33, [], [number for number in range(NUM_NUMBERED) if WEIGHTS[number]]),
}
