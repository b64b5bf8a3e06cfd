"""The features of a dataset as plain values, and how one is found by its key.

`connectors.py` makes them from the objects of TFDS, so that workers, which get them pickled, do without TFDS. A key is
looked for literally first, then with "/" as nesting: coco and voc have literal keys with a slash.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec


@dataclass(frozen=True, repr=False)
class Feature:
    """A feature of a dataset.

    Attributes:
        text: its description by TFDS, for messages.
        spec: FieldSpec of one value as the dataset declares it, or a dictionary of them.
    """

    text: str
    spec: Any

    def __repr__(self) -> str:
        return self.text

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of one value, or None for a dictionary."""
        return self.spec.shape if isinstance(self.spec, FieldSpec) else None


@dataclass(frozen=True, repr=False)
class Dictionary(Feature):
    """Features by their keys."""

    features: Mapping[str, Feature]


@dataclass(frozen=True, repr=False)
class Repeated(Feature):
    """A sequence of a feature, or a nested dataset of steps."""

    feature: Feature
    is_dataset: bool


@dataclass(frozen=True, repr=False)
class Leaf(Feature):
    """A feature that holds no others.

    Attributes:
        kind: the kind of feature; all kinds but `image` and `other` are tensors. `box` is [ymin, xmin, ymax, xmax],
            relative to the image; an `other box` has another form, or an unknown one.
        stored: FieldSpec of a value as it is stored, or of its parts by name.
        decode: makes a value of its stored parts; None if it is stored as it is.
        only_tensorflow: name of the class that decodes it with tensorflow only, or None.
        num_classes: number of classes of a label, as declared: 0 or None where it is unknown.
        class_names: names of a label's classes, or None.
        none: the number that TFDS reads where an example has None: the least number of the stored dtype. None if
            the feature is not optional, or if that number is also an ordinary value (0 and False).
    """

    kind: Literal["image", "label", "text", "box", "other box", "tensor", "other"]
    stored: FieldSpec | Mapping[str, FieldSpec]
    decode: Callable[..., Any] | None
    only_tensorflow: str | None
    num_classes: int | None
    class_names: tuple[str, ...] | None
    none: float | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, and not an image."""
        return self.kind not in ("image", "other")


@dataclass(frozen=True)
class FoundFeature:
    """A feature and the way to it.

    Attributes:
        path: keys from the top level down.
        feature: the feature itself.
        sequence_depth: 1-based position in `path` of the first key that names a sequence of dictionaries, else 0.
    """

    path: tuple[str, ...]
    feature: Feature
    sequence_depth: int = 0


def features_by_key(features: Feature) -> Mapping[str, Feature]:
    """Return the features of a dataset, which may be a sequence of dictionaries, by their keys."""
    features = innermost(features)
    return features.features if isinstance(features, Dictionary) else {}


def find_feature(features: Feature, key: str) -> FoundFeature | None:
    """Return the feature that a key names, or None."""
    return _find(features_by_key(features), key.split("/"), (), 0)


def list_keys(features: Feature, prefix: str = "") -> Iterator[str]:
    """Yield the keys of all features, nested ones joined by "/"."""
    for key, feature in sorted(features_by_key(features).items()):
        yield prefix + key
        if _has_keys(feature):
            yield from list_keys(feature, f"{prefix}{key}/")


def list_leaves(features: Feature) -> Iterator[tuple[str, Leaf]]:
    """Yield every feature that holds no others with its key; a sequence of them stands for its innermost element."""
    for key in list_keys(features):
        found = find_feature(features, key)
        leaf = innermost(found.feature) if found else None
        if isinstance(leaf, Leaf):
            yield key, leaf


def describe_missing(what: str, key: str, features: Feature) -> str:
    """Return a message about a key that does not exist: the keys that do, and the nearest of them."""
    there = list(list_keys(features))
    return (
        f"There is no {what} {quoted(key)}. The dataset's features are: {', '.join(there)}.{did_you_mean(key, there)}"
    )


def innermost(feature: Feature) -> Feature:
    """Return the innermost element of a sequence, or of a sequence of sequences."""
    while isinstance(feature, Repeated):
        feature = feature.feature
    return feature


def _find(
    features: Mapping[str, Feature], parts: list[str], path: tuple[str, ...], sequence_depth: int
) -> FoundFeature | None:
    for length in range(len(parts), 0, -1):
        key, rest = "/".join(parts[:length]), parts[length:]
        if key not in features:
            continue
        feature = features[key]
        here = (*path, key)
        if not rest:
            return FoundFeature(here, feature, sequence_depth)
        if _has_keys(feature):
            is_first_sequence = not sequence_depth and isinstance(feature, Repeated)
            found = _find(features_by_key(feature), rest, here, len(here) if is_first_sequence else sequence_depth)
            if found:
                return found
    return None


def _has_keys(feature: Feature) -> bool:
    """Return whether it is a nested dictionary, or a sequence of dictionaries."""
    return isinstance(feature.feature if isinstance(feature, Repeated) else feature, Dictionary)
