"""NginxServer: a folder behind nginx, by http and https: what a web server in the field answers.

It answers ranges, ETags and If-Match (412).
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from servers.certificates import Certificates

from benchmarks.server_process import ServerProcess, free_port

NEEDS_NGINX = "needs nginx"
"""Why tests are skipped where `find_nginx` returns None."""
_CONFIGURATION = """
daemon off; master_process off; error_log stderr; pid {own}/pid;
events {{ worker_connections 256; }}
http {{
    log_format asked '$request_method\t$uri\t$http_range\t$status\t$body_bytes_sent';
    access_log {own}/requests asked;
    client_body_temp_path {own}/client; proxy_temp_path {own}/proxy; fastcgi_temp_path {own}/fastcgi;
    uwsgi_temp_path {own}/uwsgi; scgi_temp_path {own}/scgi;
    default_type application/octet-stream; sendfile on; keepalive_requests 100000;
    server {{
        listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl http2;
        ssl_certificate {certificate}; ssl_certificate_key {certificate};
        root {folder};
    }}
}}
"""


def find_nginx() -> str | None:
    """Returns the path of nginx; None: it is not installed."""
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


@dataclass(frozen=True)
class Asked:
    """A request that nginx has answered: the Range header or "-", the status and the bytes of the body."""

    method: str
    path: str
    range: str
    status: int
    bytes: int


class NginxServer:
    """nginx over a folder, which ends with `end`, a `with` statement or this process.

    Args:
        folder: what it serves.
        certificates: for https.
        own: an empty folder for its configuration and logs.

    Attributes:
        url: of http.
        tls_url: of https.

    Raises:
        ServerError: it does not start.
        FileNotFoundError: it is not installed.
    """

    def __init__(self, folder: Path, certificates: Certificates, own: Path) -> None:
        nginx, port, tls_port = find_nginx(), free_port(), free_port()
        if nginx is None:
            raise FileNotFoundError(NEEDS_NGINX)
        self.folder = folder
        self._own = own
        places = {"own": self._own, "folder": folder, "certificate": certificates.server}
        configuration = self._own / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(port=port, tls_port=tls_port, **places))
        self.url, self.tls_url = f"http://127.0.0.1:{port}", f"https://127.0.0.1:{tls_port}"
        self.process = ServerProcess([nginx, "-c", str(configuration), "-p", str(self._own)], port=port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server; does nothing when that was done already."""
        self.process.end()

    def requests(self) -> list[Asked]:
        """Returns the requests that have been answered so far; the newest may be missing for a moment."""
        lines = [line.split("\t") for line in (self._own / "requests").read_text().splitlines()]
        return [Asked(method, path, asked, int(status), int(length)) for method, path, asked, status, length in lines]
