"""What goes wrong on the way: what may pass is tried again, the rest is an error that says what to do."""

import asyncio
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError, ShardError, TfdsTorchError
from tfds_torch.storage.remote import transfers
from tfds_torch.storage.remote.faults import Fault
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]
CONTENT = random.Random(0).randbytes(3 << 20)


def files_of(store: ObjectStore, url: str) -> RemoteFiles:
    return RemoteFiles(store, [url], [store.look([url])[0].stamp])


@pytest.mark.parametrize("fault", ["429", "500", "502", "503", "reset", "short", "long"])
def test_a_fault_that_passes_is_tried_again_and_logged_once(server, make_store: MakeStore, caplog, fault: str) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)
    server.faults["shard"] = [fault, fault, "ok"]
    assert files.read(0, 0, len(CONTENT)) == CONTENT
    assert store.stats()["retries"] == 2
    store.close()
    logged = [one for one in caplog.records if "trying again" in one.message]
    assert [one.levelname for one in logged] == ["WARNING"]
    assert f"tfds_torch fetcher: {url}: " in logged[0].message


def test_a_host_that_never_answered_is_logged_once_for_all_its_objects(make_store: MakeStore, caplog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"http://127.0.0.1:{taken.getsockname()[1]}"
    store = make_store(timeout_s=0.4)
    for number in range(3):
        with pytest.raises(ShardError, match=rf"{host}/shard-{number} cannot be read"):
            store.look([f"{host}/shard-{number}"])
    store.close()
    assert len([one for one in caplog.records if "trying again" in one.message]) == 1


@pytest.mark.parametrize("fault", ["short", "long"])
def test_a_range_of_the_wrong_length_is_noticed(server, make_store: MakeStore, fault: str) -> None:
    url = server.put("shard", CONTENT)
    files = RemoteFiles(
        make_store(), [url], [make_store().look([url])[0].stamp], lambda _: np.array([0, 1 << 20, 3 << 20])
    )
    server.faults["shard"] = [fault, "ok"]
    assert files.read(0, 5, 2 << 20) == CONTENT[5 : 5 + (2 << 20)]
    until = time.monotonic() + 10
    while len(server.asked["shard"]) < 4 and time.monotonic() < until:  # The rest of a block comes behind.
        time.sleep(0.01)
    assert len(server.asked["shard"]) == 4


def test_after_a_reset_only_the_missing_bytes_are_fetched(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    files = files_of(make_store(), url)
    server.faults["shard"] = ["reset", "ok"]
    assert files.read(0, 0, len(CONTENT)) == CONTENT
    assert server.asked["shard"][0] == (0, len(CONTENT))
    assert 0 < server.asked["shard"][1][0] <= len(CONTENT) // 2
    assert server.sent["shard"] < 1.4 * len(CONTENT)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("403", r"the store answered 403 .*Check that the credentials .*'skip_signature': True"),
        ("401", r"the store answered 401 .*credentials"),
        ("404", r"the store answered 404 .*Check the URL"),
        ("400", r"the store answered 400 .*Check the URL, endpoint and region"),
        ("whole", r"the server answers 200 with the whole object.*Serve it by a web server that knows ranges"),
    ],
)
def test_a_fault_that_stays_is_an_error_at_once(server, make_store: MakeStore, fault: str, message: str) -> None:
    url = server.put("shard", bytes(20 << 20))
    files = files_of(make_store(), url)
    server.faults["shard"] = [fault]
    begin = time.monotonic()
    with pytest.raises(ShardError, match=rf"{url}, bytes .* cannot be read: {message}"):
        files.read(0, 5, 10)
    assert time.monotonic() - begin < 5
    server.faults["shard"] = ["ok"]
    assert files.read(0, 5, 10) == bytes(10), "the next read asks again"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("503", r"the store answered 503 .*tries in .* s\)\. Use fewer connections"),
        ("reset", r"the connection broke in the middle of an answer \(.* tries in"),
        ("short", r"the server sends \d+ bytes of the 1048576 that this version has \("),
        ("stall", r"(sent nothing for a while|fewer than .* bytes came in 0\.7 s) \("),
        ("trickle", r"fewer than 524288 bytes came in 0\.7 s \("),
    ],
)
def test_what_does_not_pass_within_timeout_s_is_an_error(
    server, make_store: MakeStore, fault: str, message: str
) -> None:
    url = server.put("shard", CONTENT[: 1 << 20])
    files = files_of(make_store(timeout_s=0.7), url)
    server.faults["shard"] = [fault]
    begin = time.monotonic()
    with pytest.raises(ShardError, match=message):
        files.read(0, 0, 1 << 20)
    assert time.monotonic() - begin < 20


