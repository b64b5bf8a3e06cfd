"""ServedFolder: a FileServer in a process of its own, and its ledger, read from any process."""

import http.client
import json
import os
import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.file_server import LEDGER, Limits, Served
from benchmarks.server_process import ServerProcess, listen

_ROOT = Path(__file__).parents[1]
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Ledger:
    """What a server has done: processor seconds since its start, and its requests in the order in which they came."""

    cpu_s: float
    requests: Sequence[Served]

    @property
    def num_bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(served.bytes for served in self.requests)

    @property
    def requests_by_path(self) -> Counter[str]:
        """Path -> number of requests."""
        return Counter(served.path for served in self.requests)

    @property
    def bytes_by_path(self) -> Counter[str]:
        """Path -> bytes of all bodies."""
        found: Counter[str] = Counter()
        for served in self.requests:
            found[served.path] += served.bytes
        return found


class ServerAddress:
    """A running server, in any process that knows its address. Each question is a connection of its own.

    Args:
        url: without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def ledger_url(self) -> str:
        """Where its ledger is read as JSON."""
        return f"{self.url}{LEDGER}"

    def ledger(self) -> Ledger:
        """Returns all requests since the start or the last `forget`."""
        found = self.ask("GET", LEDGER)
        names = {field.name for field in fields(Served)}
        requests = [Served(**{name: line[name] for name in names}) for line in found["requests"]]
        return Ledger(found["cpu_s"], requests)

    def forget(self) -> None:
        """Begins the ledger anew."""
        self.ask("DELETE", LEDGER)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request with a JSON body and returns the JSON of the answer."""
        parts = urlsplit(self.url)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            # Its certificate may be untrusted on purpose; what it tells of itself is no secret.
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S, context=tls)
        else:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body).encode() if body is not None else None)
            return json.loads(connection.getresponse().read() or b"null")
        finally:
            connection.close()


class ServedFolder(ServerAddress):
    """A server of a folder, which ends with `end`, a `with` statement or this process.

    Args:
        folder: what it serves.
        limits: of its link.
        certificate: a PEM file with the key and the certificate: the address is https then.

    Raises:
        ServerError: the server does not start.
    """

    module = "benchmarks.file_server"
    path: Sequence[Path] = (_ROOT,)

    def __init__(self, folder: Path, limits: Limits | None = None, certificate: Path | None = None) -> None:
        limits, listener = limits or Limits(), listen()
        command = [sys.executable, "-P", "-m", self.module, str(folder), "--listener", str(listener.fileno())]
        command += ["--latency-ms", str(limits.latency_s * 1000)]
        if limits.connection_bytes_per_s is not None:
            command += ["--connection-mb-s", str(limits.connection_bytes_per_s / 1e6)]
        if limits.link_bytes_per_s is not None:
            command += ["--link-mb-s", str(limits.link_bytes_per_s / 1e6)]
        if certificate is not None:
            command += ["--certificate", str(certificate)]
        path = os.pathsep.join([*map(str, self.path), os.environ.get("PYTHONPATH", "")])
        self.process = ServerProcess(command, listener=listener, environ={"PYTHONPATH": path})
        super().__init__(f"{'https' if certificate else 'http'}://127.0.0.1:{self.process.port}")
        self.process.begin(self.forget)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server; does nothing when that was done already."""
        self.process.end()
