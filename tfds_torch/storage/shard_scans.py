"""Scans of shards for an index: several files at once, with a progress bar when it takes long."""

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
from typing import Any, Protocol, TypeVar, cast

from tfds_torch.errors import ShardError
from tfds_torch.runtime.shown_bars import can_show_bar
from tfds_torch.storage.network import Network
from tfds_torch.storage.network_rate import NetworkRate
from tfds_torch.storage.open_files import Stamp, difference, stamp_of
from tfds_torch.storage.shard_errors import PREPARE_AGAIN, shard_status, unreadable

# Cold disks answer several requests at once; more threads only contend for the interpreter.
_NUM_THREADS = 8
_BAR_AFTER_S = 2.0
_BAR_PERIOD_S = 0.1
_GRACE_S = 1.0

_Found = TypeVar("_Found")
Advance = Callable[[int], object]


class ShardFile(Protocol):
    """A shard that is scanned: a `FileIO`, or what reads an object in the same way."""

    def seek(self, offset: int, /) -> int:
        """Goes on at an offset in bytes."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, fewer where the file ends."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Reads the next bytes into memory; returns how many, 0 where the file ends."""


class RemoteShardFile(ShardFile, Protocol):
    """A shard that is no file of this machine."""

    @property
    def size(self) -> int:
        """Its bytes."""


def size_of(file: ShardFile) -> int:
    """Returns the bytes of a shard."""
    return os.fstat(file.fileno()).st_size if isinstance(file, FileIO) else cast(RemoteShardFile, file).size


def expect_jumps(file: ShardFile) -> None:
    """Tells the system that little of a shard will be read, so that it reads nothing ahead."""
    if isinstance(file, FileIO) and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)


class _StoppedError(Exception):
    """Ends the scans of other files after an error or Ctrl-C."""


def scan_shards(
    scan: Callable[[int, Advance], _Found], sizes: Sequence[int], dataset: str, networks: Collection[Network] = ()
) -> list[_Found]:
    """Scans every shard; the first error that is found, or Ctrl-C, ends all scans.

    Args:
        scan: number of a shard, and a function to call with the offset in bytes that was reached -> its result.
        sizes: bytes of each shard, for the progress bar.
        dataset: name of the dataset, for messages.
        networks: what the shards come through; the bar shows what was fetched. None: they are local.
    """
    stop = threading.Event()
    reached = [0] * len(sizes)

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
        _wait(scans, reached, sum(sizes), dataset, networks)
    finally:
        stop.set()
        ends_at = time.monotonic() + _GRACE_S
        for thread in threads:  # One that waits for a network ends with this process: Ctrl-C must not wait for it.
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
    """Opens a shard to be scanned. It is compared with its stamp now and at the end of the scan.

    An index that was made of another file than the stamp is of would be believed from then on.

    Args:
        path: a local file.
        stamp: size in bytes and modification time in ns that the shard must have; None: any.
        remedy: what to do about a file that is not there, a sentence.

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


def _wait(
    scans: Sequence[Future[Any]],
    reached: Sequence[int],
    num_bytes: int,
    dataset: str,
    networks: Collection[Network],
) -> None:
    """Returns when every scan is done, or one has failed."""
    has_bar = can_show_bar()
    with NetworkRate(networks if has_bar else ()) as network:
        _, waiting = wait(scans, _BAR_AFTER_S if has_bar else None, FIRST_EXCEPTION)
        if waiting and not any(scan.done() and scan.exception() for scan in scans):
            # A remote shard is reached as a whole: what was fetched shows that it is on its way.
            _show(waiting, lambda: max(sum(reached), min(network.fetched_bytes, num_bytes)), num_bytes, dataset)


def _show(waiting: Collection[Future[Any]], reached: Callable[[], int], num_bytes: int, dataset: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"indexing {dataset}", total=num_bytes)
        while waiting:
            done, waiting = wait(waiting, _BAR_PERIOD_S, FIRST_EXCEPTION)
            bar.update(task, completed=reached())
            if any(scan.exception() for scan in done):
                return
