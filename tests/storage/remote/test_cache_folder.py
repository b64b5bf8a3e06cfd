"""The cache folder: what cannot be used is refused, what is damaged is fetched again, and nothing else is touched."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.stored_blocks import remove_block, remove_empty_folder, stored_blocks

MakeStore = Callable[..., ObjectStore]
CONTENT = random.Random(0).randbytes(3 << 20)


def files_of(store: ObjectStore, url: str, **how: Any) -> RemoteFiles:
    return RemoteFiles(store, [url], [store.look([url])[0].stamp], **how)


def block_of(store: ObjectStore) -> Path:
    (found,) = Path(store.cache).glob("objects/*/*-*")
    return found


def test_a_folder_that_others_can_write_to_is_refused(make_store: MakeStore, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigError, match=r"cache cannot be used: others can write to it \(mode 777\).*cache_dir"):
        make_store().start()


def test_a_folder_that_is_a_link_is_refused(make_store: MakeStore, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"cache cannot be used: it is a symbolic link"):
        make_store().start()
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "own" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"objects cannot be used: it is a symbolic link"):
        make_store(cache_dir=tmp_path / "own").start()


def test_a_file_in_its_place_is_an_error(make_store: MakeStore, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cache cannot be written to: .*cache_dir"):
        make_store().start()


def test_a_folder_that_cannot_be_made_is_an_error(make_store: MakeStore) -> None:
    with pytest.raises(ConfigError, match=r"The cache folder /proc/tfds_torch cannot be written to: "):
        make_store(cache_dir="/proc/tfds_torch").start()


def test_a_full_disk_is_an_error_with_a_remedy(server, tmp_path: Path) -> None:
    url = server.put("shard", CONTENT)
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.getrlimit(resource.RLIMIT_FSIZE)[1]}))
from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.stored_blocks import remove_block, remove_empty_folder, stored_blocks
from tfds_torch.storage.remote.files import RemoteFiles
store = ObjectStore(RemoteOptions(cache_dir={str(tmp_path / "cache")!r}))
try:
    RemoteFiles(store, [{url!r}], [store.look([{url!r}])[0].stamp]).read(0, 0, 3 << 20)
except Exception as error:
    print(type(error).__name__, error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.startswith(
        f"ConfigError {url} cannot be written to the cache {tmp_path / 'cache'}: File too large"
    )
    assert "Make room there, set RemoteOptions(max_bytes=...), or give another folder (cache_dir)." in found.stdout
    assert not list((tmp_path / "cache").glob("objects/*/*-*")), "nothing half-written is left"


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "link", "foreign name"])
def test_a_damaged_block_is_fetched_again(server, make_store: MakeStore, tmp_path: Path, harm: str) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    assert files_of(store, url).read(0, 0, len(CONTENT)) == CONTENT
    block = block_of(store)
    content = block.read_bytes()
    if harm == "flip":
        block.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    elif harm == "cut":
        os.truncate(block, 5000)
    elif harm == "empty":
        os.truncate(block, 0)
    elif harm == "link":
        (tmp_path / "other").write_bytes(content)
        block.unlink()
        block.symlink_to(tmp_path / "other")
    else:
        (block.parent / "notes.txt").write_text("mine")
    assert files_of(store, url).read(0, 0, len(CONTENT)) == CONTENT
    assert server.sent["shard"] == (1 if harm == "foreign name" else 2) * len(CONTENT)
    if harm == "link":
        assert (tmp_path / "other").read_bytes() == content


def test_a_block_that_is_damaged_again_is_an_error(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)

    def flip() -> None:
        block = block_of(store)
        content = block.read_bytes()
        block.write_bytes(bytes([content[0] ^ 1]) + content[1:])

    files.read(0, 0, 3 << 20)
    flip()
    other = files_of(store, url)
    assert other.read(0, 0, 3 << 20) == CONTENT
    flip()
    other._blocks.close()
    with pytest.raises(CorruptRecordError, match=r"shard, bytes 0-3145727: .* damaged again .*checksum is wrong"):
        other.read(0, 5, 10)


def test_a_reader_has_a_block_fetched_again_whose_own_checksums_are_wrong(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    server.faults["shard"] = ["ok", "flip", "ok"]
    files = files_of(make_store(), url, verifies=False)
    assert files.read(0, 0, 3 << 20) != CONTENT
    assert files.discard(0, 5)
    assert files.read(0, 0, 3 << 20) == CONTENT
    assert not files.discard(0, 5), "once is enough"


def test_a_block_that_is_removed_while_it_is_opened_is_fetched_again_each_time(
    server, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetcher that makes room removes a block between two looks of a reader; that is no damage."""
    url = server.put("shard", CONTENT)
    store = make_store()
    files_of(store, url).read(0, 0, 10)
    looks: dict[str, Any] = {"fstat": os.fstat, "pread": os.pread}
    for number, name in enumerate(("fstat", "pread", "fstat"), 1):
        while store.stats()["blocks_cached"] < number:  # A read is answered before its block is whole.
            pass
        files, left = files_of(store, url), [1]

        def look(*arguments: Any, name: str = name, left: list[int] = left) -> Any:
            if left:
                left.pop()
                (block,) = stored_blocks(store.cache)
                remove_block(block)
            return looks[name](*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, look)
            assert files.read(0, 100, 10) == CONTENT[100:110]
            assert files.read(0, 200, 10) == CONTENT[200:210]
        assert not left
        assert not files._damaged
    while store.stats()["blocks_cached"] < 4:
        pass


