"""Items of a loader as JSON and arrays, and back: dicts, tuples and lists of arrays, images, numbers, text and bytes.

A node of the JSON stands for a value: null, true, false, numbers and short text for themselves; any other value is a
list whose first entry is its tag. Long lists of one type become columns: one array for all of their values.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.transport import ProtocolError, refusing_malformed
from tfds_torch.loaders.wire_values import is_image, put_image_together, take_image_apart, tensor_to_array
from tfds_torch.runtime.tensor_type import is_tensor

MOST_BYTES = 1 << 30
"""Of all buffers of a message together."""

ALLOWED_DTYPE = re.compile(r"\|b1|[<>|][iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)|[<>]U\d{1,6}|\|S\d{1,6}|bfloat16")
_SHORT_TEXT, _LEAST_COLUMN, _MOST_DEPTH = 512, 8, 32
_IMAGE_AXES = 3
_INT64 = np.iinfo(np.int64)
_BYTES = np.dtype("|u1")
_KINDS_OF_NUMBERS = {int: "<i8", float: "<f8", bool: "|b1"}
_ALLOWED = "dicts, tuples and lists of numpy arrays, PIL images, torch tensors on the CPU, numbers, str, bytes and None"


@dataclass(frozen=True)
class Part:
    """A buffer that is to be sent.

    Attributes:
        dtype: the type of its elements.
        shape: the shape of the whole buffer.
        pieces: arrays of that dtype whose elements, one array after the other, are the buffer's.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Sequence[NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return math.prod(self.shape) * self.dtype.itemsize


