"""What the examples that came hold: how often each label, and images of which sizes. Pure."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfds_torch.check.ledger import Entry, RankEpoch

_MOST_LABELS_WITHOUT_NAMES = 1000


@dataclass(frozen=True)
class LabelCount:
    """How many examples of the split have a label.

    Attributes:
        label: the integer.
        name: its class's name; the integer as text where the dataset has no names.
        num_examples: examples with it, each counted once.
    """

    label: int
    name: str
    num_examples: int


@dataclass(frozen=True)
class ImageSizes:
    """Widths and heights of the images, pixels.

    Attributes:
        smallest: (width, height) of the image with the fewest pixels.
        median: of the image in the middle, by pixels.
        largest: of the image with the most pixels.
        mean_pixels: mean number of pixels.
    """

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    mean_pixels: float


def first_epoch(received: Sequence[RankEpoch]) -> list[Entry]:
    """Returns the valid examples of epoch 0 of all ranks, each once."""
    entries = (entry for rank in received if rank.epoch == 0 for entry in rank.entries if entry.valid)
    return list({entry.id: entry for entry in entries}.values())


def count_labels(entries: Sequence[Entry], class_names: Sequence[str] | None) -> list[LabelCount]:
    """Returns how often each label occurs, in the order of the labels.

    Args:
        entries: the examples.
        class_names: names by label; classes that do not occur are counted with 0. None: the dataset names none.

    Returns:
        A count for each label; nothing when the labels are no integers, or too many different ones without names (a
        target that is a quantity, not a class).
    """
    labels = [entry.label for entry in entries if isinstance(entry.label, int)]
    counts = Counter(labels)
    if class_names is None:
        if len(counts) > _MOST_LABELS_WITHOUT_NAMES:
            return []
        return [LabelCount(label, str(label), number) for label, number in sorted(counts.items())]
    if not labels:
        return []
    named = [LabelCount(label, name, counts.pop(label, 0)) for label, name in enumerate(class_names)]
    return named + [LabelCount(label, str(label), number) for label, number in sorted(counts.items())]


def measure_images(entries: Sequence[Entry]) -> ImageSizes | None:
    """Returns the sizes of the images; None without any."""
    sizes = sorted((entry.image_size for entry in entries if entry.image_size is not None), key=_by_pixels)
    if not sizes:
        return None
    mean = statistics.fmean(map(_num_pixels, sizes))
    return ImageSizes(sizes[0], sizes[len(sizes) // 2], sizes[-1], mean)


def _num_pixels(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _by_pixels(size: tuple[int, int]) -> tuple[int, int]:
    """Orders by pixels, then by width: the first and the last are equal only where all are."""
    return _num_pixels(size), size[0]
