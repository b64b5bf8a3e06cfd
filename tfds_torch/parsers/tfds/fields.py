"""The fields that can be asked for of a dataset: which feature is behind each, and how it is decoded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import mark_padding
from tfds_torch.engines.fields import (
    ClassLabelField,
    EncodedField,
    FieldDecoder,
    ImageBesideField,
    ImageField,
    PositionsField,
    StoredField,
    TensorImageField,
)
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, METADATA_SPECS, stored_key, stored_name
from tfds_torch.parsers.tfds.feature_tree import (
    Feature,
    FoundFeature,
    Leaf,
    Repeated,
    describe_missing,
    features_by_key,
    find_feature,
)
from tfds_torch.parsers.tfds.features import num_classes, structured_field
from tfds_torch.parsers.tfds.targets import find_binary_fields, suggest_targets
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import Columns, FieldSpec

_CHANNELS = (1, 3, 4)
"""The numbers of channels of pictures."""

_FILE_NAME_KEYS = ("file_name", "filename", "image/filename", "id", "image_id")
"""Usual features that name files, the best one first."""


@dataclass(frozen=True)
class OptionalLabelField:
    """Labels of which some are None: these become -100 or NaN, like padding, so that losses leave them out.

    Attributes:
        labels: decodes numbers [n, ...], or n arrays of them.
        none: the number that stands for None, in all places of a value.
    """

    labels: FieldDecoder
    none: float

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.labels.keys

    def decode(self, columns: Columns) -> Any:  # noqa: D102
        values = self.labels.decode(columns)
        return mark_padding(values, ~are_none(values, self.none))


def are_none(values: Any, none: float) -> NDArray[np.bool_]:
    """Return which of n values, arrays of numbers, hold nothing but the number that stands for None, bool [n]."""
    if isinstance(values, np.ndarray):
        found: NDArray[np.bool_] = (values == none).reshape(len(values), -1).all(axis=1)
        return found
    return np.array([bool(np.all(value == none)) for value in values], np.bool_)


@dataclass(frozen=True)
class DatasetFields:
    """The features of a dataset, and which of them are `image` and `label`.

    Attributes:
        dataset: name of the dataset, for messages.
        features: the features of an example.
        image_key: feature of the field `image`; None: there is no such field.
        target_key: feature of the field `label`, or the binary features that make it up; None: there is no such field.
    """

    dataset: str
    features: Feature
    image_key: str | None
    target_key: str | tuple[str, ...] | None
    _decoders: dict[tuple[str, str | None], FieldDecoder] = field(default_factory=dict, init=False, compare=False)

    @property
    def all_fields(self) -> list[str]:
        """The keys of all features, sorted."""
        return sorted(features_by_key(self.features))

    @property
    def specs(self) -> dict[str, Any]:
        """Key of a feature -> what the dataset declares of one value."""
        return {key: found.spec for key, found in sorted(features_by_key(self.features).items())}

    @property
    def file_name_key(self) -> str | None:
        """The first of the usual features that name files, where it is one value."""
        for key in _FILE_NAME_KEYS:
            found = find_feature(self.features, key)
            if found is not None:
                return "/".join(found.path) if found.feature.shape == () else None
        return None

    def paths(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return field -> keys of its feature, for fields that are made of one feature."""
        left_out = set(METADATA_SPECS)
        if isinstance(self.target_key, tuple):
            left_out.add("label")
        return {name: self.find(name).path for name in names if name not in left_out}

    def find(self, name: str) -> FoundFeature:
        """Return the feature behind a field; for several target keys, that of the first."""
        key = {"image": self.image_key, "label": self.target_key}.get(name, name)
        if key is None:
            argument = "image_key" if name == "image" else "target_key"
            raise ConfigError(f"The field {quoted(name)} was asked for, but the parser has {argument}=None.")
        if isinstance(key, tuple):
            return find_binary_fields(key, self.features, self.dataset)[0]
        found = find_feature(self.features, key) or find_feature(self.features, stored_key(name) or key)
        if found is None:
            what = {"image": "image feature", "label": "target feature"}.get(name, "feature")
            advice = suggest_targets(self.features) if name == "label" else _suggest_windows(self.features)
            raise ConfigError(f"{self.dataset}: {describe_missing(what, key, self.features)}{advice}")
        if name == "image" and self._image_form(found) is None:
            own = stored_name(key) if key in DEFAULT_FIELDS else key
            raise ConfigError(
                f"{self.dataset}: the feature {quoted(key)} is not a single uint8 image but {quoted(found.feature)}, "
                f"nor numbers [H, W] or [H, W, C]. Set image_key, or ask for it as {quoted(own)} among fields."
            )
        return found

    def _image_form(self, found: FoundFeature) -> Literal["file", "pixels", "numbers"] | None:
        """Return how the images of a feature are stored: as files, tensors of uint8, or tensors of other dtypes."""
        feature = found.feature
        if self._is_repeated(found) or not isinstance(feature, Leaf) or not isinstance(feature.spec, FieldSpec):
            return None
        shape, dtype = feature.spec.shape, np.dtype(feature.spec.dtype)
        if feature.kind == "image" and len(shape) == 3:
            return "file" if dtype == np.uint8 else "numbers"
        if feature.kind != "tensor" or len(shape) not in (2, 3) or dtype.kind not in "biuf":
            return None
        return "pixels" if is_camera_tensor(feature) or (len(shape) == 2 and dtype == np.uint8) else "numbers"

    def _image_field(self, found: FoundFeature, image_mode: str | None) -> ImageField:
        key, form = "/".join(found.path), self._image_form(found)
        if form == "file":
            return ImageField(key, image_mode)
        values = None if is_stored_as_it_is(found.feature) else structured_field(self.features, found.path)
        return TensorImageField(
            key,
            image_mode,
            values=values,
            are_numbers=form == "numbers",
            has_one_size=None not in found.feature.spec.shape,
        )

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Return how a field is decoded."""
        key = name, image_mode
        if key not in self._decoders:
            self._decoders[key] = self._make_decoder(name, image_mode)
        return self._decoders[key]

    def _make_decoder(self, name: str, image_mode: str | None) -> FieldDecoder:
        if name == "label" and isinstance(self.target_key, tuple):
            numbers = find_binary_fields(self.target_key, self.features, self.dataset)
            return PositionsField(tuple(stored_field(found) for found in numbers))
        found = self.find(name)
        if name == "image":
            return self._image_field(found, image_mode)
        if is_stored_as_it_is(found.feature) and not self._is_repeated(found):
            decoder = stored_field(found)
        else:
            decoder = structured_field(self.features, found.path)
        if self._is_one_image(found):
            are_deep = found.feature.spec.dtype != np.uint8 or len(decoder.keys) > 1
            return ImageBesideField(decoder.keys[0], declared=decoder, are_deep=are_deep)
        if name == "label" and isinstance(found.feature, Leaf) and not self._is_repeated(found):
            none = found.feature.none
            return decoder if none is None else OptionalLabelField(decoder, none)
        return decoder

    def encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored."""
        decoder = self.field(name, None)
        if isinstance(decoder, PositionsField):
            return EncodedField(decoder, "value", None)
        found = self.find(name)
        if self._is_repeated(found):
            return EncodedField(decoder, "value", None)
        if isinstance(decoder, TensorImageField):
            return EncodedField(decoder, "value" if decoder.are_numbers else "image", found.feature.spec)
        spec, stored = found.feature.spec, StoredField("/".join(found.path))
        if _is_text(found.feature):
            return EncodedField(stored, "text", spec)
        if self._is_one_image(found):
            return EncodedField(stored, "image", spec)
        return EncodedField(decoder, "value", spec)

    @property
    def has_scalar_target(self) -> bool:
        """Whether the field `label` is one value."""
        return self._scalar_target() is not None

    @property
    def has_integer_target(self) -> bool:
        """Whether the field `label` is one integer."""
        found = self._scalar_target()
        return found is not None and np.dtype(found.feature.spec.dtype).kind in "iub"

    def _scalar_target(self) -> FoundFeature | None:
        """Return the feature behind `label` where an example has one value of it."""
        found = find_feature(self.features, self.target_key) if isinstance(self.target_key, str) else None
        if found is None or self._is_repeated(found) or found.feature.shape != ():
            return None
        return found

    def _is_one_image(self, found: FoundFeature) -> bool:
        return is_image(found.feature) and len(found.feature.spec.shape) == 3 and not self._is_repeated(found)

    def _is_repeated(self, found: FoundFeature) -> bool:
        """Return whether an example has many values of a feature: it lies in a sequence, like steps of an episode."""
        return bool(found.sequence_depth) or isinstance(self.features, Repeated)


