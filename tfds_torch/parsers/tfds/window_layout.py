"""From the features of a dataset to where windows find them: which are one value a step, and how they are stored."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.feature_tree import (
    Dictionary,
    Feature,
    FoundFeature,
    Leaf,
    Repeated,
    describe_missing,
    find_feature,
    list_keys,
)
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.layout import EpisodeLayout, Numbers
from tfds_torch.storage.episodes.window_reader import WindowFeatures
from tfds_torch.storage.source import FieldSpec


def find_sequence(features: Feature, key: str, dataset: str) -> FoundFeature:
    """Returns the feature that holds the steps of an episode.

    Raises:
        ConfigError: there is none, it is no sequence, or it lies in another one.
    """
    if isinstance(features, Repeated):
        raise ConfigError(
            f"{dataset}: windows need records that are episodes, with a feature that holds their steps. The records of "
            f"this dataset are sequences themselves."
        )
    found = find_feature(features, key)
    sequences = [name for name in list_keys(features) if _is_sequence(find_feature(features, name))]
    there = f" Its sequences are: {', '.join(sequences)}." if sequences else " It has no sequences at all."
    if found is None:
        raise ConfigError(f"{dataset}: {describe_missing('sequence', key, features)}{there}")
    if not isinstance(found.feature, Repeated):
        raise ConfigError(
            f"{dataset}: windows are taken out of a sequence, and {quoted(key)} is {quoted(found.feature)}.{there}"
        )
    if found.sequence_depth:
        raise ConfigError(
            f"{dataset}: {quoted(key)} is a sequence within a sequence, {quoted('/'.join(found.path[:-1]))}, and "
            f"windows are taken out of one that a record has once.{there}"
        )
    return found


def _is_sequence(found: FoundFeature | None) -> bool:
    return found is not None and isinstance(found.feature, Repeated)


def make_window_features(
    features: Feature, sequence: FoundFeature, columns: Mapping[str, Mapping[tuple[int, ...], str]], dataset: str
) -> WindowFeatures:
    """Returns what windows have of the features of their episodes.

    Args:
        features: those of the dataset.
        sequence: the one that holds the steps.
        columns: key of a feature of steps, from the top level down -> the steps that a window has of it, none for its
            own -> what stands behind the feature's name in the column of these.
        dataset: for messages.

    Raises:
        ConfigError: the sequence has no feature that is one value a step.
    """
    key = "/".join(sequence.path)
    values: list[str] = []
    numbers: dict[str, Numbers] = {}
    stored_as: dict[str, tuple[str, ...]] = {}
    offsets: dict[str, tuple[int, ...]] = {}
    copies: dict[str, str] = {}
    # TFDS reads a dataset's features in another order in each process, and the index is kept for all of them.
    for name, leaf, depth in sorted(_leaves(features), key=lambda found: found[0]):
        is_of_steps = name == key or name.startswith(f"{key}/")
        for stored, spec in _stored_fields(name, leaf):
            for own_offsets, suffix in columns.get(name, {}).items():
                if own_offsets:
                    offsets[stored + suffix] = own_offsets
                if suffix:
                    copies[stored + suffix] = stored
            found = _numbers_of(spec)
            if is_of_steps and depth == 1 and spec.shape == () and found is None:
                values.append(stored)
            elif is_of_steps and depth == 1 and found is not None:
                numbers[stored] = found
            else:
                stored_as[stored] = _parts_of(stored, depth)
    if not values and not numbers:
        raise ConfigError(
            f"{dataset}: the sequence {quoted(key)} has no feature with one value a step, of one size: its steps "
            f"cannot be counted. Its features are {quoted(sequence.feature)}."
        )
    others = tuple(part for parts in stored_as.values() for part in parts)
    return WindowFeatures(EpisodeLayout(key, tuple(values), numbers, others), offsets, stored_as, copies)


def step_layouts(features: Feature, dataset: str) -> list[EpisodeLayout]:
    """Returns how windows find the steps of each feature that holds an episode: nested datasets, and `steps`.

    Args:
        features: those of a dataset; most datasets have no such feature.
        dataset: for messages.
    """
    found = []
    for key in list_keys(features) if isinstance(features, Dictionary) else ():
        one = find_feature(features, key)
        if one is None or one.sequence_depth or not isinstance(one.feature, Repeated):
            continue
        if key == Windows().sequence or one.feature.is_dataset:
            with suppress(ConfigError):  # Its steps cannot be counted.
                found.append(make_window_features(features, one, {}, dataset).layout)
    return found


def without_sequence(features: Feature, path: tuple[str, ...]) -> Feature:
    """Returns features in which a sequence is one of its elements: those of a single step."""
    if not path:
        return features.feature if isinstance(features, Repeated) else features
    if not isinstance(features, Dictionary):
        raise TypeError(f"{features!r} holds no {path[0]!r}.")
    inner = {**features.features, path[0]: without_sequence(features.features[path[0]], path[1:])}
    return replace(features, features=inner)


def _leaves(feature: Feature, key: str = "", depth: int = 0) -> Iterator[tuple[str, Leaf, int]]:
    """Yields key, feature and the number of sequences around it, of all that hold no others."""
    if isinstance(feature, Repeated):
        yield from _leaves(feature.feature, key, depth + 1)
    elif isinstance(feature, Dictionary):
        for name, inner in feature.features.items():
            yield from _leaves(inner, f"{key}/{name}" if key else name, depth)
    elif isinstance(feature, Leaf):
        yield key, feature, depth


def _stored_fields(key: str, leaf: Leaf) -> list[tuple[str, FieldSpec]]:
    """Returns the stored fields of one value of a feature."""
    if isinstance(leaf.stored, FieldSpec):
        return [(key, leaf.stored)]
    return [(f"{key}/{part}", spec) for part, spec in leaf.stored.items()]


def _numbers_of(spec: FieldSpec) -> Numbers | None:
    """Returns what a value is, where it is numbers of a fixed shape."""
    sides = [side or 0 for side in spec.shape]
    if np.dtype(spec.dtype).kind in "OSU" or not prod(sides):
        return None
    # TFDS stores bool and all integers as int64, and all kinds of floats as float32.
    return Numbers(prod(sides), np.dtype(spec.dtype).kind not in "biu")


def _parts_of(stored: str, depth: int) -> tuple[str, ...]:
    """Returns the features as which a field within so many sequences is stored; see TFDS's example_serializer.py."""
    if depth < 2:
        return (stored,)
    lengths = (f"{stored}/ragged_row_lengths_{level}" for level in range(depth - 1))
    return (f"{stored}/ragged_flat_values", *lengths)
