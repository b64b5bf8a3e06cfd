import asyncio
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from tfds_torch import RemoteOptions
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage.remote import client
from tfds_torch.storage.remote.faults import Fault
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]


def test_sizes_and_etags_of_objects_come_in_the_order_asked(server, make_store: MakeStore) -> None:
    wanted = [server.put(f"folder/{number}", b"x" * number) for number in range(50)]
    found = make_store().look(wanted)
    assert [(one.url, one.size) for one in found] == [(url, number) for number, url in enumerate(wanted)]
    assert len({one.stamp[1] for one in found}) == 50
    assert all(0 <= one.stamp[1] < 2**63 for one in found)


def test_small_objects_are_read_and_a_missing_one_is_none(server, make_store: MakeStore) -> None:
    store = make_store()
    assert store.read_small(server.put("dataset_info.json", b"{}")) == b"{}"
    assert store.read_small(f"{server.root}/features.json") is None


def test_a_plain_web_server_is_never_listed(server, make_store: MakeStore) -> None:
    with pytest.raises(ConfigError, match=r"a plain web server does not say what it has.*name/config:1\.0\.0"):
        make_store().folders(f"{server.root}/tfds")
    assert server.headers == []


def test_any_part_of_an_object_is_read_also_across_blocks(server, make_store: MakeStore) -> None:
    content = random.Random(0).randbytes(20 << 20)
    url = server.put("shard", content)
    store = make_store()
    files = RemoteFiles(store, [url], [store.look([url])[0].stamp])
    for offset, size in [
        (0, 10),
        (8 << 20, 1),
        ((8 << 20) - 5, 10),
        (3, 17 << 20),
        ((20 << 20) - 4, 100),
        (20 << 20, 5),
    ]:
        assert files.read(0, offset, size) == content[offset : offset + size]
    assert files.read(0, 5, 0) == b""
    assert server.sent["shard"] == len(content), "each byte is fetched once"
    counts = store.stats()
    assert counts["bytes_fetched"] == len(content)
    assert counts["blocks_cached"] == 3


def test_a_second_reader_of_the_cache_asks_for_no_data(server, make_store: MakeStore) -> None:
    content = random.Random(0).randbytes(9 << 20)
    url = server.put("shard", content)
    store = make_store()
    stamps = [store.look([url])[0].stamp]
    assert RemoteFiles(store, [url], stamps).read(0, 0, len(content)) == content
    store.close()
    num_asked = len(server.headers)
    assert RemoteFiles(make_store(), [url], stamps).read(0, 0, len(content)) == content
    assert len(server.headers) == num_asked


def test_s3_is_read_and_listed(moto, make_store: MakeStore) -> None:
    content = random.Random(0).randbytes(9 << 20)
    moto.make_bucket("bucket")
    url = moto.put("bucket", "tfds/mnist/3.0.1/a.tfrecord", content)
    moto.put("bucket", "tfds/mnist/3.0.1/dataset_info.json", b"{}")
    moto.put("bucket", "tfds/cifar/1.0.0/dataset_info.json", b"{}")
    options = {"endpoint": moto.endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    store = make_store(storage_options=options)
    assert store.folders("s3://bucket/tfds") == ["cifar", "mnist"]
    assert store.folders("s3://bucket/tfds/mnist") == ["3.0.1"]
    assert store.read_small("s3://bucket/tfds/cifar/1.0.0/dataset_info.json") == b"{}"
    assert store.read_small("s3://bucket/nothing") is None
    info = store.look([url])[0]
    assert info.size == len(content)
    assert RemoteFiles(store, [url], [info.stamp]).read(0, 5, len(content)) == content[5:]
    with pytest.raises(ShardError, match=r"s3://bucket/nothing cannot be read.*404"):
        store.look(["s3://bucket/nothing"])


def test_folders_behind_an_odd_key_are_found_by_jumps(moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each jump passes a folder, whatever it holds; too many folders are not looked for."""
    moto.make_bucket("jumps")
    folders = ["0", "1.0.0", "1.0.00", "a", "b"]
    for name in folders:
        for file in ("a", "b/c", "z"):
            moto.put("jumps", f"below/{name}/{file}", b"x")
    for file in ("1", "1.0", "A", "z"):
        moto.put("jumps", f"below/{file}", b"x")
    options = {"endpoint": moto.endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    stores = client.Client(options, 10.0, 2, trusts_size=False)
    assert asyncio.run(stores.folders("s3://jumps/below")) == folders
    monkeypatch.setattr(client, "_PAGE_KEYS", 2)
    for root in ("s3://jumps/below", "s3://jumps/below/"):
        moto.put("jumps", "below//odd", b"x")
        assert asyncio.run(stores.folders(root)) == folders
    moto.put("jumps", "/odd", b"x")
    assert asyncio.run(stores.folders("s3://jumps")) == ["below"]
    monkeypatch.setattr(client, "_MOST_JUMPS", 3)
    with pytest.raises(Fault, match="a key below it is not a path") as found:
        asyncio.run(stores.folders("s3://jumps/below"))
    assert found.value.kind == "odd key"


def test_a_reader_never_loads_obstore_torch_or_tensorflow(server, tmp_path) -> None:
    url = server.put("shard", b"0123456789" * 1000)
    program = f"""
import json, pkgutil, importlib, sys
import tfds_torch.storage.remote as remote
for module in pkgutil.iter_modules(remote.__path__):
    if module.name not in ("aws_profile", "client", "fetcher", "requests", "transfers"):
        importlib.import_module(f"tfds_torch.storage.remote.{{module.name}}")
from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.files import RemoteFiles
store = ObjectStore(RemoteOptions(cache_dir={str(tmp_path / "cache")!r}))
assert RemoteFiles(store, [{url!r}], [store.look([{url!r}])[0].stamp]).read(0, 10, 4) == b"0123"
print(json.dumps([name for name in sys.modules if name in ("obstore", "torch", "tensorflow")]))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert json.loads(found.stdout) == []
    assert found.stderr == b""


def test_a_pickled_store_asks_the_same_fetcher(server, make_store: MakeStore) -> None:
    store = make_store(storage_options={"default_headers": {"Authorization": "Bearer very-secret-token"}})
    url = server.put("small", b"abc")
    assert store.read_small(url) == b"abc"
    copied = pickle.dumps(store)
    assert b"very-secret-token" not in copied
    assert pickle.loads(copied).read_small(url) == b"abc"
    assert {one.get("authorization") for one in server.headers} == {"Bearer very-secret-token"}
    assert "very-secret-token" not in repr(store.options)
    assert "very-secret-token" not in repr(pickle.loads(pickle.dumps(store.options)))
    assert store.options == RemoteOptions(store.options.cache_dir, timeout_s=10.0)
