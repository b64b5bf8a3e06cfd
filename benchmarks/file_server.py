"""FileServer: a folder's files over HTTP/1.1, with ranges and ETags, over a link as slow as an object store's.

`python -m benchmarks.file_server FOLDER --latency-ms 40 --connection-mb-s 15 --link-mb-s 100` serves it by hand. The
command line's other options are for `ServedFolder`, which starts it in a process of its own.

A path is a file of the folder: `http://127.0.0.1:PORT/bucket/key` is FOLDER/bucket/key, so that the address is an S3
endpoint, too, for clients that only read. Signatures are not looked at.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import socket
import ssl
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urlsplit

LEDGER = "/__ledger__"
"""GET: all requests since the start or the last DELETE; DELETE: forgets them."""
SLICE_BYTES = 1 << 18
_HEAD_BYTES = 1 << 16
_SLACK_S = 0.02
"""How much a pace may catch up after an event loop that was late."""
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Limits:
    """How slow the way to the files is; None: not limited.

    Attributes:
        latency_s: from a request to the first byte of its answer.
        connection_bytes_per_s: of each connection.
        link_bytes_per_s: of all connections together.
    """

    latency_s: float = 0.0
    connection_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Request:
    """A request's head; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    connection: int
    body: bytes = b""


@dataclass
class Served:
    """A line of the ledger.

    Attributes:
        at_s: when the request came, on the clock of `time.monotonic`.
        range: the header as it was sent.
        status: of the answer; 0: there was none.
        bytes: of the body that were handed to the system so far.
        connection: numbers connections from 0.
        is_over: whether the answer was sent whole, as far as it was meant to.
        fault: what was done wrong on purpose; "": nothing.
    """

    at_s: float
    method: str
    path: str
    range: str | None
    if_match: str | None
    connection: int
    status: int = 0
    bytes: int = 0
    is_over: bool = False
    fault: str = ""


@dataclass
class Answer:
    """An answer: a body from memory, or from `file`, bytes [start, start + length)."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: Path | None = None
    start: int = 0
    length: int = 0


class Pace:
    """When bytes may be sent so that they are `bytes_per_s` together, dealt in the order of asking."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def reserve(self, num_bytes: int, now: float) -> float:
        """Returns the time at which so many bytes have been transmitted."""
        if self._bytes_per_s is None:
            return now
        self._free_at = max(self._free_at, now - _SLACK_S) + num_bytes / self._bytes_per_s
        return self._free_at


def etag_of(status: os.stat_result) -> str:
    """Returns the ETag of a file: another one when it is written anew."""
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def span_of(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns [start, end) of a Range header, or the whole where there is none that is understood; None: outside."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return 0, size
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else None
    start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end) if start < end else None


