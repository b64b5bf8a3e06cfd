"""How the members of WebDataset's samples are decoded: by the last part of their extension, as WebDataset does."""

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import FieldDecoder, OneKeyField
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import native
from tfds_torch.storage.image_formats import EXTENSIONS
from tfds_torch.storage.source import Columns, FieldSpec
from tfds_torch.storage.webdataset.name_hints import nearest

Missing = Literal["error", "skip", "none"]
MISSING: tuple[Missing, ...] = ("error", "skip", "none")
"""The ways to treat samples that lack a member of a field."""

Kind = Literal["image", "label", "text", "json", "array", "bytes", "own"]
Decoder = Callable[[bytes], Any]

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(EXTENSIONS, "image"),
    "cls": "label",
    "txt": "text",
    "json": "json",
    "npy": "array",
}
_INTEGER = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")
_SHOWN_BYTES = 40
_MOST_SHOWN, _SHOWN_CHARACTERS = 20, 100
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

DEFAULT_EXTENSIONS: Mapping[str, str] = MappingProxyType({"image": "jpg;jpeg;png", "label": "cls"})
"""Field -> extensions, where the user names no fields."""

SPECS: dict[Kind, FieldSpec] = {
    "image": FieldSpec((None, None, 3), np.uint8),
    "label": FieldSpec((), np.int64),
    "text": FieldSpec((), object),
    "json": FieldSpec((), object),
    "array": FieldSpec((), object),
    "bytes": FieldSpec((), object),
    "own": FieldSpec((), object),
}
"""The specs of one decoded value, by kind; values of JSON and arrays vary."""


def spec_of(name: str, kind: Kind) -> FieldSpec:
    """Return the spec of one decoded value of a field: of images beside the image, types and channels vary."""
    return FieldSpec((None, None, None), object) if kind == "image" and name != "image" else SPECS[kind]


def kind_of(name: str, extensions: Sequence[str], decoders: Mapping[str, Decoder] = MappingProxyType({})) -> Kind:
    """Return the kind of a field's members; raise ConfigError where they are of several kinds."""
    own = {extension: decoder_of(extension, decoders) for extension in extensions}
    kinds: dict[str, Kind] = {
        extension: _KINDS.get(extension.rpartition(".")[2], "bytes") if own[extension] is None else "own"
        for extension in extensions
    }
    if len(set(kinds.values())) > 1 or len({id(one) for one in own.values()}) > 1:
        shown = ", ".join(f".{extension} is {quoted(kind)}" for extension, kind in kinds.items())
        raise ConfigError(
            f"fields[{quoted(name)}]={quoted(';'.join(extensions))} mixes kinds of values: {shown}. Name one kind."
        )
    return next(iter(kinds.values()))


def decoder_of(extension: str, decoders: Mapping[str, Decoder]) -> Decoder | None:
    """Return the user's decoder of an extension, the one for its longest end: for "a.txt.gz" that of "txt.gz"."""
    parts = extension.split(".")
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    return next((decoders[end] for end in ends if end in decoders), None)


def check_decoders(decoders: object, there: Sequence[str]) -> Mapping[str, Decoder]:
    """Return extension -> decoder, without leading dots, of `decoders` as `ParserWebDataset` takes them.

    Args:
        decoders: the argument; None: there are no decoders.
        there: the extensions in the tars.

    Raises:
        ConfigError: `decoders` is not a mapping from extensions to functions, or an extension is not in the tars.
    """
    if decoders is None:
        return {}
    if not isinstance(decoders, Mapping) or not all(isinstance(one, str) for one in decoders):
        raise ConfigError(
            f"decoders={quoted(decoders)} must map extensions to functions of bytes, such as {{'.msgpack': unpack}}."
        )
    found = {}
    for name, decoder in decoders.items():
        extension = name.removeprefix(".")
        if not callable(decoder):
            raise ConfigError(f"decoders[{quoted(name)}]={quoted(decoder)} must be a function of bytes.")
        if there and not any(one == extension or one.endswith(f".{extension}") for one in there):
            raise ConfigError(
                f"decoders[{quoted(name)}]: no sample has a member .{extension}: the extensions in the tars are "
                f"{show_extensions(there)}.{nearest(extension, there)}"
            )
        found[extension] = decoder
    return found


