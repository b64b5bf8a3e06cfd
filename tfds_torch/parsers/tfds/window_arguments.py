"""The arguments of a parser of windows, and what can be wrong with them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.parser_options import check_preprocess
from tfds_torch.parsers.tfds.feature_tree import Feature
from tfds_torch.parsers.tfds.window_fields import WindowFields
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import Source

_OF_WHOLE_RECORDS = {
    "image_key": ("image", "Give the image a name: fields={'image': ...}."),
    "target_key": ("label", "Ask for the feature by its name."),
    "class_map": (None, "Windows have no labels."),
    "decoders": (None, "Use decode={'image_primary': False} for encoded images."),
    "cache": (None, "Images of windows are decoded in every epoch."),
}
"""Arguments of parsers whose examples are whole records -> their default, and what to do instead."""


def check_window_arguments(
    windows: object, names: object, dataset: str, features: Feature, others: Mapping[str, Any]
) -> WindowFields:
    """Returns the fields of the windows that a user asks for.

    Args:
        windows: the argument `windows`.
        names: the argument `fields`.
        dataset: name of the dataset, for messages.
        features: those of the dataset.
        others: arguments that are for whole records.

    Raises:
        ConfigError: an argument that cannot work, or a feature that does not exist.
    """
    if windows is None:
        raise ConfigError(
            f"{dataset}: fields={quoted(names)} names the fields of windows: give windows=Windows('steps', ...), too. "
            f"Fields of whole records are asked for by their own names."
        )
    if not isinstance(windows, Windows):
        raise ConfigError(
            f"{dataset}: windows={quoted(windows)} must be Windows, for example "
            f"Windows('steps', offsets={{'action': range(16)}})."
        )
    is_mapping = isinstance(names, Mapping) and all(
        isinstance(name, str) and isinstance(key, str) for name, key in names.items()
    )
    if names is not None and not is_mapping:
        raise ConfigError(
            f"{dataset}: fields={quoted(names)} must be a dictionary of names and the features that they stand for, "
            f"such as {{'image_primary': 'observation/image'}}."
        )
    for name, (default, remedy) in _OF_WHOLE_RECORDS.items():
        if others[name] != default and others[name] is not None:
            raise ConfigError(
                f"{dataset}: {name}={quoted(others[name])} is for examples that are whole records, and this parser has "
                f"windows. {remedy}"
            )
    fields = WindowFields(dataset, features, windows, dict(names) if isinstance(names, Mapping) else {})
    fields.check()
    return fields


def divide_preprocess(preprocess: Any, *, has_windows: bool) -> tuple[Any, dict[Any, Any]]:
    """Returns the preprocess of the field `image`, and of windows those of all other cameras by their names."""
    if not has_windows or not isinstance(preprocess, Mapping):
        return preprocess, {}
    cameras = dict(preprocess)
    return cameras.pop("image", None), cameras


def check_cameras(fields: WindowFields, preprocesses: Mapping[Any, Any], batch_size: int | None) -> WindowFields:
    """Returns fields some of whose images go through a preprocess while they are decoded.

    Args:
        fields: those of the windows.
        preprocesses: field -> its preprocess.
        batch_size: of the parser.

    Raises:
        ConfigError: a field that does not exist, or is not uint8 images; or a preprocess that they cannot go through.
    """
    for name, one in preprocesses.items():
        if not fields.is_camera(name):
            raise ConfigError(
                f"{fields.dataset}: preprocess names {quoted(name)}, which is not uint8 images, one a step: only these "
                f"can be cut and resized."
            )
        check_preprocess(one, batch_size, "RGB")
        if isinstance(one, Views) or one.map_fn is not None or one.moved_fields:
            raise ConfigError(
                f"{fields.dataset}: the images {quoted(name)} of windows cannot go through {quoted(one)}: use a "
                f"TrainPreprocess or an EvalPreprocess without also, boxes and map_fn."
            )
    return replace(fields, preprocesses=dict(preprocesses))


def open_windows(fields: WindowFields, source: Source, preprocess: Preprocess | None) -> WindowSource:
    """Returns the windows of a split's records.

    Raises:
        ConfigError: its files are not records of shards, or are remote; or a preprocess that windows cannot go through.
    """
    if not isinstance(source, RecordSource):
        raise ConfigError(f"{source.name} has no episodes: its examples are single images. Leave out windows=.")
    if isinstance(preprocess, Preprocess) and preprocess.moved_fields:
        raise ConfigError(
            f"{source.name}: the preprocess names {', '.join(map(quoted, preprocess.moved_fields))}, and of windows "
            f"only the image is cut: leave out also and boxes."
        )
    return fields.open(source)
