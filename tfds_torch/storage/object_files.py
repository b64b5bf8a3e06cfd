"""ObjectFiles: shards that are objects of a store."""

import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import FileState, ProcessLock, ReadRanges, Stamp
from tfds_torch.storage.remote.files import RemoteFiles
from tfds_torch.storage.remote.plain_files import PlainFiles
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.remote.urls import LISTED_SCHEMES, is_object_url, join, split
from tfds_torch.storage.shard_errors import PREPARE_AGAIN
from tfds_torch.storage.shard_files import Cuts, RangeReader, discard_range

_BLOCK_BYTES = 8 << 20
_HEAD_BYTES = 64 << 10  # Smaller requests take as long.
_READ_BY_TENSORFLOW = "gs://"
_MOST_LOOKED_AHEAD = 64  # The first batch needs only a few of more objects.
_INDEX_FOLDER = ".tfds_torch"
_logger = logging.getLogger(__name__)


def index_url(url: str, kind: str = "") -> str:
    """Return the URL of the index of an object: in a separate folder, so that nobody takes the index for data."""
    folder, _, name = url.rpartition("/")
    return join(folder, _INDEX_FOLDER, f"{name}.{kind}.index" if kind else f"{name}.index")


class ObjectFiles:
    """Access to shards that are objects; see ShardFiles. Copies share the store and its answers about the objects.

    Args:
        store: fetches the objects.
        is_doubtful: whether their server did not send anything that tells versions apart, for another object.
    """

    are_local = False

    def __init__(self, store: ObjectStore, *, is_doubtful: bool = False) -> None:
        self.store, self._sharers, self._is_doubtful = store, secrets.token_hex(8), is_doubtful
        self._scans = _Scans(store.options.max_bytes)

    def obstacle(self, paths: Sequence[str]) -> str | None:
        """Return the reason why parts of files cannot be read, a clause: a file is not an object."""
        other = next((path for path in paths if not is_object_url(path)), None)
        return None if other is None else f"{other} is not an object of a store"

    def stamps(self, paths: Sequence[str]) -> "ObjectStamps":
        """Return size and hash of ETag and time of each object; the store is asked when they are first needed."""
        return ObjectStamps(self.store, paths, self._sharers)

    def look_ahead(self, paths: Iterable[str]) -> None:
        """Ask the stores for the stamps of a few objects; return at once, except where a server is doubtful.

        Raises:
            ConfigError: the server sends nothing that tells versions of these objects apart, either.
        """
        objects = list(dict.fromkeys(paths))
        if len(objects) <= _MOST_LOOKED_AHEAD:
            self.store.look_ahead(objects, self._sharers)
        if self._is_doubtful and objects:
            with suppress(ShardError):  # Reading reports it.
                self.store.look(objects[:1], self._sharers)

    def open(
        self,
        paths: Sequence[str],
        stamps: Sequence[Stamp],
        cuts: Cuts | None = None,
        remedy: str = PREPARE_AGAIN,
        *,
        has_checksums: bool = False,
    ) -> RemoteFiles:
        """Return a reader of objects, which are fetched in blocks; see ShardFiles."""
        return RemoteFiles(self.store, paths, stamps, cuts, verifies=not has_checksums)

    def open_plain(self, paths: Sequence[str], stamps: Sequence[Stamp]) -> PlainFiles:
        """Return objects that are fetched as wholes, as files for a package that opens paths."""
        return PlainFiles(self.store, paths, stamps)

    def turn(self, size: int) -> AbstractContextManager[None]:
        """Wait until half of the cache has room for an object that is read to its end within the `with` statement."""
        return self._scans.begin(size)

    @contextmanager
    def scan(self, path: str, stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN) -> Iterator["ObjectFile"]:
        """Open an object; the whole object is fetched, as one block, which `cut` divides."""
        (size, version) = stamp if stamp is not None else self.stamps([path])[0]
        with self.turn(size):
            reader = self.open([path], [(size, version)], lambda _: np.array([0, size], np.int64), remedy)
            try:
                # Bytes in the cache are read as they are asked for; others in large pieces.
                is_there = not size or reader.fetch(0, 0)
                yield ObjectFile(reader, size, _HEAD_BYTES if is_there else _BLOCK_BYTES)
            finally:
                reader.close()

    def fetch_ahead(self, paths: Sequence[str], stamps: Sequence[Stamp]) -> None:
        """Start to fetch objects that will be scanned, as wholes and in this order; return at once."""
        self.store.fetch_ahead(paths, stamps)

    def cut(self, path: str, stamp: Stamp, cuts: Int64Array, total: int | None = None) -> None:
        """Cut an object that was fetched as a whole into blocks; nothing is fetched again. See ShardFiles."""
        self.store.cut(path, stamp, cuts.tolist(), total)

    def read_index(self, path: str, kind: str = "") -> bytes | None:
        """Return the index of a kind that lies beside an object; None: there is no such index, or it cannot be read."""
        try:
            return self.store.read_small(index_url(path, kind))
        except ShardError as error:
            _logger.info("The index beside %s is not used: %s", path, error)
            return None

    def write_index(self, path: str, content: bytes, kind: str = "") -> None:
        """Write an index of a kind beside an object; raise ShardError where that is not allowed."""
        url = index_url(path, kind)
        if split(url).scheme not in LISTED_SCHEMES:
            raise ShardError(f"{url} cannot be written: a web server takes no files.")
        self.store.write_small(url, content)

    def open_head(self, path: str, stamp: Stamp) -> "ObjectHead":
        """Open an object of which little is read; nothing of it is cached."""
        return ObjectHead(self.store, path, stamp)

    def map(self, path: str, stamp: Stamp, cuts: Cuts | None = None) -> "MappedObject":
        """Return an object whose parts are read as if it were a mapped file."""
        return MappedObject(self.open([path], [stamp], cuts), stamp)

    @property
    def networks(self) -> tuple[ObjectStore]:
        """The store."""
        return (self.store,)

    def are_streamed(self, paths: Sequence[str]) -> bool:
        """Return whether all files lie in Google Cloud Storage, which tensorflow reads by itself."""
        return all(path.startswith(_READ_BY_TENSORFLOW) for path in paths)

    def block_records(self, mean_example_bytes: int) -> int:
        """Return how many examples have about 8 MiB together."""
        return max(1, round(_BLOCK_BYTES / max(1, mean_example_bytes)))


