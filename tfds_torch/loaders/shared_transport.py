"""SharedTransport: batches in shared memory, and a pipe of each worker for what is said of them."""

import math
import os
import select
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.loaders.transport import Incoming
from tfds_torch.loaders.wire import (
    MOST_BYTES,
    MOST_HEADER_BYTES,
    Header,
    MalformedMessage,
    Outgoing,
    Part,
    read_header,
    view_buffer,
)
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.slot_packing import SlotPacking

_SIZES = struct.Struct("<IQ")  # Of the header, and of what follows it in the pipe.
_MOST_IN_PIPE = 1 << 14  # Bytes of a buffer that travels through the pipe, where there is room in a slot.
_READ_BYTES = 1 << 16


class SharedTransport:
    """Carries large arrays in `SharedSlots`, and headers and small arrays through a pipe that nobody else can open.

    An array that finds no room in a slot goes through the pipe, too. The receiver never waits for the rest of a
    message.

    Args:
        slots: of the workers.
        num_slots: of each worker.
    """

    name = "shared"

    def __init__(self, slots: SharedSlots, num_workers: int, num_slots: int) -> None:
        self.num_rejected = 0
        self._slots, self._num_slots = slots, num_slots
        self._inlets: list[_Inlet | None] = [None] * num_workers
        self._theirs: list[Connection | None] = [None] * num_workers

    def outlet(self, worker: int, context: BaseContext) -> "SharedOutlet":  # noqa: D102
        ours, theirs = context.Pipe(duplex=False)
        os.set_blocking(ours.fileno(), False)
        self._inlets[worker], self._theirs[worker] = _Inlet(ours), theirs
        return SharedOutlet(theirs, self._slots)

    def key(self, worker: int) -> bytes:
        """Returns an empty secret: the pipe needs none."""
        return b""

    def note_started(self, worker: int) -> None:  # noqa: D102
        theirs, self._theirs[worker] = self._theirs[worker], None
        if theirs is not None:
            theirs.close()

    def receive(self, worker: int) -> Incoming | None:  # noqa: D102
        inlet = self._inlets[worker]
        if inlet is None:
            raise EOFError
        found = inlet.read()
        if found is None:
            return None
        header = read_header(found[0])
        return Incoming(header, self._collect(worker, header, memoryview(found[1])))

    def _collect(self, worker: int, header: Header, rest: memoryview) -> list[NDArray[Any]]:
        """Returns the buffers of a message: views of slots, and of what came through the pipe."""
        places = header.places
        if not isinstance(places, list) or len(places) != len(header.buffers):
            raise MalformedMessage("the header does not say where its buffers lie")
        # All slots first: none is free before the whole batch is there.
        numbers = {place[0] for place in places if place is not None and self._is_place(worker, place)}
        received = {slot: self._slots.receive(slot) for slot in numbers}
        buffers = []
        for place, layout in zip(places, header.buffers, strict=True):
            if place is None:
                memory: Any = rest[: layout.num_bytes]
                rest = rest[layout.num_bytes :]
            else:
                slot, offset = place
                memory = received[slot][offset : offset + layout.num_bytes]
            buffers.append(view_buffer(memory, layout))
        if len(rest):
            raise MalformedMessage("more bytes came than the header promises")
        return buffers

    def _is_place(self, worker: int, place: Any) -> bool:
        """Returns True for a place in a slot of a worker.

        Raises:
            MalformedMessage: it is none.
        """
        if not isinstance(place, list) or len(place) != 2 or not all(type(one) is int and one >= 0 for one in place):
            raise MalformedMessage("the place of a buffer is none")
        if not worker * self._num_slots <= place[0] < (worker + 1) * self._num_slots:
            raise MalformedMessage("a buffer lies in a slot of somebody else")
        return True

    def wait(self, workers: Sequence[int], timeout_s: float) -> None:  # noqa: D102
        waiting = select.poll()
        for worker in workers:
            if (inlet := self._inlets[worker]) is not None:
                waiting.register(inlet.connection.fileno(), select.POLLIN)
        waiting.poll(math.ceil(timeout_s * 1000))

    def close(self) -> None:  # noqa: D102
        for worker, inlet in enumerate(self._inlets):
            self.note_started(worker)
            if inlet is not None:
                inlet.connection.close()
        self._inlets = [None] * len(self._inlets)


