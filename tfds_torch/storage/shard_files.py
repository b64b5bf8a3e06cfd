"""ShardFiles: the place of a source's files; the differences between this machine and an object store are here."""

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
"""Position of a file -> int64 [k + 1], offsets of the blocks that are fetched as wholes; 0 first, the size last."""


class RangeReader(Protocol):
    """Reads any part of several files, which are named by their positions; see OpenFiles."""

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return these bytes of a file; fewer only where the file ends."""

    def read_all(self, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yield the bytes of several spans, as `read` returns them; remote ones are fetched side by side."""

    def advise_ranges(self, find: Callable[[], ReadRanges]) -> None:
        """Ask for ranges that will be read soon; return at once."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead, where files are remote; see RemoteFiles."""

    def changed(self, file: int) -> str | None:
        """Return how a file differs from its stamp, as a clause, or None."""

    def discard(self, file: int, offset: int) -> bool:
        """Remove the damaged block of an offset from the cache, once; return whether reading it again may help."""

    def close(self) -> None:
        """Close every file; reading afterwards is an error."""


class HeadReader(Protocol):
    """Reads small parts of one file, whose position is 0."""

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return these bytes of the file; fewer only where the file ends."""

    def close(self) -> None:
        """Close the file."""


class Mapped(Protocol):
    """A file that is mapped, or read as if it were mapped; see MappedFile."""

    def check(self) -> FileState:
        """Return the state of the file; a state that differs from the last one means that the file was written to."""

    def part(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return bytes start..stop-1; fewer where the file ends."""

    def gathered(self, starts: Int64Array, num_bytes: int) -> tuple[NDArray[np.uint8], Int64Array]:
        """Return memory, uint8, that holds pieces of one size, and where each piece begins in it.

        Args:
            starts: int64 [n], where each piece begins in the file, in bytes.
            num_bytes: size of each piece, in bytes.
        """

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file, fewer where it was cut."""

    def advise(self, starts: Int64Array, sizes: Int64Array) -> None:
        """Ask for pieces that will be read soon, int64 [n] both, without waiting for them."""

    def follow(self, schedule: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetch the blocks of an order's next windows ahead, where the file is remote; see RangeReader."""

    def discard(self, start: int, stop: int) -> bool:
        """Remove damaged bytes from the cache, once; return whether reading them again may help."""

    def find(self, content: bytes, start: int, stop: int) -> int:
        """Return where content first begins among bytes start..stop-1; -1: nowhere."""

    def give_back(self) -> None:
        """Let the system take back the memory of all bytes that were read so far."""


