"""FaultyFolder: a folder over HTTP whose answers go wrong as a test says, by path and by number of the request.

    with FaultyFolder(folder) as server:
        server.fault("/shard-*", Fault(status=503, retry_after="1"), times=2)  # the first two for each such path
        server.fault("/index", Fault(reset_after=1000), first=1)  # all but the first
        ...
        assert server.ledger().requests_by_path["/index"] == 3

Any process can program faults and read the ledger: `FaultyAddress(url)`. Requests without a fault are answered as by
FileServer.
"""

import asyncio
import json
import socket
import struct
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.file_server import Answer, FileServer, Pace, Request, Served, arguments, run
from benchmarks.served_folder import ServedFolder, ServerAddress

FAULTS = "/__faults__"
"""POST: adds a rule; DELETE: removes all."""
SLICE_BYTES = 1 << 14
_INVERTED = bytes(range(255, -1, -1))


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer. Fields may be combined; the defaults spoil nothing.

    Attributes:
        status: instead of the object.
        retry_after: the header of that name.
        redirect: the address, or the path on this server, where the client finds the object instead: 302.
        bearer: a token; without `Authorization: Bearer` and it, the answer is 401.
        delay_s: the answer begins so much later.
        hang_up: the connection is reset before a byte of the answer.
        reset_after: the connection is reset after so many bytes of the body.
        close_after: the connection is closed, as if all were well, after so many bytes of the body.
        stall_after: after so many bytes of the body none follow; the connection stays.
        bytes_per_s: how fast the body comes.
        extra_bytes: the body is longer, or shorter where it is negative; Content-Length agrees, Content-Range does not.
        ignores_range: the answer to a Range is 200 and the whole object.
        changed: the object is another version: all bits are inverted, and its ETag and If-Match follow.
        etag: the header says this ETag, whatever If-Match asks for.
        unversioned: the headers say neither an ETag nor a Last-Modified.
        flipped_byte: the lowest bit of this byte of the object is flipped.
    """

    status: int = 0
    retry_after: str | None = None
    redirect: str | None = None
    bearer: str | None = None
    delay_s: float = 0.0
    hang_up: bool = False
    reset_after: int | None = None
    close_after: int | None = None
    stall_after: int | None = None
    bytes_per_s: float | None = None
    extra_bytes: int = 0
    ignores_range: bool = False
    changed: bool = False
    etag: str | None = None
    unversioned: bool = False
    flipped_byte: int | None = None

    def describe(self) -> str:
        """Returns the fields that spoil something; a token is not shown."""
        unspoilt = asdict(Fault())
        return " ".join(
            name if name == "bearer" else f"{name}={value}"
            for name, value in asdict(self).items()
            if value != unspoilt[name]
        )


@dataclass
class Rule:
    """Requests `first`, `first + 1`, ... `first + times - 1` for each path that a pattern matches have a fault.

    Attributes:
        path: a pattern of fnmatch; `*` matches slashes, too.
        times: how many; None: all from the first on.
        method: GET, HEAD or *.
        seen: path -> its requests that the pattern has matched.
    """

    path: str
    fault: Fault
    first: int = 0
    times: int | None = None
    method: str = "*"
    seen: Counter[str] = field(default_factory=Counter)

    def takes(self, request: Request) -> bool:
        """Counts a request; returns whether its answer has the fault."""
        if not fnmatchcase(request.path, self.path) or self.method not in ("*", request.method):
            return False
        number = self.seen[request.path]
        self.seen[request.path] += 1
        return self.first <= number and (self.times is None or number < self.first + self.times)


class FaultyServer(FileServer):
    """Answers as FileServer does, but where a rule says otherwise; of several rules the one that was added first."""

    rules: list[Rule]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rules = []

    def control(self, request: Request) -> Answer | None:
        """Returns the answer to a request that adds or removes rules."""
        if request.path != FAULTS:
            return super().control(request)
        if request.method == "DELETE":
            self.rules.clear()
        else:
            asked = json.loads(request.body)
            self.rules.append(Rule(**{**asked, "fault": Fault(**asked["fault"])}))
        return Answer(200, body=b"null")

    async def respond(
        self, request: Request, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers a request for a file, right or wrong."""
        taken = [rule for rule in self.rules if rule.takes(request)]  # All of them count.
        if not taken:
            await super().respond(request, served, reader, writer)
            return
        fault = taken[0].fault
        served.fault = fault.describe()
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.hang_up:
            _reset(writer)
        answer = self._spoil(request, fault)
        if request.method == "HEAD":
            await self.send(request, answer, served, writer)
        else:
            await _send(answer, fault, served, reader, writer)

    def _spoil(self, request: Request, fault: Fault) -> Answer:
        if fault.bearer is not None and request.headers.get("authorization") != f"Bearer {fault.bearer}":
            return Answer(401, {"WWW-Authenticate": "Bearer"}, b"a token is missing")
        if fault.status:
            retry = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            return Answer(fault.status, retry, b"a planted fault")
        if fault.redirect is not None:
            return Answer(302, {"Location": fault.redirect})
        headers = dict(request.headers)
        if fault.ignores_range:
            headers.pop("range", None)
        asked = headers.pop("if-match", None) if fault.changed or fault.etag is not None else None
        answer = self.find(replace(request, headers=headers))
        if answer.file is None:
            return answer
        with answer.file.open("rb") as file:
            file.seek(answer.start)
            body = bytearray(file.read(answer.length))
        if fault.changed:
            answer.headers["ETag"] = f'"changed-{answer.headers["ETag"][1:]}'
            body = body.translate(_INVERTED)
            if asked not in (None, "*", answer.headers["ETag"]):
                return Answer(412, answer.headers)
        if fault.etag is not None:
            answer.headers["ETag"] = fault.etag
        if fault.unversioned:
            del answer.headers["ETag"], answer.headers["Last-Modified"]
        if fault.flipped_byte is not None and 0 <= (place := fault.flipped_byte - answer.start) < len(body):
            body[place] ^= 1
        length = max(0, len(body) + fault.extra_bytes)
        return Answer(answer.status, answer.headers, bytes(body[:length]).ljust(length, b"\0"))


