"""RemoteOptions and URLs: what they take, what they mean in obstore's words, and what they never show."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfds_torch import RemoteOptions
from tfds_torch.errors import ConfigError
from tfds_torch.storage.remote import urls
from tfds_torch.storage.remote.budget import default_max_bytes
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.storage_options import options_of_scheme
from tfds_torch.storage.remote.store import ObjectStore

PEM = "-----BEGIN CERTIFICATE-----\n..."
MakeStore = Callable[..., ObjectStore]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_bytes": 0}, r"RemoteOptions: max_bytes=0 must be an integer >= 1\."),
        ({"max_bytes": True}, r"RemoteOptions: max_bytes=True must be an integer >= 1\."),
        ({"ahead_bytes": -1}, r"ahead_bytes=-1 must be an integer >= 1\."),
        ({"connections": 1000}, r"connections=1000 must be an integer in 1\.\.256\."),
        ({"timeout_s": 0}, r"timeout_s=0 must be a number of seconds > 0\."),
        ({"trust_size": 1}, r"RemoteOptions: trust_size=1 must be True or False\."),
        ({"cache_dir": 3}, r"cache_dir=3 must be a path, or None\."),
        ({"cache_dir": ""}, r"cache_dir='' must be the path of a folder of this machine\."),
        ({"cache_dir": "s3://bucket/cache"}, r"cache_dir='s3://bucket/cache' must be the path of a folder of this"),
        ({"storage_options": "anon"}, r"storage_options must be a mapping, not a str\."),
        (
            {"storage_options": {"acces_key_id": "x"}},
            r"unknown storage option 'acces_key_id'.* Did you mean 'access_key_id'\?",
        ),
        ({"storage_options": {"endpoint_uri": "x"}}, r"Did you mean 'endpoint'\?"),
        ({"storage_options": {"anon": True}}, r"the storage option 'anon' is called skip_signature here\."),
        ({"storage_options": {"key": "k"}}, r"'key' is called access_key_id \(s3://\) or account_key \(az://\) here\."),
        (
            {"storage_options": {"AWS_ENDPOINT_URL": "http://h:1"}},
            r"'AWS_ENDPOINT_URL' is called endpoint \(s3://, az:",
        ),
        ({"storage_options": {"region": 5}}, r"storage option 'region' must be a text, not a int\."),
        (
            {"storage_options": {"secret_access_key": None}},
            r"'secret_access_key' must be a text, not a NoneType\. Leave it out where there is",
        ),
        ({"storage_options": {"skip_signature": 1}}, r"'skip_signature' must be True or False\."),
        ({"storage_options": {"allow_http": 5}}, r"'allow_http' must be True or False\."),
        ({"storage_options": {"pool_max_idle_per_host": 1.5}}, r"'pool_max_idle_per_host' must be a number\."),
        (
            {"storage_options": {"default_headers": "X-A: b"}},
            r"'default_headers' must be a mapping of names to texts, such as \{'Auth",
        ),
        ({"storage_options": {"default_headers": {"X-A": 5}}}, r"'default_headers' must be a mapping of names to text"),
        ({"storage_options": {"endpoint": "host:9000"}}, r"'endpoint' must be a URL with http:// or https://, such as"),
        ({"storage_options": {"root_certificate": "/a.pem"}}, r"must be a certificate in PEM's text, .*, not a path"),
    ],
)
def test_wrong_options_are_refused(arguments, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RemoteOptions(**arguments)


def test_a_pickled_copy_has_all_but_the_storage_options(tmp_path: Path) -> None:
    folder = str(tmp_path)
    options = RemoteOptions(folder, 10**9, {"region": "r"}, 10**6, connections=3, timeout_s=5.0, trust_size=True)
    copied = pickle.loads(pickle.dumps(options))
    assert (copied, copied.storage_options) == (options, None)
    assert repr(options).endswith("connections=3, timeout_s=5.0, trust_size=True)")


def test_no_message_holds_the_value_of_a_storage_option() -> None:
    with pytest.raises(ConfigError) as found:
        RemoteOptions(storage_options={"secrets": "very-secret"})
    assert "very-secret" not in str(found.value)


@pytest.mark.parametrize(
    ("scheme", "given", "store", "client"),
    [
        ("s3", {"aws_access_key_id": "k", "AWS_REGION": "r"}, {"access_key_id": "k", "region": "r"}, {}),
        ("s3", {"endpoint": "http://h:1", "base_url": "http://h:2"}, {"endpoint": "http://h:1"}, {}),
        ("gs", {"google_bearer_token": "t", "endpoint": "http://h:1"}, {"bearer_token": "t"}, {}),
        ("az", {"azure_storage_account_name": "a", "session_token": "t"}, {"account_name": "a"}, {}),
        ("https", {"account_name": "a", "root_certificate": PEM}, {}, {"root_certificate": PEM}),
        ("https", {"default_headers": {"X-A": "b"}}, {}, {"default_headers": {"X-A": "b"}}),
        ("s3", {"pool_max_idle_per_host": 4}, {}, {"pool_max_idle_per_host": "4"}),
    ],
)  # fmt: skip
def test_each_scheme_gets_the_options_that_it_has(scheme: str, given, store, client) -> None:
    given = RemoteOptions(storage_options=given).storage_options
    assert options_of_scheme(scheme, given) == (store, client)


def test_urls_are_taken_apart_and_joined() -> None:
    assert urls.is_object_url("s3://bucket/tfds")
    assert not urls.is_object_url("/data/tfds")
    assert not urls.is_object_url("hdfs://host/tfds")
    assert not urls.is_object_url(Path("s3://bucket"))
    assert urls.split("s3://bucket/a/b") == ("s3", "bucket", "a/b")
    assert urls.join("s3://bucket/tfds/", "mnist", "3.0.1") == "s3://bucket/tfds/mnist/3.0.1"
    assert urls.join("https://host/a?sig=1", "b") == "https://host/a/b?sig=1"
    assert urls.without_secrets("https://me:secret@host/a?sig=secret#x") == "https://host/a"
    with pytest.raises(ConfigError, match=r"'htps://host/a' is not the URL of an object.*Did you mean 'https'"):
        urls.split("htps://host/a")
    for port in ("99999", "http", "0"):
        with pytest.raises(ConfigError, match=rf"'http://host:{port}/a': the port behind the host must be a number in"):
            urls.split(f"http://host:{port}/a")
    assert urls.split("http://[::1]:80/a") == ("http", "[::1]:80", "a")
    with pytest.raises(ConfigError, match=r"has no bucket: write s3://BUCKET/PATH"):
        urls.split("s3:///a")


SECRET = "very-secret-value-3141592653"


def test_secrets_are_nowhere(server, tmp_path: Path, make_store: MakeStore, capfd, caplog) -> None:
    url = server.put("shard", b"0123456789" * 1000)
    options = {"session_token": SECRET, "secret_access_key": SECRET, "default_headers": {"X-Key": SECRET}}
    store = make_store(storage_options=options)
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp])
    server.faults["shard"] = ["503", "ok"]
    assert files.read(0, 0, 10) == b"0123456789"
    server.faults["other"] = ["403"]
    with pytest.raises(Exception, match="403") as found:
        store.look([f"{server.root}/other"])
    assert any(SECRET in str(headers) for headers in server.headers), "the server got it"
    shown = [repr(store.options), str(found.value), repr(store.__dict__), repr(files.__dict__), str(store.stats())]
    shown += [str(pickle.dumps(one)) for one in (store, store.options)]
    shown += [Path(f"/proc/{pid}/cmdline").read_text() for pid in os.listdir("/proc") if pid.isdigit() and is_ours(pid)]
    store.close()
    shown += [*capfd.readouterr(), caplog.text]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            shown.append(path.read_bytes().decode(errors="replace"))
    assert len(shown) > 10
    assert not [text for text in shown if SECRET in text]


def is_ours(pid: str) -> bool:
    try:
        return "tfds_torch.storage.remote" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_without_the_extra_there_is_one_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('none here')")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
try:
    ObjectStore(RemoteOptions(cache_dir={str(tmp_path / "cache")!r})).look(["https://localhost/a"])
except Exception as error:
    print(type(error).__name__, error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == (
        "ConfigError Object stores are read by the package obstore, which is not installed: "
        "pip install 'tfds_torch[remote]'.\n"
    )


def test_windows_is_one_error(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="Object stores cannot be read on Windows"):
        ObjectStore()


def test_by_default_a_cache_takes_a_part_of_what_is_free(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    found = default_max_bytes(str(tmp_path))
    assert 0.7 * free.f_bavail * free.f_frsize < found < 0.9 * free.f_bavail * free.f_frsize


def test_a_url_that_is_quoted_is_read_as_it_is_written(server, make_store: MakeStore) -> None:
    server.put("a%20b", b"abc")
    assert make_store().read_small(f"{server.root}/a%20b") == b"abc"
    assert make_store().read_small(f"{server.root}/a b") == b"abc"
