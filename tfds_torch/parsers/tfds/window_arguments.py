"""The arguments of a parser of windows, and what can be wrong with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.options import DecodeOptions, check_preprocess
from tfds_torch.parsers.tfds.feature_tree import Feature
from tfds_torch.parsers.tfds.named_fields import NamedFields
from tfds_torch.parsers.tfds.window_fields import WindowFields
from tfds_torch.parsers.tfds.window_transforms import with_transforms
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


@dataclass(frozen=True)
class WindowArguments:
    """The arguments of ParserTfds that are about windows, as they were given.

    Attributes:
        windows, fields, transform: as ParserTfds takes them.
        cameras: camera -> its preprocess, without that of the field `image`.
    """

    windows: Any
    fields: Any
    transform: Any
    cameras: Mapping[Any, Any]

    @property
    def are_given(self) -> bool:
        """Whether any of them was given: examples are windows then, or one argument lacks another."""
        return any(one is not None for one in (self.windows, self.fields, self.transform))

    def open(
        self,
        source: Source,
        features: Feature,
        options: DecodeOptions,
        batch_size: int | None,
        others: Mapping[str, Any],
    ) -> tuple[NamedFields, WindowSource]:
        """Returns the fields of the windows of a split's records, and these windows.

        Args:
            source: the records.
            features: those of the dataset.
            options: how examples are read and decoded.
            batch_size: of the parser.
            others: arguments that are for whole records.

        Raises:
            ConfigError: an argument that cannot work, or a feature that does not exist; the files are not records of
                shards, or are remote.
        """
        self._check(source.name, others)
        check_read_mode(source.name, options.read)
        fields = WindowFields(source.name, features, self.windows, dict(self.fields or {}))
        fields.check()
        fields = replace(fields, cameras=_checked_cameras(fields, self.cameras, batch_size))
        if options.preprocess is not None and not fields.has("image"):
            raise ConfigError(
                f"{source.name}: preprocess={quoted(options.preprocess)} is for a field 'image', which windows have "
                f"where a feature is given this name. Give each camera its own: preprocess={{{_example_of(fields)}: "
                f"{type(options.preprocess).__name__}(...)}}."
            )
        if not isinstance(source, RecordSource):
            raise ConfigError(f"{source.name} has no episodes: its examples are single images. Leave out windows=.")
        if isinstance(options.preprocess, Preprocess) and options.preprocess.moved_fields:
            raise ConfigError(
                f"{source.name}: the preprocess names {', '.join(map(quoted, options.preprocess.moved_fields))}, and "
                f"of windows only the image is cut: leave out also and boxes."
            )
        windows = fields.open(source)
        return with_transforms(self.transform, fields, windows), windows

    def _check(self, dataset: str, others: Mapping[str, Any]) -> None:
        if self.windows is None:
            if self.fields is None:
                raise ConfigError(
                    f"{dataset}: transform={quoted(self.transform)} is for windows: give windows=Windows('steps', "
                    f"...), too. Images of whole records go through the transform of ImageDataset, or a preprocess."
                )
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
                f"stand for, such as {{'image_primary': 'observation/image'}}."
            )
        for name, (default, remedy) in _OF_WHOLE_RECORDS.items():
            if others[name] != default and others[name] is not None:
                raise ConfigError(
                    f"{dataset}: {name}={quoted(others[name])} is for examples that are whole records, and this "
                    f"parser has windows. {remedy}"
                )


def check_read_mode(dataset: str, read: ReadOptions) -> None:
    """Raises ConfigError where windows would be read in a stream mode."""
    if read.mode not in ("auto", "index"):
        raise ConfigError(
            f"{dataset}: windows are read by their numbers, and read mode {quoted(read.mode)} streams whole records. "
            f"Use mode 'index' or 'auto', or leave out windows=."
        )


def divide_preprocess(preprocess: Any, *, has_windows: bool) -> tuple[Any, dict[Any, Any]]:
    """Returns the preprocess of the field `image`, and of windows those of all other cameras by their names."""
    if not isinstance(preprocess, Mapping):
        return preprocess, {}
    if not has_windows:
        raise ConfigError(
            f"preprocess has one for each of {', '.join(map(quoted, preprocess))}: cameras are those of windows. Give "
            f"windows=Windows('steps', ...), too; whole records have one preprocess, that of their image."
        )
    cameras = dict(preprocess)
    return cameras.pop("image", None), cameras


def _checked_cameras(
    fields: WindowFields, preprocesses: Mapping[Any, Any], batch_size: int | None
) -> dict[str, Preprocess]:
    """Returns field -> its preprocess; raises ConfigError where the images of one cannot go through it."""
    for name, one in preprocesses.items():
        if not fields.is_camera(name):
            hint = "" if fields.names else f" fields={{'image_primary': {_example_of(fields)}}} gives one a name."
            raise ConfigError(
                f"{fields.dataset}: preprocess names {quoted(name)}, which is not a camera: uint8 images, one a step. "
                f"Its cameras are {', '.join(map(quoted, fields.cameras_there)) or 'none'}.{hint}"
            )
        check_preprocess(one, batch_size, "RGB")
        if isinstance(one, Views) or one.moved_fields:
            raise ConfigError(
                f"{fields.dataset}: the images {quoted(name)} of windows cannot go through {quoted(one)}: use a "
                f"TrainPreprocess or an EvalPreprocess without also and boxes."
            )
    return dict(preprocesses)


def _example_of(fields: WindowFields) -> str:
    """Returns the name of a camera, as a text in Python."""
    return quoted(next(iter(fields.cameras_there), "observation/image"))
