"""The items of a MultiLoader as they travel: a JSON header and raw buffers. Nothing that is received is unpickled.

A message is accepted when every field of its header has its type and its range, and every buffer has the size that the
header states. Any other message is a `ProtocolError`, and takes no memory beyond the limits below.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch
from tfds_torch.loaders.transport import FAILURE, Message, ProtocolError, refusing_malformed
from tfds_torch.loaders.wire_items import ALLOWED_DTYPE, MOST_BYTES, ItemReader, ItemWriter, Part, name_of
from tfds_torch.parsers.protocol import Parser
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.shared_slots import SlotPacking
from tfds_torch.storage.source import LazyIds

MOST_HEADER_BYTES = 64 << 10
MOST_BUFFERS = 256

_CONTENTS = ("item", "batch", "failure")
_MOST_DIMENSIONS = 32
_MOST_IN_PIPE = 1 << 14  # Bytes of a buffer that travels through the pipe, where there is room in a slot.
_BATCH_FIELDS = ("image", "label", "valid", "index", "features", "epoch", "batch")
_FAILURE_FIELDS = ("module", "name", "message", "trace")


class Layout(NamedTuple):
    """A header's description of a buffer: its dtype, shape and size in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_bytes: int


class Header(NamedTuple):
    """The header of a message, which describes its item.

    Attributes:
        content: one of `_CONTENTS`.
        tree: the item without its buffers, see `wire_items`.
        buffers: the buffers that follow.
        places: each buffer's slot and offset; None: it is a frame behind the header.
    """

    content: str
    tree: Any
    buffers: tuple[Layout, ...]
    places: Any


@dataclass(frozen=True)
class Outgoing:
    """An item that is to be sent; the fields are those of `Header`."""

    content: str
    tree: Any
    parts: Sequence[Part] = ()

    def encode_header(self, places: Sequence[tuple[int, int] | None]) -> bytes:
        """Return the header as JSON."""
        if len(self.parts) > MOST_BUFFERS:
            raise ProtocolError(f"it has {len(self.parts)} buffers, and a message may have {MOST_BUFFERS}")
        num_bytes = sum(part.num_bytes for part in self.parts)
        if num_bytes > MOST_BYTES:
            raise ProtocolError(f"its arrays take {num_bytes:,} bytes, and a message may have {MOST_BYTES:,}")
        layouts = [[name_of(part.dtype), part.shape] for part in self.parts]
        encoded = json.dumps([self.content, self.tree, layouts, places], separators=(",", ":")).encode()
        if len(encoded) > MOST_HEADER_BYTES:
            raise ProtocolError(
                f"its structure takes {len(encoded):,} bytes without the arrays, and may take {MOST_HEADER_BYTES:,}: "
                f"put its values into fewer, larger arrays"
            )
        return encoded


class ItemCodec:
    """Turns items into headers and buffers, and back. Picklable.

    A parser's batches travel without their ids, which are computed when they are looked at.
    """

    def __init__(self, parser: Parser | None) -> None:
        self._parser = parser

    def write(self, message: Message) -> Outgoing:
        """Return an item as it travels."""
        content, item, writer = "item", message.item, ItemWriter()
        if message.kind == FAILURE:
            content, item = "failure", {name: getattr(item, name) for name in _FAILURE_FIELDS}
        elif isinstance(item, Batch):
            content, item = "batch", batch_to_dict(item, self._parser is not None)
        return Outgoing(content, writer.write(item), writer.parts)

    def encode(self, message: Message, packing: SlotPacking) -> Sequence[Any]:  # noqa: D102
        outgoing = self.write(message)
        places = [_place(part, packing) for part in outgoing.parts]
        inline = [part for part, place in zip(outgoing.parts, places, strict=True) if place is None]
        # Copied: a transport may send frames some time later, when the user has changed the arrays.
        return [outgoing.encode_header(places), *(b"".join(one.tobytes() for one in part.pieces) for part in inline)]

    def decode(self, frames: Sequence[Any], slots: Mapping[int, NDArray[Any]]) -> Any:  # noqa: D102
        header = read_header(frames[0])
        with refusing_malformed():
            if len(frames) - 1 != header.places.count(None):
                raise ProtocolError("it has other buffers than its header says")
            rest, buffers = iter(frames[1:]), []
            for place, layout in zip(header.places, header.buffers, strict=True):
                memory = next(rest) if place is None else slots[place[0]][place[1] : place[1] + layout.num_bytes]
                buffers.append(view_buffer(memory, layout))
            item = ItemReader(buffers).read(header.tree)
            if header.content == "failure":
                return Failure(**item)
            return batch_from_dict(item, self._parser) if header.content == "batch" else item


