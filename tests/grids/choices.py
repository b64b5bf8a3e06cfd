"""How examples are chosen of a split, and what that promises. Plain values: it knows nothing of the package's plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALL, SUBSET, CLASSES, WEIGHTED = "all", "subset", "classes", "weighted"


@dataclass(frozen=True)
class Choice:
    """Which examples of a split of n come in training.

    Attributes:
        numbers: in the order in which they stand; a pass of a subset has each of them once.
        classes: sets of them that go through passes of their own; none: there is one set.
        shares: of the classes, of every beginning of the training; none: they are equal.
        epoch_size: of an epoch; None: all of `numbers`.
        is_drawn: whether they are drawn with replacement, so that no pass is promised.
    """

    numbers: Sequence[int]
    classes: Sequence[Sequence[int]] = ()
    shares: Sequence[float] = ()
    epoch_size: int | None = None
    is_drawn: bool = False

    @property
    def num_slots(self) -> int:
        """Examples of an epoch."""
        return self.epoch_size or len(self.numbers)


def choose(parser: Any, how: str) -> Any:
    """Returns a parser of some of its examples."""
    num_examples = len(parser)
    if how == SUBSET:
        return parser.subset(numbers_of_subset(num_examples))
    if how == CLASSES:
        return parser.subset(numbers_of_subset(num_examples)).balanced(epoch_size=_EPOCH_SIZE)
    if how == WEIGHTED:
        return parser.weighted(weights_of(num_examples), epoch_size=_EPOCH_SIZE)
    return parser


def make_choice(how: str, labels: Sequence[int]) -> Choice:
    """Returns what `choose` promises of a split with these labels."""
    numbers = range(len(labels))
    subset = numbers_of_subset(len(labels))
    if how == SUBSET:
        return Choice(subset)
    if how == CLASSES:
        found = sorted({labels[number] for number in subset})
        classes = [[number for number in subset if labels[number] == label] for label in found]
        return Choice(subset, classes, epoch_size=_EPOCH_SIZE)
    if how == WEIGHTED:
        weights = weights_of(len(labels))
        return Choice([number for number in numbers if weights[number]], epoch_size=_EPOCH_SIZE, is_drawn=True)
    return Choice(numbers)


_EPOCH_SIZE = 101


def numbers_of_subset(num_examples: int) -> list[int]:
    """Returns four of five examples, in an order that is neither that of the split nor its reverse."""
    numbers = [number for number in range(num_examples) if number % 5 != 2]
    return numbers[1::2][::-1] + numbers[::2]


def weights_of(num_examples: int) -> list[float]:
    """Returns a weight for each example; every fourth one must never come."""
    return [float(number % 4 * (1 + number % 3)) for number in range(num_examples)]
