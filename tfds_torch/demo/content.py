"""Content: what the builder writes, whoever made it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Example = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """What is written into the files of a dataset.

    Attributes:
        info: the arguments of `tfds.core.DatasetInfo`: features, description and so on.
        make_examples: yields the examples of a split, each with its key, which is unique in the split.
    """

    info: dict[str, Any]
    make_examples: Callable[[str], Iterator[tuple[int, Example]]]