class SharedOutlet:
    """A worker's end of a `SharedTransport`.

    Args:
        connection: the writing end of its pipe.
        slots: of all workers.
    """

    def __init__(self, connection: Connection, slots: SharedSlots) -> None:
        self._connection, self._slots = connection, slots

    def open(self, key: bytes) -> None:
        """Nothing has to be opened."""

    def send(self, message: Outgoing) -> None:  # noqa: D102
        packing = SlotPacking(self._slots)
        places = [self._place(part, packing) for part in message.parts]
        header = message.encode_header(places)
        inline = [part for part, place in zip(message.parts, places, strict=True) if place is None]
        num_bytes = sum(part.num_bytes for part in inline)
        packing.finish()
        frames: list[Any] = [_SIZES.pack(len(header), num_bytes), header]
        frames += [np.ascontiguousarray(piece).data.cast("B") for piece in _pieces(inline)]
        _write_all(self._connection.fileno(), frames)

    def _place(self, part: Part, packing: SlotPacking) -> tuple[int, int] | None:
        """Returns the slot and offset of a buffer, copied there if need be; None: it goes through the pipe."""
        piece = part.pieces[0] if len(part.pieces) == 1 else None
        if piece is not None and piece.flags.c_contiguous:
            found = packing.refer(piece.ctypes.data, piece.nbytes)
            if found is not None:
                return found
        if not _MOST_IN_PIPE < part.num_bytes <= MOST_BYTES or part.dtype.hasobject:
            return None
        place = packing.place(part.num_bytes)
        if place is not None:
            slot, start = place
            end = start
            for piece in part.pieces:
                start, end = end, end + piece.nbytes
                memory = self._slots.bytes_of(slot)[start:end]
                np.copyto(memory.view(part.dtype).reshape(piece.shape), piece)
        return place

    def close(self) -> None:  # noqa: D102
        self._connection.close()


class _Inlet:
    """Reads the messages of a pipe as far as they have come.

    Args:
        connection: the reading end; it does not block.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._came = bytearray()
        self._whole: bytearray | None = None  # A large message, of which a part has come.
        self._num_come = 0

    def read(self) -> tuple[memoryview, memoryview] | None:
        """Returns header and rest of the next message; None: it has not come yet.

        Raises:
            EOFError: there are no more.
            MalformedMessage: it is larger than a message may be.
        """
        while True:
            if self._whole is not None:
                if not self._fill(self._whole):
                    return None
                message, self._whole = self._whole, None
                return self._split(message)
            size = self._size()
            if size is not None and len(self._came) >= size:
                message, self._came = self._came[:size], self._came[size:]
                return self._split(message)
            if size is not None and size > _READ_BYTES:
                self._whole, self._num_come = bytearray(size), len(self._came)
                self._whole[: self._num_come] = self._came
                self._came = bytearray()
                continue
            if not self._read_some():
                return None

    def _size(self) -> int | None:
        """Returns the bytes of the next message; None: not even that has come."""
        if len(self._came) < _SIZES.size:
            return None
        of_header, of_rest = _SIZES.unpack_from(self._came)
        if of_header > MOST_HEADER_BYTES or of_rest > MOST_BYTES:
            raise MalformedMessage(f"it says that it has {of_header + of_rest:,} bytes")
        return int(_SIZES.size + of_header + of_rest)

    def _read_some(self) -> bool:
        try:
            read = os.read(self.connection.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not read:
            raise EOFError
        self._came += read
        return True

    def _fill(self, whole: bytearray) -> bool:
        """Reads into a large message; returns whether it is complete."""
        while self._num_come < len(whole):
            with memoryview(whole) as view:
                try:
                    read = os.readv(self.connection.fileno(), [view[self._num_come :]])
                except BlockingIOError:
                    return False
            if not read:
                raise EOFError
            self._num_come += read
        return True

    @staticmethod
    def _split(message: bytearray) -> tuple[memoryview, memoryview]:
        of_header, _ = _SIZES.unpack_from(message)
        view, end = memoryview(message), _SIZES.size + of_header
        return view[_SIZES.size : end], view[end:]


def _pieces(parts: Sequence[Part]) -> list[NDArray[Any]]:
    return [piece for part in parts for piece in part.pieces if piece.nbytes]


def _write_all(file: int, frames: list[Any]) -> None:
    """Writes frames one after the other; the receiver takes its time."""
    rest = memoryview(b"".join(frames)) if sum(map(len, frames)) <= _READ_BYTES else None
    for frame in frames if rest is None else [rest]:
        view = memoryview(frame)
        while view:
            view = view[os.write(file, view) :]
