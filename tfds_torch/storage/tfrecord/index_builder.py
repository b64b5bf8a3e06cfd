"""Scanning the shards of a split for their records: several files at once, with a progress bar when it takes long."""

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.tfrecord.framing import scan_offsets

# Cold disks answer several requests at once; more threads only contend for the interpreter.
_NUM_THREADS = 8
_BAR_AFTER_S = 2.0
_BAR_PERIOD_S = 0.1


class _StoppedError(Exception):
    """Ends the scans of other files after an error or Ctrl-C."""


def find_records(paths: Sequence[str], sizes: Sequence[int], counts: Sequence[int], dataset: str) -> Int64Array:
    """Reads the headers of every shard.

    Args:
        paths: local TFRecord files.
        sizes: of the files, in bytes, for the progress bar.
        counts: number of records that each file must hold.
        dataset: what the files belong to, for messages.

    Returns:
        int64 [sum of (count + 1)]: for each shard the offsets of its records, and its size.

    Raises:
        ShardError: a file is missing, cannot be read, or holds another number of records.
        CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
    """
    stop = threading.Event()
    reached = [0] * len(paths)

    def advance(place: int, offset: int) -> None:
        if stop.is_set():
            raise _StoppedError
        reached[place] = offset

    def scan(place: int) -> Int64Array:
        offsets = scan_offsets(paths[place], partial(advance, place))
        if len(offsets) - 1 != counts[place]:
            raise wrong_count(paths[place], len(offsets) - 1, counts[place], dataset)
        return offsets

    with ThreadPoolExecutor(min(_NUM_THREADS, max(1, len(paths))), "tfds_torch-index") as threads:
        scans = [threads.submit(scan, place) for place in range(len(paths))]
        try:
            _wait(scans, reached, sum(sizes), dataset)
        finally:
            stop.set()
            threads.shutdown(cancel_futures=True)
    failures = [error for scan in scans if not scan.cancelled() and (error := scan.exception())]
    for error in failures:
        if not isinstance(error, _StoppedError):
            raise error
    return np.concatenate([scan.result() for scan in scans]) if scans else np.empty(0, np.int64)


def _wait(scans: Sequence[Future[Int64Array]], reached: Sequence[int], num_bytes: int, dataset: str) -> None:
    """Returns when every scan is done, or one has failed."""
    _, waiting = wait(scans, _BAR_AFTER_S if sys.stderr.isatty() else None, FIRST_EXCEPTION)
    if not waiting or any(scan.done() and scan.exception() for scan in scans):
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"indexing {dataset}", total=num_bytes)
        while waiting:
            done, waiting = wait(waiting, _BAR_PERIOD_S, FIRST_EXCEPTION)
            bar.update(task, completed=sum(reached))
            if any(scan.exception() for scan in done):
                return