class ItemWriter:
    """Takes an item apart; `parts` are the buffers of all values that were written."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def write(self, value: Any, path: str = "item") -> Any:
        """Return the node of an item, or of a part of one; the path says where it lies, for messages."""
        if value is None or type(value) in (bool, int, float):
            return value
        if path.count("[") > _MOST_DEPTH:
            raise ConfigError(f"{path} lies deeper than {_MOST_DEPTH} levels: give a MultiLoader flatter items.")
        kind = type(value)
        if kind is np.ndarray:
            is_channels_last = value.ndim >= _IMAGE_AXES and not value.flags.c_contiguous
            if is_channels_last and (moved := np.moveaxis(value, -3, -1)).flags.c_contiguous:
                return ["c", self._add_array(moved, path)]  # As it lies in memory: cameras lie in a slot.
            return ["a", self._add_array(value, path)]
        if kind is str:
            return value if len(value) <= _SHORT_TEXT else ["t", self._add(_encode_text(value))]
        if kind is bytes:
            return ["b", self._add(np.frombuffer(value, np.uint8))]
        if kind is dict:
            return self._write_dict(value, path)
        if kind in (list, tuple):
            return self._write_list(value, path)
        if isinstance(value, np.generic):
            return ["s", self._add_array(np.asarray(value), path)]
        if isinstance(value, np.memmap):
            return ["a", self._add_array(value.view(np.ndarray), path)]
        if is_image(value):
            description, pieces = take_image_apart(value, path)
            return ["i", description, self._add_pieces(_BYTES, [np.frombuffer(one, np.uint8) for one in pieces])]
        if is_tensor(kind):
            return ["a", self._add_array(tensor_to_array(value, path), path)]
        raise ConfigError(f"{path} is a {kind.__module__}.{kind.__qualname__}: {_remedy(value)}")

    def _write_dict(self, value: dict[Any, Any], path: str) -> Any:
        entries = []
        for key, one in value.items():
            if type(key) not in (str, int, bool, type(None)):
                raise ConfigError(f"{path} has the key {key!r}: the keys of a MultiLoader's items are str or int.")
            entries.append([key, self.write(one, f"{path}[{key!r}]")])
        return ["d", entries]

    def _write_list(self, value: Sequence[Any], path: str) -> Any:
        column, is_list = self._write_column(value, path), isinstance(value, list)
        if column is not None:
            return column if is_list else ["T", column]
        return ["l" if is_list else "u", [self.write(one, f"{path}[{number}]") for number, one in enumerate(value)]]

    def _write_column(self, values: Sequence[Any], path: str) -> Any:
        """Return the node of a list whose values are of one type; None for any other list, or a short one."""
        if len(values) < _LEAST_COLUMN or len(types := set(map(type, values))) != 1:
            return None
        (kind,) = types
        if kind in _KINDS_OF_NUMBERS:
            if kind is int and not (_INT64.min <= min(values) and max(values) <= _INT64.max):
                return None
            return ["n", self._add(np.array(values, _KINDS_OF_NUMBERS[kind]))]
        if kind in (str, bytes):
            encoded = [_encode_text(one) if kind is str else np.frombuffer(one, np.uint8) for one in values]
            sizes = np.array([len(one) for one in encoded], "<i8")
            return ["L" if kind is str else "B", self._add(sizes), self._add_pieces(_BYTES, encoded)]
        if is_tensor(kind):
            values = [tensor_to_array(one, f"{path}[{number}]") for number, one in enumerate(values)]
            kind = np.ndarray
        if kind is np.ndarray and len({(one.dtype, one.ndim) for one in values}) == 1:
            self._check_dtype(values[0], path)
            shapes = np.array([one.shape for one in values], "<i8").reshape(len(values), values[0].ndim)
            return ["r", self._add(shapes), self._add_pieces(values[0].dtype, values)]
        if is_image(values[0]):
            images = [take_image_apart(one, f"{path}[{number}]") for number, one in enumerate(values)]
            pieces = [np.frombuffer(one, np.uint8) for image in images for one in image.pieces]
            return ["I", [image.description for image in images], self._add_pieces(_BYTES, pieces)]
        return None

    def _add_array(self, value: NDArray[Any], path: str) -> int:
        self._check_dtype(value, path)
        return self._add(value)

    def _check_dtype(self, value: NDArray[Any], path: str) -> None:
        if value.dtype.fields is not None or not ALLOWED_DTYPE.fullmatch(name_of(value.dtype)):
            raise ConfigError(
                f"{path} is an array of dtype {value.dtype}: a MultiLoader carries bool, integers, floats, complex "
                f"numbers and text of fixed length. Convert it."
            )

    def _add(self, array: NDArray[Any]) -> int:
        self.parts.append(Part(array.dtype, array.shape, (array,)))
        return len(self.parts) - 1

    def _add_pieces(self, dtype: np.dtype[Any], pieces: Sequence[NDArray[Any]]) -> int:
        self.parts.append(Part(dtype, (sum(piece.size for piece in pieces),), pieces))
        return len(self.parts) - 1


class ItemReader:
    """Puts an item together, with the buffers that came with it; its arrays are views of them."""

    def __init__(self, buffers: Sequence[NDArray[Any]]) -> None:
        self._buffers = buffers

    def read(self, node: Any) -> Any:
        """Return the value of a node; raise ProtocolError for anything else."""
        with refusing_malformed():
            return self._read(node)

    def _read(self, node: Any) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        match node:
            case ["a", number]:
                return self._buffer(number)
            case ["c", number]:
                return np.moveaxis(self._buffer(number), -1, -3)
            case ["s", number]:
                return self._buffer(number).reshape(())[()]
            case ["b", number]:
                return self._bytes(number)
            case ["t", number]:
                return _decode_text(self._bytes(number))
            case ["d", entries]:
                return {key: self._read(one) for key, one in entries}
            case ["l", entries]:
                return [self._read(one) for one in entries]
            case ["u", entries]:
                return tuple(self._read(one) for one in entries)
            case ["T", column]:
                return tuple(self._read(column))
            case ["i", description, number]:
                return self._read_images([description], number)[0]
            case ["I", descriptions, number]:
                return self._read_images(descriptions, number)
            case ["n", number] if self._buffer(number).dtype.str in _KINDS_OF_NUMBERS.values():
                return self._buffer(number).tolist()
            case ["L", sizes, content]:
                return [_decode_text(one) for one in self._read_pieces(sizes, content)]
            case ["B", sizes, content]:
                return self._read_pieces(sizes, content)
            case ["r", shapes, content]:
                return self._read_ragged(self._buffer(shapes), self._buffer(content))
        raise ProtocolError("a value has an unknown tag")

    def _read_images(self, descriptions: Any, number: Any) -> list[Any]:
        images, content = [], memoryview(self._bytes(number))
        for description in descriptions:
            image, content = put_image_together(description, content)
            images.append(image)
        if len(content):
            raise ProtocolError("images have other content than their descriptions")
        return images

    def _read_ragged(self, shapes: NDArray[np.int64], content: NDArray[Any]) -> list[Any]:
        _check_sizes(shapes.prod(axis=1), len(content))
        arrays, start = [], 0
        for shape in shapes.tolist():
            stop = start + math.prod(shape)
            arrays.append(content[start:stop].reshape(shape))
            start = stop
        return arrays

    def _read_pieces(self, sizes: Any, number: Any) -> list[bytes]:
        pieces, start, content = [], 0, self._bytes(number)
        _check_sizes(self._buffer(sizes), len(content))
        for size in self._buffer(sizes).tolist():
            pieces.append(content[start : start + size])
            start += size
        return pieces

    def _bytes(self, number: Any) -> bytes:
        buffer = self._buffer(number)
        if buffer.dtype != _BYTES or buffer.ndim != 1:
            raise ProtocolError("text, bytes or images are of another dtype")
        return buffer.tobytes()

    def _buffer(self, number: Any) -> NDArray[Any]:
        if type(number) is not int or not 0 <= number < len(self._buffers):
            raise ProtocolError("a value names a buffer that is not there")
        return self._buffers[number]


def _check_sizes(sizes: NDArray[np.int64], length: int) -> None:
    if sizes.min(initial=0) < 0 or sizes.sum() != length:
        raise ProtocolError("a column has other content than its sizes say")


def _encode_text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def _decode_text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")


def _remedy(value: Any) -> str:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "a named tuple's type does not travel. Yield `._asdict()` of it, or `tuple(...)`."
    return f"a MultiLoader carries {_ALLOWED}. Convert it."


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type by which another process knows it."""
    return "bfloat16" if dtype.name == "bfloat16" else dtype.str  # Of ml_dtypes, whose `str` is that of two bytes.
