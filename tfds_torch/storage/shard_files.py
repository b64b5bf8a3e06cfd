"""ShardFiles: where the files of a source lie; what is different between this machine and an object store is here."""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.storage.index_cache import IndexCache, UnusableIndexError
from tfds_torch.storage.network import Network
from tfds_torch.storage.open_files import FileState, MappedFile, OpenFiles, ReadRanges, Span, Stamp, stamp_of
from tfds_torch.storage.shard_errors import PREPARE_AGAIN, shard_status
from tfds_torch.storage.shard_scans import ShardFile, open_shard
from tfds_torch.storage.source import is_local

_logger = logging.getLogger(__name__)
_Index = TypeVar("_Index")
Cuts = Callable[[int], Int64Array]
"""Position of a file -> int64 [k + 1]: where its blocks begin, which are fetched as wholes; 0 first, its size last."""


class RangeReader(Protocol):
    """Reads any part of any of some files, which are named by their positions; see OpenFiles."""

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Returns these bytes of a file; fewer only where the file ends."""

    def read_all(self, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yields the bytes of several spans, as `read` returns them; far ones are fetched side by side."""

    def advise_ranges(self, find: Callable[[], ReadRanges]) -> None:
        """Asks for ranges that will be read soon; returns at once."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetches the blocks of an order's next windows ahead, where files are far away; see RemoteFiles."""

    def changed(self, file: int) -> str | None:
        """Returns how a file differs from its stamp, as a clause, or None."""

    def discard(self, file: int, offset: int) -> bool:
        """Takes the damaged block of an offset out of a cache, once; returns whether others may be read now."""

    def close(self) -> None:
        """Closes every file; reading afterwards is an error."""


class HeadReader(Protocol):
    """Reads little of one file, whose position is 0."""

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Returns these bytes of the file; fewer only where it ends."""

    def close(self) -> None:
        """Closes the file."""


class Mapped(Protocol):
    """A file that is read in place, or as if it were; see MappedFile."""

    def check(self) -> FileState:
        """Returns the state of the file; another one than before means that it was written to."""

    def part(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns bytes start..stop-1; fewer where the file ends."""

    def gathered(self, starts: Int64Array, num_bytes: int) -> tuple[NDArray[np.uint8], Int64Array]:
        """Returns memory, uint8, that holds pieces of one size, and where in it each begins.

        Args:
            starts: int64 [n], where each begins in the file.
            num_bytes: of each.
        """

    def read(self, start: int, size: int) -> bytes:
        """Returns bytes of the file, fewer where it was cut."""

    def advise(self, starts: Int64Array, sizes: Int64Array) -> None:
        """Asks for pieces, int64 [n] both, that will be read soon, and does not wait for them."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetches the blocks of an order's next windows ahead, where the file is far away; see RangeReader."""

    def discard(self, start: int, stop: int) -> bool:
        """Takes damaged bytes out of a cache, once; returns whether others may be read now."""

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Returns where content first begins among bytes start..stop-1; -1: nowhere."""

    def give_back(self) -> None:
        """Lets the system take back the memory of what was read so far."""


class ShardFiles(Protocol):
    """Where files lie. It can be pickled."""

    @property
    def are_local(self) -> bool:
        """Whether the files are of this machine's file system."""

    def obstacle(self, paths: Sequence[str]) -> str | None:
        """Returns why parts of files cannot be read, as a clause; None: they can."""

    def stamps(self, paths: Sequence[str]) -> Sequence[Stamp]:
        """Returns size and version of each file; a version is the modification time in ns, or a hash of ETag and time.

        Raises:
            ShardError: a file is missing, or cannot be looked at.
        """

    def look_ahead(self, paths: Iterable[str]) -> None:
        """Begins to look at files that are far away and will be read soon; returns at once.

        Raises:
            ConfigError: they are known not to be readable with these options.
        """

    def open(
        self,
        paths: Sequence[str],
        stamps: Sequence[Stamp],
        cuts: Cuts | None = None,
        remedy: str = PREPARE_AGAIN,
        *,
        has_checksums: bool = False,
    ) -> RangeReader:
        """Returns a reader of files that must have these stamps.

        Args:
            paths: the files.
            stamps: size and version of each.
            cuts: of files far away: their blocks; None: blocks of one size.
            remedy: what to do about a file that is not there, a sentence.
            has_checksums: whether the caller compares what it reads with checksums of its own.
        """

    def scan(
        self, path: str, stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN
    ) -> AbstractContextManager[ShardFile]:
        """Opens a file that is read from its begin to its end; see `open_shard`."""

    def cut(self, path: str, stamp: Stamp, cuts: Int64Array, total: int | None = None) -> None:
        """Takes the blocks of a file that was scanned: it need not be fetched again where it is far away.

        Args:
            path: the file.
            stamp: of it.
            cuts: offsets at which the blocks begin, 0 first, its size last.
            total: bytes of all files that are read together: where there is room for all, the file may stay as it is.
                None: its blocks are compared with checksums of their own, one by one, and it is divided in any case.
        """

    def read_index(self, path: str, kind: str = "") -> bytes | None:
        """Returns the index of a kind that lies beside a file that is far away; None: there is none."""

    def open_head(self, path: str, stamp: Stamp) -> HeadReader:
        """Opens a file that must have a stamp, of which little is read: it is not fetched for that."""

    def map(self, path: str, stamp: Stamp, cuts: Cuts | None = None) -> Mapped:
        """Returns a file that must have a stamp, to be read in place; cuts as `open`."""

    @property
    def networks(self) -> Collection[Network]:
        """What the files come through; empty: they are of this machine."""

    def are_streamed(self, paths: Sequence[str]) -> bool:
        """Whether tensorflow may be able to stream the files."""

    def block_records(self, mean_example_bytes: int) -> int | None:
        """Returns how many neighbouring examples are best read together; None: any order is as good."""


