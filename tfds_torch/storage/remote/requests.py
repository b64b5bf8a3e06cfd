"""Requests: the messages of processes to the fetcher, and its answers."""

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
from tfds_torch.storage.remote.protocol import HEARTBEAT_S, Answer, Message, error_message, joined, pack, read
from tfds_torch.storage.remote.published import PublishedReaders
from tfds_torch.storage.remote.readers import Readers
from tfds_torch.storage.remote.scheduler import NOW, Scheduler
from tfds_torch.storage.remote.transfers import Transfers
from tfds_torch.storage.remote.urls import without_secrets

_logger = logging.getLogger(__name__)
_MOST_LOOKS = 32
_MOST_SHARERS = 64  # For example the members of a mixture.
_NOT_READ = frozenset({"missing", "refused"})
_NOT_LISTED = frozenset({"missing", "refused", "odd key"})
Reply = tuple[Message, bytes]


class Requests:
    """Answers the messages of all connections; the messages of one connection are answered one after another."""

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
        scheduler.is_followed = readers.is_needed
        self._num_delivered, self._waited_s = 0, 0.0
        self._looking = asyncio.Semaphore(_MOST_LOOKS)
        self._looks: dict[str, dict[str, asyncio.Future[Any]]] = {}  # Sharers -> URL -> answer.
        self._operations: dict[str, Callable[[Message], Awaitable[Reply]]] = {
            "hello": self._hello,
            "look": self._look,
            "read_small": self._read_small,
            "write_small": self._write_small,
            "folders": self._folders,
            "get": self._get,
            "fetch": self._fetch,
            "follow": self._follow,
            "windows": self._windows,
            "discard": self._discard,
            "cut": self._cut,
            "stats": self._stats,
        }
        self._tidings: dict[str, Callable[[Message], None]] = {
            "advise": self._advise,
            "look_ahead": self._look_ahead,
            "leave": self._leave,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection until it is closed."""
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
        except TfdsTorchError as error:  # The next read raises the error.
            _logger.debug("%s", error)

    async def _answer(self, message: Message) -> Reply:
        try:
            return await self._operations[message["op"]](message)
        except TfdsTorchError as error:
            return error_message(error), b""
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # A panic of the client is not an Exception.
            _logger.exception("%s failed", message["op"])
            return {"error": "WorkerError", "message": f"The fetcher of remote files failed: {error!r}."}, b""

    async def _hello(self, message: Message) -> Reply:
        return {}, b""

    async def _look(self, message: Message) -> Reply:
        """Answer about objects; processes that name the same sharers get the answer that the first of them got."""
        answers = self._asked(message)
        return {"objects": list(await asyncio.gather(*(answers[url] for url in message["urls"])))}, b""

    def _look_ahead(self, message: Message) -> None:
        self._asked(message)

    def _asked(self, message: Message) -> "dict[str, asyncio.Future[Any]]":
        """Return URL -> the present or future answer of its store; answers for other URLs may be among them."""
        sharers = message["sharers"]
        answers = self._looks.pop(sharers, {}) if sharers else {}
        if sharers:
            self._looks[sharers] = answers  # The last used one is at the end.
            if len(self._looks) > _MOST_SHARERS:
                del self._looks[next(iter(self._looks))]
        for url in message["urls"]:
            found = answers.get(url)
            if found is None or (found.done() and (found.cancelled() or found.exception())):
                answers[url] = asyncio.ensure_future(self._look_at(url))
                answers[url].add_done_callback(_note_error)
        return answers

    async def _look_at(self, url: str) -> Any:
        async with self._looking:
            try:
                return await self._transfers.ask(url, self._client.look)
            except Fault as fault:
                raise ShardError(fault.message(url)) from None

    async def _read_small(self, message: Message) -> Reply:
        try:
            content, is_versioned = await self._transfers.ask(message["url"], self._client.read_small, _NOT_READ)
            return {"found": True, "is_versioned": is_versioned}, content
        except Fault as fault:
            refused = fault.message(message["url"]) if fault.kind == "refused" else None
            return {"found": False, "refused": refused}, b""

    async def _write_small(self, message: Message) -> Reply:
        """Write the body of a request to an object."""
        write = partial(self._client.write_small, content=message.get("body", b""))
        try:
            await self._transfers.ask(message["url"], write)
        except Fault as fault:
            raise ShardError(fault.message(message["url"])) from None
        return {}, b""

    async def _folders(self, message: Message) -> Reply:
        url = message["url"]
        try:
            return {"names": await self._transfers.ask(url, self._client.folders, _NOT_LISTED)}, b""
        except Fault as fault:
            if fault.kind == "missing":
                raise ShardError(fault.message(url)) from None
            return {"names": None, "reason": f"{without_secrets(url)} cannot be listed: {fault}. {fault.remedy}"}, b""

    async def _get(self, message: Message) -> Reply:
        """Answer about parts of blocks, which are fetched side by side."""

        async def get(part: Message) -> Answer:
            found = self._object(part)
            try:
                if message["is_direct"]:
                    return await self._scheduler.read_past(found, *part["range"])
                return await self._scheduler.get(found, *part["block"], *part["range"])
            except TfdsTorchError as error:
                return error

        told, body = joined(await asyncio.gather(*map(get, message["parts"])))
        return {"answers": told}, body

    async def _fetch(self, message: Message) -> Reply:
        """Answer when a block lies in the cache, or cannot; the answer says how many bytes of blocks fit there."""
        is_there = await self._scheduler.fetch(self._object(message), *message["block"])
        return {"is_there": is_there, "most_bytes": self._scheduler.most_bytes}, b""

    async def _discard(self, message: Message) -> Reply:
        self._scheduler.discard(self._object(message), *message["block"])
        return {}, b""

    async def _cut(self, message: Message) -> Reply:
        await self._scheduler.cut(self._object(message), message["cuts"], message["total"])
        return {}, b""

    def _advise(self, message: Message) -> None:
        """Queue blocks that will be read soon, with the ranges that are read first; no ranges: the whole block."""
        for parts in message["files"]:
            found = self._object(parts)
            for start, stop, ranges in parts["blocks"]:
                self._scheduler.want(found, start, stop, NOW, ranges)
        if message["is_beginning"]:
            self._scheduler.hold()
        self._scheduler.pump()

    async def _follow(self, message: Message) -> Reply:
        folders = (self._object(parts).folder for parts in message["objects"])
        self._readers.begin(message["reader"], message["pid"], message["total"], folders)
        self._scheduler.release()
        try:
            await self._windows(message)
            self._readers.check(message["reader"])
        except TfdsTorchError:
            self._readers.leave(message["reader"])
            raise
        return {}, b""

    async def _windows(self, message: Message) -> Reply:
        """Take the next windows of a reader, and the last window that it has dealt."""
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
        """Remove a reader that reads no more."""
        self._readers.leave(message["reader"])
        self._published.publish()
        self._scheduler.pump()

    async def _stats(self, message: Message) -> Reply:
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
        is_plain = message.get("is_plain", False)
        return self._cache.object_at(message["url"], *message["stamp"], is_plain=is_plain)


def _note_error(answer: "asyncio.Future[Any]") -> None:
    """Fetch the error of an answer that nobody may wait for any more: asyncio would log it otherwise."""
    if not answer.cancelled():
        answer.exception()
