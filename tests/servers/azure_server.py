"""AzureServer: Azurite's blob service, in a process of its own, and what a client of Azure finds in its environment."""

import base64
import hmac
import os
import shutil
import urllib.error
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from servers.uploads import ask, upload

from benchmarks.server_process import ServerProcess, free_port

if TYPE_CHECKING:
    from obstore.store import AzureStore

NEEDS_AZURITE = "needs azurite"
"""Why tests are skipped where `find_azurite` returns None."""
AZURITE = "TFDS_TORCH_TEST_AZURITE"
"""Environment variable: the path of azurite-blob, where it is neither on the PATH nor where .ci/run installs it."""
_OWN = Path(__file__).parents[2] / ".venv" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account, as its documentation names it."""


def find_azurite() -> str | None:
    """Returns the path of azurite-blob; None: it is not installed."""
    return shutil.which(os.environ.get(AZURITE, "azurite-blob")) or shutil.which(str(_OWN))


class AzureServer:
    """Azurite, which ends with `end`, a `with` statement or this process. It keeps everything in memory.

    Raises:
        ServerError: it does not start.
        FileNotFoundError: it is not installed.
    """

    def __init__(self) -> None:
        azurite, port = find_azurite(), free_port()
        if azurite is None:
            raise FileNotFoundError(NEEDS_AZURITE)
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
        options += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        self.process = ServerProcess([azurite, *options], port=port)
        self.url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.environ = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.url,
            "AZURE_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server; does nothing when that was done already."""
        self.process.end()

    def store(self, container: str) -> "AzureStore":
        """Returns obstore's client of a container, whatever the environment says."""
        from obstore.store import AzureStore

        options = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.url}
        return AzureStore(container, client_options={"allow_http": True}, **options)

    def fill(self, folder: Path, container: str, prefix: str = "") -> str:
        """Uploads a folder's files, into a container that is made where there is none; returns the folder's URL."""
        try:
            self._put(f"/{container}", "restype", "container")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:  # There is one.
                raise
        upload(folder, self.store(container), prefix)
        return "/".join([f"az://{container}", *filter(None, [prefix])])

    def _put(self, path: str, name: str, value: str) -> None:
        """Sends a signed PUT without a body: obstore makes no containers."""
        headers: dict[str, Any] = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
        lines += [f"/{ACCOUNT}/{ACCOUNT}{path}", f"{name}:{value}"]
        signature = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), "sha256")
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        ask(f"{self.url}{path}?{name}={value}", "PUT", **headers)
