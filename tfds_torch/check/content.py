"""What the examples hold: how often each label, and images of which sizes. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_LABELS_WITHOUT_NAMES = 1000
_MOST_SHOWN, _NUM_EXTREME = 24, 5


@dataclass(frozen=True)
class LabelCount:
    """How many examples of the split have a label, and its class's name; without names the integer as text."""

    label: int
    name: str
    num_examples: int


@dataclass(frozen=True)
class ImageSizes:
    """(width, height) in pixels of the smallest, the middle and the largest of some images, by pixels."""

    num_images: int
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    mean_pixels: float


class Labels:
    """Counts how often each label occurs, each example once.

    Args:
        num_examples: of the split.
        class_names: names by label; classes that do not occur are counted with 0. None: the dataset names none.
    """

    def __init__(self, num_examples: int, class_names: Sequence[str] | None) -> None:
        self._class_names = class_names
        self._is_counted = np.zeros(num_examples, np.bool_)
        self._numbers: Counter[int] | None = Counter()  # None: it is a quantity, not a class.

    def add(self, index: NDArray[np.int64], labels: NDArray[np.int64] | None) -> None:
        """Counts examples, int64 [n], that were not counted before; without labels there is nothing to count."""
        if labels is None or self._numbers is None:
            return
        index, first = np.unique(index, return_index=True)
        is_new = ~self._is_counted[index]
        self._is_counted[index] = True
        self._numbers.update(labels[first[is_new]].tolist())
        if self._class_names is None and len(self._numbers) > _MOST_LABELS_WITHOUT_NAMES:
            self._numbers = None

    def counts(self) -> list[LabelCount]:
        """Returns how often each label occurs, in the order of the labels.

        Nothing when there were no integers, or too many different ones without names: a quantity, not a class.
        """
        if not self._numbers:
            return []
        names = self._class_names or ()
        named = [LabelCount(label, name, self._numbers[label]) for label, name in enumerate(names)]
        others = sorted(label for label in self._numbers if not 0 <= label < len(names))
        return named + [LabelCount(label, str(label), self._numbers[label]) for label in others]


def choose_shown(labels: Sequence[LabelCount]) -> tuple[list[LabelCount], str]:
    """Returns all of up to 24 labels, else the most frequent and the rarest, and a note about the others."""
    if len(labels) <= _MOST_SHOWN:
        return list(labels), ""
    by_number = sorted(labels, key=lambda count: -count.num_examples)
    absent = sum(not count.num_examples for count in labels)
    note = f"the {_NUM_EXTREME} most frequent and the {_NUM_EXTREME} rarest of {len(labels):,} labels"
    note += f"; {absent:,} do not occur" if absent else ""
    return [*by_number[:_NUM_EXTREME], *by_number[-_NUM_EXTREME:]], note


def measure_images(sizes: Iterable[tuple[int, int]]) -> ImageSizes | None:
    """Returns figures of (width, height); None without any."""
    ordered = sorted(sizes, key=_by_pixels)
    if not ordered:
        return None
    mean = statistics.fmean(width * height for width, height in ordered)
    return ImageSizes(len(ordered), ordered[0], ordered[len(ordered) // 2], ordered[-1], mean)


def _by_pixels(size: tuple[int, int]) -> tuple[int, int]:
    """Orders by pixels, then by width: the first and the last are equal only where all are."""
    return size[0] * size[1], size[0]
