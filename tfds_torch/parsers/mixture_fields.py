"""The fields that all members of a mixture have, and how each member decodes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch.engines.fields import (
    BYTES_SPEC,
    EncodedField,
    FieldDecoder,
    ImageField,
    ImagesBeside,
    StoredField,
    TensorImageField,
)
from tfds_torch.engines.window_fields import WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.mixture_members import Members
from tfds_torch.parsers.mixture_source import (
    IMAGE,
    MEMBER,
    MixedField,
    MixedImagesField,
    encoded_key,
)
from tfds_torch.parsers.protocol import METADATA_SPECS, ElementSpec
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.storage.source import FieldSpec

LABEL_NAME = "label"
_ARGUMENTS_OF_RECORDS = "keys, image_mode, class_map and decode, or each a transform that makes its values alike"
_ARGUMENTS_OF_WINDOWS = "offsets, fields and preprocess, or each a transform that makes its values alike"
_OF_BATCHES = {*METADATA_SPECS, MEMBER}


@dataclass(frozen=True)
class FieldDescription:
    """The kind and the spec of a member's field; equal where members' values can be in one batch.

    Attributes:
        kind: "image", "text", "value", or "bytes" of a field that comes undecoded.
        spec: of one value: shape and dtype, names -> specs of nested values, or None where they vary.
    """

    kind: str
    spec: Any

    def __str__(self) -> str:
        if self.kind == "text":
            return "a text"
        if self.kind == "bytes":
            return "bytes, undecoded"
        if self.kind == "image":
            return f"an image ({self.spec})"
        if isinstance(self.spec, tuple):
            shape, dtype = self.spec
            return f"{dtype} {list(shape)}"
        return "of any form" if self.spec is None else quoted(self.spec)

    @property
    def array(self) -> tuple[tuple[int, ...], Any] | None:
        """Shape and dtype of numbers that are all of one size; None for any other field."""
        if self.kind != "value" or not isinstance(self.spec, tuple):
            return None
        shape, dtype = self.spec
        return None if None in shape or not is_numeric(np.dtype(dtype)) else (shape, np.dtype(dtype))


LABEL = FieldDescription("value", ((), "int64"))
"""One integer, after the class map."""


class MixtureFields:
    """The fields that all members store. It can be pickled; descriptions of fields are made once.

    Args:
        members: name -> dataset.
        name: the mixture's name, for messages.
    """

    def __init__(self, members: Members, name: str) -> None:
        self._members, self._name = members, name
        self._found: dict[str, FieldDescription | str] = {}  # Field -> its description, or why it is not common.
        self._decoders: dict[str, FieldDecoder] = {}

    def describe(self, name: str) -> FieldDescription:
        """Return the description of a field in all members.

        Raises:
            ConfigError: a member has no such field, or another kind of it; the message names the member.
        """
        found = self._look_at(name)
        if isinstance(found, str):
            raise ConfigError(f"{self._name}: {found}")
        return found

    def has(self, name: str) -> bool:
        """Return whether all members have a field of one kind."""
        return not isinstance(self._look_at(name), str)

    def is_undecoded(self, name: str) -> bool:
        """Return whether a field comes as bytes in all members."""
        found = self._look_at(name)
        return isinstance(found, FieldDescription) and found.kind == "bytes"

    @property
    def has_integer_label(self) -> bool:
        """Whether `label` is one integer in all members, after their class maps."""
        return self._look_at(LABEL_NAME) == LABEL

    @property
    def names(self) -> list[str]:
        """The fields that all members have as they store them, without those that a batch has anyway."""
        return [name for name in self._first.stored_spec.fields if name not in _OF_BATCHES and self.has(name)]

    @property
    def stored_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as the first member declares it."""
        stored = self._first.stored_spec.fields
        specs: dict[str, Any] = {name: stored[name] for name in self.names}
        if self.has(IMAGE):
            specs[IMAGE] = BYTES_SPEC if self.is_undecoded(IMAGE) else FieldSpec((None, None, 3), np.uint8)
        if self.has_integer_label:
            specs[LABEL_NAME] = FieldSpec((), np.int64)
        return ElementSpec(dict(sorted(specs.items())) | {MEMBER: FieldSpec((), np.int64)} | METADATA_SPECS)

    def check(self) -> None:
        """Raise ConfigError where the members have no field in common."""
        if self.has(IMAGE) or self.has(LABEL_NAME) or self.names:
            return
        members = ", ".join(map(quoted, self._members))
        raise ConfigError(f"ParserMixture: the members {members} have no field in common. {self._look_at(IMAGE)}")

    def field(self, name: str) -> FieldDecoder:
        """Return how a field is decoded.

        Raises:
            ConfigError: not all members have it.
        """
        if name not in self._decoders:
            self._decoders[name] = self._make_field(name)
        return self._decoders[name]

    def encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored; see `Dataset`."""
        if name == MEMBER:
            return EncodedField(StoredField(MEMBER), "value", FieldSpec((), np.int64))
        description = self.describe(name)
        fields = [parser.encoded_field(name) for parser in self._members.values()]
        array = description.array if fields[0].kind == "value" else None
        decoder = MixedField(encoded_key(name), tuple(one.decoder for one in fields), array)
        return EncodedField(decoder, fields[0].kind, fields[0].spec, any(one.is_optional for one in fields))

    @property
    def _first(self) -> Dataset:
        return next(iter(self._members.values()))

    def _look_at(self, name: str) -> "FieldDescription | str":
        if name not in self._found:
            try:
                self._found[name] = describe_common(self._members, name)
            except ConfigError as error:
                self._found[name] = str(error)
        return self._found[name]

    def _make_field(self, name: str) -> FieldDecoder:
        if name == MEMBER:
            return StoredField(MEMBER)
        description = self.describe(name)
        if name == IMAGE and description.kind == "image":
            return ImageField(IMAGE, self._first.image_mode)
        decoders = [parser.field(name) for parser in self._members.values()]
        if all(isinstance(decoder, ImagesBeside) for decoder in decoders):
            return MixedImagesField(name, tuple(decoders))
        return MixedField(name, tuple(decoders), description.array)


def describe_field(parser: Dataset, name: str) -> FieldDescription:
    """Return the description of a member's field, after its class map.

    Raises:
        ConfigError: the member has no such field, or only tensorflow could decode it.
    """
    decoder = parser.field(name)
    if parser.is_undecoded(name):
        return FieldDescription("bytes", None)
    if isinstance(decoder, TensorImageField) and decoder.are_numbers:
        raise ConfigError(
            f"{parser.dataset_name}: 'image' is not uint8 of 1, 3 or 4 channels, and a mixture has no other images. "
            f"Ask for it by its own name, or as 'stored/image'."
        )
    if name == IMAGE:
        return FieldDescription("image", f"image_mode={parser.image_mode!r}")
    if name == LABEL_NAME and parser.has_one_label:
        return LABEL
    found = parser.encoded_field(name)
    if found.kind == "text":
        return FieldDescription("text", None)
    if isinstance(decoder, WindowImageField):
        return FieldDescription("value", _plain(parser.stored_spec.fields[name]))
    if found.kind == "image":
        num_channels = CHANNELS[decoder.mode] if isinstance(decoder, ImageField) else found.spec.shape[-1]
        if found.spec.dtype is object:
            return FieldDescription("image", "of the type and channels that each has")
        return FieldDescription("image", f"{np.dtype(found.spec.dtype)}, {num_channels} channels")
    return FieldDescription("value", _plain(parser.stored_spec.fields.get(name) if found.spec is None else found.spec))


def _plain(spec: Any) -> Any:
    """Return a spec as plain values that can be compared."""
    if isinstance(spec, FieldSpec):
        return tuple(spec.shape), str(np.dtype(spec.dtype))
    if isinstance(spec, Mapping):
        return {name: _plain(one) for name, one in spec.items()}
    return None if spec is None else repr(spec)


def describe_common(members: Members, name: str) -> FieldDescription:
    """Return the description of a field in all members.

    Raises:
        ConfigError: a member has no such field, or another kind of it; the message names the member.
    """
    first: tuple[str, FieldDescription] | None = None
    gives = {member: parser.transformed.may_give(name) for member, parser in members.items()}
    for member, parser in sorted(members.items(), key=lambda item: gives[item[0]]):  # Others' made fields are unstored.
        try:
            found = describe_field(parser, name)
        except ConfigError as error:
            raise ConfigError(
                f"The field {quoted(name)} is not one of all members: {quoted(member)} lacks it. {error}"
            ) from None
        if first is not None and found != first[1]:
            raise ConfigError(
                f"The field {quoted(name)} is {first[1]} in the member {quoted(first[0])}, and {found} in "
                f"{quoted(member)}: members must have equal fields. Give the parsers the same "
                f"{_ARGUMENTS_OF_WINDOWS if parser.has_windows else _ARGUMENTS_OF_RECORDS}."
            )
        first = first or (member, found)
    if first is None:
        raise ConfigError("A mixture without members has no fields.")
    return first[1]


def common_boxes(members: Members, fields: Sequence[str], preprocess: Preprocess) -> tuple[BoxRows, ...]:
    """Return which boxes move with the image in all members.

    Raises:
        ConfigError: some members declare boxes, or rows beside them, that others do not; the message names two.
    """
    every = {name: parser.moving_boxes(fields, preprocess) for name, parser in members.items()}
    first, wanted = next(iter(every.items()))
    for name, found in every.items():
        if found != wanted:
            raise ConfigError(
                f"The boxes of the members do not move alike: in {quoted(first)} there move {_shown_boxes(wanted)}, "
                f"and in {quoted(name)} {_shown_boxes(found)}. Name them in the preprocess, each with all fields that "
                f"have a row for each box, such as boxes={{'objects/bbox': ('objects/label',)}}; or boxes=() for none."
            )
    return wanted


def _shown_boxes(groups: Sequence[BoxRows]) -> str:
    """Return boxes, and the fields that have a row for each, in words."""
    shown = []
    for group in groups:
        rows = f" with {', '.join(map(str, group.rows))}" if group.rows else ""
        shown.append(", ".join(map(str, group.boxes)) + rows)
    return "; ".join(shown) or "none"


def common_class_names(members: Members) -> list[str] | None:
    """Return the names of the labels, where all members have the same; else None.

    Raises:
        ConfigError: labels mean different things in two members, and neither has a class_map.
    """
    every = {name: parser.class_names for name, parser in members.items()}
    named = {name: names for name, names in every.items() if names is not None and members[name].class_map is None}
    for name, names in named.items():
        first, wanted = next(iter(named.items()))
        if names != wanted:
            number, pair = next(
                (at, pair)
                for at, pair in enumerate(zip([*wanted, None], [*names, None], strict=False))
                if pair[0] != pair[1]
            )
            raise ConfigError(
                f"Labels mean different things: {quoted(first)} has {len(wanted)} classes and {quoted(name)} "
                f"{len(names)}, and label {number} is {quoted(pair[0])} in {quoted(first)} and {quoted(pair[1])} in "
                f"{quoted(name)}. Give the parsers a class_map onto common labels, or target_key=None where labels are "
                f"not needed."
            )
    first_names, *others = every.values()
    return first_names if all(names == first_names for names in others) else None