class ShardFiles(Protocol):
    """Access to files on this machine or in an object store. It can be pickled."""

    @property
    def are_local(self) -> bool:
        """Whether the files lie in this machine's file system."""

    def obstacle(self, paths: Sequence[str]) -> str | None:
        """Return why parts of files cannot be read, as a clause; None: they can."""

    def stamps(self, paths: Sequence[str]) -> Sequence[Stamp]:
        """Return size and version of each file; a version is the modification time in ns, or a hash of ETag and time.

        Raises:
            ShardError: a file is missing, or cannot be looked at.
        """

    def look_ahead(self, paths: Iterable[str]) -> None:
        """Start to look at remote files that will be read soon; return at once.

        Raises:
            ConfigError: the files are known to be unreadable with these options.
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
        """Return a reader of files that must have these stamps.

        Args:
            paths: the files.
            stamps: size in bytes and version of each file.
            cuts: blocks of remote files; None: blocks of one size.
            remedy: advice for a missing file, a sentence.
            has_checksums: whether the caller compares the bytes with the format's own checksums.
        """

    def scan(
        self, path: str, stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN
    ) -> AbstractContextManager[ShardFile]:
        """Open a file that is read from its beginning to its end; see `open_shard`."""

    def cut(self, path: str, stamp: Stamp, cuts: Int64Array, total: int | None = None) -> None:
        """Cut a file that was scanned into blocks, so that a remote file need not be fetched again.

        Args:
            path: the file.
            stamp: stamp of the file.
            cuts: offsets in bytes at which the blocks begin, 0 first, the size of the file last.
            total: bytes of all files that are read together: where there is room for all, the file may stay a whole.
                None: each block is compared with its own checksum, and the file is cut in any case.
        """

    def read_index(self, path: str, kind: str = "") -> bytes | None:
        """Return the index of a kind that lies beside a remote file; None: there is no such index."""

    def open_head(self, path: str, stamp: Stamp) -> HeadReader:
        """Open a file that must have a stamp, to read little of it: the whole file is not fetched."""

    def map(self, path: str, stamp: Stamp, cuts: Cuts | None = None) -> Mapped:
        """Return a file that must have a stamp, to be read in place; for `cuts` see `open`."""

    @property
    def networks(self) -> Collection[Network]:
        """The networks over which the files come; empty: the files lie on this machine."""

    def are_streamed(self, paths: Sequence[str]) -> bool:
        """Return whether tensorflow may be able to stream the files."""

    def block_records(self, mean_example_bytes: int) -> int | None:
        """Return how many neighbouring examples are best read together; None: any order is as good."""


class LocalFiles:
    """Files of this machine. A URL among them can at most be read by tensorflow."""

    are_local = True
    networks: Collection[Network] = ()

    def obstacle(self, paths: Sequence[str]) -> str | None:
        """Return the reason why parts of files cannot be read: a file is remote."""
        remote = next((path for path in paths if not is_local(path)), None)
        return None if remote is None else f"{remote} is remote"

    def stamps(self, paths: Sequence[str]) -> tuple[Stamp, ...]:
        """Return size and modification time of each file."""
        return tuple(stamp_of(shard_status(path)) for path in paths)

    def look_ahead(self, paths: Iterable[str]) -> None:
        """Do nothing: a look at a local file takes no time."""

    def open(
        self,
        paths: Sequence[str],
        stamps: Sequence[Stamp],
        cuts: Cuts | None = None,
        remedy: str = PREPARE_AGAIN,
        *,
        has_checksums: bool = False,
    ) -> OpenFiles:
        """Return a reader of files; see ShardFiles."""
        return OpenFiles(paths, stamps, remedy=remedy)

    def scan(
        self, path: str, stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN
    ) -> AbstractContextManager[ShardFile]:
        """Open a file; see `open_shard`."""
        return open_shard(path, stamp, remedy)

    def cut(self, path: str, stamp: Stamp, cuts: Int64Array, total: int | None = None) -> None:
        """Do nothing: local files have no blocks."""

    def read_index(self, path: str, kind: str = "") -> None:
        """Return None: the indices of local files are kept in the user's cache folder."""

    def open_head(self, path: str, stamp: Stamp) -> OpenFiles:
        """Open a file; see ShardFiles."""
        return OpenFiles([path], [stamp])

    def map(self, path: str, stamp: Stamp, cuts: Cuts | None = None) -> MappedFile:
        """Return a mapped file."""
        return MappedFile(path, stamp)

    def are_streamed(self, paths: Sequence[str]) -> bool:
        """Return True."""
        return True

    def block_records(self, mean_example_bytes: int) -> None:
        """Return None: random reads are as good."""


LOCAL = LocalFiles()


def file_name(path: str) -> str:
    """Return the name of a file by its path or URL."""
    return os.path.basename(path)


def read_beside(files: ShardFiles, path: str, index: IndexCache[_Index], kind: str = "") -> _Index | None:
    """Return the index that lies beside a file; None: there is no index, or it cannot be used, which is logged.

    Args:
        files: where the file lies.
        path: its path or URL.
        index: reads the index.
        kind: kind of the index, where a file has several.
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
    """Remove the damaged blocks of bytes start..stop-1 from the cache; see `RangeReader.discard`."""
    begin = files.discard(file, start)
    return files.discard(file, max(start, stop - 1)) or begin


def schedule_of(
    windows: Iterable[ExampleRanges], blocks_of: Callable[[int, int], Iterable[tuple[int, int]]]
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield windows of an order for `RangeReader.follow`: their number, and (file, block among its cuts).

    Args:
        windows: ranges of examples; see `Source.follow`.
        blocks_of: function: a range start..stop-1 -> the blocks in which it lies.
    """
    for number, (start, stop) in enumerate(windows):
        ranges = zip(start.tolist(), stop.tolist(), strict=True)
        yield number, list(dict.fromkeys(block for one in ranges for block in blocks_of(*one)))
