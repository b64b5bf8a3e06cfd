"""Where credentials come from: the environment, a profile, or storage options; and certificates that are trusted."""

import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tfds_torch.errors import ConfigError
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


def test_a_profile_gives_keys_region_and_endpoint(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = other\naws_secret_access_key = x\n"
        "[train]\naws_access_key_id = of-profile\naws_secret_access_key = x\n"
    )
    (home / ".aws" / "config").write_text(f"[profile train]\nregion = eu-west-1\nendpoint_url = {server.root}\n")
    monkeypatch.setenv("AWS_PROFILE", "train")
    server.put("bucket/a", b"abc")
    assert make_store().read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"of-profile"}
    assert "/eu-west-1/s3/" in server.headers[0]["authorization"]


def test_the_environment_comes_before_a_profile(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = of-profile\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    server.put("bucket/a", b"abc")
    assert make_store().read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"of-environment"}


def test_storage_options_come_before_all(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = of-profile\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    server.put("bucket/a", b"abc")
    options = {"key": "of-options", "secret": "x", "endpoint_url": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"of-options"}


def test_a_bucket_is_read_without_a_signature_and_requesters_pay(server, make_store: MakeStore, home: Path) -> None:
    server.put("bucket/a", b"abc")
    options = {"anon": True, "endpoint_url": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert "authorization" not in server.headers[-1]
    options = {"key": "k", "secret": "x", "requester_pays": True, "endpoint_url": server.root}
    assert make_store(storage_options=options).read_small("s3://bucket/a") == b"abc"
    assert server.headers[-1]["x-amz-request-payer"] == "requester"


def test_a_profile_that_is_not_there_is_an_error(make_store: MakeStore, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(ConfigError, match=r"s3://bucket/a cannot be read: AWS_PROFILE names the profile 'nobodys'"):
        make_store().read_small("s3://bucket/a")


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
