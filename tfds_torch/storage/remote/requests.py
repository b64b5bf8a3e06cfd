"""Requests: what processes ask the fetcher for, and its answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tfds_torch.errors import ShardError, TfdsTorchError
from tfds_torch.storage.remote.cache import Cache, RemoteObject
from tfds_torch.storage.remote.client import Client
from tfds_torch.storage.remote.faults import Fault
from tfds_torch.storage.remote.protocol import HEARTBEAT_S, Message, pack, read
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Readers
from tfds_torch.storage.remote.scheduler import NOW, Scheduler
from tfds_torch.storage.remote.transfers import Transfers

_logger = logging.getLogger(__name__)
_MOST_LOOKS = 32
Answer = tuple[Message, bytes]


class Requests:
    """Answers the messages of all connections; each connection's are answered one after another."""

    def __init__(
        self,
        cache: Cache,
        client: Client,
        transfers: Transfers,
        scheduler: Scheduler,
        readers: Readers,
        published: PublishedReaders,
    ) -> None:
        self._cache, self._client, self._transfers, self._scheduler = cache, client, transfers, scheduler
        self._readers, self._published = readers, published
        scheduler.is_needed = readers.is_needed
        self._num_delivered, self._waited_s = 0, 0.0
        self._operations: dict[str, Callable[[Message], Awaitable[Answer]]] = {
            "hello": self._hello,
            "look": self._look,
            "read_small": self._read_small,
            "write_small": self._write_small,
            "folders": self._folders,
            "get": self._get,
            "follow": self._follow,
            "windows": self._windows,
            "discard": self._discard,
            "cut": self._cut,
            "stats": self._stats,
        }
        self._tidings: dict[str, Callable[[Message], None]] = {
            "advise": self._advise,
            "leave": self._leave,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers a connection until it is closed."""
        try:
            while True:
                message, body = await read(reader)
                self._num_delivered += message.get("delivered", 0)
                self._waited_s += message.get("waited_s", 0.0)
                tell = self._tidings.get(message["op"])
                if tell is not None:
                    self._hear(tell, message)
                    continue
                answering = asyncio.ensure_future(self._answer(message | {"body": body} if body else message))
                while not (await asyncio.wait([answering], timeout=HEARTBEAT_S))[0]:
                    writer.write(pack({"waiting": True}))
                    await writer.drain()
                writer.write(pack(*answering.result()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            with suppress(OSError):
                writer.close()

    def _hear(self, tell: Callable[[Message], None], message: Message) -> None:
        try:
            tell(message)
        except TfdsTorchError as error:  # The read that follows raises it.
            _logger.debug("%s", error)

    async def _answer(self, message: Message) -> Answer:
        try:
            return await self._operations[message["op"]](message)
        except TfdsTorchError as error:
            return {"error": type(error).__name__, "message": str(error)}, b""
        except Exception as error:
            _logger.exception("%s failed", message["op"])
            return {"error": "WorkerError", "message": f"The fetcher of remote files failed: {error!r}."}, b""

    async def _hello(self, message: Message) -> Answer:
        return {}, b""

    async def _look(self, message: Message) -> Answer:
        limit = asyncio.Semaphore(_MOST_LOOKS)

        async def look(url: str) -> Any:
            async with limit:
                try:
                    return await self._transfers.ask(url, self._client.look)
                except Fault as fault:
                    raise ShardError(fault.message(url)) from None

        return {"objects": await _all([look(url) for url in message["urls"]])}, b""

    async def _read_small(self, message: Message) -> Answer:
        try:
            return {"found": True}, await self._transfers.ask(message["url"], self._client.read_small)
        except Fault:
            return {"found": False}, b""

    async def _write_small(self, message: Message) -> Answer:
        """Writes an object: what the request's body holds."""
        write = partial(self._client.write_small, content=message.get("body", b""))
        try:
            await self._transfers.ask(message["url"], write)
        except Fault as fault:
            raise ShardError(fault.message(message["url"])) from None
        return {}, b""

    async def _folders(self, message: Message) -> Answer:
        try:
            return {"names": await self._transfers.ask(message["url"], self._client.folders)}, b""
        except Fault as fault:
            raise ShardError(fault.message(message["url"])) from None

    async def _get(self, message: Message) -> Answer:
        start, stop = message["block"]
        found, (first, last) = self._object(message), message["range"]
        if message.get("is_direct"):
            return {"is_cached": False}, await self._scheduler.read_past(found, first, last)
        content = await self._scheduler.get(found, start, stop, first, last)
        return {"is_cached": content is None}, content or b""

    async def _discard(self, message: Message) -> Answer:
        self._scheduler.discard(self._object(message), *message["block"])
        return {}, b""

    async def _cut(self, message: Message) -> Answer:
        await self._scheduler.cut(self._object(message), message["cuts"])
        return {}, b""

    def _advise(self, message: Message) -> None:
        """Blocks with the ranges that are read first of each; without ranges the whole block."""
        for parts in message["files"]:
            found = self._object(parts)
            for start, stop, ranges in parts["blocks"]:
                self._scheduler.want(found, start, stop, NOW, ranges)
        self._scheduler.pump()

    async def _follow(self, message: Message) -> Answer:
        folders = (self._object(parts).folder for parts in message["objects"])
        self._readers.begin(message["reader"], message["pid"], message["total"], folders)
        self._scheduler.hold()
        try:
            await self._windows(message)
            self._readers.check(message["reader"])
        except TfdsTorchError:
            self._readers.leave(message["reader"])
            raise
        return {}, b""

    async def _windows(self, message: Message) -> Answer:
        """The next windows of a reader, and the last one that it has dealt."""
        reader = message["reader"]
        if not self._readers.is_known(reader):
            return {"is_known": False}, b""
        if message.get("dealt") is not None:
            self._readers.note_dealt(reader, message["dealt"])
        for number, files in message["windows"]:
            blocks = [(self._object(parts), start, stop) for parts in files for start, stop, _ in parts["blocks"]]
            self._readers.announce(reader, number, [(found.folder, start, stop) for found, start, stop in blocks])
            for found, start, stop in blocks:
                self._scheduler.want(found, start, stop, (1, number))
        self._published.publish()
        self._scheduler.pump()
        return {"is_known": True}, b""

    def _leave(self, message: Message) -> None:
        """A reader that reads no more."""
        self._readers.leave(message["reader"])
        self._published.publish()
        self._scheduler.pump()

    async def _stats(self, message: Message) -> Answer:
        counts = {
            "requests": self._client.num_requests,
            "retries": self._transfers.num_retries,
            "bytes_fetched": self._transfers.num_bytes,
            "bytes_delivered": self._num_delivered,
            "waited_s": self._waited_s,
            "blocks_cached": self._scheduler.num_cached,
            "blocks_removed": self._scheduler.num_removed,
        }
        return {"counts": counts}, b""

    def _object(self, message: Message) -> RemoteObject:
        return self._cache.object_at(message["url"], *message["stamp"])


async def _all(calls: list[Any]) -> list[Any]:
    """Returns all results; the first error ends the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