def _suggest_windows(features: Feature) -> str:
    """Return the end of a message about a dataset of episodes that is opened without windows."""
    steps = find_feature(features, "steps")
    if steps is None or not isinstance(steps.feature, Repeated):
        return ""
    return " Its records are episodes: their steps are examples with windows=Windows('steps', ...)."


def is_image(feature: Feature) -> bool:
    """Return whether a feature is an image, or the frames of one."""
    return isinstance(feature, Leaf) and feature.kind == "image"


def is_camera_tensor(feature: Feature) -> bool:
    """Return whether a feature is a tensor that can stand for images: uint8 [H, W, C] of 1, 3 or 4 channels."""
    if not isinstance(feature, Leaf) or feature.kind != "tensor" or not isinstance(feature.spec, FieldSpec):
        return False
    shape = feature.spec.shape
    return len(shape) == 3 and shape[2] in _CHANNELS and np.dtype(feature.spec.dtype) == np.uint8


def _is_text(feature: Feature) -> bool:
    return isinstance(feature, Leaf) and feature.kind == "text"


def stored_field(found: FoundFeature) -> FieldDecoder:
    """Return how a feature is decoded that is stored as it is."""
    stored = StoredField("/".join(found.path), _is_text(found.feature))
    number = num_classes(found.feature)
    return stored if number is None else ClassLabelField(stored, number)


def is_stored_as_it_is(feature: Feature) -> bool:
    """Return whether a feature is a tensor of a fixed shape that is stored without an encoding."""
    if not isinstance(feature, Leaf) or not feature.is_tensor or not isinstance(feature.stored, FieldSpec):
        return False
    declared, stored = feature.spec, feature.stored
    return None not in declared.shape and (stored.shape, stored.dtype) == (declared.shape, np.dtype(declared.dtype))
