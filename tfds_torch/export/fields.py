"""The fields of a `.beton` file, and how they are stored: as asked for, else by the type of a value or its spec.

Tar files share the code for samples, their fields, and JSON and PNG.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import is_picture
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import read_header
from tfds_torch.runtime import tensor_type
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import (
    BetonArray,
    BetonBytes,
    BetonField,
    BetonFloat,
    BetonInt,
    BetonJson,
    BetonTensor,
)
from tfds_torch.storage.beton.format import LONGEST_NAME
from tfds_torch.storage.beton.image_field import MODES, BetonImage, readable_jpeg_size
from tfds_torch.storage.map_style.items import take_apart
from tfds_torch.storage.map_style.pixels import numbers_of
from tfds_torch.storage.source import FieldSpec

FIRST = ("image", "label")
_PLAIN: dict[str, type[BetonInt | BetonFloat | BetonBytes | BetonJson]] = {
    "bytes": BetonBytes,
    "float": BetonFloat,
    "int": BetonInt,
    "json": BetonJson,
}
SHORT_NAMES = (*MODES, *_PLAIN)
SKIP = "skip"

Form = int | frozenset[str] | None
"""The common form of samples: the number of a tuple's values, or a dictionary's keys; None for a parser's examples."""

FieldChoice = BetonField | str | None
"""How a field is stored: an object of a field, or its short name; None or "skip": not at all."""


@dataclass(frozen=True)
class ChosenFields:
    """The fields of a file, chosen by a first sample. It travels between processes, which a user's fields need not.

    Attributes:
        fields: name in the file -> how it is stored, or the name of the field that was asked for.
        keys, form: as in FieldPlan.
    """

    fields: dict[str, BetonField | str]
    keys: tuple[Any, ...]
    form: Form

    def plan(self, asked: Mapping[str, FieldChoice]) -> "FieldPlan":
        """Return the plan with the fields that were asked for."""
        fields = {name: asked[one] if isinstance(one, str) else one for name, one in self.fields.items()}
        return FieldPlan({name: _with_decoder(one) for name, one in fields.items()}, self.keys, self.form)


@dataclass(frozen=True)
class FieldPlan:
    """Which values are taken from each sample.

    Attributes:
        fields: of the file, by their names there.
        keys: of a sample that is a mapping; positions in one that is a sequence.
        form: of the first sample.
    """

    fields: dict[str, BetonField]
    keys: tuple[Any, ...]
    form: Form

    def values(self, sample: Any) -> list[Any]:
        """Return a sample's values for the fields; raise ConfigError where it differs from the first sample."""
        check_alike(sample, self.form)
        return [convert(field, sample[key]) for key, field in zip(self.keys, self.fields.values(), strict=True)]


def check_alike(sample: Any, form: Form) -> None:
    """Raise ConfigError where a sample has other values than the first one, whose form this is: none may get lost."""
    if form is None:
        return
    if isinstance(form, int):
        is_alike = isinstance(sample, tuple | list) and len(sample) == form
        had = f"{form} values"
    else:
        is_alike = isinstance(sample, Mapping) and sample.keys() == form
        had = _listed(form)
    if not is_alike:
        has = f"{len(sample)} values" if isinstance(sample, tuple | list) else type(sample).__name__
        has = _listed(sample) if isinstance(sample, Mapping) else has
        raise ConfigError(f"The sample has {has}, and the first one had {had}: give all of them the same.")


def _listed(keys: Iterable[Any]) -> str:
    return ", ".join(sorted(map(quoted, keys)))


def check_choices(fields: object, rename: object) -> tuple[dict[str, FieldChoice], dict[str, str]]:
    """Return the arguments of an export by field (None: nothing is asked for), checked before any sample is read."""
    given = {name: _field_value(name, one) for name, one in _mapping("fields", fields, "raw").items()}
    new = dict(_mapping("rename", rename, "picture"))
    for name, one in new.items():
        if not isinstance(one, str):
            raise ConfigError(
                f"rename: {quoted(name)} is {quoted(one)}, which is not a text: give its name in the file, such as "
                f"{{{quoted(name)}: 'picture'}}, or leave it out to keep its name."
            )
    return given, new


