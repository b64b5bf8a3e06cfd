"""Tar files of WebDataset: the members that a sample becomes, their keys, and how values are stored in them."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.export.fields import (
    CannotStoreError,
    Form,
    can_be_png,
    check_alike,
    check_are_fields,
    check_has_no_images,
    encode_png,
    is_tensor,
    sample_fields,
    to_json,
)
from tfds_torch.export.folder import ShardFile
from tfds_torch.export.plan import safe_name
from tfds_torch.export.samples import ParserSamples, SampleOrder, SampleSource
from tfds_torch.images.decoding import ImageDecoder
from tfds_torch.plan.epoch import PAD_LABEL
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.image_formats import FORMATS, READABLE_FORMATS, find_format
from tfds_torch.storage.map_style.pixels import numbers_of
from tfds_torch.storage.source import FieldSpec
from tfds_torch.storage.webdataset.writer import BLOCK_BYTES, LONGEST_NAME, RECORD_BYTES, TarWriter, member_bytes

TAR_END_BYTES, TAR_BLOCK_BYTES = 2 * BLOCK_BYTES, RECORD_BYTES
"""Bytes of a tar file's end, and of the blocks to a multiple of which the file is filled up."""
_KEYS = ("number", "id")
_LONGEST_EXTENSIONS = {"image": "webp", "beside": "webp", "value": "json", "floats": "npy"}
"""Of kinds whose extension depends on the value."""

_IMAGES = tuple(one.extensions[0] for one in FORMATS)
"""Of images that readers of tars decode."""
_KINDS_OF_ARRAYS = "biufc"
_BY_NAME = ("png", "json")
"""Names of fields that choose among the kinds of a value: pixels become an image, a number JSON."""
_MOST_SHOWN = 60
"""Letters of a value, in messages."""
_WITHOUT_NAME = {"image": "image", "label": "cls"}
"""Fields whose members have an extension alone, where they are stored in this way."""
_SAME = {"jpeg": "jpg"}
"""Extensions of the same values."""
_SEVERAL = {
    "image": "jpg, png, ... as it was",
    "beside": "jpg, png, ... as it was",
    "value": "npy of arrays, json of other values",
    "floats": "npy",
}
"""Descriptions of kinds whose extension is another word, or depends on the value."""


@dataclass(frozen=True)
class Member:
    """A field of samples, and the member that it becomes.

    Attributes:
        key: of a sample that is a mapping; position in one that is a sequence.
        name: of the field, in the member's extension; empty: there is none. A name that is the extension of its values
            is not repeated: `png`, and not `png.png`.
        kind: how values are stored: image, beside (another image than the sample's own), floats (an image of them, as
            npy), cls, txt, json, npy, bin; value: an array as npy, all else as json.
        dtype: of arrays; None: their own.
        is_optional: whether a sample has no member where the value is None, or a class -100.
        field: its name among the samples' fields; empty for `key`.
    """

    key: Any
    name: str
    kind: str
    dtype: Any = None
    is_optional: bool = False
    field: str = ""

    @property
    def of(self) -> str:
        """The field that it is made of, for messages and reports."""
        return self.field or str(self.key)

    def encode(self, sample: Any) -> tuple[str, bytes] | None:
        """Return extension and content; None: the sample has no such member.

        Raises:
            ConfigError: the value is of another kind.
        """
        value = sample[self.key]
        if self.is_optional and (value is None or (self.kind == "cls" and value == PAD_LABEL)):
            return None
        try:
            if is_tensor(value) and self.kind in ("image", "cls"):
                value = np.asarray(value)
            extension, content = _ENCODERS[self.kind](value, self.dtype)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Field {quoted(self.of)}: {error}") from None
        return self._named(extension), content

    def describe(self) -> str:
        """Return the extension, as far as it does not depend on the value."""
        return self.name if self.is_extension else self._named(_SEVERAL.get(self.kind, self.kind))

    @property
    def is_extension(self) -> bool:
        """Whether the field is named as an extension of its kind of values."""
        extensions = _IMAGES if self.kind in ("image", "beside") else (self.kind,)
        return _extension_in(self.name) in extensions

    def _named(self, extension: str) -> str:
        if not self.name:
            return extension
        return self.name if _extension_in(self.name) == extension else f"{self.name}.{extension}"