def test_a_folder_into_which_a_block_comes_while_it_is_removed_keeps_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = tmp_path / "objects" / "0123", os.rmdir
    folder.mkdir(parents=True)
    (folder / "object.json").write_text("{}")

    def begin_to_fetch(path: str) -> None:
        Path(path, "0-10.part").touch()
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", begin_to_fetch)
        remove_empty_folder(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["0-10.part", "object.json"]
    (folder / "0-10.part").unlink()
    remove_empty_folder(str(folder))
    assert list(folder.parent.iterdir()) == []


def test_a_part_that_a_killed_fetcher_left_is_begun_anew(server, make_store: MakeStore) -> None:
    url = server.put("shard", CONTENT)
    store = make_store()
    files = files_of(store, url)
    assert files.read(0, 0, 3 << 20) == CONTENT
    block = block_of(store)
    block.rename(f"{block}.part")
    with open(f"{block}.part", "r+b") as file:
        file.write(bytes(1 << 20))
    assert files_of(make_store(), url).read(0, 0, 3 << 20) == CONTENT


def test_a_shard_that_was_fetched_whole_is_cut_into_blocks_without_a_request(server, make_store: MakeStore) -> None:
    content = random.Random(1).randbytes(40 << 20)
    url = server.put("shard", content)
    store = make_store()
    stamp = store.look([url])[0].stamp
    whole = RemoteFiles(store, [url], [stamp], lambda _: np.array([0, 40 << 20]))
    assert whole.read(0, 39 << 20, 100) == content[39 << 20 : (39 << 20) + 100]
    assert whole.read(0, 0, 40 << 20) == content
    assert len(server.asked["shard"]) >= 5, "ranges of it arrive side by side"
    assert server.sent["shard"] == len(content)
    cuts = [0, 1 << 20, 15 << 20, 40 << 20]
    store.cut(url, stamp, cuts, total=40 << 20)
    assert [path.name for path in Path(store.cache).glob("objects/*/*-*")] == [f"0-{40 << 20}"], "all fits as it is"
    assert RemoteFiles(store, [url], [stamp], lambda _: np.array(cuts)).read(0, 0, 40 << 20) == content
    store.cut(url, stamp, cuts)
    names = {path.name for path in Path(store.cache).glob("objects/*/*-*")}
    assert names == {f"{start}-{stop}" for start, stop in pairwise(cuts)}
    assert RemoteFiles(store, [url], [stamp], lambda _: np.array(cuts)).read(0, 0, 40 << 20) == content
    assert whole.read(0, 5, 100) == content[5:105], "who has it open reads on"
    assert server.sent["shard"] == len(content)
