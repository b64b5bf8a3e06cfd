"""Check the arguments of ParserTfds that are about windows, and open the windows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.options import check_preprocess
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
from tfds_torch.parsers.tfds.window_fields import WindowFields
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.layout import EpisodeLayout, Numbers
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import WindowFeatures
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FieldSpec, Source

_OF_WHOLE_RECORDS = {
    "image_key": ("image", "Give the image a name: fields={'image': ...}."),
    "target_key": ("label", "Ask for the feature by its name."),
    "class_map": (None, "Windows have no labels."),
    "decoders": (None, "Use decode={'image_primary': False} for encoded images."),
    "cache": (None, "Images of windows are decoded in every epoch."),
}
"""Arguments of parsers whose examples are whole records -> their default, and the remedy for windows."""


@dataclass(frozen=True)
class WindowArguments:
    """The arguments of ParserTfds that are about windows, as the user passed them.

    Attributes:
        windows, fields: as ParserTfds takes them.
        preprocess: the preprocess of the field `image`.
        cameras: camera -> its preprocess, for all cameras but `image`.
    """

    windows: Any
    fields: Any
    preprocess: Any
    cameras: Mapping[Any, Any]

    @property
    def are_given(self) -> bool:
        """Whether any of them is set: examples are windows then, or `windows` is missing beside the others."""
        return self.windows is not None or self.fields is not None

    def open(
        self, source: Source, features: Feature, read: ReadOptions, others: Mapping[str, Any]
    ) -> tuple[WindowFields, WindowSource]:
        """Open the windows of a split's records; return their fields and their source.

        Args:
            source: the records.
            features: the features of the dataset.
            read: the parser's options for reading.
            others: the arguments that are for whole records only.

        Raises:
            ConfigError: an argument cannot work, or a feature does not exist; the files are not records of shards, or
                can only be streamed.
        """
        dataset = source.name
        self._check(dataset, others)
        check_read_mode(dataset, read)
        for name, one in self.cameras.items():
            check_preprocess(one, "RGB")
            if isinstance(one, Views) or one.moved_fields:
                raise ConfigError(
                    f"{dataset}: the images {quoted(name)} of windows cannot go through {quoted(one)}: use a "
                    f"TrainPreprocess or an EvalPreprocess without also and boxes."
                )
        sequence = find_sequence(features, self.windows.sequence, dataset)
        fields = WindowFields(dataset, features, sequence, self.windows, dict(self.fields or {}), self.cameras)
        self._check_preprocess(dataset, fields)
        if not isinstance(source, RecordSource):
            raise ConfigError(f"{dataset} has no episodes: its examples are single images. Leave out windows=.")
        windows = WindowSource(source, self.windows, _window_features(fields))
        return fields, windows

    def _check(self, dataset: str, others: Mapping[str, Any]) -> None:
        if self.windows is None:
            raise ConfigError(
                f"{dataset}: fields={quoted(self.fields)} names the fields of windows: give windows=Windows('steps', "
                f"...), too. Fields of whole records are asked for by their own names."
            )
        if not isinstance(self.windows, Windows):
            raise ConfigError(
                f"{dataset}: windows={quoted(self.windows)} must be Windows, for example "
                f"Windows('steps', offsets={{'action': range(16)}})."
            )
        is_mapping = isinstance(self.fields, Mapping) and all(
            isinstance(name, str) and isinstance(key, str) for name, key in self.fields.items()
        )
        if self.fields is not None and not is_mapping:
            raise ConfigError(
                f"{dataset}: fields={quoted(self.fields)} must be a dictionary of names and the features that they "
                f"stand for, like {{'image_primary': 'observation/image'}}."
            )
        for name, (default, remedy) in _OF_WHOLE_RECORDS.items():
            if others[name] != default and others[name] is not None:
                raise ConfigError(
                    f"{dataset}: {name}={quoted(others[name])} is for examples that are whole records, and this "
                    f"parser has windows. {remedy}"
                )

    def _check_preprocess(self, dataset: str, fields: WindowFields) -> None:
        """Raise ConfigError where the preprocess of `image` has no image, or names fields beside it."""
        if self.preprocess is not None and not fields.has("image"):
            camera = quoted(next(iter(fields.cameras_there), "observation/image"))
            raise ConfigError(
                f"{dataset}: preprocess={quoted(self.preprocess)} is for a field 'image', which windows have only if "
                f"fields= names one so. Give each camera its own: "
                f"preprocess={{{camera}: {type(self.preprocess).__name__}(...)}}."
            )
        if isinstance(self.preprocess, Preprocess) and self.preprocess.moved_fields:
            raise ConfigError(
                f"{dataset}: the preprocess names {', '.join(map(quoted, self.preprocess.moved_fields))}, but "
                f"only the images of windows are cut: leave out also and boxes."
            )


def check_read_mode(dataset: str, read: ReadOptions) -> None:
    """Raise ConfigError where windows would be read in a stream mode."""
    if read.mode not in ("auto", "index"):
        raise ConfigError(
            f"{dataset}: windows are read by their numbers, and read mode {quoted(read.mode)} streams whole records. "
            f"Use mode 'index' or 'auto', or leave out windows=."
        )


def divide_preprocess(preprocess: Any, *, has_windows: bool) -> tuple[Any, dict[Any, Any]]:
    """Return the preprocess of the field `image`, and the preprocesses of all other cameras of windows by name."""
    if not isinstance(preprocess, Mapping):
        return preprocess, {}
    if not has_windows:
        raise ConfigError(
            f"preprocess is a dictionary of {', '.join(map(quoted, preprocess))}, and only windows have cameras. Give "
            f"windows=Windows('steps', ...), too; whole records have one preprocess, for their image."
        )
    cameras = dict(preprocess)
    return cameras.pop("image", None), cameras


# Where records hold the steps of episodes.


def find_sequence(features: Feature, key: str, dataset: str) -> FoundFeature:
    """Return the feature that holds the steps of an episode.

    Raises:
        ConfigError: the feature does not exist, is not a sequence, or lies in another sequence.
    """
    if isinstance(features, Repeated):
        raise ConfigError(
            f"{dataset}: windows need records that are episodes, with a feature that holds their steps. The records of "
            f"this dataset are sequences themselves."
        )
    found = find_feature(features, key)
    if found is None:
        why = describe_missing("sequence", key, features)
    elif not isinstance(found.feature, Repeated):
        why = f"windows are taken out of a sequence, and {quoted(key)} is {quoted(found.feature)}."
    elif found.sequence_depth:
        why = (
            f"{quoted(key)} is a sequence within a sequence, {quoted('/'.join(found.path[:-1]))}, and windows "
            f"need one that each record has once."
        )
    else:
        return found
    others = {name: find_feature(features, name) for name in list_keys(features)}
    sequences = [name for name, one in others.items() if one is not None and isinstance(one.feature, Repeated)]
    there = f"Its sequences are: {', '.join(sequences)}." if sequences else "It has no sequences at all."
    raise ConfigError(f"{dataset}: {why} {there}")


def _window_features(fields: WindowFields) -> WindowFeatures:
    """Return the columns that windows have, and where records hold their values."""
    offsets: dict[str, tuple[int, ...]] = {}
    copies: dict[str, str] = {}
    for row in fields.rows:
        for stored, _ in _stored_fields(row.key, row.leaf):
            if row.offsets is not None:
                offsets[stored + row.suffix] = row.offsets
            if row.suffix:
                copies[stored + row.suffix] = stored
    found = episode_features(fields.features, fields.sequence, fields.dataset)
    return replace(found, offsets=offsets, copies=copies)


def episode_features(features: Feature, sequence: FoundFeature, dataset: str) -> WindowFeatures:
    """Return where records hold the features of episodes: which have one value a step, and how others are stored.

    Args:
        features: the features of the dataset.
        sequence: the feature that holds the steps.
        dataset: for messages.

    Raises:
        ConfigError: the sequence has no feature that is one value a step.
    """
    key = "/".join(sequence.path)
    values: list[str] = []
    numbers: dict[str, Numbers] = {}
    stored_as: dict[str, tuple[str, ...]] = {}
    # Each process may read a dataset's features in another order, and all processes share one index.
    for name, leaf, depth in sorted(_leaves(features), key=lambda found: found[0]):
        is_of_steps = name == key or name.startswith(f"{key}/")
        for stored, spec in _stored_fields(name, leaf):
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
    return WindowFeatures(EpisodeLayout(key, tuple(values), numbers, others), stored_as=stored_as)


def _leaves(feature: Feature, key: str = "", depth: int = 0) -> Iterator[tuple[str, Leaf, int]]:
    """Yield the key of each feature that holds no others, the feature, and the number of sequences around it."""
    if isinstance(feature, Repeated):
        yield from _leaves(feature.feature, key, depth + 1)
    elif isinstance(feature, Dictionary):
        for name, inner in feature.features.items():
            yield from _leaves(inner, f"{key}/{name}" if key else name, depth)
    elif isinstance(feature, Leaf):
        yield key, feature, depth


def _stored_fields(key: str, leaf: Leaf) -> list[tuple[str, FieldSpec]]:
    """Return the stored fields of one value of a feature."""
    if isinstance(leaf.stored, FieldSpec):
        return [(key, leaf.stored)]
    return [(f"{key}/{part}", spec) for part, spec in leaf.stored.items()]


def _numbers_of(spec: FieldSpec) -> Numbers | None:
    """Return how many numbers a value has, and of which kind; None if it is not numbers of a fixed shape."""
    sides = [side or 0 for side in spec.shape]
    if np.dtype(spec.dtype).kind in "OSU" or not prod(sides):
        return None
    # TFDS stores bool and all integers as int64, and all kinds of floats as float32.
    return Numbers(prod(sides), np.dtype(spec.dtype).kind not in "biu")


def _parts_of(stored: str, depth: int) -> tuple[str, ...]:
    """Return the names under which a record stores a field in `depth` sequences; see TFDS's example_serializer.py."""
    if depth < 2:
        return (stored,)
    lengths = (f"{stored}/ragged_row_lengths_{level}" for level in range(depth - 1))
    return (f"{stored}/ragged_flat_values", *lengths)