class FileServer:
    """Answers requests for the files of a folder, in one thread; a subclass may answer otherwise.

    Args:
        folder: the files.
        limits: of the link.
    """

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.folder = folder.resolve()
        self.limits = limits or Limits()
        self.ledger: list[Served] = []
        self._link = Pace(self.limits.link_bytes_per_s)
        self._num_connections = 0

    async def serve(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves until it is cancelled."""
        async with await asyncio.start_server(self._talk, sock=listener, ssl=tls, limit=_HEAD_BYTES) as server:
            await server.serve_forever()

    def control(self, request: Request) -> Answer | None:
        """Returns the answer to a request about the server itself, which no limit slows down; None: it is another."""
        if request.path != LEDGER:
            return None
        if request.method == "DELETE":
            self.ledger.clear()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {"cpu_s": usage.ru_utime + usage.ru_stime, "requests": [asdict(served) for served in self.ledger]}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

    async def respond(
        self, request: Request, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers a request for a file."""
        await self.send(request, self.find(request), served, writer)

    def find(self, request: Request) -> Answer:
        """Returns the right answer to a request for a file."""
        if request.method not in ("GET", "HEAD"):
            return Answer(405, {"Allow": "GET, HEAD"})
        path = (self.folder / request.path.lstrip("/")).resolve()
        try:
            found = path.stat()
        except OSError:
            return Answer(404)
        if not path.is_relative_to(self.folder) or not stat.S_ISREG(found.st_mode):
            return Answer(404)
        etag, size = etag_of(found), found.st_size
        modified = formatdate(found.st_mtime, usegmt=True)
        headers = {"ETag": etag, "Last-Modified": modified, "Accept-Ranges": "bytes"}
        if (asked := request.headers.get("if-match")) not in (None, "*", etag):
            return Answer(412, headers, f"If-Match: {asked}".encode())
        asked = request.headers.get("range")
        if (span := span_of(asked, size)) is None:
            return Answer(416, {**headers, "Content-Range": f"bytes */{size}"})
        start, end = span
        if asked is None:
            return Answer(200, headers, file=path, length=size)
        return Answer(
            206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}, b"", path, start, end - start
        )

    async def send(self, request: Request, answer: Answer, served: Served, writer: asyncio.StreamWriter) -> None:
        """Sends an answer at the pace of its connection and the link."""
        served.status = answer.status
        writer.write(self.head(answer))
        if request.method == "HEAD":
            await writer.drain()
        elif answer.file is None:
            writer.write(answer.body)
            await writer.drain()
            served.bytes += len(answer.body)
        else:
            await self._send_file(answer, served, writer)
        served.is_over = True

    @staticmethod
    def head(answer: Answer) -> bytes:
        """Returns the status and the headers of an answer."""
        length = len(answer.body) if answer.file is None else answer.length
        headers = {"Content-Length": str(length), **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def _send_file(self, answer: Answer, served: Served, writer: asyncio.StreamWriter) -> None:
        loop, connection = asyncio.get_running_loop(), Pace(self.limits.connection_bytes_per_s)
        if answer.file is None or not answer.length:
            return
        with answer.file.open("rb") as file:
            for start in range(answer.start, answer.start + answer.length, SLICE_BYTES):
                length = min(SLICE_BYTES, answer.start + answer.length - start)
                now = time.monotonic()
                wait_s = max(connection.reserve(length, now), self._link.reserve(length, now)) - now
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                await loop.sendfile(writer.transport, file, start, length)
                served.bytes += length

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._num_connections = self._num_connections, self._num_connections + 1
        try:
            while (request := await _read(reader, number)) is not None:
                came_at = time.monotonic()
                if (answer := self.control(request)) is not None:
                    writer.write(self.head(answer) + answer.body)
                    await writer.drain()
                    continue
                asked = request.headers.get("range"), request.headers.get("if-match")
                served = Served(came_at, request.method, request.path, *asked, number)
                self.ledger.append(served)
                if self.limits.latency_s:
                    await asyncio.sleep(self.limits.latency_s)
                await self.respond(request, served, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):  # The client has gone.
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
    """Returns the next request; None: the client has closed the connection, or sent something else."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError):
        return None
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, unquote(urlsplit(target).path), headers, connection, body)


def arguments() -> argparse.ArgumentParser:
    """Returns what the command line of a server understands."""
    parser = argparse.ArgumentParser(description="Serves a folder over HTTP.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--listener", type=int, help="descriptor of a listening socket, instead of a port")
    parser.add_argument("--certificate", type=Path, help="a PEM file with the key and the certificate: https")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--connection-mb-s", type=float)
    parser.add_argument("--link-mb-s", type=float)
    return parser


def run(server: FileServer, asked: argparse.Namespace) -> None:
    """Serves until the process is killed."""
    if asked.listener is None:
        listener = socket.create_server(("127.0.0.1", asked.port))
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201 (who starts it by hand asks)
    else:
        listener = socket.socket(fileno=asked.listener)
    tls = None
    if asked.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(asked.certificate)
    try:
        asyncio.run(server.serve(listener, tls))
    except KeyboardInterrupt:
        pass


def main() -> None:
    """Serves a folder as the command line says."""
    asked = arguments().parse_args()
    connection, link = (None if rate is None else rate * 1e6 for rate in (asked.connection_mb_s, asked.link_mb_s))
    run(FileServer(asked.folder, Limits(asked.latency_ms / 1000, connection, link)), asked)


if __name__ == "__main__":
    main()
