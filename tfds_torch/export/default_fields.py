"""How values are stored by default, by their declared form or the type of a first value; and their conversion."""

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.engines.fields import EncodedField
from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import is_picture
from tfds_torch.images.headers import read_header
from tfds_torch.runtime import tensor_type
from tfds_torch.storage.beton.fields import (
    BetonArray,
    BetonBytes,
    BetonField,
    BetonFloat,
    BetonInt,
    BetonJson,
    BetonTensor,
)
from tfds_torch.storage.beton.image_field import BetonImage, readable_jpeg_size
from tfds_torch.storage.map_style.pixels import numbers_of
from tfds_torch.storage.source import FieldSpec


class CannotStoreError(Exception):
    """The reason why no field holds a value; never leaves this room."""


def field_of_spec(name: str, known: EncodedField, value: Any) -> BetonField:
    """Returns how values of a declared form are stored; a first value (or None) shows how images are encoded."""
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
    """Raises CannotStoreError for a spec with images inside of a sequence or a dictionary."""
    if isinstance(spec, Mapping):
        for inner in spec.values():
            check_has_no_images(inner)
    elif isinstance(spec, FieldSpec) and spec.dtype in (np.uint8, np.uint16) and spec.shape.count(None) > 1:
        raise CannotStoreError("images inside of a sequence or a dictionary have no field of their own")


def field_of_value(name: str, value: Any) -> BetonField:
    """Returns how values like a first one are stored: encoded images keep their bytes, pixels stay pixels."""
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
    """Returns how the numbers of an image beside the image are stored, [h, w, C]: a BetonImage has three channels."""
    if is_picture(pixels):
        return BetonImage("raw")
    return BetonBytes() if can_be_png(pixels) else BetonJson()


def can_be_png(pixels: NDArray[Any]) -> bool:
    """Whether a PNG holds the numbers of an image, [h, w] or [h, w, C], as they are."""
    num_channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return (pixels.dtype == np.uint8 and num_channels <= 4) or (pixels.dtype == np.uint16 and num_channels == 1)


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Returns the numbers of an image, [h, w] or [h, w, C], as a PNG; see `can_be_png`."""
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
    """Whether a value is one of torch's tensors; torch need not be there."""
    return tensor_type.is_tensor(type(value))


def convert(field: BetonField, value: Any) -> Any:
    """Returns the value that a field takes for a dataset's value."""
    converter = _CONVERTERS.get(type(field))
    return value if converter is None else converter(value)


def to_json(value: Any) -> Any:
    """Returns a value of JSON's types: arrays and tensors as lists, bytes as text; a ConfigError: none fits."""
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
