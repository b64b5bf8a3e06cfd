"""What lies in a dataset: an ImageDataset may be wrapped, by timm or by the user."""

from collections.abc import Iterator
from typing import Any


def unwrap(dataset: Any) -> Iterator[Any]:
    """Yields a dataset, what it reads from (its `reader` or `dataset`), and so on to the innermost."""
    seen: set[int] = set()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        yield dataset
        dataset = getattr(dataset, "reader", None) or getattr(dataset, "dataset", None)
