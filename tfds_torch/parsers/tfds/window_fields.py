"""The fields that can be asked for of windows, and how each is decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfds_torch.engines.fields import EncodedField, FieldDecoder, ImageField, StoredField
from tfds_torch.engines.window_fields import OtherColumns, WindowField, WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess, height_and_width
from tfds_torch.parsers.tfds.feature_tree import Feature, FoundFeature, Leaf, Repeated
from tfds_torch.parsers.tfds.features import structured_field
from tfds_torch.parsers.tfds.fields import is_camera_tensor, is_image, is_stored_as_it_is, stored_field
from tfds_torch.parsers.tfds.window_layout import make_window_features
from tfds_torch.parsers.tfds.window_names import OWN_FIELDS, PADDING, WindowNames
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import padding_key
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.source import FieldSpec

_MODES = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True)
class WindowFields(WindowNames):
    """The fields of windows of a dataset; see NamedFields.

    Attributes:
        cameras: field -> what is done to its images while they are decoded.
    """

    cameras: Mapping[str, Preprocess] = field(default_factory=dict)

    has_integer_target = has_scalar_target = False
    file_name_key = target_key = None
    image_key = "image"

    def check(self) -> None:
        """Raises ConfigError where a name or an offset is of no feature."""
        self.check_names()
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
            make_window_features(self.features, self._sequence, self.columns, self.dataset),
        )

    @property
    def all_fields(self) -> list[str]:
        """The fields that windows have: by the names that `names` gives, else by their keys."""
        padding = [f"{name}{PADDING}" for name in self._all_names if self.offsets_of(name) is not None]
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

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Returns how a field is decoded."""
        own = self.own_field(name)
        if own is not None:
            return StoredField(own)
        found = self.find(name)
        key, offsets, suffix = "/".join(found.path), self.offsets_of(name), self.column_suffix(name)
        padding = padding_key(key + suffix) if offsets is not None and self.windows.pad == "zero" else None
        if self._is_camera(found):
            if name == "image":
                self._check_has_no_time(key, offsets)
                return ImageField(key + suffix, image_mode)
            mode = _MODES.get(self._in_one_step(found).feature.spec.shape[-1] or 0)
            return WindowImageField(
                key + suffix, offsets is not None, mode, padding, self._preprocess_of(name), feature=key
            )
        if name == "image":
            raise ConfigError(
                f"{self.dataset}: the field 'image' must be one uint8 image a step, and {quoted(self._short(key))} is "
                f"{quoted(found.feature)}. Ask for it by another name."
            )
        is_text, is_frame = self.is_text(name), False
        one_step = self._in_one_step(found)
        inner: FieldDecoder
        if _is_bytes(found.feature):
            inner = StoredField(key)
        elif is_stored_as_it_is(one_step.feature) and not one_step.sequence_depth:
            inner, is_text = stored_field(one_step), False
        else:
            features = self._one_step if offsets is None and self._is_of_steps(key) else self.features
            inner, is_frame = structured_field(features, found.path), self._is_frame(found)
        return WindowField(OtherColumns(inner, suffix) if suffix else inner, padding, is_text, is_frame)

    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored, without a preprocess: that of one step encoded."""
        if self.cameras:
            return replace(self, cameras={}).encoded_field(name)
        if self.own_field(name) is not None:
            return EncodedField(self.field(name, None), "value", self._spec(name))
        found = self.find(name)
        if self.offsets_of(name) is None and self._is_camera(found):
            stored = StoredField("/".join(found.path) + self.column_suffix(name))
            return EncodedField(stored, "image", self._in_one_step(found).feature.spec)
        return EncodedField(self.field(name, None), "value", self._spec(name))

    def _check_has_no_time(self, key: str, offsets: tuple[int, ...] | None) -> None:
        if offsets is not None:
            raise ConfigError(
                f"{self.dataset}: the field 'image' is one image of an example, and {quoted(self._short(key))} has "
                f"offsets. Ask for it by another name, such as fields={{'image_primary': {quoted(self._short(key))}}}."
            )

    def _spec(self, name: str) -> Any:
        own = self.own_field(name)
        offsets = self.offsets_of(name if own is None else name.removesuffix(PADDING))
        time = () if offsets is None else (len(offsets),)
        if own is not None:
            return FieldSpec((), np.int64) if name in OWN_FIELDS else FieldSpec(time, np.bool_)
        found = self.find(name)
        spec = self._in_one_step(found).feature.spec
        if self._is_frame(found):
            preprocess = self._preprocess_of(name)
            size = spec.shape[:-1] if preprocess is None else height_and_width(preprocess.size)
            spec = replace(spec, shape=(spec.shape[-1], *size))
        return replace(spec, shape=(*time, *spec.shape)) if isinstance(spec, FieldSpec) else spec

    def is_camera(self, name: str) -> bool:
        """Whether a field is uint8 images, one a step."""
        return self.has(name) and self._is_camera(self.find(name))

    @property
    def cameras_there(self) -> list[str]:
        """The fields that are uint8 images, one a step."""
        return list(filter(self.is_camera, self._all_names))

    def _preprocess_of(self, name: str) -> Preprocess | None:
        field = self.name_of(name)
        return next((one for camera, one in self.cameras.items() if self.name_of(camera) == field), None)

    def _is_camera(self, found: FoundFeature) -> bool:
        """Whether a step has one uint8 image of a feature."""
        return self._is_frame(found) and bool(self._in_one_step(found).feature.spec.dtype == np.uint8)

    def _is_frame(self, found: FoundFeature) -> bool:
        """Whether a step has one image of a feature, also one of depths, or a tensor that can stand for one."""
        one_step = self._in_one_step(found)
        if is_camera_tensor(one_step.feature) and is_stored_as_it_is(one_step.feature):
            return not one_step.sequence_depth
        return not one_step.sequence_depth and is_image(one_step.feature) and len(one_step.feature.shape or ()) == 3


def _is_bytes(feature: Feature) -> bool:
    """Whether a feature is bytes or texts, as they are stored."""
    while isinstance(feature, Repeated):
        feature = feature.feature
    if not isinstance(feature, Leaf) or not feature.is_tensor or feature.decode is not None:
        return False
    return isinstance(feature.stored, FieldSpec) and np.dtype(feature.stored.dtype).kind in "OSU"