@dataclass(frozen=True)
class TarContent:
    """Samples as members of tar files; key: their names, "number", the place in the export, or "id"."""

    source: SampleSource
    order: SampleOrder
    members: tuple[Member, ...]
    key: str
    form: Form = None

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> tuple[int, int, int]:
        """Write the samples of these places; return the file's size, its crc32c, and the bytes of all members.

        Raise WriteRefusedError where the file cannot be written.
        """
        tar, content_bytes = TarWriter(file.write), 0
        keys = set[str]()
        for key, sample in self._samples(places, metrics):
            if self.key == "id":  # Numbers differ. In different tars, readers tell equal keys apart.
                if key in keys:
                    raise ConfigError("key='id' (--key id): another sample has the same id. Use key='number'.")
                keys.add(key)
            for extension, content in self._encode(sample):
                tar.add(f"{key}.{extension}", content)
                content_bytes += len(content)
            metrics.add_batch(1)
        tar.close()
        return *file.end(), content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:
        """Read n samples, and return the bytes that each takes in a shard, int64 [n]."""
        found = []
        for _, sample in self._samples(places, metrics):
            found.append(sum(member_bytes(len(content)) for _, content in self._encode(sample)))
            metrics.add_batch(1)
        return np.array(found, np.int64)

    def digest(self, places: Iterable[int], metrics: StageMetrics) -> str:
        """Return a digest of all members of a few samples."""
        digest = hashlib.blake2b(digest_size=16)
        for place in places:
            for key, sample in self._samples(range(place, place + 1), metrics):
                for extension, content in self._encode(sample):
                    digest.update(f"{key}.{extension} {len(content)} ".encode() + content)
        return digest.hexdigest()

    def _encode(self, sample: Any) -> list[tuple[str, bytes]]:
        """Return the members of a sample; raise ConfigError where it has none, and so would not be a sample."""
        check_alike(sample, self.form)
        found = [encoded for member in self.members if (encoded := member.encode(sample)) is not None]
        if not found:
            raise ConfigError(
                "The sample has none of the exported fields, and a sample without a member does not exist. Leave it "
                "out (missing='skip', parser.subset), or export a field that all samples have."
            )
        return found

    def _samples(self, places: range, metrics: StageMetrics) -> Iterator[tuple[str, Any]]:
        fields = [str(member.key) for member in self.members]
        task = (places.start, places.stop)
        for place, sample in self.source.samples(task, self.order, fields, metrics):
            if self.key == "number":
                yield _number_key(place), sample.value
            elif sample.id is None:
                raise ConfigError("key='id' (--key id): the sample has no id. Use key='number'.")
            else:
                yield _quote_id(sample.id), sample.value


# Keys


def _number_key(place: int) -> str:
    return f"{place:09d}"


def _quote_id(sample_id: str) -> str:
    # Readers tell members apart by their names before the first dot. Bytes that are not UTF-8 are escaped as well.
    return quote(sample_id, safe="", errors="surrogateescape").replace(".", "%2E")


def check_key(key: object, order: SampleOrder) -> None:
    """Raise ConfigError for a `key` by which members cannot be named."""
    if not isinstance(key, str) or key not in _KEYS:
        raise ConfigError(f"key={quoted(key)} (--key) must be 'number' or 'id'.")
    if key == "id" and order.has_repeats:
        raise ConfigError("key='id' (--key id): indices has an example twice, and keys must differ. Use key='number'.")


