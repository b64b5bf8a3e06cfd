"""Which features of a dataset of episodes are behind the names of windows' fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import DEFAULT_FIELDS, METADATA_FIELDS, stored_key
from tfds_torch.parsers.tfds.feature_tree import (
    Dictionary,
    Feature,
    FoundFeature,
    find_feature,
    innermost,
    list_leaves,
)
from tfds_torch.parsers.tfds.window_layout import find_sequence, without_sequence
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, padding_key

OWN_FIELDS = {"episode": EPISODE, "step": STEP}
"""Fields that every window has: the number of its episode in the split, and the step at which it begins."""

PADDING = "_pad"
"""Behind the name of a field with offsets: which of its steps are outside of the episode."""


class FieldName(NamedTuple):
    """A name of a feature: offsets, texts and preprocesses belong to it, and not to the other names of the feature.

    Attributes:
        key: the feature, from the top level down.
        own: a name of the user's own; empty: the feature's, however it is written.
    """

    key: str
    own: str = ""


@dataclass(frozen=True)
class WindowNames:
    """The names of windows' fields.

    A name is one that `names` gives; a feature of steps, counted from the sequence that holds them
    (`observation/image`); or a feature from the top level down, as those of whole episodes are
    (`episode_metadata/file_path`). Beside these there are `episode`, `step`, and `<name>_pad` of a field with offsets.
    A feature may have several names, each with offsets of its own, or none.

    Attributes:
        dataset: its name, for messages.
        features: those of the dataset.
        windows: which windows there are.
        names: names of the user's own -> the features that they stand for.
    """

    dataset: str
    features: Feature
    windows: Windows
    names: Mapping[str, str]
    _looked_up: dict[str, FoundFeature | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check_names(self) -> None:
        """Raises ConfigError where a name of the user's own is taken, or is of no feature."""
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

    @cached_property
    def offsets(self) -> dict[FieldName, tuple[int, ...]]:
        """The steps that a window has of a field, where it has others than its own."""
        found: dict[FieldName, tuple[int, ...]] = {}
        for name, offsets in self.windows.offsets.items():
            field = self.name_of(name)
            if not self._is_of_steps(field.key):
                raise ConfigError(
                    f"{self.dataset}: {quoted(name)} is one value an episode, and offsets are for features of steps, "
                    f"those of {quoted(self.windows.sequence)}. Leave it out of offsets."
                )
            if found.setdefault(field, tuple(offsets)) != tuple(offsets):
                short = quoted(self._short(field.key))
                raise ConfigError(
                    f"{self.dataset}: {quoted(name)} has two lists of offsets. Give the feature two names, each with "
                    f"its own: fields={{'past': {short}, 'future': {short}}}."
                )
        return found

    @cached_property
    def columns(self) -> dict[str, dict[tuple[int, ...], str]]:
        """Key of a feature that some name has offsets for -> offsets -> what stands behind the key in their column.

        Empty offsets are the window's own step, for the names of the feature without any.
        """
        found: dict[str, dict[tuple[int, ...], str]] = {}
        for key in dict.fromkeys(one.key for one in self.offsets):
            own = [name for name, of in self.names.items() if "/".join(self._resolve(of).path) == key]
            asked = {self.offsets.get(FieldName(key, name), ()) for name in ("", *own)}
            (first, *others) = sorted(asked - {()})
            found[key] = {first: ""} | {offsets: f" at {list(offsets)}" for offsets in others}
            if () in asked:
                found[key][()] = " at its own step"
        return found

    def name_of(self, name: str) -> FieldName:
        """Returns the name of a field in one form, however it is written; raises ConfigError as `find`."""
        return FieldName("/".join(self.find(name).path), name if name in self.names else "")

    def column_suffix(self, name: str) -> str:
        """Returns what stands behind the keys of a field in its columns, where its feature has several of them."""
        field = self.name_of(name)
        return self.columns.get(field.key, {}).get(self.offsets.get(field, ()), "")

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
        return self.offsets.get(self.name_of(name))

    def is_text(self, name: str) -> bool:
        """Whether bytes of a field come as str."""
        return bool(self.windows.texts) and self.name_of(name) in set(map(self.name_of, self.windows.texts))

    def has(self, name: str) -> bool:
        """Whether there is a feature behind a field."""
        return self._look_up(self.names.get(name, name)) is not None

    def own_field(self, name: str) -> str | None:
        """Returns the stored field behind a name that is of no feature; None: it is of one."""
        if name in OWN_FIELDS:
            return OWN_FIELDS[name]
        base = name.removesuffix(PADDING)
        if base == name or name in self.names or self._look_up(name) is not None:
            return None
        if self.names.get(base, base) != base or self._look_up(base) is not None:
            if self.offsets_of(base) is not None:
                return padding_key("/".join(self.find(base).path) + self.column_suffix(base))
            raise ConfigError(
                f"{self.dataset}: there is no field {quoted(name)}: {quoted(base)} has no offsets, so no step of it is "
                f"outside of an episode. Fields with offsets are {', '.join(self.windows.offsets) or 'none'}."
            )
        return None

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
        """A name for each feature: those that `names` gives, else its own, which also stands where it has offsets."""
        named = {"/".join(self._resolve(key).path) for key in self.names.values()}
        named -= {field.key for field in self.offsets if not field.own}
        return [*self.names, *(self._short(key) for key, _ in list_leaves(self.features) if key not in named)]

    @property
    def _keys(self) -> list[str]:
        return [self._short(key) for key, _ in list_leaves(self.features)]

    def _short(self, key: str) -> str:
        """Returns the name of a feature: one of steps is counted from the sequence that holds them."""
        return key.removeprefix(f"{self._key}/")

    def _look_up(self, key: str) -> FoundFeature | None:
        if key not in self._looked_up:
            own = stored_key(key)
            names: Sequence[str] = [f"{self._key}/{key}", key] + ([] if own is None else [f"{self._key}/{own}", own])
            self._looked_up[key] = next(filter(None, (find_feature(self.features, one) for one in names)), None)
        return self._looked_up[key]

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
