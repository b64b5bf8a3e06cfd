"""Find the target that target_key names: one feature, or several binary fields that make up one label."""

from collections.abc import Sequence

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.feature_tree import (
    Feature,
    FoundFeature,
    Leaf,
    describe_missing,
    find_feature,
    innermost,
    list_leaves,
)
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

_MOST_SUGGESTED = 3


def parse_target_key(target_key: object, features: Feature) -> str | tuple[str, ...] | None:
    """Return the key of a target, or the keys of several fields.

    Args:
        target_key: a feature's key; several, as a sequence or as timm writes them, "cat,dog"; or None.
        features: the features of the dataset. A feature whose own key has a comma wins over several keys.

    Raises:
        ConfigError: `target_key` is of another type, or one of several keys is empty or repeated.
    """
    if target_key is None or (isinstance(target_key, str) and not _names_several(target_key, features)):
        return target_key
    if not isinstance(target_key, Sequence) or isinstance(target_key, bytes):
        raise ConfigError(f"target_key={quoted(target_key)} must be a feature's key, a sequence of keys, or None.")
    keys = [key.strip() for key in target_key.split(",")] if isinstance(target_key, str) else list(target_key)
    if not keys or not all(isinstance(key, str) and key for key in keys) or len(set(keys)) < len(keys):
        raise ConfigError(
            f"target_key={quoted(target_key)}: several target keys must be different names of features, none of them "
            f"empty, like ('cat', 'dog')."
        )
    return tuple(keys)


def find_binary_fields(keys: Sequence[str], features: Feature, dataset: str) -> tuple[FoundFeature, ...]:
    """Return the features of several target keys.

    Raises:
        ConfigError: a feature does not exist, or is not a scalar number.
    """
    fields = []
    for key in keys:
        found = find_feature(features, key)
        if found is None:
            raise ConfigError(f"{dataset}: {describe_missing('target feature', key, features)}")
        if not _is_scalar_number(found):
            raise ConfigError(
                f"{dataset}: the target field {quoted(key)} is not a scalar number but {quoted(found.feature)}. "
                f"Several target keys name binary fields, each a number that means yes where it is > 0."
            )
        fields.append(found)
    return tuple(fields)


def class_names(target_key: str | tuple[str, ...] | None, features: Feature) -> list[str] | None:
    """Return the names of a target's classes, by label; None if it has no classes, or does not exist.

    A sequence of labels has the classes of its labels. With several target keys each key is a class.
    """
    if isinstance(target_key, tuple):
        return list(target_key)
    found = find_feature(features, target_key) if target_key else None
    if found is None:
        return None
    leaf = innermost(found.feature)
    if not isinstance(leaf, Leaf) or leaf.num_classes is None:
        return None
    return list(leaf.class_names or map(str, range(leaf.num_classes)))


def suggest_targets(features: Feature) -> str:
    """Return advice for a missing target: sentences that follow a message."""
    labels = [key for key, leaf in list_leaves(features) if leaf.kind == "label"]
    others = "target_key=None, and fields=('image', ...) with the features that are wanted"
    if not labels:
        return f" It has no labels with classes: use {others}."
    choice = " or ".join(f"target_key={quoted(key)}" for key in labels[:_MOST_SUGGESTED])
    return f" Use {choice} (of a sequence, all labels of an example), or {others}."


def _names_several(target_key: str, features: Feature) -> bool:
    return "," in target_key and find_feature(features, target_key) is None


def _is_scalar_number(found: FoundFeature) -> bool:
    leaf = found.feature
    if not isinstance(leaf, Leaf) or not leaf.is_tensor or found.sequence_depth or leaf.shape != ():
        return False
    # PositionsField does not read numbers that are stored as bytes, for example compressed ones.
    return isinstance(leaf.stored, FieldSpec) and np.dtype(leaf.stored.dtype).kind in "iufb"


def check_can_be_mapped(target_key: str | tuple[str, ...] | None, features: Feature, dataset: str) -> None:
    """Raise ConfigError where a class map cannot give a target new labels: it is neither integers nor texts."""
    if isinstance(target_key, tuple):
        return
    if target_key is None:
        raise ConfigError(f"{dataset}: class_map gives the target new labels, but there is none: target_key=None.")
    found = find_feature(features, target_key)
    if found is None:
        raise ConfigError(f"{dataset}: {describe_missing('target feature', target_key, features)}")
    leaf = innermost(found.feature)
    if not isinstance(leaf, Leaf) or not leaf.is_tensor or np.dtype(leaf.spec.dtype).kind not in "iubOSU":
        raise ConfigError(
            f"{dataset}: class_map gives new labels to integers and texts, and the target {quoted(target_key)} is "
            f"{quoted(found.feature)}. Set target_key, or class_map=None."
        )
