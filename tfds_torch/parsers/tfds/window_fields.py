"""The fields that can be asked for of windows: their names, which feature is behind each, and how it is decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tfds_torch.engines.fields import EncodedField, FieldDecoder, ImageField, StoredField
from tfds_torch.engines.window_fields import WindowField, WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess, height_and_width
from tfds_torch.parsers.parser import DEFAULT_FIELDS, METADATA_FIELDS, stored_key
from tfds_torch.parsers.tfds.dataset_fields import is_image, is_stored_as_it_is, stored_field
from tfds_torch.parsers.tfds.feature_tree import (
    Dictionary,
    Feature,
    FoundFeature,
    Leaf,
    Repeated,
    find_feature,
    innermost,
    list_leaves,
)
from tfds_torch.parsers.tfds.features import structured_field
from tfds_torch.parsers.tfds.window_layout import find_sequence, make_window_features, without_sequence
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, padding_key
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FieldSpec

OWN_FIELDS = {"episode": EPISODE, "step": STEP}
"""Fields that every window has: the number of its episode in the split, and the step at which it begins."""

_PADDING = "_pad"
_MODES = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True)
class WindowFields:
    """The fields of windows of a dataset; see NamedFields.

    A name is one that `names` gives; a feature of steps, counted from the sequence that holds them
    (`observation/image`); or a feature from the top level down, as those of whole episodes are
    (`episode_metadata/file_path`). Beside these there are `episode`, `step`, and `<name>_pad` of a field with offsets.

    Attributes:
        dataset: its name, for messages.
        features: those of the dataset.
        windows: which windows there are.
        names: names of the user's own -> the features that they stand for.
        cameras: field -> what is done to its images while they are decoded.
    """

    dataset: str
    features: Feature
    windows: Windows
    names: Mapping[str, str]
    cameras: Mapping[str, Preprocess] = field(default_factory=dict)

    has_integer_target = False
    file_name_key = None

    def check(self) -> None:
        """Raises ConfigError where a name or an offset is of no feature."""
        for name, key in self.names.items():
            if name in OWN_FIELDS or name in METADATA_FIELDS:
                raise ConfigError(
                    f"{self.dataset}: fields= gives a feature the name {quoted(name)}, which windows have."
                )
            if self._look_up(key) is None and self._look_up(name) is not None:
                raise ConfigError(
                    f"{self.dataset}: fields= are names of your own -> features, and {quoted(name)} is a feature: give "
                    f"fields={{{quoted(key)}: {quoted(name)}}}."
                )
            self._resolve(key)
        for name in self.windows.texts:
            if not _is_bytes(self.find(name).feature):
                raise ConfigError(f"{self.dataset}: texts= names {quoted(name)}, which does not hold bytes.")
        if "image" in (*self.names, *self.windows.offsets):
            self.field("image", None)

    def open(self, episodes: RecordSource) -> WindowSource:
        """Returns the windows of a split's episodes."""
        return WindowSource(
            episodes,
            self.windows,
            make_window_features(self.features, self._sequence, self.offsets, self.dataset),
        )

    @cached_property
    def offsets(self) -> dict[str, tuple[int, ...]]:
        """Key of a feature from the top level down -> the steps that a window has of it."""
        found: dict[str, tuple[int, ...]] = {}
        for name, offsets in self.windows.offsets.items():
            key = "/".join(self.find(name).path)
            if not self._is_of_steps(key):
                raise ConfigError(
                    f"{self.dataset}: {quoted(name)} is one value an episode, and offsets are for features of steps, "
                    f"those of {quoted(self.windows.sequence)}. Leave it out of offsets."
                )
            if found.setdefault(key, tuple(offsets)) != tuple(offsets):
                raise ConfigError(
                    f"{self.dataset}: the feature {quoted(key)} has two lists of offsets. A window has one: ask for "
                    f"all steps, and divide them in the training loop."
                )
        return found

    @property
    def all_fields(self) -> list[str]:
        """The fields that windows have: by the names that `names` gives, else by their keys."""
        padding = [f"{name}{_PADDING}" for name in self._all_names if self.offsets_of(name) is not None]
        return sorted({*self._all_names, *padding, *OWN_FIELDS})

    @property
    def specs(self) -> dict[str, Any]:
        """Field -> FieldSpec of one window's value."""
        return {name: self._spec(name) for name in self.all_fields}

    def paths(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns nothing: boxes of windows do not move with an image."""
        return {}

    def stored(self, names: Sequence[str]) -> "WindowFields":
        """Returns these fields: all are stored."""
        return self

    def find(self, name: str) -> FoundFeature:
        """Returns the feature behind a field.

        Raises:
            ConfigError: there is no such field, or it has several features.
        """
        found = self._resolve(self.names.get(name, name))
        if isinstance(innermost(found.feature), Dictionary):
            inner = [key for key in self._keys if key.startswith(f"{name}/")]
            raise ConfigError(
                f"{self.dataset}: {quoted(name)} holds several features, and a field of windows is one of them. Ask "
                f"for those that are needed: {', '.join(inner)}."
            )
        return found

    def offsets_of(self, name: str) -> tuple[int, ...] | None:
        """Returns the steps that a window has of a field; None: its own step, or it is one value an episode."""
        if name in OWN_FIELDS or (name not in self.names and self._look_up(name) is None):
            return None
        return self.offsets.get("/".join(self.find(name).path))

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Returns how a field is decoded."""
        own = self._own_field(name)
        if own is not None:
            return StoredField(own)
        found = self.find(name)
        key, offsets = "/".join(found.path), self.offsets_of(name)
        padding = padding_key(key) if offsets is not None and self.windows.pad == "zero" else None
        if self._is_camera(found):
            if name == "image":
                self._check_has_no_time(key, offsets)
                return ImageField(key, image_mode)
            mode = _MODES.get(self._in_one_step(found).feature.spec.shape[-1] or 0)
            return WindowImageField(key, offsets is not None, mode, padding, self._preprocess_of(found))
        if name == "image":
            raise ConfigError(
                f"{self.dataset}: the field 'image' must be one uint8 image a step, and {quoted(self._short(key))} is "
                f"{quoted(found.feature)}. Ask for it by another name."
            )
        is_text = name in self.windows.texts
        if _is_bytes(found.feature):
            return WindowField(StoredField(key), padding, is_text)
        one_step = self._in_one_step(found)
        if is_stored_as_it_is(one_step.feature) and not one_step.sequence_depth:
            return WindowField(stored_field(one_step), padding)
        features = self._one_step if offsets is None and self._is_of_steps(key) else self.features
        return WindowField(structured_field(features, found.path), padding, is_text, self._is_frame(found))

    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored, without a preprocess: that of one step encoded."""
        if self.cameras:
            return replace(self, cameras={}).encoded_field(name)
        if self._own_field(name) is not None:
            return EncodedField(self.field(name, None), "value", self._spec(name))
        found = self.find(name)
        if self.offsets_of(name) is None and self._is_camera(found):
            return EncodedField(StoredField("/".join(found.path)), "image", self._in_one_step(found).feature.spec)
        return EncodedField(self.field(name, None), "value", self._spec(name))

    def _check_has_no_time(self, key: str, offsets: tuple[int, ...] | None) -> None:
        if offsets is not None:
            raise ConfigError(
                f"{self.dataset}: the field 'image' is one image of an example, and {quoted(self._short(key))} has "
                f"offsets. Ask for it by another name, such as fields={{'image_primary': {quoted(self._short(key))}}}."
            )

    def _own_field(self, name: str) -> str | None:
        """Returns the stored field behind a name that is of no feature; None: it is of one."""
        if name in OWN_FIELDS:
            return OWN_FIELDS[name]
        base = name.removesuffix(_PADDING)
        if base == name or name in self.names or self._look_up(name) is not None:
            return None
        if self.names.get(base, base) != base or self._look_up(base) is not None:
            if self.offsets_of(base) is not None:
                return padding_key("/".join(self.find(base).path))
            raise ConfigError(
                f"{self.dataset}: there is no field {quoted(name)}: {quoted(base)} has no offsets, so no step of it is "
                f"outside of an episode. Fields with offsets are {', '.join(self.windows.offsets) or 'none'}."
            )
        return None

    def _spec(self, name: str) -> Any:
        own = self._own_field(name)
        offsets = self.offsets_of(name if own is None else name.removesuffix(_PADDING))
        time = () if offsets is None else (len(offsets),)
        if own is not None:
            return FieldSpec((), np.int64) if name in OWN_FIELDS else FieldSpec(time, np.bool_)
        found = self.find(name)
        spec = self._in_one_step(found).feature.spec
        if self._is_frame(found):
            preprocess = self._preprocess_of(found)
            size = spec.shape[:-1] if preprocess is None else height_and_width(preprocess.size)
            spec = replace(spec, shape=(spec.shape[-1], *size))
        return replace(spec, shape=(*time, *spec.shape)) if isinstance(spec, FieldSpec) else spec

    def has(self, name: str) -> bool:
        """Whether there is a feature behind a field."""
        return self._look_up(self.names.get(name, name)) is not None

    def is_camera(self, name: str) -> bool:
        """Whether a field is uint8 images, one a step."""
        return self.has(name) and self._is_camera(self.find(name))

    @property
    def cameras_there(self) -> list[str]:
        """The fields that are uint8 images, one a step."""
        return list(filter(self.is_camera, self._all_names))

    def _preprocess_of(self, found: FoundFeature) -> Preprocess | None:
        return next((one for name, one in self.cameras.items() if self.find(name).path == found.path), None)

    def _is_camera(self, found: FoundFeature) -> bool:
        """Whether a step has one uint8 image of a feature."""
        return self._is_frame(found) and bool(self._in_one_step(found).feature.spec.dtype == np.uint8)

    def _is_frame(self, found: FoundFeature) -> bool:
        """Whether a step has one image of a feature, also one of depths."""
        one_step = self._in_one_step(found)
        return not one_step.sequence_depth and is_image(one_step.feature) and len(one_step.feature.shape or ()) == 3

    def _in_one_step(self, found: FoundFeature) -> FoundFeature:
        """Returns a feature as a single step has it; one of the episode as it is."""
        return find_feature(self._one_step, "/".join(found.path)) or found

    def _is_of_steps(self, key: str) -> bool:
        return key == self._key or key.startswith(f"{self._key}/")

    @cached_property
    def _sequence(self) -> FoundFeature:
        return find_sequence(self.features, self.windows.sequence, self.dataset)

    @cached_property
    def _one_step(self) -> Feature:
        return without_sequence(self.features, self._sequence.path)

    @property
    def _key(self) -> str:
        return "/".join(self._sequence.path)

    @property
    def _all_names(self) -> list[str]:
        """A name for each feature: the one that `names` gives, else its own."""
        named = {"/".join(self._resolve(key).path) for key in self.names.values()}
        return [*self.names, *(self._short(key) for key, _ in list_leaves(self.features) if key not in named)]

    @property
    def _keys(self) -> list[str]:
        return [self._short(key) for key, _ in list_leaves(self.features)]

    def _short(self, key: str) -> str:
        """Returns the name of a feature: one of steps is counted from the sequence that holds them."""
        return key.removeprefix(f"{self._key}/")

    def _look_up(self, key: str) -> FoundFeature | None:
        own = stored_key(key)
        names: Sequence[str] = [f"{self._key}/{key}", key] + ([] if own is None else [f"{self._key}/{own}", own])
        return next(filter(None, (find_feature(self.features, one) for one in names)), None)

    def _resolve(self, key: object) -> FoundFeature:
        found = self._look_up(key) if isinstance(key, str) else None
        if found is None:
            there = [*self.names, *self._keys]
            if key in DEFAULT_FIELDS:
                raise ConfigError(
                    f"{self.dataset}: windows have no field {quoted(key)} unless a feature is given this name. Name "
                    f"the fields that are wanted, as in ImageDataset(parser, fields=({quoted(there[0])}, 'episode')). "
                    f"There are: {', '.join(there)}; and episode, step, and <name>_pad of fields with offsets."
                )
            raise ConfigError(
                f"{self.dataset}: windows have no field {quoted(key)}. Their fields are: {', '.join(there)}; and "
                f"episode, step, and <name>_pad of fields with offsets.{did_you_mean(key, [*there, *OWN_FIELDS])}"
            )
        return found


def _is_bytes(feature: Feature) -> bool:
    """Whether a feature is bytes or texts, as they are stored."""
    while isinstance(feature, Repeated):
        feature = feature.feature
    if not isinstance(feature, Leaf) or not feature.is_tensor or feature.decode is not None:
        return False
    return isinstance(feature.stored, FieldSpec) and np.dtype(feature.stored.dtype).kind in "OSU"
