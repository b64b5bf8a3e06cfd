"""Every server answers obstore as the store in its place does: ranges, ETags, conditions, names and errors."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, PreconditionError
from obstore.store import ObjectStore, S3Store, from_url
from servers.azure_server import AzureServer
from servers.certificates import Certificates
from servers.nginx_server import Asked, NginxServer
from servers.s3_server import S3Server

BODY = os.urandom(1 << 20)
NAME = "inner/shard-00000-of-00001"
NO_RETRY = {"max_retries": 0}
SCHEMES = {"s3_server": "s3", "azure_server": "az", "gcs_server": "gs"}
ORDINARY = ("s3_server", "faulty_server")
"""What an ordinary run has; the others are installed for the slow tests."""
slow = pytest.mark.slow


def marked(*servers: str) -> list[Any]:
    return [one if one in ORDINARY else pytest.param(one, marks=slow) for one in servers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "inner").mkdir(parents=True)
    (folder / NAME).write_bytes(BODY)
    (folder / "empty").write_bytes(b"")
    (folder / "a b+c=é#").write_bytes(b"odd")
    return folder


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """A name that no other test has."""
    return "".join(letter for letter in f"{tmp_path.parent.name}-{tmp_path.name}".lower() if letter.isalnum())[-60:]


@pytest.fixture
def fill(request: pytest.FixtureRequest, folder: Path, bucket: str) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """`fill(kind)`: puts the folder's files there; returns the URL of the folder and a client's options."""

    def fill(kind: str) -> tuple[str, dict[str, Any]]:
        if kind in SCHEMES:
            return request.getfixturevalue(kind).fill(folder, bucket, "pre/fix"), {}
        web = request.getfixturevalue("nginx_server" if kind.startswith("nginx") else kind)
        folder.rename(web.folder / bucket)
        if kind != "nginx with https":
            return f"{web.url}/{bucket}", {"allow_http": True}
        trusted = request.getfixturevalue("certificates").authority.read_bytes()
        return f"{web.tls_url}/{bucket}", {"root_certificate": trusted}

    return fill


@pytest.fixture(params=marked(*SCHEMES, "nginx", "nginx with https", "faulty_server"))
def store(request: pytest.FixtureRequest, fill: Callable[[str], tuple[str, dict[str, Any]]]) -> ObjectStore:
    url, options = fill(request.param)
    return from_url(url, client_options=options or None, retry_config=NO_RETRY)


def read(store: ObjectStore, start: int, end: int, **options: str) -> bytes:
    return bytes(obstore.get(store, NAME, options={"range": (start, end), **options}).bytes())


def test_ranges_are_their_bytes_and_end_with_the_object(store: ObjectStore) -> None:
    size = len(BODY)
    for start, end in ((0, 1), (5, 100), (size - 3, size), (size - 3, size + 100), (0, size)):
        found = obstore.get(store, NAME, options={"range": (start, end)})
        assert (found.range, bytes(found.bytes())) == ((start, min(end, size)), BODY[start:end])
        assert found.meta["size"] == size
    assert bytes(obstore.get(store, NAME, options={"range": {"offset": size - 7}}).bytes()) == BODY[-7:]
    with pytest.raises(GenericError):
        read(store, size + 5, size + 10)


def test_an_object_has_its_size_and_etag_without_being_read(store: ObjectStore) -> None:
    head, body = obstore.head(store, NAME), obstore.get(store, NAME)
    assert head["size"] == len(BODY)
    assert head["e_tag"] == body.meta["e_tag"] is not None
    assert bytes(body.bytes()) == BODY


def test_a_condition_holds_for_the_etag_alone(store: ObjectStore) -> None:
    etag = obstore.head(store, NAME)["e_tag"]
    assert read(store, 5, 100, if_match=etag) == BODY[5:100]
    with pytest.raises(PreconditionError, match="412"):
        read(store, 5, 100, if_match='"another"')


def test_empty_objects_and_odd_names_are_read(store: ObjectStore) -> None:
    assert bytes(obstore.get(store, "empty").bytes()) == b""
    assert obstore.head(store, "empty")["size"] == 0
    assert bytes(obstore.get(store, "a b+c=é#").bytes()) == b"odd"


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    for look in (obstore.get, obstore.head):
        with pytest.raises(FileNotFoundError, match="missing"):
            look(store, "missing")


@pytest.mark.parametrize("kind", marked(*SCHEMES))
def test_a_missing_bucket_is_not_found(request: pytest.FixtureRequest, kind: str) -> None:
    request.getfixturevalue(kind)
    with pytest.raises(FileNotFoundError, match="404"):
        obstore.get(from_url(f"{SCHEMES[kind]}://no-such-bucket", retry_config=NO_RETRY), NAME)


@pytest.mark.parametrize("kind", marked(*SCHEMES))
def test_a_replaced_object_has_another_etag(
    request: pytest.FixtureRequest, folder: Path, bucket: str, kind: str
) -> None:
    server = request.getfixturevalue(kind)
    store = from_url(server.fill(folder, bucket), retry_config=NO_RETRY)
    etag = obstore.head(store, NAME)["e_tag"]
    (folder / NAME).write_bytes(BODY[::-1])
    server.fill(folder, bucket)
    assert obstore.head(store, NAME)["e_tag"] != etag
    with pytest.raises(PreconditionError):
        read(store, 5, 100, if_match=etag)


@pytest.mark.parametrize("kind", marked("s3_server", "azure_server"))
def test_a_bucket_lists_its_objects(request: pytest.FixtureRequest, folder: Path, bucket: str, kind: str) -> None:
    """The emulator of gs:// does not."""
    store = from_url(request.getfixturevalue(kind).fill(folder, bucket, "pre/fix"), retry_config=NO_RETRY)
    assert {found["path"] for found in obstore.list(store).collect()} == {NAME, "empty", "a b+c=é#"}


