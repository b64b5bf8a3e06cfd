"""How the values of a sample are stored: one small class for each type of field that FFCV has."""

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import (
    ARRAY_ID,
    BYTES_ID,
    BYTES_ROW,
    CUSTOM_ID,
    FLOAT_ID,
    INT_ID,
    JSON_ID,
    POINTER_ROW,
    TENSOR_ID,
)

_ARGUMENTS = np.dtype([("shape", "<u8", 32), ("type_length", "<u8")])
_ARGUMENT_BYTES = 1024
_MOST_DIMENSIONS = 32
_TENSOR_TYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


class Encoded(NamedTuple):
    """A value as it is stored.

    Attributes:
        facts: the members of the sample's row, without the pointer.
        payload: bytes that the pointer points to; None: there are none.
        is_reencoded: whether the value was encoded again, though it should have kept its bytes.
    """

    facts: tuple[Any, ...]
    payload: bytes | None = None
    is_reencoded: bool = False


class BetonField(ABC):
    """One field of a file: its value lies in the sample's row, or in a page that the row points to.

    Attributes:
        type_id: FFCV's number of the type.
        pointer_at: position of the pointer among the members of `row_type`; None where the field has no payload.
    """

    type_id: int
    pointer_at: int | None = None

    @property
    @abstractmethod
    def row_type(self) -> Any:
        """Numpy's type of the field in a sample's row; where `pointer_at` is set, the member there is `<u8`."""

    def binary(self) -> bytes:
        """Return the arguments in the field's descriptor, 1,024 bytes at most."""
        return b""

    @abstractmethod
    def encode(self, value: Any, number: int) -> Encoded:
        """Return a value as it is stored.

        Args:
            value: of the sample.
            number: of the sample, on which random choices depend.

        Raises:
            ConfigError: a value of another type, or one that the format cannot hold.
        """


def payload_fields(fields: Mapping[str, BetonField]) -> tuple[str, ...]:
    """Return the names of the fields whose values lie in the pages, in order."""
    return tuple(name for name, field in fields.items() if field.pointer_at is not None)


@dataclass(frozen=True)
class BetonInt(BetonField):
    """An integer of 64 bits."""

    type_id = INT_ID
    row_type = np.dtype("<i8")

    def encode(self, value: Any, number: int) -> Encoded:  # noqa: D102
        try:
            found = operator.index(value)
        except TypeError:
            raise ConfigError(f"{quoted(value)} is not an integer. Use BetonFloat for other numbers.") from None
        if not -(2**63) <= found < 2**63:
            raise ConfigError(f"{found} does not fit into 64 bits. Store it with BetonJson.")
        return Encoded((found,))


@dataclass(frozen=True)
class BetonFloat(BetonField):
    """A number, float64."""

    type_id = FLOAT_ID
    row_type = np.dtype("<f8")

    def encode(self, value: Any, number: int) -> Encoded:  # noqa: D102
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            return Encoded((float(value),))
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{quoted(value)} is not one number.") from None


@dataclass(frozen=True)
class BetonBytes(BetonField):
    """Bytes of any length; also accepted as uint8 [n]."""

    type_id = BYTES_ID
    row_type = BYTES_ROW
    pointer_at = 0

    def encode(self, value: Any, number: int) -> Encoded:  # noqa: D102
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
            value = value.tobytes()
        if not isinstance(value, bytes | bytearray | memoryview):
            raise ConfigError(f"{_describe(value)} is not bytes, nor uint8 [n]. Encode a text first: text.encode().")
        payload = bytes(value)
        return Encoded((len(payload),), payload)


@dataclass(frozen=True)
class BetonJson(BetonField):
    """Any value that JSON can hold."""

    type_id = JSON_ID
    row_type = BYTES_ROW
    pointer_at = 0

    def encode(self, value: Any, number: int) -> Encoded:  # noqa: D102
        try:
            payload = json.dumps(value).encode() + b"\0"  # FFCV ends texts like this.
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{_describe(value)} cannot be written as JSON: {error}.") from None
        return Encoded((len(payload),), payload)


