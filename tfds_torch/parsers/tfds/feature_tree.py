"""Finding a feature by its key: literally first, then with "/" as nesting.

Datasets such as coco and voc have literal keys with a slash (`image/filename`), so nesting is only tried after them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted


@dataclass(frozen=True)
class FoundFeature:
    """A feature and the way to it.

    Attributes:
        path: keys from the top level down.
        connector: the TFDS feature connector.
        sequence_depth: 1-based position in `path` of the first key that names a sequence of dictionaries; 0: none.
    """

    path: tuple[str, ...]
    connector: Any
    sequence_depth: int = 0


def find_feature(features: Any, key: str) -> FoundFeature | None:
    """Returns the feature that a key names, or None.

    Args:
        features: TFDS `FeaturesDict`, or a sequence of one.
        key: literal key, or keys joined by "/".
    """
    return _find(features, key.split("/"), (), 0)


def list_keys(features: Any, prefix: str = "") -> Iterator[str]:
    """Yields the keys of all features, nested ones joined by "/"."""
    for key, connector in sorted(features.items()):
        yield prefix + key
        inner = _inner_dict(connector)
        if inner is not None:
            yield from list_keys(inner, f"{prefix}{key}/")


def describe_missing(what: str, key: str, features: Any) -> str:
    """Returns a message about a key that does not exist: what is there, and the nearest one."""
    there = list(list_keys(features))
    return (
        f"There is no {what} {quoted(key)}. The dataset's features are: {', '.join(there)}.{did_you_mean(key, there)}"
    )


def holds_boxes(connector: Any) -> bool:
    """Whether a feature is a bounding box, or has some within it."""
    if isinstance(connector, tfds.features.BBoxFeature):
        return True
    if _is_dict(connector):
        return any(holds_boxes(inner) for inner in connector.values())
    return isinstance(connector, tfds.features.Sequence) and holds_boxes(connector.feature)


def _find(features: Any, parts: list[str], path: tuple[str, ...], sequence_depth: int) -> FoundFeature | None:
    for length in range(len(parts), 0, -1):
        key, rest = "/".join(parts[:length]), parts[length:]
        if key not in features:
            continue
        connector = features[key]
        here = (*path, key)
        if not rest:
            return FoundFeature(here, connector, sequence_depth)
        inner = _inner_dict(connector)
        if inner is not None:
            is_first_sequence = not sequence_depth and not _is_dict(connector)
            found = _find(inner, rest, here, len(here) if is_first_sequence else sequence_depth)
            if found:
                return found
    return None


def _inner_dict(connector: Any) -> Any:
    """Returns the features inside a nested dictionary or a sequence of dictionaries, else None."""
    if _is_dict(connector):
        return connector
    inner = getattr(connector, "feature", None)
    return inner if _is_dict(inner) else None


def _is_dict(connector: Any) -> bool:
    # Asked of the type: a TFDS sequence forwards unknown attributes to what it holds.
    return hasattr(type(connector), "items")