def _mapping(what: str, value: object, example: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{what}={value!r} must be a mapping by name, such as {{'image': {example!r}}}.")
    return value or {}


def choose_fields(
    asked: Mapping[str, FieldChoice],
    rename: Mapping[str, str],
    names: Sequence[str] | None,
    known: Mapping[str, EncodedField | ConfigError] | None,
    sample: Any,
) -> ChosenFields:
    """Return the fields of a file: image and label first, then the others in the sample's order.

    Args:
        asked: as `check_choices` returns it; fields that are not named are stored by the type of their value.
        rename: as `check_choices` returns it.
        names: names of the values of tuples, by position; None: as ParserMapStyle calls them.
        known: the source's fields; None: the sample shows them.
        sample: the first one; None: there is none.

    Raises:
        ConfigError: unknown fields, or fields that cannot be stored; all of these are named.
    """
    values, keys, form = sample_fields(names, asked, known, sample)
    check_are_fields(keys, fields=asked, rename=rename)
    chosen, refused = dict[str, BetonField | str](), list[str]()
    for name in keys:
        try:
            if asked.get(name, SKIP) is not None:
                in_file = _check_name(rename.get(name, name), chosen)
                chosen[in_file] = _choose(name, asked, values.get(name), None if known is None else known[name])
        except CannotStoreError as error:
            refused.append(f"{quoted(name)}: {error}")
    if refused:
        raise ConfigError(
            f"Nothing was written: of the fields, {len(refused)} cannot be stored as asked for.\n  "
            + "\n  ".join(refused)
            + "\nLeave such a field out with fields={name: None} (--field NAME=skip), store it in another way with "
            "fields={name: 'json'} (--field NAME=json), or give it another name with rename={name: new} "
            "(--rename NAME=NEW)."
        )
    if not chosen:
        why = "there is no sample that has any, and fields names none" if not keys else "all are left out"
        raise ConfigError(f"There is no field to be written: {why}.")
    kept = tuple(key for name, key in keys.items() if asked.get(name, SKIP) is not None)
    return ChosenFields(chosen, kept, form)


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
    """Let `images/` decode the images that must be decoded: it is faster than Pillow."""
    if isinstance(chosen, BetonImage) and chosen.decode is None:
        return replace(chosen, decode=decode_image)
    return chosen


def decode_image(image: bytes) -> "np.typing.NDArray[np.uint8]":
    """Return the pixels of an encoded image, uint8 [h, w, 3]; raise ConfigError where it cannot be decoded."""
    try:
        return _DECODER.decode(image, _DECODER.read_header(image))
    except ImageDecodeError as error:
        raise ConfigError(f"The image cannot be decoded: {error}") from None


_DECODER = ImageDecoder("RGB")


def sample_fields(
    names: Sequence[str] | None, asked: Iterable[str], known: Mapping[str, object] | None, sample: Any
) -> tuple[dict[str, Any], dict[Any, Any], Form]:
    """Return a first sample's values by field; the key of each field, image and label first; and the samples' form.

    Args:
        names: names of the values of tuples, by position; None: as ParserMapStyle calls them.
        asked: fields that are asked for; the only ones that are known where there is no sample.
        known: the source's fields; None: the sample shows them.
        sample: a mapping, or a tuple; None: there is none.
    """
    if known is not None or isinstance(sample, Mapping):
        if names is not None:
            keys = list(known if known is not None else sample)
            raise ConfigError(
                f"names={quoted(tuple(names))} is for rows that are tuples, and these have the fields "
                f"{', '.join(map(str, keys))}: rename={{name: new}} (--rename NAME=NEW) gives one another name."
            )
        values = {} if sample is None else dict(sample)
        every = list(values if known is None else known)
        first = [*(name for name in FIRST if name in every), *(name for name in every if name not in FIRST)]
        return (
            values,
            {name: name for name in first},
            None if known is not None or sample is None else frozenset(values),
        )
    if sample is None:
        every = list(names or asked)
        return {}, {name: place for place, name in enumerate(every)}, len(every)
    if not isinstance(sample, tuple | list):
        raise ConfigError(
            f"The first sample is {type(sample).__name__}: samples are dictionaries, or tuples of values."
        )
    _, values = take_apart(sample, names, "export_dataset")
    return values, {name: place for place, name in enumerate(values)}, len(sample)


def check_are_fields(keys: Mapping[Any, Any], **given: Iterable[str]) -> None:
    """Raise ConfigError for names in an argument of the export that are not those of fields."""
    for argument, names in given.items():
        for name in names:
            if name not in keys:
                raise ConfigError(
                    f"{argument} names {quoted(name)}, which is not a field: there are {', '.join(map(str, keys))}."
                    f"{did_you_mean(name, map(str, keys))}"
                )


# By the type of a value, or its spec


class CannotStoreError(Exception):
    """The reason why no field can hold a value; never leaves this room."""


def field_of_spec(name: str, known: EncodedField, value: Any) -> BetonField:
    """Return how values of a declared form are stored; a first value (or None) shows how images are encoded."""
    is_bytes = known.kind == "value" and isinstance(known.spec, FieldSpec) and known.spec.dtype is object
    if known.is_optional and (known.kind == "image" or is_bytes):
        raise CannotStoreError(
            "some samples lack it, and a .beton file has neither images nor bytes that are None: leave out these "
            "samples (missing='skip', parser.subset)"
        )
    if known.kind == "image":
        if isinstance(value, np.ndarray):
            return BetonImage("raw") if name == "image" else _field_of_numbers(value)
        # A mask would not survive JPEG.
        is_photo = name == "image" or (value is not None and readable_jpeg_size(value) is not None)
        return BetonImage("passthrough") if is_photo else BetonBytes()
    spec = known.spec
    check_has_no_images(spec)
    if known.kind == "text" or not isinstance(spec, FieldSpec):
        return BetonJson()
    kind = np.dtype(spec.dtype).kind
    if not spec.shape and kind in "OSU":
        return BetonBytes()
    if not spec.shape:
        return _number(kind, spec.dtype)
    if None in spec.shape or kind in "OSU" or not math.prod(side or 0 for side in spec.shape):
        return BetonJson()
    return _array(np.dtype(spec.dtype), tuple(side or 0 for side in spec.shape))


def check_has_no_images(spec: Any) -> None:
    """Raise CannotStoreError for a spec with images inside of a sequence or a dictionary."""
    if isinstance(spec, Mapping):
        for inner in spec.values():
            check_has_no_images(inner)
    elif isinstance(spec, FieldSpec) and spec.dtype in (np.uint8, np.uint16) and spec.shape.count(None) > 1:
        raise CannotStoreError("images inside of a sequence or a dictionary have no field of their own")


def field_of_value(name: str, value: Any) -> BetonField:
    """Return how values like a first one are stored: encoded images keep their bytes, pixels stay pixels."""
    if isinstance(value, Image.Image):
        return BetonImage("raw") if name == "image" else _field_of_numbers(numbers_of(value))
    if isinstance(value, bytes | bytearray):
        is_image = readable_jpeg_size(bytes(value)) is not None or (
            name == "image" and read_header(bytes(value)) is not None
        )
        return BetonImage("passthrough") if is_image else BetonBytes()
    if isinstance(value, np.ndarray | np.generic) or is_tensor(value):
        return _field_of_array(name, value)
    if isinstance(value, bool | int):
        return BetonInt()
    if isinstance(value, float):
        return BetonFloat()
    if value is None or isinstance(value, str | list | tuple | Mapping):
        return BetonJson()
    raise CannotStoreError(f"{type(value).__name__} is nothing that a .beton file holds")


def _field_of_numbers(pixels: NDArray[Any]) -> BetonField:
    """Return how the numbers of an image beside the image are stored, [h, w, C]: a BetonImage has three channels."""
    if is_picture(pixels):
        return BetonImage("raw")
    return BetonBytes() if can_be_png(pixels) else BetonJson()


def can_be_png(pixels: NDArray[Any]) -> bool:
    """Return whether a PNG holds the numbers of an image, [h, w] or [h, w, C], as they are."""
    num_channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return (pixels.dtype == np.uint8 and num_channels <= 4) or (pixels.dtype == np.uint16 and num_channels == 1)


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Return the numbers of an image, [h, w] or [h, w, C], as a PNG; see `can_be_png`."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(file, "PNG")
    return file.getvalue()


def _field_of_array(name: str, value: Any) -> BetonField:
    shape = tuple(value.shape)
    if is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        if not shape:
            return BetonFloat() if "float" in dtype else BetonInt()
        return _array(dtype, shape, BetonTensor)
    if value.dtype == np.uint8 and (shape[2:] == (3,) or (name == "image" and (len(shape) == 2 or shape[2:] == (1,)))):
        return BetonImage("raw")
    if value.dtype.kind in "OSU":
        return BetonJson()
    if not shape:
        return _number(value.dtype.kind, value.dtype)
    return _array(value.dtype, shape) if value.size else BetonJson()


def _number(kind: str, dtype: Any) -> BetonField:
    if kind in "biu":
        return BetonInt()
    if kind == "f":
        return BetonFloat()
    raise CannotStoreError(f"there is no field for single values of {np.dtype(dtype)}")


def _array(dtype: Any, shape: tuple[int, ...], kind: type[BetonArray] = BetonArray) -> BetonField:
    try:
        return kind(dtype, shape)
    except ConfigError as error:
        raise CannotStoreError(str(error)) from None


def is_tensor(value: Any) -> bool:
    """Return whether a value is one of torch's tensors; torch need not be there."""
    return tensor_type.is_tensor(type(value))


def convert(field: BetonField, value: Any) -> Any:
    """Return the value that a field takes for a dataset's value."""
    converter = _CONVERTERS.get(type(field))
    return value if converter is None else converter(value)


def to_json(value: Any) -> Any:
    """Return a value of JSON's types: arrays and tensors as lists, bytes as text; raise ConfigError where none fits."""
    if isinstance(value, bytes | bytearray):
        return _to_text(bytes(value))
    if is_tensor(value):
        value = np.asarray(value)
    if isinstance(value, Image.Image):
        value = numbers_of(value)
    if isinstance(value, np.ndarray):
        return to_json(value.tolist()) if value.dtype.kind in "OS" else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        found = {str(key): to_json(inner) for key, inner in value.items()}
        if len(found) < len(value):
            raise ConfigError(f"Keys in JSON are texts, and of {list(value)[:20]} some would become the same one.")
        return found
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def _to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"{value[:20]!r} is not a text in UTF-8, and JSON has no other bytes. Store the field with BetonBytes "
            f"('bytes') if it is bytes alone, or leave it out."
        ) from None


def _to_bytes(value: Any) -> Any:
    if isinstance(value, Image.Image):
        value = numbers_of(value)
    if isinstance(value, np.ndarray) and value.ndim == 3 and can_be_png(value):
        return encode_png(value)
    return value.encode() if isinstance(value, str) else value


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, np.bool_) else value


_CONVERTERS: dict[type, Callable[[Any], Any]] = {BetonJson: to_json, BetonBytes: _to_bytes, BetonInt: _to_integer}
