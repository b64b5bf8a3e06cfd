"""Scans of shards for an index: several files at once."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from io import FileIO
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol, TypeVar, cast

from tfds_torch.errors import ShardError
from tfds_torch.runtime.progress import shown_progress
from tfds_torch.storage.network import FetchedBytes, Network
from tfds_torch.storage.open_files import Stamp, difference, stamp_of
from tfds_torch.storage.shard_errors import PREPARE_AGAIN, shard_status, unreadable

# Cold disks answer several requests at once; more threads only contend for the interpreter.
_NUM_THREADS = 8
_GRACE_S = 1.0

_Found = TypeVar("_Found")
Advance = Callable[[int], object]


class ShardFile(Protocol):
    """A shard that is scanned: a `FileIO`, or a reader of an object with the same methods."""

    def seek(self, offset: int, /) -> int:
        """Move to an offset in bytes."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer where the file ends."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read the next bytes into memory; return how many, 0 where the file ends."""


class RemoteShardFile(ShardFile, Protocol):
    """A shard that is not a file of this machine."""

    @property
    def size(self) -> int:
        """Size of the shard, in bytes."""


def size_of(file: ShardFile) -> int:
    """Return the number of bytes of a shard."""
    return os.fstat(file.fileno()).st_size if isinstance(file, FileIO) else cast(RemoteShardFile, file).size


def expect_jumps(file: ShardFile) -> None:
    """Tell the system that little of a shard will be read, so that it reads nothing ahead."""
    if isinstance(file, FileIO) and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)


class _StoppedError(Exception):
    """Raised in the scans of other files after an error or Ctrl-C."""


def scan_shards(
    scan: Callable[[int, Advance], _Found], sizes: Sequence[int], dataset: str, networks: Collection[Network] = ()
) -> list[_Found]:
    """Scan every shard; the first error that is found, or Ctrl-C, ends all scans.

    Args:
        scan: function: number of a shard, and a function to call with the offset reached, in bytes -> its result.
        sizes: size of each shard, in bytes.
        dataset: name of the dataset, for messages.
        networks: networks over which the shards come; empty where they are local.

    Returns:
        The results in the order of the shards.
    """
    stop = threading.Event()
    reached, num_bytes, fetched = [0] * len(sizes), sum(sizes), FetchedBytes(networks)

    def count_done() -> int:
        # A remote shard is reached as a whole: fetched bytes show that it is on its way.
        return max(sum(reached), min(fetched.count(), num_bytes))

    def advance(place: int, offset: int) -> None:
        if stop.is_set():
            raise _StoppedError
        reached[place] = offset

    scans: list[Future[_Found]] = [Future() for _ in sizes]
    places = SimpleQueue[int]()
    for place in range(len(sizes)):
        places.put(place)

    def work() -> None:
        with contextlib.suppress(Empty):
            while not stop.is_set():
                place = places.get_nowait()
                try:
                    scans[place].set_result(scan(place, partial(advance, place)))
                except BaseException as error:
                    scans[place].set_exception(error)

    threads = [Thread(target=work, name="tfds_torch-index", daemon=True) for _ in sizes[:_NUM_THREADS]]
    for thread in threads:
        thread.start()
    try:
        with shown_progress(f"indexing {dataset}", num_bytes, count_done, is_bytes=True):
            wait(scans, None, FIRST_EXCEPTION)
    finally:
        stop.set()
        ends_at = time.monotonic() + _GRACE_S
        for thread in threads:  # Ctrl-C does not wait for a thread that waits for a network.
            thread.join(max(0.0, ends_at - time.monotonic()))
    failures = [error for scan in scans if scan.done() and (error := scan.exception())]
    for error in failures:
        if not isinstance(error, _StoppedError):
            raise error
    return [scan.result() for scan in scans]


@contextlib.contextmanager
def open_shard(
    path: str | os.PathLike[str], stamp: Stamp | None = None, remedy: str = PREPARE_AGAIN
) -> Iterator[FileIO]:
    """Open a shard to be scanned; compare it with its stamp now and at the end of the scan.

    Otherwise the index of another file would be used from then on.

    Args:
        path: a local file.
        stamp: size in bytes and modification time in ns that the shard must have; None: any shard is accepted.
        remedy: advice for a missing file, a sentence.

    Raises:
        ShardError: the file is missing, is not a regular one, cannot be read, or is not the one of the stamp.
    """
    shard_status(path, remedy)
    try:
        with Path(path).open("rb", buffering=0) as file:
            _check_stamp(path, file, stamp)
            yield file
            _check_stamp(path, file, stamp)
    except OSError as error:
        raise unreadable(path, error, remedy) from error


def _check_stamp(path: str | os.PathLike[str], file: FileIO, stamp: Stamp | None) -> None:
    changed = None if stamp is None else difference(stamp, stamp_of(os.fstat(file.fileno())))
    if changed is not None:
        raise ShardError(
            f"The shard file {path} changed while it was being indexed: {changed}. Start again with files that "
            f"no process writes to."
        )
