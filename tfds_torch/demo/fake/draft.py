"""One example while it is made, and the place of a feature in it."""

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.demo.fake import words
from tfds_torch.demo.fake.scene import Scene
from tfds_torch.errors import ConfigError

MASK_WORDS = frozenset({"mask", "masks", "segmentation", "label", "labels", "annotation", "annotations"})


@dataclass
class Draft:
    """One example while it is made.

    Attributes:
        label: what it looks and reads like.
        rng: seeded for this example alone.
        scene: what its images show.
        file_suffix: of its file's name, `.jpg`.
        visits: path of a feature -> how many values it has been given.
    """

    seed: int
    split: str
    index: int
    label: int
    rng: np.random.Generator
    scene: Scene
    file_suffix: str
    visits: Counter[str] = field(default_factory=Counter)


Fill = Callable[[Draft], Any]
"""Makes up the value of one feature, as TFDS's `encode_example` takes it."""


@dataclass(frozen=True)
class Place:
    """Where a feature stands.

    Attributes:
        dataset: `name/config:version`.
        path: keys from the top level down, joined by "/".
        is_repeated: whether it is within a sequence.
    """

    dataset: str
    path: str = ""
    is_repeated: bool = False

    @property
    def words(self) -> list[str]:
        """The words of its key."""
        return words.split_key(self.path)

    def below(self, key: str) -> "Place":
        """Returns the place of a dictionary's feature."""
        return replace(self, path=f"{self.path}/{key}" if self.path else key)

    def repeated(self) -> "Place":
        """Returns the place of a sequence's elements."""
        return replace(self, is_repeated=True)

    def count_visit(self, draft: Draft) -> int:
        """Returns how many values the feature had in this example before this one."""
        visit = draft.visits[self.path]
        draft.visits[self.path] += 1
        return visit

    def refuse(self, feature: Any, reason: str) -> ConfigError:
        """Returns the error: nothing can be made up for the feature that stands here."""
        return ConfigError(
            f"The feature {self.path!r} of '{self.dataset}' is a {type(feature).__name__} for which no content can be "
            f"made up: {reason}. Choose another dataset, or another config of it."
        )


def deal_class(seed: int, split: str, path: str, num_classes: int, index: int) -> int:
    """Returns example `index`'s class: each comes once in every num_classes examples, in ever another order."""
    deal, position = divmod(index, num_classes)
    return int(_shuffle_classes(seed, split, path, num_classes, deal)[position])


@lru_cache(maxsize=64)
def _shuffle_classes(seed: int, split: str, path: str, num_classes: int, deal: int) -> NDArray[np.int64]:
    rng = np.random.default_rng([seed, zlib.crc32(split.encode()), zlib.crc32(path.encode()), deal])
    return rng.permutation(num_classes)
