"""GCSServer: gcp-storage-emulator in a process of its own, and what a client of gs:// finds in its environment.

The emulator stores objects and answers their ranges, but for suffixes. It has no HEAD, and its answers have neither
ETag nor Last-Modified, without which obstore refuses them: the handler below adds them, and If-Match, as Google Cloud
Storage documents them. So this server confirms the addresses and the data of gs://, and not its conditions. It lists
nothing, and does not look at tokens.
"""

import json
import os
import socket
import sys
import urllib.error
from datetime import datetime
from email.utils import format_datetime
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from servers.uploads import ask, files_of

from benchmarks.server_process import ServerProcess, listen

_TESTS = Path(__file__).parents[1]
_MULTIPART = "multipart/related; boundary=part"
_EMPTY = (
    b"--part\r\nContent-Type: application/json\r\n\r\n%s\r\n"
    b"--part\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--part--\r\n"
)


class GCSServer:
    """The emulator, which ends with `end`, a `with` statement or this process. It keeps everything in memory.

    Raises:
        ServerError: it does not start.
    """

    def __init__(self) -> None:
        listener = listen()
        path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-P", "-m", "servers.gcs_server", str(listener.fileno())]
        self.process = ServerProcess(command, listener=listener, environ={"PYTHONPATH": path})
        self.url = f"http://127.0.0.1:{self.process.port}"
        self.environ = {
            "GOOGLE_BASE_URL": self.url,
            "GOOGLE_BEARER_TOKEN": "token-of-the-tests",
        }
        self.process.begin(lambda: ask(self.url, "GET"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server; does nothing when that was done already."""
        self.process.end()

    def fill(self, folder: Path, bucket: str, prefix: str = "") -> str:
        """Uploads a folder's files, into a bucket that is made where there is none; returns the folder's URL."""
        as_json = {"Content_Type": "application/json"}
        try:
            ask(f"{self.url}/storage/v1/b", "POST", json.dumps({"name": bucket}).encode(), **as_json)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:  # There is one.
                raise
        for name, path in files_of(folder, prefix):
            if body := path.read_bytes():
                ask(f"{self.url}/{bucket}/{quote(name)}", "PUT", body, Content_Type="application/octet-stream")
            else:  # The emulator takes no empty object but in this form.
                url = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
                ask(url, "POST", _EMPTY % json.dumps({"name": name}).encode(), Content_Type=_MULTIPART)
        return "/".join([f"gs://{bucket}", *filter(None, [prefix])])


def main(descriptor: int) -> None:
    """Serves on a listening socket that was inherited, until it is killed."""
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    storage = Storage(use_memory_fs=True)

    class Handler(RequestHandler):
        """Adds what the emulator lacks."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        path: str
        wfile: Any

        def do_GET(self) -> None:  # noqa: N802 (http.server's way)
            path, mark, query = self.path.partition("?")
            self.path = quote(unquote(path)) + mark + query  # The emulator does not know a bucket's %2D.
            self._found = self._find()
            asked = self.headers.get("If-Match")
            if self._found and asked not in (None, "*", self._found["ETag"]):
                self.send_response(HTTPStatus.PRECONDITION_FAILED)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                super().do_GET()

        def do_HEAD(self) -> None:  # noqa: N802 (as above)
            body, self.wfile = self.wfile, _Headers(self.wfile)
            try:
                self.do_GET()
            finally:
                self.wfile = body

        def end_headers(self) -> None:
            for name, value in (getattr(self, "_found", None) or {}).items():
                self.send_header(name, value)
            self._found = None
            super().end_headers()

        def _find(self) -> dict[str, str] | None:
            bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            try:
                known = storage.get_file_obj(bucket, name)
            except NotFound:
                return None
            updated = datetime.fromisoformat(known["updated"])
            return {"ETag": f'"{known["etag"]}"', "Last-Modified": format_datetime(updated, usegmt=True)}

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, storage), bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=descriptor)
    server.serve_forever()


class _Headers:
    """A file that takes the headers of an answer and no body: http.server writes them at once."""

    def __init__(self, file: Any) -> None:
        self._file, self._is_head = file, True

    def write(self, data: bytes) -> int:
        if self._is_head:
            self._file.write(data)
            self._is_head = False
        return len(data)

    def flush(self) -> None:
        self._file.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
