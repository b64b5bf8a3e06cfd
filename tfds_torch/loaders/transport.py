"""How the items of workers travel to the process that iterates: the Transport protocol, and pipes with shared slots."""

import math
import os
import select
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from numpy.typing import NDArray

from tfds_torch.runtime.shared_slots import SharedSlots, SlotPacking

ITEM, END, FAILURE = range(3)
"""Kinds of messages: an item, the end of a worker's items, and a `Failure`."""

_NUMBERS = struct.Struct("<B7xqqqd")
"""Of a message: its kind, iteration, number, num_examples and ready_at."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a worker. The memory of a received item is used again when nothing refers to the item.

    Attributes:
        kind: ITEM, END or FAILURE.
        worker: the sender's number.
        iteration: the number of the iteration in the pool.
        number: the item's number, counted by its worker from 0; of an end: how many items there were.
        num_examples: how many examples the item holds.
        ready_at: when the item was made, by the machine's monotonic clock, seconds.
        item: the item, a Failure, or None.
    """

    kind: int
    worker: int
    iteration: int
    number: int
    num_examples: int
    ready_at: float
    item: Any


def pack_numbers(message: Message) -> bytes:
    """Return the numbers of a message, which a transport sends beside its worker and its item."""
    return _NUMBERS.pack(message.kind, message.iteration, message.number, message.num_examples, message.ready_at)


def unpack_message(numbers: bytes | bytearray | memoryview, worker: int, item: Any) -> Message:
    """Return a message from memory that begins with the numbers of `pack_numbers`."""
    kind, iteration, number, num_examples, ready_at = _NUMBERS.unpack_from(numbers)
    return Message(kind, worker, iteration, number, num_examples, ready_at, item)


class ProtocolError(Exception):
    """A message that breaks a rule of its transport; the text says which."""


@contextmanager
def refusing_malformed() -> Iterator[None]:
    """Turn any error while a message is read into a ProtocolError: readers do not check every value they are sent."""
    try:
        yield
    except (ProtocolError, MemoryError):
        raise
    except Exception as error:
        raise ProtocolError(f"{type(error).__name__}: {error}") from None


class Codec(Protocol):
    """Turns items into frames and back, for a transport between a worker and its parent. Picklable."""

    def encode(self, message: Message, packing: SlotPacking) -> Sequence[Any]:
        """Return the frames of a message's item: bytes, or memory of arrays; larger parts are written into slots."""

    def decode(self, frames: Sequence[Any], slots: Mapping[int, NDArray[Any]]) -> Any:
        """Return the item, which may keep the frames, and lies in slots that are given by number."""


class Sender(Protocol):
    """A worker's end of a transport. It travels to the worker's process."""

    def send(self, message: Message) -> None:
        """Send a message, and return when its arrays may change.

        Raises:
            BrokenPipeError: the receiver has gone.
        """

    def close(self) -> None:
        """Close this process's end; messages that were not received yet may be lost."""


class Transport(Protocol):
    """The receiver's end, for all workers of a pool. For one thread.

    Attributes:
        name: the transport's name, as in the option `transport`.
        num_rejected: messages and connections of others than the workers, which were rejected.
    """

    name: str
    num_rejected: int

    def sender(self, worker: int, context: BaseContext) -> Sender:
        """Return the end of a worker that is about to be started, which is then closed here."""

    def receive(self, worker: int) -> Message | None:
        """Return the next message of a worker; None: it has not arrived.

        Raises:
            EOFError: the worker has closed its end.
            ProtocolError: the worker sent an invalid message.
        """

    def wait(self, workers: Sequence[int], timeout_s: float) -> None:
        """Return when something has come from one of these workers, or after `timeout_s` seconds."""

    def close(self) -> None:
        """End the transport."""


_COUNTS = struct.Struct("<IIQ")
"""Of a message in a pipe: its slots, its frames, and the bytes of all that follows these counts."""
_TABLES_AT = _NUMBERS.size + _COUNTS.size
_ALIGNMENT = 16
_MOST_BYTES = (1 << 48) - 1  # Of all that follows the counts: far more than a machine has.
_MOST_JOINED_BYTES = 1 << 16  # Of a message that is written at once.


