"""A web server of objects in memory, with ranges, ETags, and faults that tests switch on for a path."""

import hashlib
import socket
import ssl
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RESET = struct.pack("ii", 1, 0)
STOP_S = 20.0


class ObjectServer:
    """Serves `objects`, path -> content; `faults`, path -> faults, one for each request, the last one for ever.

    Faults: a status (`403`), `reset`, `short`, `long`, `whole` (200 in place of 206), `stall`, `trickle`, `etag`
    (another ETag), `flip` (a bit), `ok`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.etags: dict[str, str | None] = {}
        """Path -> the ETag, with its quotes (and a W/ before them); None: there is none."""
        self.modified: dict[str, str] = {}
        """Path -> the Last-Modified; without one there is none."""
        self.refused: dict[str, str] = {}
        """Access key -> code of S3 with which it is refused, such as `ExpiredToken`."""
        self.delay_s = 0.0
        self.bytes_s: float | None = None
        self.headers: list[dict[str, str]] = []
        self.asked: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._is_closed = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._socket.settimeout(0.2)
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def root(self) -> str:
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"

    def secure(self, context: ssl.SSLContext) -> None:
        """Answers by TLS from now on."""
        self._context = context

    def put(self, path: str, content: bytes) -> str:
        """Adds or replaces an object and returns its URL."""
        self.objects[path] = content
        self.etags[path] = f'"{hashlib.md5(content).hexdigest()}"'
        return f"{self.root}/{path}"

    def close(self) -> None:
        self._is_closed.set()
        with suppress(OSError):  # Else it waits for the end of its patience.
            socket.create_connection(self._socket.getsockname()).close()
        self._accepting.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            with suppress(TimeoutError):
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self._context is not None:
            try:
                connection = self._context.wrap_socket(connection, server_side=True)
            except OSError:
                return
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pending = b""
            while True:
                while b"\r\n\r\n" not in pending:
                    received = connection.recv(1 << 16)
                    if not received:
                        return
                    pending += received
                request, _, pending = pending.partition(b"\r\n\r\n")
                self._answer(connection, request.decode())

    def _answer(self, connection: socket.socket, request: str) -> None:
        first, *lines = request.split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path = target.lstrip("/")
        with self._lock:
            self.headers.append({"method": method, "path": path} | headers)
            faults = self.faults.get(path, ["ok"])
            fault = faults.pop(0) if len(faults) > 1 else faults[0]
        time.sleep(self.delay_s)
        content = self.objects.get(path)
        signature = headers.get("authorization", "")
        code = next((code for key, code in self.refused.items() if f"Credential={key}/" in signature), None)
        if code is not None or fault.isdigit() or content is None:
            of_code = "400" if code == "ExpiredToken" else "403"
            status = of_code if code is not None else fault if fault.isdigit() else "404"
            error = "<Error/>" if code is None else f"<Error><Code>{code}</Code></Error>"
            body = b"" if method == "HEAD" else error.encode()
            connection.sendall(f"HTTP/1.1 {status} Fault\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return
        etag = '"other"' if fault == "etag" else self.etags[path]
        is_weak = etag is None or etag.startswith("W/")  # It never matches.
        if "if-match" in headers and (is_weak or headers["if-match"] != etag):
            connection.sendall(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n")
            return
        start, stop, status, extra = 0, len(content), "200 OK", ""
        if "range" in headers and fault != "whole":
            low, _, high = headers["range"].removeprefix("bytes=").partition("-")
            start, stop = int(low), min(int(high) + 1 if high else len(content), len(content))
            status, extra = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{len(content)}\r\n"
        body = content[start:stop]
        if method == "GET":
            self.asked[path].append((start, stop))
        length = len(body)
        if fault == "short":
            body, length = body[:-1], length - 1
        if fault == "long":
            body, length = body + b"x", length + 1
        if fault == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        extra += "" if etag is None else f"ETag: {etag}\r\n"
        extra += f"Last-Modified: {self.modified[path]}\r\n" if path in self.modified else ""
        head = f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{extra}\r\n"
        connection.sendall(head.encode())
        if method != "HEAD":
            self._send(connection, path, body, fault)

    def _send(self, connection: socket.socket, path: str, body: bytes, fault: str) -> None:
        if fault == "stall":
            connection.sendall(body[: len(body) // 2])
            self._is_closed.wait(STOP_S)
            raise OSError
        if fault == "reset":
            connection.sendall(body[: len(body) // 2])
            self.sent[path] += len(body) // 2
            time.sleep(0.05)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
            raise OSError
        rate = 1000.0 if fault == "trickle" else self.bytes_s
        step = len(body) if rate is None else max(1, min(1 << 16, int(rate / 20)))
        for at in range(0, len(body), max(1, step)):
            connection.sendall(body[at : at + step])
            self.sent[path] += len(body[at : at + step])
            if rate is not None and self._is_closed.wait(step / rate):
                raise OSError


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    try:
        yield server
    finally:
        server.close()