async def _send(
    answer: Answer, fault: Fault, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Sends an answer as far as the fault lets it."""
    served.status = answer.status
    writer.transport.set_write_buffer_limits(high=0)  # What has been drained is on its way.
    writer.write(FileServer.head(answer))
    await writer.drain()
    ends = [end for end in (fault.reset_after, fault.close_after, fault.stall_after) if end is not None]
    end, pace = min([*ends, len(answer.body)]), Pace(fault.bytes_per_s)
    slice_bytes = SLICE_BYTES if fault.bytes_per_s is None else max(1, min(SLICE_BYTES, int(fault.bytes_per_s / 10)))
    for start in range(0, end, slice_bytes):
        part = answer.body[start : min(end, start + slice_bytes)]
        loop = asyncio.get_running_loop()
        if (wait_s := pace.reserve(len(part), loop.time()) - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        writer.write(part)
        await writer.drain()
        served.bytes += len(part)
    if end == fault.stall_after:
        await reader.read()  # Until the client gives up.
        raise ConnectionAbortedError
    if end == fault.close_after:
        raise ConnectionAbortedError
    if end == fault.reset_after:
        _reset(writer)
    writer.transport.set_write_buffer_limits()  # For the next answer: sendfile over TLS needs room.
    served.is_over = True


def _reset(writer: asyncio.StreamWriter) -> None:
    """Resets a connection instead of closing it."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    raise ConnectionResetError


class FaultyAddress(ServerAddress):
    """A running FaultyServer, in any process that knows its address."""

    def fault(self, path: str, fault: Fault, *, first: int = 0, times: int | None = None, method: str = "*") -> None:
        """Adds a rule: see `Rule`."""
        rule = {"path": path, "fault": asdict(fault), "first": first, "times": times, "method": method}
        self.ask("POST", FAULTS, rule)

    def heal(self) -> None:
        """Removes all rules, and begins the ledger anew."""
        self.ask("DELETE", FAULTS)
        self.forget()


class FaultyFolder(FaultyAddress, ServedFolder):
    """A FaultyServer of a folder in a process of its own, which ends with `end`, a `with` statement or this process."""

    module = "servers.faulty_server"
    path = (*ServedFolder.path, Path(__file__).parents[1])

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.folder = folder
        ServedFolder.__init__(self, folder, certificate=certificate)


if __name__ == "__main__":
    asked = arguments().parse_args()
    run(FaultyServer(asked.folder), asked)
