"""The messages of a MultiLoader's workers: a JSON header and raw buffers. Nothing that was received is unpickled.

A message is accepted when every field of its header has its type and its range, and every buffer has the size that the
header states. Another one is a `ProtocolError`, and takes no memory beyond the limits below.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.loaders.transport import ProtocolError

MOST_HEADER_BYTES = 64 << 10
MOST_BUFFERS = 256
MOST_BYTES = 1 << 30
"""Of all buffers of a message together."""

KINDS = ("item", "batch", "end", "failure")
_ALLOWED_DTYPE = re.compile(r"\|b1|[<>|][iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)|[<>]U\d{1,6}|\|S\d{1,6}")
_MOST_DIMENSIONS = 32
_MOST_NUMBER = 2**53


@dataclass(frozen=True)
class Part:
    """A buffer that is to be sent.

    Attributes:
        dtype: of its elements.
        shape: of the whole buffer.
        pieces: arrays of that dtype whose elements, one array after the other, are the buffer's.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Sequence[NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return math.prod(self.shape) * self.dtype.itemsize


class Layout(NamedTuple):
    """What a header says of a buffer: its dtype, shape and size in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_bytes: int


class Header(NamedTuple):
    """What a message says of itself.

    Attributes:
        kind: one of `KINDS`.
        worker: who sent it.
        iteration: of the loader, to which it belongs.
        number: of an item, counted by its worker from 0; of an end: how many there were.
        num_examples: in the item.
        ready_at: when it was ready, by the machine's clock, seconds.
        tree: the item without its buffers, see `wire_items`.
        buffers: what follows.
        places: where each buffer lies, for the transport; None: it says nothing.
    """

    kind: str
    worker: int
    iteration: int
    number: int
    num_examples: int
    ready_at: float
    tree: Any
    buffers: tuple[Layout, ...]
    places: Any = None


@dataclass(frozen=True)
class Outgoing:
    """A message that is to be sent; the fields are those of `Header`."""

    kind: str
    worker: int
    iteration: int
    number: int
    num_examples: int
    ready_at: float
    tree: Any
    parts: Sequence[Part] = ()

    def encode_header(self, places: Any = None) -> bytes:
        """Returns the header as JSON.

        Args:
            places: where each buffer lies, for the transport.

        Raises:
            ProtocolError: the message is larger than allowed.
        """
        if len(self.parts) > MOST_BUFFERS:
            raise ProtocolError(f"it has {len(self.parts)} buffers, and a message may have {MOST_BUFFERS}")
        num_bytes = sum(part.num_bytes for part in self.parts)
        if num_bytes > MOST_BYTES:
            raise ProtocolError(f"its arrays take {num_bytes:,} bytes, and a message may have {MOST_BYTES:,}")
        fields = [self.kind, self.worker, self.iteration, self.number, self.num_examples, self.ready_at, self.tree]
        layouts = [[part.dtype.str, part.shape] for part in self.parts]
        encoded = json.dumps([*fields, layouts, places], separators=(",", ":")).encode()
        if len(encoded) > MOST_HEADER_BYTES:
            raise ProtocolError(
                f"its structure takes {len(encoded):,} bytes without the arrays, and may take {MOST_HEADER_BYTES:,}: "
                f"put its values into fewer, larger arrays"
            )
        return encoded


def allowed(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of a dtype may be sent."""
    return _ALLOWED_DTYPE.fullmatch(dtype.str) is not None and dtype.fields is None


def read_header(encoded: bytes | bytearray | memoryview) -> Header:
    """Returns a header that was sent, checked.

    Raises:
        ProtocolError: it is not one.
    """
    if len(encoded) > MOST_HEADER_BYTES:
        raise ProtocolError(f"the header has {len(encoded):,} bytes")
    try:
        fields = json.loads(bytes(encoded))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is no JSON: {type(error).__name__}") from None
    if not isinstance(fields, list) or len(fields) != 9:
        raise ProtocolError("the header has not nine fields")
    kind, worker, iteration, number, num_examples, ready_at, tree, layouts, places = fields
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProtocolError("the header names no kind of message")
    if not all(type(one) is int and 0 <= one <= _MOST_NUMBER for one in (worker, iteration, number, num_examples)):
        raise ProtocolError("a number of the header is not one")
    if type(ready_at) not in (int, float):
        raise ProtocolError("the time in the header is not one")
    return Header(kind, worker, iteration, number, num_examples, float(ready_at), tree, _read_layouts(layouts), places)


def view_buffer(memory: Any, layout: Layout) -> NDArray[Any]:
    """Returns memory that was received as the array it holds, without a copy.

    Raises:
        ProtocolError: the memory has another size.
    """
    view = memoryview(memory)
    if view.nbytes != layout.num_bytes:
        raise ProtocolError(f"a buffer of {layout.num_bytes:,} bytes has {view.nbytes:,}")
    if not layout.num_bytes:
        return np.empty(layout.shape, layout.dtype)
    return np.frombuffer(view, layout.dtype).reshape(layout.shape)


def _read_layouts(layouts: Any) -> tuple[Layout, ...]:
    if not isinstance(layouts, list) or len(layouts) > MOST_BUFFERS:
        raise ProtocolError("the header does not list its buffers")
    if not all(isinstance(layout, list) and len(layout) == 2 for layout in layouts):
        raise ProtocolError("a buffer has not a dtype and a shape")
    try:
        read = tuple(_read_layout(name, tuple(shape), *map(type, shape)) for name, shape in layouts)
    except TypeError:  # A shape that is not a list, or holds one.
        raise ProtocolError("a buffer has a shape that is not one") from None
    if sum(layout.num_bytes for layout in read) > MOST_BYTES:
        raise ProtocolError("the header promises more bytes than a message may have")
    return read


@lru_cache(maxsize=1024)  # Item by item they are the same.
def _read_layout(name: Any, shape: tuple[Any, ...], *types: type) -> Layout:
    """Returns a layout; the types of its sizes are there because True and 1.0 would be found where 1 was kept."""
    if not isinstance(name, str) or len(shape) > _MOST_DIMENSIONS or not _ALLOWED_DTYPE.fullmatch(name):
        raise ProtocolError("a buffer has a dtype or a shape that is not allowed")
    if not all(kind is int and 0 <= size <= _MOST_NUMBER for size, kind in zip(shape, types, strict=True)):
        raise ProtocolError("a buffer has a size that is not one")
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        raise ProtocolError("a buffer has a dtype that is not one") from None
    # An array without elements may still claim sizes that numpy cannot hold together.
    if math.prod(size or 1 for size in shape) * dtype.itemsize > MOST_BYTES:
        raise ProtocolError("a buffer is larger than a message may be")
    return Layout(dtype, shape, math.prod(shape) * dtype.itemsize)