@dataclass(frozen=True)
class BetonArray(BetonField):
    """A numpy array of one type and shape.

    Attributes:
        dtype: numpy's type: numbers or booleans, in the byte order of this machine.
        shape: at least one side, each >= 1.

    Raises:
        ConfigError: a type or a shape that the format cannot hold.
    """

    dtype: Any
    shape: tuple[int, ...]
    type_id = ARRAY_ID
    row_type = POINTER_ROW
    pointer_at = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_type(self.dtype))
        object.__setattr__(self, "shape", _check_shape(self.shape))

    @property
    def num_bytes(self) -> int:
        """Size of a value."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def binary(self) -> bytes:
        """Return the shape, and numpy's description of the type as JSON."""
        kind = json.dumps(self.dtype.descr).encode()
        arguments = np.zeros((), _ARGUMENTS)
        arguments["shape"][: len(self.shape)] = self.shape
        arguments["type_length"] = len(kind)
        return arguments.tobytes() + kind

    def encode(self, value: Any, number: int) -> Encoded:
        """Return the values in C order; see `BetonField`."""
        try:
            array = np.asarray(value)
        except Exception as error:  # Raised for a tensor on a device, or one that needs a gradient.
            raise ConfigError(f"{type(value).__name__} cannot be made an array: {error}") from None
        if array.dtype != self.dtype or array.shape != self.shape:
            raise ConfigError(
                f"The array is {array.dtype} {list(array.shape)}, and the field {self.dtype} {list(self.shape)}: "
                f"convert it first, since nothing is cast here."
            )
        return Encoded((), np.ascontiguousarray(array).tobytes())


@dataclass(frozen=True)
class BetonTensor(BetonArray):
    """A tensor of one type and shape, on the CPU: for FFCV a torch tensor.

    Attributes:
        dtype: torch's or numpy's type, or its name; a type that both libraries have.
        shape: at least one side, each >= 1.

    Raises:
        ConfigError: a type or a shape that the format cannot hold.
    """

    type_id = TENSOR_ID

    def __post_init__(self) -> None:
        if str(self.dtype).startswith("torch."):
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        super().__post_init__()
        if self.dtype.name not in _TENSOR_TYPES:
            raise ConfigError(f"There are no tensors of type {self.dtype}: choose one of {', '.join(_TENSOR_TYPES)}.")


class BetonCustom(BetonField):
    """A type of field of your own (FFCV's type 255): derive from it. Readers of the file need it too.

    FFCV reads such a field by a class that its user passes: `Loader(..., custom_fields={name: class})`.
    """

    type_id = CUSTOM_ID

    @abstractmethod
    def decode(self, rows: NDArray[Any], payloads: Sequence[bytes] | None) -> Sequence[Any]:
        """Return n values.

        Args:
            rows: [n] of `row_type`.
            payloads: n of them; None: the field has none.
        """


def field_of(type_id: int, arguments: bytes) -> BetonField | None:
    """Return the field of a descriptor, except for images and custom fields; None: there is no such type."""
    plain: dict[int, type[BetonInt | BetonFloat | BetonBytes | BetonJson]] = {
        INT_ID: BetonInt,
        FLOAT_ID: BetonFloat,
        BYTES_ID: BetonBytes,
        JSON_ID: BetonJson,
    }
    if type_id in plain:
        return plain[type_id]()
    if type_id not in (ARRAY_ID, TENSOR_ID):
        return None
    head = np.frombuffer(arguments, _ARGUMENTS, 1)[0]
    length, sides = int(head["type_length"]), [int(side) for side in head["shape"]]
    if not 0 < length <= _ARGUMENT_BYTES - _ARGUMENTS.itemsize:
        raise ValueError(f"its type has a name of {length} bytes")
    shape = tuple(sides[: len(sides) - next((n for n, side in enumerate(reversed(sides)) if side), len(sides))])
    try:
        described = json.loads(arguments[_ARGUMENTS.itemsize :][:length].decode("ascii"))
        ((_, kind),) = described
        if not isinstance(kind, str):
            raise TypeError
        return (BetonArray if type_id == ARRAY_ID else BetonTensor)(np.dtype(kind), shape)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    except (TypeError, ValueError, RecursionError, SyntaxError):
        raise ValueError("its type is not one of numpy's") from None


def _check_shape(shape: Any) -> tuple[int, ...]:
    try:
        sides = tuple(map(operator.index, shape))
    except TypeError:
        raise ConfigError(f"The shape {quoted(shape)} is not a sequence of integers, such as (3, 4).") from None
    if not 1 <= len(sides) <= _MOST_DIMENSIONS or min(sides) < 1 or math.prod(sides) >= 2**32:
        raise ConfigError(
            f"FFCV has no arrays of the shape {sides}: there must be 1 to {_MOST_DIMENSIONS} sides of at least 1. Use "
            f"BetonInt or BetonFloat for one number, and BetonBytes for arrays of several sizes."
        )
    return sides


def _check_type(kind: Any) -> "np.dtype[Any]":
    try:
        found: np.dtype[Any] = np.dtype(kind)
    except TypeError:
        raise ConfigError(f"{quoted(kind)} is not a type that numpy knows.") from None
    if found.kind not in "biufc" or not found.isnative:
        raise ConfigError(f"Arrays of {found} cannot be stored: they hold numbers or booleans of this machine's order.")
    return found


def _describe(value: Any) -> str:
    """Return a short text about a value."""
    if isinstance(value, np.ndarray):
        return f"An array {value.dtype} {list(value.shape)}"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:60] + '...'}"