def test_an_object_that_changed_is_never_mixed_with_its_old_version(server, make_store: MakeStore) -> None:
    content = random.Random(1).randbytes(20 << 20)
    url = server.put("shard", content)
    store = make_store()
    files = files_of(store, url)
    assert files.read(0, 0, 10) == content[:10]
    assert files.changed(0) is None
    server.put("shard", content[::-1])
    with pytest.raises(ShardError, match=rf"{url} changed since it was first looked at"):
        files.read(0, 17 << 20, 10)
    assert files.changed(0) == "its ETag or the time of its last change is another one"
    server.put("shard", content + b"x")
    assert files.changed(0) == f"it had {20 << 20} bytes and has {(20 << 20) + 1}"


def test_a_pin_of_another_life_is_compared_with_the_first_answer(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    stamps = [make_store().look([url])[0].stamp]
    server.put("shard", CONTENT[::-1])
    with pytest.raises(ShardError, match="changed since it was first looked at: its ETag or the time of its"):
        RemoteFiles(make_store(), [url], stamps).read(0, 0, 10)


def test_a_host_without_an_address_is_an_error_at_once(make_store: MakeStore) -> None:
    begin = time.monotonic()
    with pytest.raises(
        ShardError, match=r"https://nowhere\.invalid/a cannot be read: its host has no address.*Check the URL"
    ):
        make_store(timeout_s=60.0).look(["https://nowhere.invalid/a"])
    assert time.monotonic() - begin < 10


class Unreached:
    """The client of a host that has never answered."""

    def is_reached(self, url: str) -> bool:
        return False

    async def look(self, url: str) -> None:
        raise Fault("the connection was refused", "Check the URL.", is_transient=True, kind="unreachable")


def test_a_host_that_never_answered_is_given_up_soon_whatever_timeout_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_NEVER_REACHED_S", 0.2)
    client: Any = Unreached()
    with pytest.raises(ShardError, match=r"cannot be read: the connection was refused \([23] tries in"):
        asyncio.run(transfers.Transfers(client, 60.0).ask("http://host/a", client.look))


@pytest.mark.slow
def test_a_port_where_nobody_listens_is_an_error_soon(server, make_store: MakeStore) -> None:
    begin = time.monotonic()
    with pytest.raises(ShardError, match=r"cannot be read: the connection was refused"):
        make_store(timeout_s=60.0).look(["http://127.0.0.1:1/a"])
    assert time.monotonic() - begin < 10


def test_a_wrong_bucket_is_named(moto, make_store: MakeStore) -> None:
    options = {
        "endpoint": moto.endpoint,
        "access_key_id": "a",
        "secret_access_key": "very-secret",
        "region": "us-east-1",
    }
    store = make_store(storage_options=options)
    with pytest.raises(ShardError, match=r"s3://nobodys/a cannot be read: .*404.*The bucket is wrong") as found:
        store.look(["s3://nobodys/a"])
    assert "very-secret" not in str(found.value)
    with pytest.raises(TfdsTorchError, match=r"s3://nobodys/a cannot be read: .*404.*The bucket is wrong"):
        store.read_small("s3://nobodys/a")
    with pytest.raises(TfdsTorchError, match=r"The bucket is wrong"):
        store.folders("s3://nobodys/a")


def test_missing_credentials_are_a_config_error(server, make_store: MakeStore, monkeypatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    options = {"metadata_endpoint": server.root, "endpoint": server.root}
    server.faults["latest/api/token"] = ["403"]
    with pytest.raises(
        ConfigError, match=r"s3://bucket/a cannot be read: there are no credentials.*'skip_signature': True"
    ):
        make_store(storage_options=options).look(["s3://bucket/a"])
    assert len(server.headers) == 1
    assert make_store(storage_options=options | {"skip_signature": True}).read_small("s3://bucket/a") is None