@dataclass(frozen=True)
class OwnDecoder:
    """A user's decoder, whose errors become errors of the member that it decodes."""

    function: Decoder

    def __call__(self, stored: bytes) -> Any:
        """Return the value that the function makes of the stored bytes; raise ValueError where it raises."""
        try:
            return self.function(stored)
        except Exception as error:
            name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
            raise ValueError(f"Its decoder {name} raised {type(error).__name__}: {error}.") from error


def name_fields(fields: Any) -> Mapping[str, str]:
    """Return name -> extensions, of `fields` as `ParserWebDataset` takes them.

    Raises:
        ConfigError: `fields` is neither a mapping nor a sequence of names.
    """
    named: Any = fields
    if isinstance(fields, Sequence) and not isinstance(fields, str) and all(isinstance(name, str) for name in fields):
        named = {name: DEFAULT_EXTENSIONS.get(name, name) for name in fields}
    if not isinstance(named, Mapping) or not named or not all(isinstance(name, str) and name for name in named):
        raise ConfigError(
            f"fields={quoted(fields)} must map names to extensions, such as "
            f"{{'image': 'jpg;jpeg;png', 'label': 'cls'}}, or be a list of extensions, such as ['image', 'label', "
            f"'txt']."
        )
    taken = sorted(set(named) & set(METADATA_FIELDS))
    if taken:
        raise ConfigError(f"fields names {quoted(taken[0])}, which every batch has already. Use another name for it.")
    return named


def show_extensions(extensions: Sequence[str]) -> str:
    """Return extensions for messages, cut: keys with dots make many of them."""
    shown = ", ".join(repr(one[:_SHOWN_CHARACTERS]) for one in extensions[:_MOST_SHOWN])
    return f"{shown}, ... ({len(extensions):,} of them)" if len(extensions) > _MOST_SHOWN else shown


class LabelField(OneKeyField):
    """Integers that are stored as text."""

    def decode(self, columns: Columns) -> NDArray[np.int64]:
        """Return int64 [n]; raise ValueError."""
        return np.array([self._label(text) for text in columns[self.key]], np.int64)

    def _label(self, text: bytes) -> int:
        label = int(text) if _INTEGER.fullmatch(text) else None
        if label is None or not -(2**63) <= label < 2**63:
            raise ValueError(f"{_shown(text)} is not an integer of 64 bits.")
        return label


@dataclass(frozen=True)
class OptionalLabelField:
    """Labels that some samples lack: these are -100, like a None in an optional feature of TFDS.

    Attributes:
        labels: decodes int64 [n] of the samples that have one.
    """

    labels: FieldDecoder

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.labels.keys

    def decode(self, columns: Columns) -> NDArray[np.int64]:
        """Return int64 [n]; raise ValueError."""
        (key,) = self.keys
        stored = list(columns[key])
        found = np.full(len(stored), PAD_LABEL, np.int64)
        is_there = np.array([value is not None for value in stored], np.bool_)
        found[is_there] = self.labels.decode({key: [value for value in stored if value is not None]})
        return found


def decode_text(stored: bytes) -> str:
    """Return a text in UTF-8; raise ValueError."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"It is not text in UTF-8: byte {error.start} is {stored[error.start]:#04x}.") from None


def decode_json(stored: bytes) -> Any:
    """Return a value of JSON; raise ValueError."""
    try:
        return json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"It is not JSON: {error}.") from None


def decode_array(stored: bytes) -> NDArray[Any]:
    """Return the array of an `.npy` file without objects of Python, which could run code; raise ValueError."""
    file = io.BytesIO(stored)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _NPY_HEADERS:
            raise ValueError(f"its version is {version}")
        shape, is_fortran, dtype = _NPY_HEADERS[version](file)
    except Exception as error:  # numpy's parser of the header may raise anything.
        raise ValueError(f"It is not an .npy file: {str(error).rstrip('.')}.") from None
    if dtype.hasobject:
        raise ValueError("It is an .npy file with objects of Python, which can run code when they are read.")
    needed, there = math.prod(shape) * dtype.itemsize, len(stored) - file.tell()
    if needed != there:  # Before memory of the size in the header is taken.
        raise ValueError(f"It is an .npy file of {dtype} {list(shape)}, which takes {needed} bytes and has {there}.")
    values = np.frombuffer(stored, dtype, math.prod(shape), file.tell()).copy()
    return native(values).reshape(shape, order="F" if is_fortran else "C")


def _shown(stored: bytes) -> str:
    return repr(stored) if len(stored) <= _SHOWN_BYTES else f"{stored[:_SHOWN_BYTES]!r}... ({len(stored)} bytes)"
