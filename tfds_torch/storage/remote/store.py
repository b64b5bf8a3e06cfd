"""ObjectStore: the access of parsers, workers and commands to object stores, by way of the fetcher."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfds_torch.errors import ConfigError, ShardError, TfdsTorchError
from tfds_torch.storage.network import NetworkStats, add_wait
from tfds_torch.storage.open_files import ProcessLock, Stamp
from tfds_torch.storage.remote import urls
from tfds_torch.storage.remote.connections import FetcherConnections
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.remote.protocol import Message, answers


class RefusedError(ShardError):
    """An object may not be read; stores say the same of missing objects to users who may not list them."""


class UnlistedError(ShardError):
    """Folders cannot be listed: the store refuses it, or one of the keys below is not a path."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as its store describes it: URL, size in bytes, and pin, a hash of its ETag and time."""

    url: str
    size: int
    pin: int

    @property
    def stamp(self) -> Stamp:
        """Size in bytes, and pin: 63 bits of the hash of ETag and time of the last change."""
        return self.size, self.pin


class ObjectStore:
    """Objects of any store, by URL, through the fetcher of this process and its cache folder.

    The fetcher is a process that starts with the first request. Processes that this one forks, or that get a
    pickled copy, ask the same fetcher. Where it has ended, the first process that asks starts another one. With
    explicit storage options only the process that got them, and processes forked from it, can do that.

    Threads and processes: all may share it. A forked process has its own connections. A pickled copy holds no
    secrets. The store is closed with its process, or when nobody refers to it any more.

    Args:
        options: where the cache is, and how stores are asked.

    Raises:
        ConfigError: the system has no Unix sockets.
    """

    def __init__(self, options: RemoteOptions | None = None) -> None:
        self.options = options or RemoteOptions()
        self._connections = FetcherConnections(self.options)
        self._count_delivery = _Delivery()

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (self.options, self._connections.address, self._connections.has_secrets)

    @property
    def cache(self) -> str:
        """Path of the cache folder."""
        return str(self.options.folder)

    def look(self, objects: Sequence[str], sharers: str | None = None) -> list[ObjectInfo]:
        """Return the descriptions that stores have of objects, in the order asked; requests run side by side.

        Args:
            objects: URLs of the objects.
            sharers: a name; all calls with it may get the same answer, in any process; None: the stores are asked
                again.

        Raises:
            ShardError: an object is missing, may not be read, or no answer came.
            ConfigError: a URL has another scheme, or obstore is not installed; or a server sends neither an ETag nor a
                time, and the options do not trust the size alone.
        """
        for url in objects:
            urls.split(url)
        reply, _ = self.ask({"op": "look", "urls": list(objects), "sharers": sharers})
        return [ObjectInfo(url, *found) for url, found in zip(objects, reply["objects"], strict=True)]

    def read_small(self, url: str) -> bytes | None:
        """Return the content of an object of a few MB at most, which is not cached; None: there is no object.

        Raises:
            RefusedError: the object may not be read.
            ShardError: the object is too large, or no answer came.
        """
        return self.read_versioned(url)[0]

    def read_versioned(self, url: str) -> tuple[bytes | None, bool]:
        """Return the result of `read_small`, and whether the answer, if there was one, tells versions apart."""
        urls.split(url)
        reply, content = self.ask({"op": "read_small", "url": url})
        if reply["found"]:
            return content, reply["is_versioned"]
        if reply["refused"] is not None:
            raise RefusedError(reply["refused"])
        return None, True

    def read_range(self, url: str, stamp: Stamp, start: int, stop: int) -> bytes:
        """Return bytes start..stop-1 of an object, which must have a stamp; for few bytes, which are not cached.

        Raises:
            ShardError: the object is missing, changed, or cannot be read.
        """
        part = {"url": url, "stamp": stamp, "range": [start, stop]}
        reply, body = self.ask({"op": "get", "parts": [part], "is_direct": True})
        (content,) = answers(reply["answers"], body)
        if isinstance(content, TfdsTorchError):
            raise content
        self.count(len(content or b""))
        return content or b""

    def write_small(self, url: str, content: bytes) -> None:
        """Write an object of a few MB at most; an existing object is replaced.

        Raises:
            ShardError: the object may not be written.
        """
        urls.split(url)
        self.ask({"op": "write_small", "url": url}, content)

    def folders(self, url: str) -> list[str]:
        """Return the names of the folders right below a URL, sorted.

        Where a key below is not a path, only names from "0" on are returned, as far as that helps.

        Raises:
            UnlistedError: the folders cannot be listed, though they may exist.
            ShardError: no answer came.
            ConfigError: the URL is that of a plain web server, which does not list its files.
        """
        scheme = urls.split(url).scheme
        if scheme not in urls.LISTED_SCHEMES:
            raise ConfigError(
                f"{urls.without_secrets(url)} cannot be listed: a plain web server does not say what it has. Name the "
                f"dataset with its configuration and version, such as name/config:1.0.0."
            )
        reply, _ = self.ask({"op": "folders", "url": url})
        if reply["names"] is None:
            raise UnlistedError(reply["reason"])
        return list(reply["names"])

    def fetch_ahead(self, objects: Sequence[str], stamps: Sequence[Stamp]) -> None:
        """Start to fetch objects into the cache as wholes, in this order, after urgent bytes; return at once."""
        files = [
            {"url": url, "stamp": stamp, "blocks": [[0, stamp[0], []]]}
            for url, stamp in zip(objects, stamps, strict=True)
        ]
        self.tell({"op": "advise", "files": files, "is_beginning": False})

    def cut(self, url: str, stamp: Stamp, cuts: Sequence[int], total: int | None = None) -> None:
        """Cut an object that lies in the cache as a whole, as one block 0..size, into blocks; nothing is fetched.

        The object stays a whole where the cache has room for `total` bytes.

        Args:
            url: the object.
            stamp: stamp of the object.
            cuts: offsets in bytes at which the blocks begin, 0 first, the size of the object last.
            total: bytes of all objects that are read together; None: the object is cut in any case.
        """
        self.ask({"op": "cut", "url": url, "stamp": stamp, "cuts": [int(cut) for cut in cuts], "total": total})

    def stats(self) -> dict[str, float]:
        """Return the counts of the fetcher since it started, and of the processes that ask it.

        `requests`, `retries`, `bytes_fetched`, `bytes_delivered`, `waited_s` (of readers, for the network),
        `blocks_cached` (fetched into the cache), `blocks_removed`.
        """
        reply, _ = self.ask({"op": "stats"})
        return dict(reply["counts"])

    def network_stats(self) -> NetworkStats:
        """Return the counts of `stats` that are about the network."""
        counts = self.stats()
        return NetworkStats(**{one.name: counts[one.name] for one in fields(NetworkStats)})  # type: ignore[arg-type]

    def look_ahead(self, objects: Sequence[str], sharers: str) -> None:
        """Start to ask stores about objects, so that `look` finds the answers; return at once."""
        self.tell({"op": "look_ahead", "urls": list(objects), "sharers": sharers})

    def start(self) -> None:
        """Start the fetcher now, so that the first read does not wait for it."""
        self.ask({"op": "hello"})

    def begin(self) -> None:
        """Start the fetcher in the background."""
        self._connections.begin()

    def close(self) -> None:
        """End the fetcher, where this process started it; the next request starts another one."""
        self._connections.close()

    def ask(self, message: Message, body: bytes = b"") -> tuple[Message, bytes]:
        """Return the fetcher's answer, or raise the error that it reports. For the modules of this folder."""
        return self._connections.ask(message | self._count_delivery.take(), body)

    def tell(self, message: Message, *, starts: bool = True) -> None:
        """Send a message that needs no answer, even if a fetcher must start for it. For the modules of this folder."""
        self._connections.tell(message | self._count_delivery.take(), starts=starts)

    def count(self, num_bytes: int, waited_s: float = 0.0) -> None:
        """Count bytes that a reader got; the fetcher is told with the next message."""
        self._count_delivery.add(num_bytes, waited_s)
        if waited_s:
            add_wait(waited_s)


class _Delivery:
    """Bytes that readers of this process got, and seconds that they waited, since the fetcher was last told."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._num_bytes, self._waited_s = 0, 0.0

    def add(self, num_bytes: int, waited_s: float) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            self._waited_s += waited_s

    def take(self) -> Message:
        with self._lock:
            num_bytes, waited_s = self._num_bytes, self._waited_s
            self._num_bytes, self._waited_s = 0, 0.0
        return {"delivered": num_bytes, "waited_s": waited_s} if num_bytes or waited_s else {}


def _copy(options: RemoteOptions, address: str, has_secrets: bool) -> ObjectStore:
    """Return the store that a pickled one stands for."""
    store = ObjectStore(options)
    store._connections = FetcherConnections(options, address, lacks_secrets=has_secrets)
    return store
