"""What lies in a dataset: an ImageDataset may be wrapped, by timm, by torch's ChainDataset or by the user."""

from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import Dataset

_Found = TypeVar("_Found")


def unwrap(dataset: Any) -> Iterator[Any]:
    """Yields a dataset and, from the outside in, what it reads from: its `reader`, and any dataset it has or lists."""
    found: list[Any] = [dataset]
    seen: list[Any] = []
    while found:
        layer = found.pop(0)
        if layer is None or any(layer is other for other in seen):
            continue
        seen.append(layer)
        yield layer
        for name, value in list(getattr(layer, "__dict__", {}).items()):
            values = value if isinstance(value, list | tuple) else [value]
            found += [inner for inner in values if isinstance(inner, Dataset) or name == "reader"]


def find_layer(dataset: Any, kind: type[_Found]) -> _Found | None:
    """Returns the outermost layer that is of a kind; None: there is none."""
    return next((layer for layer in unwrap(dataset) if isinstance(layer, kind)), None)
