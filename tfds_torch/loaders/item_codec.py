"""ItemCodec: the items of a MultiLoader as JSON and arrays, for pipes and for sockets. Nothing is unpickled."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.batch import Batch
from tfds_torch.loaders.transport import END, FAILURE, Message, ProtocolError
from tfds_torch.loaders.wire import MOST_BYTES, Header, Outgoing, Part, read_header, view_buffer
from tfds_torch.loaders.wire_items import ItemReader, ItemWriter
from tfds_torch.parsers.parser import Parser
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.shared_slots import SlotPacking
from tfds_torch.storage.source import LazyIds

_LENGTH = struct.Struct("<I")
_MOST_IN_PIPE = 1 << 14  # Bytes of a buffer that travels through the pipe, where there is room in a slot.
_BATCH_FIELDS = ("image", "label", "valid", "index", "features", "epoch", "batch")
_FAILURE_FIELDS = ("module", "name", "message", "trace")


class ItemCodec:
    """Turns items into headers and buffers, and back. Picklable.

    Args:
        parser: whose batches travel, without their ids, which are computed when they are looked at; None: another
            source.
    """

    def __init__(self, parser: Parser | None) -> None:
        self._parser = parser

    def write(self, message: Message) -> Outgoing:
        """Returns a message as it travels.

        Raises:
            ConfigError: the item holds a value that cannot travel.
        """
        kind, item, writer = "item", message.item, ItemWriter()
        if message.kind == END:
            kind = "end"
        elif message.kind == FAILURE:
            kind, item = "failure", {name: getattr(item, name) for name in _FAILURE_FIELDS}
        elif isinstance(item, Batch):
            kind, item = "batch", batch_to_dict(item, self._parser is not None)
        tree = writer.write(item)
        numbers = message.worker, message.iteration, message.number, message.num_examples
        return Outgoing(kind, *numbers, message.ready_at, tree, writer.parts)

    def read(self, header: Header, buffers: Sequence[NDArray[Any]]) -> Any:
        """Returns the item of a message: a Failure, a Batch or another one.

        Raises:
            ProtocolError: the message holds no item.
        """
        item = ItemReader(buffers).read(header.tree)
        if header.kind == "failure":
            if not isinstance(item, dict) or not all(isinstance(one, str) for one in item.values()):
                raise ProtocolError("a failure has other fields than text")
            return Failure(**item)
        return batch_from_dict(item, self._parser) if header.kind == "batch" else item

    def encode(self, message: Message, packing: SlotPacking) -> Sequence[Any]:  # noqa: D102
        outgoing = self.write(message)
        places = [_place(part, packing) for part in outgoing.parts]
        header = outgoing.encode_header(places)
        inline = [part for part, place in zip(outgoing.parts, places, strict=True) if place is None]
        pieces = [piece for part in inline for piece in part.pieces if piece.nbytes]
        return [_LENGTH.pack(len(header)), header, *(np.ascontiguousarray(piece).data.cast("B") for piece in pieces)]

    def decode(self, content: memoryview, slots: Mapping[int, NDArray[Any]]) -> Any:  # noqa: D102
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        header, rest = read_header(content[_LENGTH.size : end]), content[end:]
        buffers = []
        for place, layout in zip(header.places, header.buffers, strict=True):
            if place is None:
                memory: Any = rest[: layout.num_bytes]
                rest = rest[layout.num_bytes :]
            else:
                slot, offset = place
                memory = slots[slot][offset : offset + layout.num_bytes]
            buffers.append(view_buffer(memory, layout))
        return self.read(header, buffers)


def batch_from_dict(fields: Any, parser: Parser | None) -> Batch:
    """Returns a Batch that a worker has sent as a dict; the ids of a parser's examples are computed when looked at.

    Raises:
        TypeError: the fields are not those of a Batch.
    """
    return Batch(**(fields if parser is None else {**fields, "id": LazyIds(parser.ids, fields["index"])}))


def batch_to_dict(batch: Batch, has_parser: bool) -> dict[str, Any]:
    """Returns a Batch as a dict that travels; with a parser at the other end, without its ids."""
    fields = {name: getattr(batch, name) for name in _BATCH_FIELDS}
    return fields if has_parser else {**fields, "id": list(batch.id)}


def _place(part: Part, packing: SlotPacking) -> tuple[int, int] | None:
    """Returns the slot and offset of a buffer, which is copied there if need be; None: it goes through the pipe."""
    piece = part.pieces[0] if len(part.pieces) == 1 else None
    if piece is not None and piece.flags.c_contiguous:
        found = packing.refer(piece.ctypes.data, piece.nbytes)
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