def test_s3_without_a_signature_reads_what_is_public(s3_server: S3Server, folder: Path, bucket: str) -> None:
    options = {"skip_signature": True, "retry_config": NO_RETRY}
    s3_server.fill(folder, bucket)
    with pytest.raises(PermissionDeniedError, match="403"):
        read(S3Store(bucket, **options), 5, 100)
    s3_server.fill(folder, bucket, is_public=True)
    assert read(S3Store(bucket, **options), 5, 100) == BODY[5:100]


def test_options_of_the_client_replace_those_of_the_environment(s3_server: S3Server, folder: Path, bucket: str) -> None:
    """AWS_ALLOW_HTTP counts only where no options are given at all."""
    s3_server.fill(folder, bucket)
    assert read(S3Store(bucket, retry_config=NO_RETRY), 5, 100) == BODY[5:100]
    with pytest.raises(GenericError, match="builder error"):
        read(S3Store(bucket, client_options={"timeout": "9s"}, retry_config=NO_RETRY), 5, 100)
    options = {"timeout": "9s", "allow_http": True}
    assert read(S3Store(bucket, client_options=options, retry_config=NO_RETRY), 5, 100) == BODY[5:100]


@slow
def test_azure_refuses_another_key(
    azure_server: AzureServer, folder: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = azure_server.fill(folder, bucket)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90IHRoZSBrZXk=")
    with pytest.raises(PermissionDeniedError, match="403"):
        read(from_url(url, retry_config=NO_RETRY), 5, 100)


@slow
def test_a_store_of_azure_cannot_be_shown(azure_server: AzureServer) -> None:
    """Its repr panics where the account is named by the environment: no message may hold it."""
    with pytest.raises(BaseException, match="Account name"):
        repr(from_url("az://container"))


@slow
def test_nginx_has_a_ledger(nginx_server: NginxServer, certificates: Certificates) -> None:
    (nginx_server.folder / "counted").write_bytes(BODY)
    for url in (nginx_server.url, nginx_server.tls_url):
        trusted = certificates.authority.read_bytes()
        store = from_url(url, client_options={"allow_http": True, "root_certificate": trusted}, retry_config=NO_RETRY)
        obstore.get(store, "counted", options={"range": (5, 100)}).bytes()
    asked = [line for line in nginx_server.requests() if line.path == "/counted"]
    assert asked == [Asked("GET", "/counted", "bytes=5-99", 206, 95)] * 2
