"""Object stores and web servers on this machine, for the tests of remote files; no test reaches another machine.

Each server is a process of its own, which a process of the tests starts once, in a second or less, when a test first
asks for it; it ends with that process, also after SIGKILL. The fixtures of s3, az and gs put into the environment what
clients of those schemes look for there, and remove what is there already; processes that a test starts inherit it.

A folder becomes a bucket by `fill`: `url = s3_server.fill(folder, "bucket")`. Buckets live as long as the server.
"""

import atexit
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from servers.azure_server import NEEDS_AZURITE, AzureServer, find_azurite
from servers.certificates import Certificates
from servers.faulty_server import FaultyFolder
from servers.gcs_server import GCSServer
from servers.nginx_server import NEEDS_NGINX, NginxServer, find_nginx
from servers.s3_server import NEEDS_MOTO, S3Server, find_moto, s3_environ

from benchmarks.server_process import free_port

UNRESOLVABLE = f"http://{'a' * 64}.invalid"
"""No name has a label of 64 letters: no name server is asked."""
SOURCES = ("s3", "http")
"""What `publish` knows in an ordinary run; the slow tests have "nginx", too."""
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
_running: dict[str, Any] = {}


def _once(name: str, start: Callable[[], Any]) -> Any:
    """Returns a server that this process has started, now or before, whichever folders' fixtures ask for it."""
    if name not in _running:
        _running[name] = start()
        atexit.register(_running[name].end)
    return _running[name]


def _set(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides credentials, endpoints and proxies that the environment of the tests may name."""
    for name in [name for name in os.environ if name.startswith(_PREFIXES) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority of the tests, which no system trusts, and a certificate of 127.0.0.1 and localhost by it."""
    if "certificates" not in _running:
        from servers.make_certificates import make_certificates

        _running["certificates"] = make_certificates(tmp_path_factory.mktemp("certificates"))
    found: Certificates = _running["certificates"]
    return found


@pytest.fixture
def faulty_server(tmp_path_factory: pytest.TempPathFactory, no_credentials: None) -> FaultyFolder:
    """Serves `faulty_server.folder`, which is empty, by http, without faults until the test programs some."""
    server = _once("faulty", lambda: FaultyFolder(tmp_path_factory.mktemp("faulty")))
    return _emptied(server)


@pytest.fixture
def untrusted_server(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory, no_credentials: None
) -> FaultyFolder:
    """As `faulty_server`, by https: only who trusts `certificates.authority` accepts its certificate."""
    server = _once("untrusted", lambda: FaultyFolder(tmp_path_factory.mktemp("untrusted"), certificates.server))
    return _emptied(server)


def _emptied(server: FaultyFolder) -> FaultyFolder:
    for path in server.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    server.heal()
    return server


@pytest.fixture
def faulty_s3(faulty_server: FaultyFolder, monkeypatch: pytest.MonkeyPatch) -> FaultyFolder:
    """The faulty server as an endpoint of S3, for reading: s3://bucket/key is the file bucket/key of its folder."""
    _set(monkeypatch, s3_environ(faulty_server.url))
    return faulty_server


@pytest.fixture
def refused_url(no_credentials: None) -> str:
    """The address of a port that nobody listens on."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def nginx_server(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory, no_credentials: None
) -> NginxServer:
    """nginx over `nginx_server.folder`, which all tests share, by http and https."""
    if find_nginx() is None:
        pytest.skip(NEEDS_NGINX)
    folder, own = tmp_path_factory.mktemp("nginx"), tmp_path_factory.mktemp("nginx_own")
    server: NginxServer = _once("nginx", lambda: NginxServer(folder, certificates, own))
    return server


@pytest.fixture
def s3_server(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """moto's S3, to which the environment leads every client of s3://."""
    if find_moto() is None:
        pytest.skip(NEEDS_MOTO)
    server: S3Server = _once("s3", S3Server)
    _set(monkeypatch, server.environ)
    return server


@pytest.fixture
def azure_server(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> AzureServer:
    """Azurite, to which the environment leads every client of az://."""
    if find_azurite() is None:
        pytest.skip(NEEDS_AZURITE)
    server: AzureServer = _once("azure", AzureServer)
    _set(monkeypatch, server.environ)
    return server


@pytest.fixture
def gcs_server(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> GCSServer:
    """gcp-storage-emulator, to which the environment leads every client of gs://."""
    server: GCSServer = _once("gcs", GCSServer)
    _set(monkeypatch, server.environ)
    return server


@pytest.fixture
def publish(request: pytest.FixtureRequest) -> Callable[[str, Path | str], str]:
    """`publish(source, folder)`: copies a folder to a server, and returns its URL there.

    The server is moto ("s3"), our own, which has no faults then ("http"), or nginx ("nginx").
    """

    def publish(source: str, folder: Path | str) -> str:
        name = f"published-{uuid.uuid4().hex}"
        if source == "s3":
            s3: S3Server = request.getfixturevalue("s3_server")
            return s3.fill(Path(folder), name)
        web: NginxServer | FaultyFolder = request.getfixturevalue(
            "faulty_server" if source == "http" else "nginx_server"
        )
        shutil.copytree(folder, web.folder / name)
        return f"{web.url}/{name}"

    return publish


def store_variables() -> dict[str, str]:
    """Returns what clients of stores read in this environment, for processes that were started before it was set."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