def longest_key(key: str, order: SampleOrder, samples: SampleSource) -> str:
    """Return the longest key of first, middle and last member; raise ConfigError where samples have no ids."""
    last = len(order) - 1
    if key == "number":
        return _number_key(last)
    if not isinstance(samples, ParserSamples):
        raise ConfigError(f"key='id' (--key id): samples of {samples.name} have no id. Use key='number'.")
    few = np.array([order.number_at(place) for place in (0, last // 2, last)])
    return max(map(_quote_id, samples.ids(few)), key=len)


def check_room(members: Sequence[Member], key: str) -> None:
    """Raise ConfigError with all members for whose names, after this key, a tar file has no room."""
    room = max(0, LONGEST_NAME - len(f"{key}."))
    refused = [
        f"{quoted(member.of)}: its member would be {quoted(name)}, {len(name):,} characters after the key"
        for member in members
        if len(name := f"{member.name}.{_LONGEST_EXTENSIONS.get(member.kind, member.kind)}".lstrip(".")) > room
    ]
    if refused:
        raise ConfigError(
            f"Nothing was written: a tar file has room for names of {LONGEST_NAME} characters, which leaves {room} "
            f"after the key {quoted(key)}.\n  " + "\n  ".join(refused) + "\nGive such a field a shorter name with "
            "rename={name: new} (--rename NAME=NEW), or leave it out with fields={name: None} (--field NAME=skip); of "
            "long keys, use key='number' (--key number)."
        )


# Members by field


def choose_members(
    skipped: Sequence[str],
    rename: Mapping[str, str],
    names: Sequence[str] | None,
    known: Mapping[str, EncodedField | ConfigError] | None,
    sample: Any,
) -> tuple[tuple[Member, ...], Form]:
    """Return the members of each sample, image and label first, then the others in its order; and the samples' form.

    Args:
        skipped: fields that are left out.
        rename: fields -> their new names.
        names: names of the values of tuples, by position; None: the usual ones.
        known: the source's fields; None: the sample shows them.
        sample: the first one; not needed where the fields are known.

    Raises:
        ConfigError: unknown fields, or fields that cannot be stored; all of these are named.
    """
    values, keys, form = sample_fields(names, (), known, sample)
    check_are_fields(keys, fields=skipped, rename=rename)
    chosen, members, refused = list[Member](), list[Member](), list[str]()
    for name, key in keys.items():
        if name in skipped:
            continue
        try:
            new = rename.get(name, str(name))
            is_class = name == "label" or new.lower() == "cls"
            if known is None:
                kind, dtype = _kind_of_value(new.lower() if new.lower() in _BY_NAME else name, values[name], is_class)
            else:
                kind, dtype = _kind_of_spec(known[name], is_class)
            is_optional = isinstance(own := (known or {}).get(name), EncodedField) and own.is_optional
            chosen.append(Member(key, new, kind, dtype, is_optional, field=name))
        except CannotStoreError as error:
            refused.append(f"{quoted(name)}: {error}")
    for member in chosen:
        try:
            members.append(_named(member, chosen, members))
        except CannotStoreError as error:
            refused.append(f"{quoted(member.of)}: {error}")
    if refused:
        raise ConfigError(
            f"Nothing was written: of the fields, {len(refused)} cannot be stored in a tar file.\n  "
            + "\n  ".join(refused)
            + "\nLeave such a field out with fields={name: None} (--field NAME=skip), or give it another name with "
            "rename={name: new} (--rename NAME=NEW)."
        )
    if not members:
        raise ConfigError("There is no field to be written: all are left out.")
    return tuple(members), form


def _named(member: Member, every: Sequence[Member], there: Sequence[Member]) -> Member:
    # Of the fields `image` and `png`, the latter has the extension without a name.
    is_taken = any(other.kind == member.kind and other.is_extension for other in every)
    has_none = _WITHOUT_NAME.get(member.name) == member.kind and not is_taken
    named = replace(member, name="" if has_none else safe_name(member.name))
    if not has_none and not named.name:
        raise CannotStoreError("its name is empty")
    # Readers of WebDataset take extensions in lower case.
    if any(named.describe().lower() == other.describe().lower() for other in there):
        raise CannotStoreError(
            f"another field has the name {named.describe()!r} already: readers do not tell upper from lower case"
        )
    return named


def _kind_of_spec(known: EncodedField | ConfigError, is_class: bool) -> tuple[str, Any]:
    if isinstance(known, ConfigError):
        raise CannotStoreError(str(known))
    if known.kind == "image" and isinstance(known.spec, FieldSpec) and known.spec.dtype == np.float32:
        return "floats", None
    if known.kind == "image" and isinstance(known.spec, FieldSpec) and known.spec.dtype is object:
        return "beside", None
    if known.kind != "value":
        return ("image" if known.kind == "image" else "txt"), None
    spec = known.spec
    if spec is None:
        return "value", None
    check_has_no_images(spec)
    if not isinstance(spec, FieldSpec):
        return "json", None
    kind = np.dtype(spec.dtype).kind
    if kind in "OSU":
        return ("json" if spec.shape else "bin"), None
    if is_class and not spec.shape and kind in "iu":
        return "cls", None
    if spec.shape.count(None) > 1:
        return "json", None
    _check_dtype(np.dtype(spec.dtype))
    return "npy", np.dtype(spec.dtype)


def _kind_of_value(name: str, value: Any, is_class: bool) -> tuple[str, Any]:
    if isinstance(value, Image.Image):
        return "image", None
    if isinstance(value, bytes | bytearray):
        return ("bin" if _extension_of(bytes(value)) is None else "image"), None
    if is_tensor(value):
        value = _array_of(value)
    if isinstance(value, np.ndarray | np.generic):
        if is_class and not value.shape and value.dtype.kind in "iu":
            return "cls", None
        if value.dtype == np.uint8 and name in ("image", "png") and _has_pixels(value):
            return "image", None
        if value.dtype.kind in "OSU":
            return "json", None
        _check_dtype(value.dtype)
        return "npy", None
    if isinstance(value, str):
        return "txt", None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_class and is_number and isinstance(value, int):
        return "cls", None
    if is_number and name != "json":
        return "npy", None
    if value is None or isinstance(value, bool | int | float | list | tuple | Mapping):
        return "json", None
    raise CannotStoreError(f"{type(value).__name__} is nothing that a tar file of WebDataset holds")


def _array_of(tensor: Any) -> Any:
    try:
        return np.asarray(tensor)
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse tensors, ones on another device.
        raise CannotStoreError(f"numpy cannot hold a tensor of {tensor.dtype}: {error}") from None


def _check_dtype(dtype: "np.dtype[Any]") -> None:
    if dtype.kind not in _KINDS_OF_ARRAYS:  # Like bfloat16, which the file cannot name.
        raise CannotStoreError(f"a .npy file has no name for the type {dtype}")


def _has_pixels(value: Any) -> bool:
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3, 4))


def _extension_in(name: str) -> str:
    """Return the extension that is a field's name; readers do not tell upper from lower case."""
    return _SAME.get(name.lower(), name.lower())


def _extension_of(image: bytes) -> str | None:
    found = find_format(image)
    return None if found is None else found.extensions[0]


def _encode_image(value: Any, dtype: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes | bytearray):
        content = bytes(value)
        extension = _extension_of(content)
        if extension is None:
            raise ValueError(f"{content[:12]!r}... is not the beginning of a {READABLE_FORMATS} image.")
        return extension, content
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or not _has_pixels(value):
            raise ValueError(f"{value.dtype} {list(value.shape)} is not uint8 [h, w] or [h, w, 1, 3 or 4].")
        return "png", encode_png(value)
    if isinstance(value, Image.Image) and value.mode == "I":  # Pillow's PNG would cut its numbers to 16 bits.
        return _encode_beside(numbers_of(value), None)
    if not isinstance(value, Image.Image):
        raise TypeError(f"{type(value).__name__} is not an image.")
    file = io.BytesIO()
    try:
        value.load()
    except OSError as error:
        raise ValueError(f"the image cannot be read: {error}.") from None
    try:
        value.save(file, "PNG")
    except OSError as error:
        raise ValueError(f"{error}: convert the image first, for example with convert('RGB').") from None
    return "png", file.getvalue()


def _encode_beside(value: Any, dtype: Any) -> tuple[str, bytes]:
    """Encode an image beside the image: numbers that no PNG holds as an array."""
    if not isinstance(value, np.ndarray):
        return _encode_image(value, None)
    return ("png", encode_png(value)) if can_be_png(value) else _encode_array(value, None)


def _encode_floats(value: Any, dtype: Any) -> tuple[str, bytes]:
    """Encode an image of floats as an array: only TFDS stores each as the four bytes of an RGBA pixel."""
    decoder = ImageDecoder("RGBA")
    pixels = decoder.decode(value, decoder.read_header(value))
    return _encode_array(np.ascontiguousarray(pixels).view(np.float32), None)


def _encode_class(value: Any, dtype: Any) -> tuple[str, bytes]:
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{quoted(value)} is not an integer.")
    return "cls", str(int(value)).encode()


def _encode_text(value: Any, dtype: Any) -> tuple[str, bytes]:
    if not isinstance(value, str | bytes):
        raise TypeError(f"{quoted(value)} is not a text.")
    return "txt", value.encode() if isinstance(value, str) else value


def _encode_json(value: Any, dtype: Any) -> tuple[str, bytes]:
    return "json", json.dumps(to_json(value), ensure_ascii=False).encode()


def _encode_array(value: Any, dtype: Any) -> tuple[str, bytes]:
    array = np.asarray(value, dtype)
    if array.dtype.kind not in _KINDS_OF_ARRAYS:
        raise TypeError(f"{_shown(value)} is not a number, or an array of numbers, of at most 64 bits.")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return "npy", file.getvalue()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _encode_value(value: Any, dtype: Any) -> tuple[str, bytes]:
    """Encode arrays with their type and shape, and other values without a declared form as JSON."""
    is_array = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _KINDS_OF_ARRAYS
    return _encode_array(value, None) if is_array else _encode_json(value, None)


def _encode_bytes(value: Any, dtype: Any) -> tuple[str, bytes]:
    if not isinstance(value, bytes | bytearray):
        raise TypeError(f"{quoted(value)} is not bytes.")
    return "bin", bytes(value)


_ENCODERS: dict[str, Callable[[Any, Any], tuple[str, bytes]]] = {
    "image": _encode_image,
    "beside": _encode_beside,
    "floats": _encode_floats,
    "cls": _encode_class,
    "txt": _encode_text,
    "json": _encode_json,
    "value": _encode_value,
    "npy": _encode_array,
    "bin": _encode_bytes,
}
