"""What tells versions of an object apart: its ETag, the time of its last change and its size, all together."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import SupportsIndex

import pytest

from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.plain_files import PlainFiles
from tfds_torch.storage.remote.store import ObjectStore

MakeStore = Callable[..., ObjectStore]
CONTENT = random.Random(0).randbytes(9 << 20)  # Two blocks.
OTHER = CONTENT[::-1]
MONDAY, TUESDAY = "Mon, 07 Jan 2030 10:00:00 GMT", "Tue, 08 Jan 2030 10:00:00 GMT"
BEFORE = [None, '"x"', 'W/"x"']
REFUSED = r"its server sends neither an ETag nor a Last-Modified.*: remote=RemoteOptions\(trust_size=True\)\."


def put(server, content: bytes, etag: str | None, modified: str | None) -> str:
    """Puts an object in its place, with what its server says of its version."""
    url = server.put("shard", content)
    server.etags["shard"] = etag
    server.modified.pop("shard", None)
    if modified is not None:
        server.modified["shard"] = modified
    return url


def open_files(store: ObjectStore, url: str) -> RemoteFiles:
    return RemoteFiles(store, [url], [store.look([url])[0].stamp])


@pytest.mark.parametrize("etag", BEFORE)
def test_another_time_is_another_version_whatever_the_etag(server, make_store: MakeStore, etag: str | None) -> None:
    """tornado keeps the ETag of a file that is replaced, for as long as it runs."""
    url = put(server, CONTENT, etag, MONDAY)
    files = open_files(make_store(), url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    put(server, OTHER, etag, TUESDAY)
    told = rf": it was written at 2030-01-07T\S*, now at \S*-08T\S*{', and its ETag is the same' if etag else ''}\."
    with pytest.raises(ShardError, match=rf"{url} changed since it was first looked at{told}"):
        files.read(0, len(CONTENT) - 10, 10)
    store = make_store()
    assert open_files(store, url).read(0, 0, len(OTHER)) == OTHER, "the old version's blocks are in the cache"
    assert store.stats()["bytes_fetched"] == len(OTHER)


@pytest.mark.parametrize(("before", "after"), [('"x"', '"y"'), ('W/"x"', 'W/"y"'), ('W/"x"', '"y"'), ('"x"', 'W/"y"')])
@pytest.mark.parametrize("modified", [None, MONDAY])
def test_another_etag_is_another_version_whatever_the_time(
    server, make_store: MakeStore, before: str, after: str, modified: str | None
) -> None:
    url = put(server, CONTENT, before, modified)
    files = open_files(make_store(), url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    put(server, OTHER, after, modified)
    with pytest.raises(ShardError, match=rf"{url} changed since it was first looked at: its ETag is another one"):
        files.read(0, len(CONTENT) - 10, 10)
    assert open_files(make_store(), url).read(0, 0, len(OTHER)) == OTHER


@pytest.mark.parametrize(("before", "after"), [('W/"x"', '"x"'), ('"x"', 'W/"x"')])
def test_an_etag_that_becomes_strong_or_weak_is_the_same(
    server, make_store: MakeStore, before: str, after: str
) -> None:
    """Apache's are weak in the second in which a file was written (RFC 9110, 8.8.3.2)."""
    url = put(server, CONTENT, before, MONDAY)
    files = open_files(make_store(), url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    put(server, CONTENT, after, MONDAY)
    assert files.read(0, 0, len(CONTENT)) == CONTENT
    assert files.changed(0) is None
    store = make_store()
    assert open_files(store, url).read(0, 0, len(CONTENT)) == CONTENT
    assert store.stats()["bytes_fetched"] == 0, "what lies in the cache is of this version"


@pytest.mark.parametrize("modified", [None, "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:01 GMT"])
def test_an_object_without_a_version_is_refused_also_where_it_is_cached(
    server, make_store: MakeStore, modified: str | None
) -> None:
    url = put(server, CONTENT, None, modified)
    trusting = make_store(trust_size=True)
    assert open_files(trusting, url).read(0, 0, len(CONTENT)) == CONTENT
    put(server, OTHER, None, modified)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"{url} cannot be read: {REFUSED}"):
            make_store().look([url])
    server.put("shard", OTHER + b"x")
    server.etags["shard"] = None
    with pytest.raises(ConfigError, match=REFUSED):
        make_store().look([url])


