"""The fields of a `.beton` file, and how they are stored: as asked for, else by the type of a value or its spec."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.export.default_fields import CannotStoreError, convert, field_of_spec, field_of_value
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonFloat, BetonInt, BetonJson
from tfds_torch.storage.beton.format import LONGEST_NAME
from tfds_torch.storage.beton.image_field import MODES, BetonImage

FIRST = ("image", "label")
_PLAIN: dict[str, type[BetonInt | BetonFloat | BetonBytes | BetonJson]] = {
    "bytes": BetonBytes,
    "float": BetonFloat,
    "int": BetonInt,
    "json": BetonJson,
}
SHORT_NAMES = (*MODES, *_PLAIN)
SKIP = "skip"

FieldChoice = BetonField | str | None
"""How a field is stored: a field's value, a short name of one; None or "skip": not at all."""


@dataclass(frozen=True)
class ChosenFields:
    """The fields of a file, chosen by a first sample. It travels between processes, which a user's fields need not.

    Attributes:
        fields: name in the file -> how it is stored, or the name of the field that was asked for.
        keys, num_values: as in FieldPlan.
    """

    fields: dict[str, BetonField | str]
    keys: tuple[Any, ...]
    num_values: int | None

    def plan(self, asked: Mapping[str, FieldChoice]) -> "FieldPlan":
        """Returns the plan with the fields that were asked for."""
        fields = {name: asked[one] if isinstance(one, str) else one for name, one in self.fields.items()}
        return FieldPlan({name: _with_decoder(one) for name, one in fields.items()}, self.keys, self.num_values)


@dataclass(frozen=True)
class FieldPlan:
    """Which values are taken from each sample.

    Attributes:
        fields: of the file, by their names there.
        keys: of a sample that is a mapping; positions in one that is a sequence.
        num_values: of a sample that is a sequence; None: it is a mapping.
    """

    fields: dict[str, BetonField]
    keys: tuple[Any, ...]
    num_values: int | None

    def values(self, sample: Any) -> list[Any]:
        """Returns a sample's values for the fields; a ConfigError: it differs from the first sample."""
        if self.num_values is None:
            lacking = [key for key in self.keys if not isinstance(sample, Mapping) or key not in sample]
            if lacking:
                found = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
                raise ConfigError(f"The sample has no {lacking}, as the first one had: it is {found}.")
        elif (
            isinstance(sample, Mapping | str | bytes)
            or not hasattr(sample, "__len__")
            or len(sample) != self.num_values
        ):
            found = f"{len(sample)} values" if isinstance(sample, tuple | list) else type(sample).__name__
            raise ConfigError(f"The sample is {found}, and the first one had {self.num_values} values.")
        return [convert(field, sample[key]) for key, field in zip(self.keys, self.fields.values(), strict=True)]


def check_choices(fields: object, names: object) -> tuple[dict[str, FieldChoice], dict[str, str]]:
    """Returns the arguments of an export by field (None: nothing is asked for), checked before any sample is read."""
    given = {name: _field_value(name, one) for name, one in _mapping("fields", fields, "raw").items()}
    new = dict(_mapping("names", names, "picture"))
    for name, one in new.items():
        if not isinstance(one, str):
            raise ConfigError(
                f"names: {quoted(name)} is {quoted(one)}, which is not a text: give its name in the file, such as "
                f"{{{quoted(name)}: 'picture'}}, or leave it out to keep its name."
            )
    return given, new


