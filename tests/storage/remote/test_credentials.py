"""Where credentials come from: the environment, a profile, or storage options; and certificates that are trusted."""

import datetime
import ipaddress
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from servers.s3_server import NEEDS_MOTO, find_moto

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


def write_keys(home: Path, key: str) -> None:
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\naws_session_token = y\n"
    (home / ".aws" / "credentials").write_text(text)


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"])
def test_keys_that_end_are_waited_for_until_they_are_renewed(
    server, make_store: MakeStore, home: Path, monkeypatch, code: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    write_keys(home, "old")
    server.put("bucket/a", b"abc")
    server.put("bucket/b", b"abcd")
    store = make_store()
    assert store.look(["s3://bucket/a"])[0].stamp[0] == 3
    server.refused["old"] = code
    renewing = threading.Timer(0.2, write_keys, (home, "new"))
    renewing.start()
    assert store.look(["s3://bucket/b"])[0].stamp[0] == 4
    renewing.join()
    assert store.read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"old", "new"}


@pytest.mark.parametrize(
    "content",
    [
        "[def",
        "[default]\nregion = us-east-1\n",
        "",
        "[default]\naws_access_key_id = new\n",
        "[default]\naws_access_key_id = new\naws_secret_access_key =\n",
    ],
)
def test_keys_are_read_while_they_are_written(
    server, make_store: MakeStore, home: Path, monkeypatch, content: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    write_keys(home, "old")
    for name in ("a", "b"):
        server.put(f"bucket/{name}", b"abc")
    store = make_store()
    assert store.read_small("s3://bucket/a") == b"abc"
    server.refused["old"] = "ExpiredToken"
    (home / ".aws" / "credentials").write_text(content)
    renewing = threading.Timer(0.2, write_keys, (home, "new"))
    renewing.start()
    assert store.read_small("s3://bucket/b") == b"abc"
    renewing.join()
    assert credentials_of(server) == {"old", "new"}


def test_keys_that_nobody_renews_are_an_error_in_time(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    write_keys(home, "old")
    server.refused["old"] = "ExpiredToken"
    server.put("bucket/a", b"abc")
    expected = (
        r"s3://bucket/a cannot be read: the store answered 400 Bad Request \(ExpiredToken\) \(\d+ tries in .* s\)\. "
    )
    with pytest.raises(ShardError, match=expected + r"The credentials have expired: renew them\.$"):
        make_store(timeout_s=0.5).look(["s3://bucket/a"])


def test_keys_that_vanish_are_an_error_in_time(server, make_store: MakeStore, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    write_keys(home, "old")
    for name in ("a", "b"):
        server.put(f"bucket/{name}", b"abc")
    store = make_store(timeout_s=0.5)
    assert store.read_small("s3://bucket/a") == b"abc"
    server.refused["old"] = "ExpiredToken"
    (home / ".aws" / "credentials").unlink()
    reason = "its credentials could not be read: the profile 'default' has no aws_access_key_id"
    with pytest.raises(
        ConfigError, match=rf"s3://bucket/b cannot be read: {reason} \(\d+ tries in .* s\)\. Renew them"
    ):
        store.look(["s3://bucket/b"])


def test_keys_of_options_that_the_store_does_not_know_are_an_error_at_once(
    server, make_store: MakeStore, home: Path
) -> None:
    server.refused["wrong"] = "InvalidAccessKeyId"
    server.put("bucket/a", b"abc")
    options = {"key": "wrong", "secret": "x", "endpoint_url": server.root}
    expected = r"the store answered 403 Forbidden \(InvalidAccessKeyId\)\. Correct the credentials"
    with pytest.raises(ShardError, match=expected):
        make_store(storage_options=options).look(["s3://bucket/a"])
    assert len(server.headers) == 2, "one of them asks for the reason"


def test_a_profile_that_is_written_after_the_first_error_is_read(
    server, make_store: MakeStore, home: Path, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    server.put("bucket/a", b"abc")
    store = make_store(storage_options={"metadata_endpoint": "http://127.0.0.1:9/latest/api/token"}, timeout_s=1.0)
    with pytest.raises(ConfigError, match="there are no credentials"):
        store.read_small("s3://bucket/a")
    write_keys(home, "new")
    assert store.read_small("s3://bucket/a") == b"abc"
    assert credentials_of(server) == {"new"}


@pytest.fixture
def boto3_folder() -> Path:
    """Where boto3 is installed: it comes with moto."""
    if (python := find_moto()) is None:
        pytest.skip(NEEDS_MOTO)
    (packages,) = Path(python).parents[1].glob("lib/*/site-packages")
    return packages


@pytest.fixture
def printed_keys(home: Path, tmp_path: Path, monkeypatch) -> Path:
    """The file that the profile's command prints."""
    keys = tmp_path / "keys.json"
    (home / ".aws" / "config").write_text(f"[profile asks]\ncredential_process = cat {keys}\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "asks")
    return keys


def test_a_profile_that_asks_a_command_is_read_anew_each_time(boto3_folder: Path, printed_keys: Path) -> None:
    """By boto3, whose sessions keep what they have read."""
    program = f"""
import asyncio, json, sys
sys.path.append({str(boto3_folder)!r})
from tfds_torch.storage.remote.aws_profile import profile_provider
added, provider = profile_provider({{}})
assert added == {{"region": "eu-west-1"}}
for key in ("first", "second"):
    with open({str(printed_keys)!r}, "w") as file:
        json.dump({{"Version": 1, "AccessKeyId": key, "SecretAccessKey": "x", "SessionToken": "y"}}, file)
    found = asyncio.run(provider())
    print(found["access_key_id"], found["secret_access_key"], found["token"])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines() == ["first x y", "second x y"]


def test_a_profile_that_asks_a_command_is_asked_again_when_its_keys_expire(
    server, make_store: MakeStore, boto3_folder: Path, printed_keys: Path, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(boto3_folder)])  # The fetcher's path is its parent's.
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.root)
    for name in ("a", "b"):
        server.put(f"bucket/{name}", b"abc")
    printed_keys.write_text(
        json.dumps({"Version": 1, "AccessKeyId": "old", "SecretAccessKey": "x", "SessionToken": "y"})
    )
    store = make_store()
    assert store.read_small("s3://bucket/a") == b"abc"
    server.refused["old"] = "ExpiredToken"
    printed_keys.write_text(
        json.dumps({"Version": 1, "AccessKeyId": "new", "SecretAccessKey": "x", "SessionToken": "y"})
    )
    assert store.read_small("s3://bucket/b") == b"abc"
    assert credentials_of(server) == {"old", "new"}


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
    store = make_store(storage_options={"metadata_endpoint": server.root, "endpoint_url": server.root})
    assert store.look(["s3://bucket/a"])[0].stamp[0] == 3
    server.faults["latest/api/token"] = ["500", "500", "ok"]
    time.sleep(0.2)  # The client does not ask for credentials twice in 0.1 s.
    assert store.look(["s3://bucket/b"])[0].stamp[0] == 3
    assert server.faults["latest/api/token"] == ["ok"]
    assert credentials_of(server) == {"of-role"}


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