def test_size_alone_is_trusted_where_that_is_asked_for(server, make_store: MakeStore) -> None:
    url = put(server, CONTENT, None, None)
    files = open_files(make_store(trust_size=True), url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    put(server, CONTENT + b"x", None, None)
    with pytest.raises(ShardError, match=rf"changed .*: it had {len(CONTENT)} bytes and has {len(CONTENT) + 1}"):
        files.read(0, len(CONTENT) - 10, 10)
    put(server, CONTENT, '"x"', None)  # One of two servers behind a name says more than the other.
    assert files.read(0, 0, len(CONTENT)) == CONTENT


def test_a_version_counts_where_size_is_trusted_too(server, make_store: MakeStore) -> None:
    url = put(server, CONTENT, '"x"', MONDAY)
    files = open_files(make_store(trust_size=True), url)
    assert files.read(0, 0, 10) == CONTENT[:10]
    put(server, OTHER, '"x"', TUESDAY)
    with pytest.raises(ShardError, match=f"{url} changed"):
        files.read(0, len(CONTENT) - 10, 10)


def test_a_version_that_the_bytes_lack_is_refused(server, make_store: MakeStore) -> None:
    """An answer to HEAD that says more than those that have the bytes."""
    for trust_size in (False, True):
        url = put(server, CONTENT, '"x"', MONDAY)
        files = open_files(make_store(trust_size=trust_size), url)
        put(server, CONTENT, None, None)
        if trust_size:
            assert files.read(0, 0, len(CONTENT)) == CONTENT
        else:
            with pytest.raises(ConfigError, match=r"neither an ETag nor a Last-Modified with a range of bytes, so"):
                files.read(0, 0, 10)


def test_an_answer_that_broke_is_not_gone_on_with_in_another_version(server, make_store: MakeStore) -> None:
    url = put(server, CONTENT, '"x"', MONDAY)
    files = open_files(make_store(), url)

    class Replacing(list[str]):
        """Replaces the object behind the first request."""

        def pop(self, index: SupportsIndex = -1) -> str:
            if len(self) == 2:
                put(server, OTHER, '"x"', TUESDAY)
            return super().pop(index)

    server.faults["shard"] = Replacing(["reset", "short", "ok"])
    with pytest.raises(ShardError, match=f"{url} changed since it was first looked at: it was written at"):
        files.read(0, 0, len(CONTENT))


def test_blocks_that_are_fetched_ahead_are_of_the_version_that_is_read(server, make_store: MakeStore) -> None:
    url = put(server, CONTENT, '"x"', MONDAY)
    store = make_store()
    files = open_files(store, url)
    put(server, OTHER, '"x"', TUESDAY)
    files.follow(iter([(0, [(0, 0)]), (1, [(0, 1)])]))
    with pytest.raises(ShardError, match="changed since it was first looked at"):
        files.read(0, 0, 10)
    files.close()


def test_a_whole_file_is_of_the_version_that_is_read(server, make_store: MakeStore) -> None:
    url = put(server, CONTENT, '"x"', MONDAY)
    store = make_store()
    stamps = [store.look([url])[0].stamp]
    with PlainFiles(store, [url], stamps).held(0) as file:
        assert Path(file.path).read_bytes() == CONTENT
    put(server, OTHER, '"x"', TUESDAY)
    again = make_store()
    with PlainFiles(again, [url], [again.look([url])[0].stamp]).held(0) as file:
        assert Path(file.path).read_bytes() == OTHER
    other = make_store()
    files = PlainFiles(other, [url], [(len(CONTENT), stamps[0][1] ^ 1)])
    with pytest.raises(ShardError, match="changed since it was first looked at"), files.held(0):
        pass