class LocalFiles:
    """Files of this machine. A URL among them is one that only tensorflow may be able to read."""

    are_local = True
    networks: Collection[Network] = ()

    def obstacle(self, paths: Sequence[str]) -> str | None:
        """Returns why parts of files cannot be read: one is remote."""
        remote = next((path for path in paths if not is_local(path)), None)
        return None if remote is None else f"{remote} is remote"

    def stamps(self, paths: Sequence[str]) -> tuple[Stamp, ...]:
        """Returns size and modification time of each file."""
        return tuple(stamp_of(shard_status(path)) for path in paths)

    def look_ahead(self, paths: Iterable[str]) -> None:
        """Does nothing: a look at a local file takes no time."""

    def open(
        self,
        paths: Sequence[str],
        stamps: Sequence[Stamp],
        cuts: Cuts | None = None,
        remedy: str = PREPARE_AGAIN,
        *,
        has_checksums: bool = False,
    ) -> OpenFiles:
        """Returns a reader of files; see ShardFiles."""
        return OpenFiles(paths, stamps, remedy=remedy)

    def scan(
        self, path: str, stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN
    ) -> AbstractContextManager[ShardFile]:
        """Opens a file; see `open_shard`."""
        return open_shard(path, stamp, remedy)

    def cut(self, path: str, stamp: Stamp, cuts: Int64Array, total: int | None = None) -> None:
        """Does nothing: local files have no blocks."""

    def read_index(self, path: str, kind: str = "") -> None:
        """Returns None: the indices of local files are kept in the user's cache folder."""

    def open_head(self, path: str, stamp: Stamp) -> OpenFiles:
        """Opens a file; see ShardFiles."""
        return OpenFiles([path], [stamp])

    def map(self, path: str, stamp: Stamp, cuts: Cuts | None = None) -> MappedFile:
        """Returns a mapped file."""
        return MappedFile(path, stamp)

    def are_streamed(self, paths: Sequence[str]) -> bool:
        """Returns True."""
        return True

    def block_records(self, mean_example_bytes: int) -> None:
        """Returns None: random reads are as good."""


LOCAL = LocalFiles()


def file_name(path: str) -> str:
    """Returns the name of a file by its path or URL."""
    return os.path.basename(path)


def read_beside(files: ShardFiles, path: str, index: IndexCache[_Index], kind: str = "") -> _Index | None:
    """Returns the index that lies beside a file; None: there is none, or it cannot be used, which is logged.

    Args:
        files: where the file lies.
        path: its path or URL.
        index: reads it.
        kind: of indices, where a file has several.
    """
    content = files.read_index(path, kind)
    if content is None:
        return None
    try:
        return index.from_bytes(content)
    except UnusableIndexError as error:
        _logger.warning("The index beside %s is not used: %s.", path, error)
        return None


def discard_range(files: RangeReader, file: int, start: int, stop: int) -> bool:
    """Takes the damaged blocks of bytes start..stop-1 out of a cache; see `RangeReader.discard`."""
    begin = files.discard(file, start)
    return files.discard(file, max(start, stop - 1)) or begin


def schedule_of(
    windows: Iterable[ExampleRanges], blocks_of: Callable[[int, int], Iterable[tuple[int, int]]]
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yields windows of an order as `RangeReader.follow` takes them: number, and (file, block among its cuts).

    Args:
        windows: ranges of examples; see `Source.follow`.
        blocks_of: a range start..stop-1 -> the blocks in which it lies.
    """
    for number, (start, stop) in enumerate(windows):
        ranges = zip(start.tolist(), stop.tolist(), strict=True)
        yield number, list(dict.fromkeys(block for one in ranges for block in blocks_of(*one)))