def _mapping(what: str, value: object, example: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{what}={value!r} must be a mapping by name, such as {{'image': {example!r}}}.")
    return value or {}


def choose_fields(
    asked: Mapping[str, FieldChoice],
    names: Mapping[str, str],
    known: Mapping[str, EncodedField | ConfigError] | None,
    sample: Any,
) -> ChosenFields:
    """Returns the fields of a file: image and label first, then the others in the sample's order.

    Args:
        asked: as `check_choices` returns it; fields that are not named are stored by the type of their value.
        names: as `check_choices` returns it.
        known: the source's fields; None: the sample shows them.
        sample: the first one; None: there is none.

    Raises:
        ConfigError: unknown fields, or fields that cannot be stored; all of these are named.
    """
    values, keys, num_values = sample_fields(asked, known, sample)
    check_are_fields(keys, fields=asked, names=names)
    chosen, refused = dict[str, BetonField | str](), list[str]()
    for name in keys:
        try:
            if asked.get(name, SKIP) is not None:
                in_file = _check_name(names.get(name, name), chosen)
                chosen[in_file] = _choose(name, asked, values.get(name), None if known is None else known[name])
        except CannotStoreError as error:
            refused.append(f"{quoted(name)}: {error}")
    if refused:
        raise ConfigError(
            f"Nothing was written: of the fields, {len(refused)} cannot be stored as asked for.\n  "
            + "\n  ".join(refused)
            + "\nLeave such a field out with fields={name: None} (--field NAME=skip), store it in another way with "
            "fields={name: 'json'} (--field NAME=json), or give it another name with names={name: new} "
            "(--rename NAME=NEW)."
        )
    if not chosen:
        why = "there is no sample that has any, and fields names none" if not keys else "all are left out"
        raise ConfigError(f"There is no field to be written: {why}.")
    kept = tuple(key for name, key in keys.items() if asked.get(name, SKIP) is not None)
    return ChosenFields(chosen, kept, num_values)


def _field_value(name: object, choice: object) -> FieldChoice:
    if not isinstance(choice, str):
        if isinstance(choice, type) or (choice is not None and not hasattr(choice, "encode")):
            raise ConfigError(
                f"fields: {quoted(name)} is {quoted(choice)}, not a field such as BetonImage('raw') or BetonInt()."
            )
        return choice  # type: ignore[return-value]
    if choice in MODES:
        return BetonImage(choice)
    if choice in _PLAIN:
        return _PLAIN[choice]()
    if choice == SKIP:
        return None
    raise ConfigError(
        f"fields: {quoted(choice)} is not a way to store {quoted(name)}. Short names: "
        f"{', '.join((*SHORT_NAMES, SKIP))}.{did_you_mean(choice, (*SHORT_NAMES, SKIP))}"
    )


def _choose(
    name: str, asked: Mapping[str, FieldChoice], value: Any, known: EncodedField | ConfigError | None
) -> BetonField | str:
    if isinstance(known, ConfigError):
        raise CannotStoreError(str(known))
    if name in asked:
        return name
    return field_of_value(name, value) if known is None else field_of_spec(name, known, value)


def _check_name(name: object, taken: Mapping[str, object]) -> str:
    if not isinstance(name, str) or not (name.isascii() and name.isprintable() and 1 <= len(name) <= LONGEST_NAME):
        raise CannotStoreError(
            f"its name {quoted(name)} is not {LONGEST_NAME} printable ASCII characters at most, and the format has no "
            f"room for more"
        )
    if name in taken:
        raise CannotStoreError(f"another field has the name {quoted(name)} already")
    return name


def _with_decoder(chosen: Any) -> Any:
    """Lets images that must be decoded be decoded by `images/`, which is faster than Pillow."""
    if isinstance(chosen, BetonImage) and chosen.decode is None:
        return replace(chosen, decode=decode_image)
    return chosen


def decode_image(image: bytes) -> "np.typing.NDArray[np.uint8]":
    """Returns the pixels of an encoded image, uint8 [h, w, 3]; a ConfigError: it cannot be decoded."""
    try:
        return _DECODER.decode(image, _DECODER.read_header(image))
    except ImageDecodeError as error:
        raise ConfigError(f"The image cannot be decoded: {error}") from None


_DECODER = ImageDecoder("RGB")


def sample_fields(
    asked: Mapping[str, Any], known: Mapping[str, object] | None, sample: Any
) -> tuple[dict[str, Any], dict[Any, Any], int | None]:
    """Returns a first sample's values by field; the key of each field, image and label first; and a sequence's length.

    The length of a mapping is None. `asked` names the values of a sequence that has as many. `known` are the source's
    fields; None: the sample shows them.
    """
    if known is not None or isinstance(sample, Mapping):
        values = {} if sample is None else dict(sample)
        every = list(values if known is None else known)
        names = [*(name for name in FIRST if name in every), *(name for name in every if name not in FIRST)]
        return values, {name: name for name in names}, None
    if sample is None:  # Only the names that were asked for are known.
        return {}, {name: place for place, name in enumerate(asked)}, len(asked)
    if isinstance(sample, str | bytes) or not isinstance(sample, Sequence):
        raise ConfigError(
            f"The first sample is {type(sample).__name__}: samples are dictionaries, or tuples of values."
        )
    names = list(asked) if len(asked) == len(sample) else _usual_names(sample)
    if len(asked) > len(sample):
        raise ConfigError(f"fields names {len(asked)} values, and a sample has {len(sample)}.")
    return dict(zip(names, sample, strict=True)), {name: place for place, name in enumerate(names)}, len(sample)


def check_are_fields(keys: Mapping[Any, Any], **given: Iterable[str]) -> None:
    """Raises a ConfigError for the names in an argument of the export that are not those of fields."""
    for argument, names in given.items():
        for name in names:
            if name not in keys:
                raise ConfigError(
                    f"{argument} names {quoted(name)}, which is not a field: there are {', '.join(map(str, keys))}."
                    f"{did_you_mean(name, map(str, keys))}"
                )


def _usual_names(sample: Sequence[Any]) -> list[str]:
    """Returns `image` and `label` for (image, integer), and `field_<n>` for what else there is."""
    names = [f"field_{place}" for place in range(len(sample))]
    try:
        kinds = [field_of_value("image" if place == 0 else "", value) for place, value in enumerate(sample)]
    except CannotStoreError:
        kinds = []
    for name, kind in (("image", BetonImage), ("label", BetonInt)):
        place = next((place for place, found in enumerate(kinds) if isinstance(found, kind)), None)
        if place is not None:
            names[place] = name
    return names
