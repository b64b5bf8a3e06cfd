"""Values of samples, converted to those that fields take, where the conversion is exact."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonInt, BetonJson


def is_tensor(value: Any) -> bool:
    """Whether a value is one of torch's tensors; torch need not be there."""
    kind = type(value)
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)


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
    return value.encode() if isinstance(value, str) else value


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, np.bool_) else value


_CONVERTERS: dict[type, Callable[[Any], Any]] = {BetonJson: to_json, BetonBytes: _to_bytes, BetonInt: _to_integer}
