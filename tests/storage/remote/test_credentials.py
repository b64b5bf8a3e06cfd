"""Where credentials come from: the environment, storage options, or a role; and certificates that are trusted."""

import datetime
import ipaddress
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A home folder without credentials, and an environment without them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".aws").mkdir(parents=True)
    return tmp_path / "home"


def credentials_of(server) -> set[str]:
    """Access keys that the server's requests were signed with."""
    return {
        one["authorization"].split("Credential=")[1].split("/")[0] for one in server.headers if "authorization" in one
    }


def test_a_profile_is_an_error_with_the_line_that_sets_its_keys(
    server, make_store: MakeStore, home: Path, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "my train")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    server.put("bucket/a", b"abc")
    line = r"""eval "\$\(aws configure export-credentials --profile 'my train' --format env\)"$"""
    expected = r"s3://bucket/a cannot be read: AWS_PROFILE names the profile 'my train', and files of profiles are not "
    with pytest.raises(ConfigError, match=rf"{expected}read\. Set its keys in the environment: {line}"):
        make_store().read_small("s3://bucket/a")
    assert server.headers == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert make_store().read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"of-environment"}


def test_storage_options_come_before_all(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "train")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    server.put("bucket/a", b"abc")
    options = {"access_key_id": "of-options", "secret_access_key": "x", "endpoint": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"of-options"}


def test_a_bucket_is_read_without_a_signature_and_requesters_pay(server, make_store: MakeStore, home: Path) -> None:
    server.put("bucket/a", b"abc")
    options = {"skip_signature": True, "endpoint": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert "authorization" not in server.headers[-1]
    options = {"access_key_id": "k", "secret_access_key": "x", "request_payer": True, "endpoint": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert server.headers[-1]["x-amz-request-payer"] == "requester"


def test_keys_that_have_expired_are_an_error_in_time(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    server.refused["old"] = "ExpiredToken"
    server.put("bucket/a", b"abc")
    expected = (
        r"s3://bucket/a cannot be read: the store answered 400 Bad Request \(ExpiredToken\) \(\d+ tries in .* s\)\. "
    )
    with pytest.raises(ShardError, match=expected + r"The credentials have expired: renew them, and start again\.$"):
        make_store(timeout_s=0.5).look(["s3://bucket/a"])


def test_keys_of_options_that_the_store_does_not_know_are_an_error_at_once(
    server, make_store: MakeStore, home: Path
) -> None:
    server.refused["wrong"] = "InvalidAccessKeyId"
    server.put("bucket/a", b"abc")
    options = {"access_key_id": "wrong", "secret_access_key": "x", "endpoint": server.root}
    expected = r"the store answered 403 Forbidden \(InvalidAccessKeyId\)\. Correct the credentials"
    with pytest.raises(ShardError, match=expected):
        make_store(storage_options=options).look(["s3://bucket/a"])
    assert len(server.headers) == 2, "one of them asks for the reason"


def test_no_credentials_are_an_error_that_names_what_gives_some(
    server, make_store: MakeStore, home: Path, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    store = make_store(storage_options={"metadata_endpoint": "http://127.0.0.1:9/latest/api/token"}, timeout_s=1.0)
    with pytest.raises(
        ConfigError, match=r'there are no credentials.*--profile default --format env\)"\), pass storage'
    ):
        store.read_small("s3://bucket/a")


def test_a_role_that_cannot_be_renewed_for_a_moment_is_waited_for(server, make_store: MakeStore, home: Path) -> None:
    """Credentials that end within five minutes are asked for again with every request."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)
    keys = {"AccessKeyId": "of-role", "SecretAccessKey": "x", "Token": "y", "Expiration": end.isoformat()}
    roles = "latest/meta-data/iam/security-credentials/"
    answers = {"latest/api/token": "token", roles: "role", f"{roles}role": json.dumps({"Code": "Success"} | keys)}
    for path, content in answers.items():
        server.put(path, content.encode())
    for name in ("a", "b"):
        server.put(f"bucket/{name}", b"abc")
    store = make_store(storage_options={"metadata_endpoint": server.root, "endpoint": server.root})
    assert store.look(["s3://bucket/a"])[0].stamp[0] == 3
    server.faults["latest/api/token"] = ["500", "500", "ok"]
    time.sleep(0.2)  # The client does not ask for credentials twice in 0.1 s.
    assert store.look(["s3://bucket/b"])[0].stamp[0] == 3
    assert server.faults["latest/api/token"] == ["ok"]
    assert credentials_of(server) == {"of-role"}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that nobody trusts, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "server.pem"
    path.write_bytes(made.public_bytes(pem) + private)
    return path


def test_a_certificate_that_is_not_trusted_is_named(server, make_store: MakeStore, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.secure(context)
    url = server.put("a", b"abc")
    assert url.startswith("https://")
    with pytest.raises(ConfigError, match=r"a cannot be read: the server's certificate is not trusted.*root_cert"):
        make_store(timeout_s=60.0).read_small(url)
    trusted = certificate.read_text().partition("-----BEGIN PRIVATE")[0]
    assert make_store(storage_options={"root_certificate": trusted}).read_small(url) == b"abc"


@pytest.mark.parametrize(
    ("name", "value", "url", "said"),
    [
        (
            "AWS_ENDPOINT_URL",
            "127.0.0.1:9000",
            "s3://b/a",
            r"the environment variable AWS_ENDPOINT_URL is not a URL\. Wr",
        ),
        ("AZURE_STORAGE_ENDPOINT", "host", "az://b/a", r"the environment variable AZURE_STORAGE_ENDPOINT is not a URL"),
        ("HOME", "/nowhere", "az://b/a", r"Azure's account is not named\. Set AZURE_STORAGE_ACCOUNT_NAME, or"),
    ],
)
def test_an_environment_that_cannot_work_is_said(
    make_store: MakeStore, home: Path, monkeypatch, name: str, value: str, url: str, said: str
) -> None:
    for one in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        make_store().look([url])