class _Scans:
    """Scans of objects in this process: a scan begins when running scans leave it room in half of the cache.

    Otherwise scans would remove each other's objects before these are read to their end. Threads may share it.

    Args:
        max_bytes: most bytes of the cache; None: there is room for all objects.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._lock = ProcessLock()
        self._renew()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Scans, (self._max_bytes,)

    def _renew(self) -> None:
        self._process, self._num_bytes, self._changed = os.getpid(), 0, threading.Condition()

    @contextmanager
    def begin(self, size: int) -> Iterator[None]:
        """Wait until there is room for a scan, which ends with the `with` statement."""
        with self._lock:
            if self._process != os.getpid():  # The scans of the parent do not run in a forked child.
                self._renew()
        with self._changed:
            self._changed.wait_for(lambda: not self._num_bytes or self._has_room(size))
            self._num_bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._num_bytes -= size
                self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._max_bytes is None or self._num_bytes + size <= self._max_bytes // 2


class ObjectFile:
    """An object that is read like a file.

    Args:
        reader: reads the object, whose position is 0.
        size: size of the object, in bytes.
        read_bytes: number of bytes that are read at a time, at least.
    """

    def __init__(self, reader: RangeReader, size: int, read_bytes: int) -> None:
        self._reader, self._place, self.size, self._read_bytes = reader, 0, size, read_bytes
        self._window, self._window_at = b"", 0

    def seek(self, offset: int, /) -> int:
        """Move to an offset in bytes."""
        self._place = offset
        return offset

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into memory; return how many, fewer than asked where the object ends."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer where the object ends."""
        stop, parts = min(self._place + size, self.size), list[bytes]()
        while self._place < stop:
            at = self._place - self._window_at
            if not 0 <= at < len(self._window):
                self._window_at = self._place // self._read_bytes * self._read_bytes
                wanted = -(-(stop - self._window_at) // self._read_bytes) * self._read_bytes
                self._window, at = self._reader.read(0, self._window_at, wanted), self._place - self._window_at
                if at >= len(self._window):
                    break
            parts.append(self._window[at : stop - self._window_at])
            self._place += len(parts[-1])
        return b"".join(parts)


class ObjectHead:
    """Reads small parts of an object past the cache; parts that are near each other come by one request."""

    def __init__(self, store: ObjectStore, url: str, stamp: Stamp) -> None:
        self._store, self._url, self._stamp = store, url, stamp
        self._content, self._at = b"", 0

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return bytes of the object, whose position is 0; fewer where it ends."""
        stop = min(offset + size, self._stamp[0])
        if not self._at <= offset <= stop <= self._at + len(self._content):
            first = offset // _HEAD_BYTES * _HEAD_BYTES
            last = min(-(-stop // _HEAD_BYTES) * _HEAD_BYTES, self._stamp[0])
            self._content, self._at = self._store.read_range(self._url, self._stamp, first, last), first
        return self._content[offset - self._at : stop - self._at]

    def close(self) -> None:
        """Forget the bytes that were read."""
        self._content = b""


class ObjectStamps(Sequence[Stamp]):
    """Size and hash of ETag and time of each object; once found, a stamp does not change.

    Args:
        store: where the objects lie.
        urls: URLs of the objects.
        sharers: a name; all who use it get the same answers, in any process.
    """

    def __init__(self, store: ObjectStore, urls: Sequence[str], sharers: str) -> None:
        self._store, self._urls, self._sharers = store, urls, sharers
        self._found: dict[int, Stamp] = {}
        self._lock = ProcessLock()

    def __len__(self) -> int:
        return len(self._urls)

    @overload
    def __getitem__(self, place: int) -> Stamp: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Stamp]: ...

    def __getitem__(self, place: int | slice) -> Stamp | Sequence[Stamp]:
        places = range(len(self._urls))[place]
        if isinstance(places, range):
            self.look(places)
            return [self._found[one] for one in places]
        self.look([places])
        return self._found[places]

    def __iter__(self) -> Iterator[Stamp]:
        return iter(self[:])

    def __reduce__(self) -> tuple[Any, ...]:
        return _stamps, (self._store, self._urls, self._sharers, self._found)

    def look(self, places: Iterable[int]) -> None:
        """Ask for objects by their places, side by side, where their stamps are not known yet.

        Raises:
            ShardError: an object is missing, or may not be read.
        """
        with self._lock:
            unknown = [place for place in places if place not in self._found]
            if unknown:
                infos = self._store.look([self._urls[place] for place in unknown], self._sharers)
                self._found |= {place: info.stamp for place, info in zip(unknown, infos, strict=True)}


def _stamps(store: ObjectStore, urls: Sequence[str], sharers: str, found: dict[int, Stamp]) -> ObjectStamps:
    stamps = ObjectStamps(store, urls, sharers)
    stamps._found.update(found)
    return stamps


class MappedObject:
    """An object that is read as if it were mapped; parts that were read stay in memory. See MappedFile."""

    def __init__(self, reader: RangeReader, stamp: Stamp) -> None:
        self._reader, self._stamp = reader, stamp
        self._parts: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def check(self) -> FileState:
        """Return the only state of the object: when the object changes, its blocks cannot be fetched any more."""
        return self._stamp

    def part(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return bytes start..stop-1."""
        found = self._parts.get((start, stop))
        if found is None:
            self.advise(np.array([start], np.int64), np.array([stop - start], np.int64))  # Fetches all blocks at once.
            found = self._parts[start, stop] = np.frombuffer(self.read(start, stop - start), np.uint8)
        return found

    def gathered(self, starts: Int64Array, num_bytes: int) -> tuple[NDArray[np.uint8], Int64Array]:
        """Return a copy of pieces of one size, one behind the other, and where each begins."""
        spans = [(0, start, num_bytes) for start in starts.tolist()]
        pieces = b"".join(self._reader.read_all(spans)) or bytes(num_bytes)
        return np.frombuffer(pieces, np.uint8), np.arange(len(starts), dtype=np.int64) * num_bytes

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the object, fewer where it ends."""
        return self._reader.read(0, start, size)

    def advise(self, starts: Int64Array, sizes: Int64Array) -> None:
        """Fetch the blocks of pieces ahead; of the first blocks, the pieces themselves come first."""
        order = np.argsort(starts, kind="stable")
        first, last = starts[order], starts[order] + sizes[order]
        self._reader.advise_ranges(lambda: ReadRanges(np.zeros(len(first), np.int64), first, last))

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead; see RangeReader."""
        self._reader.follow(schedule)

    def discard(self, start: int, stop: int) -> bool:
        """Remove the blocks of damaged bytes from the cache, once, so that they are fetched again."""
        self._parts.clear()
        return discard_range(self._reader, 0, start, stop)

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Return where content first begins among bytes start..stop-1; -1: nowhere."""
        for (first, last), part in self._parts.items():
            if first <= start and stop <= last:
                place = part.tobytes().find(content, start - first, stop - first)
                return place if place < 0 else first + place
        return self.read(start, stop - start).find(content) + start if start < stop else -1

    def give_back(self) -> None:
        """Do nothing: parts that were read are used again."""
