"""The fields of windows of episodes: a table with a row for each name, made once when a parser is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfds_torch.engines.fields import EncodedField, FieldDecoder, ImageField, StoredField
from tfds_torch.engines.window_fields import OtherColumns, WindowField, WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess, height_and_width
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, METADATA_FIELDS, stored_key
from tfds_torch.parsers.tfds.feature_tree import (
    Dictionary,
    Feature,
    FoundFeature,
    Leaf,
    Repeated,
    find_feature,
    innermost,
    list_keys,
)
from tfds_torch.parsers.tfds.features import structured_field
from tfds_torch.parsers.tfds.fields import is_camera_tensor, is_image, is_stored_as_it_is, stored_field
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, padding_key
from tfds_torch.storage.source import FieldSpec

PADDING = "_pad"
"""The end of the name of a field that says which steps of a field with offsets are outside of the episode."""

_MODES = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True, kw_only=True)
class FieldRow:
    """A field of a window: this class itself for fields that are computed: `episode`, `step` and `<name>_pad`.

    Attributes:
        key: the feature, from the top level down; without one, the column.
        value: FieldSpec of one value, of a step or of the episode.
        offsets: the steps that a window has; with None it has its own step, or the value of its episode.
    """

    key: str
    value: Any
    offsets: tuple[int, ...] | None = None

    @property
    def column(self) -> str:
        """The column of a WindowSource that holds the values; of a feature with parts, the beginning of its columns."""
        return self.key

    @property
    def spec(self) -> Any:
        """FieldSpec of the value that one window has."""
        return self._with_time(self.value)

    def _with_time(self, value: Any) -> Any:
        if self.offsets is None or not isinstance(value, FieldSpec):
            return value
        return replace(value, shape=(len(self.offsets), *value.shape))


@dataclass(frozen=True, kw_only=True)
class FeatureRow(FieldRow):
    """A field of a window that is a feature, under one name.

    Attributes:
        found: the feature as records hold it.
        in_step: the feature as a single step holds it; for a feature of episodes, the same as `found`.
        leaf: the feature without the sequences around and in it.
        is_of_steps: whether each step has a value, rather than the episode.
        is_frame: whether a value is an image, also one of depths, or a tensor that can stand for one.
        suffix: the text behind the keys of the feature in the columns of these steps.
        is_text: whether its bytes come as str.
        preprocess: cuts and resizes its images while they are decoded; with None they stay as they are.
    """

    found: FoundFeature
    in_step: FoundFeature
    leaf: Leaf
    is_of_steps: bool
    is_frame: bool
    suffix: str = ""
    is_text: bool = False
    preprocess: Preprocess | None = None

    @property
    def column(self) -> str:  # noqa: D102
        return self.key + self.suffix

    @property
    def spec(self) -> Any:  # noqa: D102
        if not self.is_frame:
            return self._with_time(self.value)
        *size, channels = self.value.shape
        if self.preprocess is not None:
            size = [*height_and_width(self.preprocess.size)]
        return self._with_time(replace(self.value, shape=(channels, *size)))

    @property
    def is_camera(self) -> bool:
        """Whether a step has one uint8 image."""
        return self.is_frame and bool(self.value.dtype == np.uint8)

    @property
    def is_bytes(self) -> bool:
        """Whether values are bytes or texts, as they are stored."""
        if not self.leaf.is_tensor or self.leaf.decode is not None or not isinstance(self.leaf.stored, FieldSpec):
            return False
        return np.dtype(self.leaf.stored.dtype).kind in "OSU"


OWN_FIELDS = {
    "episode": FieldRow(key=EPISODE, value=FieldSpec((), np.int64)),
    "step": FieldRow(key=STEP, value=FieldSpec((), np.int64)),
}
"""Fields that every window has: the number of its episode in the split, and the step at which it begins."""


class WindowFields:
    """The fields of windows, and how each is decoded; `DatasetFields` is the same for whole records.

    A name is the user's own; or a feature of steps, counted from the sequence that holds them
    (`observation/image`); or a feature from the top level down, as those of whole episodes are
    (`episode_metadata/file_path`). Beside these there are `episode`, `step`, and `<name>_pad` of a field with offsets.
    Offsets, texts and a preprocess belong to a name: a feature may have several names, each with its own.

    Args:
        dataset: its name, for messages.
        features: those of the dataset.
        sequence: the one that holds the steps.
        windows: which windows there are.
        names: the user's own names -> the features that they stand for.
        cameras: name -> how its images are cut and resized while they are decoded.

    Attributes:
    Raises:
        ConfigError: a name, an offset, a text or a camera does not fit the features.
    """

    has_integer_target = has_scalar_target = False
    file_name_key = target_key = None
    image_key = "image"

    def __init__(
        self,
        dataset: str,
        features: Feature,
        sequence: FoundFeature,
        windows: Windows,
        names: Mapping[str, str],
        cameras: Mapping[str, Preprocess],
    ) -> None:
        self.dataset, self.features, self.sequence, self.windows = dataset, features, sequence, windows
        self.cameras = dict(cameras)
        self._prefix = f"{'/'.join(sequence.path)}/"
        self._one_step = _without_sequence(features, sequence.path)
        self._keys = list(list_keys(features))
        self._by_key = {key: row for key in self._keys if (row := self._make_row(key)) is not None}
        self._named: dict[str, FeatureRow] = {}
        for name, key in names.items():
            self._named[name] = self._name_row(name, key)
        for name, offsets in windows.offsets.items():
            self._set_offsets(name, tuple(offsets))
        self._divide_columns()
        for name in windows.texts:
            if not self._set(name, is_text=True).is_bytes:
                raise ConfigError(f"{dataset}: texts= names {quoted(name)}, which does not hold bytes.")
        if "image" in (*names, *windows.offsets):
            self.field("image", None)
        for name, preprocess in cameras.items():
            self._check_is_camera(name)
            self._set(name, preprocess=preprocess)

    # How the table is made.

    def _make_row(self, key: str) -> FeatureRow | None:
        """Return the row of a feature under its own name; None where it holds others."""
        found, in_step = find_feature(self.features, key), find_feature(self._one_step, key)
        leaf = innermost(found.feature) if found else None
        if not found or not in_step or not isinstance(leaf, Leaf):
            return None
        one = in_step.feature
        is_picture = is_image(one) and len(one.shape or ()) == 3
        is_frame = is_picture or (is_camera_tensor(one) and is_stored_as_it_is(one))
        return FeatureRow(
            key=key,
            value=one.spec,
            found=found,
            in_step=in_step,
            leaf=leaf,
            is_of_steps=f"{key}/".startswith(self._prefix),
            is_frame=is_frame and not in_step.sequence_depth,
        )

    def _name_row(self, name: str, key: str) -> FeatureRow:
        """Return the row of a user's own name."""
        if name in OWN_FIELDS or name in METADATA_FIELDS:
            raise ConfigError(f"{self.dataset}: fields= gives a feature the name {quoted(name)}, which windows have.")
        if self._key_of(key) is None and self._key_of(name) is not None:
            raise ConfigError(
                f"{self.dataset}: fields= are names of your own -> features, and {quoted(name)} is a feature: give "
                f"fields={{{quoted(key)}: {quoted(name)}}}."
            )
        return self._own_row(key)

    def _set(self, name: str, **values: Any) -> FeatureRow:
        """Change the row of a feature, and return it."""
        row = replace(self._feature_row(name), **values)
        if name in self._named:
            self._named[name] = row
        else:
            self._by_key[row.key] = row
        return row

    def _set_offsets(self, name: str, offsets: tuple[int, ...]) -> None:
        row = self._feature_row(name)
        if not row.is_of_steps:
            raise ConfigError(
                f"{self.dataset}: {quoted(name)} is one value an episode, and offsets are for features of steps, those "
                f"of {quoted(self.windows.sequence)}. Leave it out of offsets."
            )
        if row.offsets not in (None, offsets):
            short = quoted(self._short(row.key))
            raise ConfigError(
                f"{self.dataset}: {quoted(name)} has two lists of offsets. Give the feature two names, each with its "
                f"own: fields={{'past': {short}, 'future': {short}}}."
            )
        self._set(name, offsets=offsets)

    def _divide_columns(self) -> None:
        """Assign a column to each list of offsets of a feature; the column of the least list has the feature's name."""
        least: dict[str, tuple[int, ...]] = {}
        for row in self.rows:
            if row.offsets is not None:
                least[row.key] = min(row.offsets, least.get(row.key, row.offsets))
        for rows in (self._named, self._by_key):
            for name, row in rows.items():
                if row.offsets != least.get(row.key):
                    suffix = " at its own step" if row.offsets is None else f" at {list(row.offsets)}"
                    rows[name] = replace(row, suffix=suffix)

    def _check_is_camera(self, name: str) -> None:
        if isinstance(name, str) and self.has(name) and self._feature_row(name).is_camera:
            return
        there = self.cameras_there
        example = quoted(next(iter(there), "observation/image"))
        hint = "" if self._named else f" fields={{'image_primary': {example}}} gives one a name."
        raise ConfigError(
            f"{self.dataset}: preprocess names {quoted(name)}, which is not a camera: uint8 images, one a step. Its "
            f"cameras are {', '.join(map(quoted, there)) or 'none'}.{hint}"
        )

    # How a row is found.

    def row(self, name: str) -> FieldRow:
        """Return the row of a field as it is stored; raise ConfigError where there is none."""
        if name in OWN_FIELDS:
            return OWN_FIELDS[name]
        base = name.removesuffix(PADDING)
        if base == name or self.has(name) or not self.has(base):
            return self._feature_row(name)
        row = self._feature_row(base)
        if row.offsets is None:
            raise ConfigError(
                f"{self.dataset}: there is no field {quoted(name)}: {quoted(base)} has no offsets, so no step of it is "
                f"outside of an episode. Fields with offsets are {', '.join(self.windows.offsets) or 'none'}."
            )
        return FieldRow(key=padding_key(row.column), value=FieldSpec((), np.bool_), offsets=row.offsets)

    def has(self, name: str) -> bool:
        """Return whether there is a feature behind a name."""
        return name in self._named or self._key_of(name) is not None

    def _feature_row(self, name: str) -> FeatureRow:
        return self._named[name] if name in self._named else self._own_row(name)

    def _own_row(self, spelling: str) -> FeatureRow:
        """Return the row of a feature under its own name, however that is written."""
        key = self._key_of(spelling)
        if key is None:
            raise self._unknown(spelling)
        if key not in self._by_key:
            inner = [self._short(one) for one in self._by_key if one.startswith(f"{key}/")]
            raise ConfigError(
                f"{self.dataset}: {quoted(spelling)} holds several features, and a field of windows is one of them. "
                f"Ask for those that are needed: {', '.join(inner)}."
            )
        return self._by_key[key]

    def _key_of(self, spelling: str) -> str | None:
        """Return the key of a feature, however it is written; None where there is no such feature."""
        own = stored_key(spelling)
        keys = (key for one in (spelling, own) if one for key in (self._prefix + one, one))
        return next((key for key in keys if key in self._keys), None)

    def _unknown(self, name: str) -> ConfigError:
        there = [*self._named, *map(self._short, self._by_key)]
        every = f"{', '.join(there)}; and episode, step, and <name>_pad of fields with offsets."
        if name in DEFAULT_FIELDS:
            return ConfigError(
                f"{self.dataset}: windows have no field {quoted(name)} unless a feature is given this name. Name the "
                f"fields that are wanted, as in ImageDataset(parser, fields=({quoted(there[0])}, 'episode')). There "
                f"are: {every}"
            )
        hint = did_you_mean(name, [*there, *OWN_FIELDS])
        return ConfigError(f"{self.dataset}: windows have no field {quoted(name)}. Their fields are: {every}{hint}")

    def _short(self, key: str) -> str:
        """Return the name of a feature: one of steps is counted from the sequence that holds them."""
        return key.removeprefix(self._prefix)

    # Answers about the fields.

    @property
    def rows(self) -> list[FeatureRow]:
        """The rows of all names of features."""
        return [*self._named.values(), *self._by_key.values()]

    @property
    def all_fields(self) -> list[str]:
        """The fields that windows have, by the user's own names, else by their features, sorted."""
        padding = [f"{name}{PADDING}" for name in self._names if self._feature_row(name).offsets is not None]
        return sorted({*self._names, *padding, *OWN_FIELDS})

    @property
    def cameras_there(self) -> list[str]:
        """The fields that are uint8 images, one a step."""
        return [name for name in self._names if self._feature_row(name).is_camera]

    @property
    def _names(self) -> list[str]:
        """A name for each feature: the user's own, else the feature's, which also stands where it has offsets."""
        named = {row.key for row in self._named.values()}
        others = [key for key, row in self._by_key.items() if key not in named or row.offsets is not None]
        return [*self._named, *map(self._short, others)]

    @property
    def specs(self) -> dict[str, Any]:
        """Field -> FieldSpec of one window's value; None where the values of a function have no fixed size."""
        return {name: self.row(name).spec for name in self.all_fields}

    def find(self, name: str) -> FoundFeature:
        """Return the feature behind a field; raise ConfigError where there is none."""
        return self._feature_row(name).found

    def paths(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return nothing: boxes of windows do not move with an image."""
        return {}

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Return how a field is decoded."""
        return self._image(image_mode) if name == "image" else self._decoder(self.row(name))

    def encoded_field(self, name: str, *, own_step: bool = False) -> EncodedField:
        """Return how a field is handed over as it is stored: images of one step encoded, none of them cut.

        Args:
            name: the field.
            own_step: whether to return the value of the window's own step, whatever the offsets.
        """
        row = self.row(name)
        if not isinstance(row, FeatureRow):
            return EncodedField(StoredField(row.column), "value", row.spec)
        is_one_text = row.is_text and row.offsets is None and row.value.shape == ()
        row = replace(row, preprocess=None, is_text=False)
        if own_step:
            row = replace(row, offsets=None, suffix="")
        if row.is_camera and row.offsets is None:
            return EncodedField(StoredField(row.column), "image", row.value)
        decoder = self._image(None) if name == "image" else self._decoder(row)
        return EncodedField(decoder, "text" if is_one_text else "value", row.spec)

    def column_keys(self, name: str) -> tuple[str, ...]:
        """Return the stored fields that a column is made of."""
        return self.encoded_field(name, own_step=True).decoder.keys

    def number_of_none(self, name: str) -> float | None:
        """Return the number that stands for None in a column; None where the field is not optional, or unknown."""
        row = self.row(name)
        return row.found.feature.none if isinstance(row, FeatureRow) and isinstance(row.found.feature, Leaf) else None

    # How rows are decoded.

    def _decoder(self, row: FieldRow) -> FieldDecoder:
        if not isinstance(row, FeatureRow):
            return StoredField(row.column)
        padding = padding_key(row.column) if row.offsets is not None and self.windows.pad == "zero" else None
        if row.is_camera:
            mode = _MODES.get(row.value.shape[-1] or 0)
            has_time = row.offsets is not None
            return WindowImageField(row.column, has_time, mode, padding, row.preprocess, feature=row.key)
        inner: FieldDecoder
        if row.is_bytes:
            inner = StoredField(row.key)
        elif is_stored_as_it_is(row.in_step.feature) and not row.in_step.sequence_depth:
            inner = stored_field(row.in_step)
        else:
            is_one_step = row.offsets is None and row.is_of_steps
            inner = structured_field(self._one_step if is_one_step else self.features, row.found.path)
        return WindowField(OtherColumns(inner, row.suffix) if row.suffix else inner, padding, row.is_text, row.is_frame)

    def _image(self, image_mode: str | None) -> ImageField:
        """Return how the field `image` is decoded; raise ConfigError where it is not one image of an example."""
        row = self._feature_row("image")
        short = quoted(self._short(row.key))
        if not row.is_camera:
            raise ConfigError(
                f"{self.dataset}: the field 'image' must be one uint8 image a step, and {short} is "
                f"{quoted(row.found.feature)}. Ask for it by another name."
            )
        if row.offsets is not None:
            raise ConfigError(
                f"{self.dataset}: the field 'image' is one image of an example, and {short} has offsets. Ask for it by "
                f"another name, such as fields={{'image_primary': {short}}}."
            )
        return ImageField(row.column, image_mode)


def _without_sequence(features: Feature, path: tuple[str, ...]) -> Feature:
    """Return the features of a single step: one element stands in the place of the sequence."""
    if not path:
        return features.feature if isinstance(features, Repeated) else features
    if not isinstance(features, Dictionary):
        raise TypeError(f"{features!r} holds no {path[0]!r}.")
    inner = {**features.features, path[0]: _without_sequence(features.features[path[0]], path[1:])}
    return replace(features, features=inner)
