"""Messages between the fetcher and the processes that ask it: a JSON object, and bytes behind it.

Layout, little-endian: bytes of the JSON text (u32), bytes of the body (u32), the text, the body.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from tfds_torch import errors
from tfds_torch.errors import TfdsTorchError

Message = dict[str, Any]
Answer = bytes | TfdsTorchError | None
"""The answer to a reader that asks for a part of a block; None: the block lies in the cache."""

HEARTBEAT_S = 5.0
"""Seconds between signs of life of a fetcher whose answer takes long."""

_HEAD = struct.Struct("<II")
_MOST_TEXT_BYTES = 1 << 26


class BrokenFrameError(OSError):
    """The other side ended, or sent bytes that are not a message."""


def pack(message: Message, body: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


def error_message(error: TfdsTorchError) -> Message:
    """Return the message for an error."""
    return {"error": type(error).__name__, "message": str(error)}


def error_of(message: Message) -> TfdsTorchError:
    """Return the error in a received message."""
    found: TfdsTorchError = getattr(errors, message["error"])(message["message"])
    return found


def joined(found: Iterable[Answer]) -> tuple[list[Message], bytes]:
    """Return the message for answers, and the body behind it."""
    told, bodies = list[Message](), list[bytes]()
    for one in found:
        if isinstance(one, TfdsTorchError):
            told.append(error_message(one))
        else:
            told.append({"size": None if one is None else len(one)})
            bodies.append(one or b"")
    return told, b"".join(bodies)


def answers(told: Sequence[Message], body: bytes) -> list[Answer]:
    """Return the answers in a received message and its body."""
    found, start = list[Answer](), 0
    for one in told:
        if "error" in one:
            found.append(error_of(one))
        elif one["size"] is None:
            found.append(None)
        else:
            found.append(body[start : start + one["size"]])
            start += one["size"]
    return found


def receive(connection: socket.socket) -> tuple[Message, bytes]:
    """Return the next message and its body; raise OSError where the other side has ended."""
    num_text, num_body = _sizes(_receive_exactly(connection, _HEAD.size))
    text = _receive_exactly(connection, num_text)
    return json.loads(text), _receive_exactly(connection, num_body)


async def read(reader: asyncio.StreamReader) -> tuple[Message, bytes]:
    """Return the next message and its body; raise IncompleteReadError where the other side has ended."""
    num_text, num_body = _sizes(await reader.readexactly(_HEAD.size))
    text = await reader.readexactly(num_text)
    return json.loads(text), await reader.readexactly(num_body) if num_body else b""


def _sizes(head: bytes) -> tuple[int, int]:
    num_text, num_body = _HEAD.unpack(head)
    if num_text > _MOST_TEXT_BYTES:
        raise BrokenFrameError(f"A message of {num_text} bytes is not one of ours.")
    return num_text, num_body


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise BrokenFrameError("The connection was closed.")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