def batch_from_dict(fields: Any, parser: Parser | None) -> Batch:
    """Return a Batch that a worker has sent as a dict; the ids of a parser's examples are computed when looked at."""
    return Batch(**(fields if parser is None else {**fields, "id": LazyIds(parser.ids, fields["index"])}))


def batch_to_dict(batch: Batch, has_parser: bool) -> dict[str, Any]:
    """Return a Batch as a dict that travels; with a parser at the other end, without its ids."""
    fields = {name: getattr(batch, name) for name in _BATCH_FIELDS}
    return fields if has_parser else {**fields, "id": list(batch.id)}


def _place(part: Part, packing: SlotPacking) -> tuple[int, int] | None:
    """Return the slot and offset of a buffer, copied there if needed; None where it goes through the pipe."""
    piece = part.pieces[0] if len(part.pieces) == 1 else None
    if piece is not None and piece.flags.c_contiguous:
        found = packing.find_slot(piece.ctypes.data, piece.nbytes)
        if found is not None:
            return found
    if not _MOST_IN_PIPE < part.num_bytes <= MOST_BYTES or part.dtype.hasobject:
        return None
    place = packing.place(part.num_bytes)
    if place is not None and packing.slots is not None:
        slot, start = place
        end = start
        for piece in part.pieces:
            start, end = end, end + piece.nbytes
            memory = packing.slots.bytes_of(slot)[start:end]
            np.copyto(memory.view(part.dtype).reshape(piece.shape), piece)
    return place


def read_header(encoded: bytes | bytearray | memoryview) -> Header:
    """Return a header that was sent, checked."""
    if len(encoded) > MOST_HEADER_BYTES:
        raise ProtocolError(f"the header has {len(encoded):,} bytes")
    with refusing_malformed():
        content, tree, layouts, places = json.loads(bytes(encoded))
        read = tuple(_read_layout(name, tuple(shape)) for name, shape in layouts)
        if content not in _CONTENTS or len(read) > MOST_BUFFERS or sum(one.num_bytes for one in read) > MOST_BYTES:
            raise ProtocolError("the header names no kind of item, or more buffers or bytes than a message may have")
        return Header(content, tree, read, places)


def view_buffer(memory: Any, layout: Layout) -> NDArray[Any]:
    """Return memory that was received as the array it holds, without a copy."""
    view = memoryview(memory)
    if view.nbytes != layout.num_bytes:
        raise ProtocolError(f"a buffer of {layout.num_bytes:,} bytes has {view.nbytes:,}")
    if not layout.num_bytes:
        return np.empty(layout.shape, layout.dtype)
    return np.frombuffer(view, layout.dtype).reshape(layout.shape)


def _read_layout(name: str, shape: tuple[int, ...]) -> Layout:
    if not ALLOWED_DTYPE.fullmatch(name) or len(shape) > _MOST_DIMENSIONS:
        raise ProtocolError("a buffer has a dtype or a shape that is not allowed")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ProtocolError("a buffer has a size that is not one")
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 (numpy knows the name from then on)
    dtype = np.dtype(name)
    # An array without elements may still claim sizes that numpy cannot hold together.
    if math.prod(size or 1 for size in shape) * dtype.itemsize > MOST_BYTES:
        raise ProtocolError("a buffer is larger than a message may be")
    return Layout(dtype, shape, math.prod(shape) * dtype.itemsize)