class PipeTransport:
    """Carries large arrays in `SharedSlots`, and the rest through a pipe of each worker, which is private.

    Arrays that find no room in a slot go through the pipe, too. The receiver never waits for the rest of a message.
    """

    name = "shared"

    def __init__(self, slots: SharedSlots | None, num_workers: int, codec: Codec) -> None:
        self.num_rejected = 0
        self._slots, self._codec = slots, codec
        self._readers: list[_PipeReader | None] = [None] * num_workers

    def sender(self, worker: int, context: BaseContext) -> "PipeSender":  # noqa: D102
        ours, theirs = context.Pipe(duplex=False)
        os.set_blocking(ours.fileno(), False)
        self._readers[worker] = _PipeReader(ours)
        return PipeSender(theirs, self._slots, self._codec)

    def receive(self, worker: int) -> Message | None:  # noqa: D102
        reader = self._readers[worker]
        if reader is None:
            raise EOFError
        message = reader.read()
        if message is None:
            return None
        with refusing_malformed():
            slots, frames = _unpack(message)
        received: dict[int, NDArray[Any]] = {}
        if self._slots is not None:
            # All slots first: none is free before the whole item is decoded, or dropped.
            received = {slot: self._slots.receive(slot) for slot in slots}
        try:
            item = self._codec.decode(frames, received) if frames else None
        except (ProtocolError, TypeError, KeyError) as reason:
            raise ProtocolError(f"an invalid item: {reason}") from None
        return unpack_message(message, worker, item)

    def wait(self, workers: Sequence[int], timeout_s: float) -> None:  # noqa: D102
        waiting = select.poll()
        for worker in workers:
            if (reader := self._readers[worker]) is not None:
                waiting.register(reader.connection.fileno(), select.POLLIN)
        waiting.poll(math.ceil(timeout_s * 1000))

    def close(self) -> None:  # noqa: D102
        for reader in self._readers:
            if reader is not None:
                reader.connection.close()
        self._readers = [None] * len(self._readers)


class PipeSender:
    """A worker's end of a `PipeTransport`."""

    def __init__(self, connection: Connection, slots: SharedSlots | None, codec: Codec) -> None:
        self._connection, self._slots, self._codec = connection, slots, codec

    def send(self, message: Message) -> None:  # noqa: D102
        packing = SlotPacking(self._slots)
        frames = self._codec.encode(message, packing) if message.kind != END else ()
        _write_all(self._connection.fileno(), _pack(message, packing.finish(), frames))

    def close(self) -> None:  # noqa: D102
        self._connection.close()


class _PipeReader:
    """Reads the messages that have arrived in a pipe, without blocking."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._begin()

    def _begin(self) -> None:
        self._message, self._num_come, self._is_head = bytearray(_TABLES_AT), 0, True

    def read(self) -> bytearray | None:
        """Return the next message; None: it has not come yet."""
        if not self._fill():
            return None
        if self._is_head:
            self._is_head = False
            head, self._message = self._message, bytearray(_size_of(self._message))
            self._message[: len(head)] = head
            if not self._fill():
                return None
        message = self._message
        self._begin()
        return message

    def _fill(self) -> bool:
        """Read the bytes that have come; return whether all awaited ones are there."""
        with memoryview(self._message) as view:
            while self._num_come < len(view):
                try:
                    num_bytes = os.readv(self.connection.fileno(), [view[self._num_come :]])
                except BlockingIOError:
                    return False
                if not num_bytes:
                    raise EOFError
                self._num_come += num_bytes
        return True


def _pack(message: Message, slots: Sequence[int], frames: Sequence[Any]) -> list[Any]:
    """Return the pieces of a message in a pipe: numbers, counts, slots, the sizes of frames, and aligned frames."""
    views = [memoryview(frame).cast("B") for frame in frames]
    tables = _tables(len(slots), len(views))
    pieces: list[Any] = [tables.pack(*slots, *(view.nbytes for view in views))]
    end = _TABLES_AT + tables.size
    for view in views:
        pieces += [bytes(-end % _ALIGNMENT), view]
        end += -end % _ALIGNMENT + view.nbytes
    return [pack_numbers(message) + _COUNTS.pack(len(slots), len(views), end - _TABLES_AT), *pieces]


def _unpack(message: bytearray) -> tuple[list[int], list[memoryview]]:
    """Return the slots and the frames of a message."""
    num_slots, num_frames, _ = _COUNTS.unpack_from(message, _NUMBERS.size)
    tables = _tables(num_slots, num_frames)
    numbers = tables.unpack_from(message, _TABLES_AT)
    view, frames, end = memoryview(message), [], _TABLES_AT + tables.size
    for size in numbers[num_slots:]:
        start = end + -end % _ALIGNMENT
        end = start + size
        frames.append(view[start:end])
    return list(numbers[:num_slots]), frames


@lru_cache(maxsize=128)  # Most items of a pool have the same numbers of both.
def _tables(num_slots: int, num_frames: int) -> struct.Struct:
    """Return the layout of the tables of a message in a pipe: its slots, and the sizes of its frames."""
    return struct.Struct(f"<{num_slots}I{num_frames}Q")


def _size_of(head: bytearray) -> int:
    """Return the bytes of a whole message, checked."""
    kind = head[0]
    _, _, num_bytes = _COUNTS.unpack_from(head, _NUMBERS.size)
    if kind not in (ITEM, END, FAILURE) or num_bytes > _MOST_BYTES:
        raise ProtocolError(f"a message of kind {kind} with {num_bytes:,} bytes")
    return _TABLES_AT + int(num_bytes)


def _write_all(file: int, pieces: Sequence[Any]) -> None:
    """Write all pieces, one after the other; a write may take a part of one, where the pipe is full."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    if sum(view.nbytes for view in views) <= _MOST_JOINED_BYTES:
        views = [memoryview(b"".join(views))]
    for view in views:
        while view:
            view = view[os.write(file, view) :]
