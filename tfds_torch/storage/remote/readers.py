"""Readers: which windows of their orders the processes of this fetcher read, and which blocks they still need."""

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import psutil

from tfds_torch.errors import ConfigError
from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.layout import is_plain
from tfds_torch.storage.remote.stored_blocks import disk_bytes

_MIB = 1 << 20


@dataclass
class Reader:
    """One pass of one process over an order.

    Attributes:
        pid: the process.
        total: size of all its objects, in bytes.
        objects: folders of all its objects.
        windows: number of a window that was announced and is not dealt yet -> its blocks.
        window_bytes: size of the largest window so far, in bytes.
        window_on_disk: bytes that the blocks of that window take on the disk.
        block_on_disk: bytes that the largest block so far takes on the disk.
    """

    pid: int
    total: int
    objects: frozenset[str]
    windows: dict[int, list[BlockKey]] = field(default_factory=dict)
    window_bytes: int = 0
    window_on_disk: int = 0
    block_on_disk: int = 0


@dataclass(frozen=True)
class Needs:
    """The blocks and objects that readers need.

    Attributes:
        distances: block -> number of windows, not dealt yet, before the block's window; the least number of all
            readers.
        objects: folders of the objects that are read.
        kept_part: the part of the blocks that stays between epochs.
    """

    distances: Mapping[BlockKey, int]
    objects: Set[str]
    kept_part: float


class Readers:
    """The readers of one fetcher.

    Args:
        max_bytes: most bytes of the cache.
        connections: blocks that may be in flight at a time.
        page: bytes to which the disk rounds up the sizes of files.
    """

    def __init__(self, max_bytes: int, connections: int, page: int = 4096) -> None:
        self.max_bytes, self._connections, self._page = max_bytes, connections, page
        self._readers: dict[str, Reader] = {}
        self._num_needed: dict[BlockKey, int] = {}
        self._needs: tuple[int, Needs] | None = None
        self.version = 0
        """A number that changes with every change of the readers."""

    def begin(self, name: str, pid: int, total: int, objects: Iterable[str]) -> None:
        """Add a reader."""
        self.leave(name)
        self._readers[name] = Reader(pid, total, frozenset(objects))
        self.version += 1

    def is_known(self, name: str) -> bool:
        """Return whether a reader was added, and is still there."""
        return name in self._readers

    def announce(self, name: str, window: int, blocks: Sequence[BlockKey]) -> None:
        """Note the next window of a reader."""
        reader = self._readers.get(name)
        if reader is None or window in reader.windows:
            return
        reader.windows[window] = list(blocks)
        for key in blocks:
            self._num_needed[key] = self._num_needed.get(key, 0) + 1
        on_disk = [disk_bytes(start, stop, self._page) for _, start, stop in blocks]
        sizes = sum(stop - start for _, start, stop in blocks), sum(on_disk)
        reader.window_bytes, reader.window_on_disk = max((reader.window_bytes, reader.window_on_disk), sizes)
        reader.block_on_disk = max([reader.block_on_disk, *on_disk])
        self.version += 1

    def note_dealt(self, name: str, window: int) -> None:
        """Note that a reader has dealt a window and those before it."""
        reader = self._readers.get(name)
        if reader is not None:
            for number in [one for one in reader.windows if one <= window]:
                self._release(reader.windows.pop(number))
            self.version += 1

    def leave(self, name: str) -> None:
        """Remove a reader."""
        reader = self._readers.pop(name, None)
        if reader is not None:
            for blocks in reader.windows.values():
                self._release(blocks)
            self.version += 1

    def leave_dead(self) -> None:
        """Remove the readers whose process has ended."""
        for name, reader in list(self._readers.items()):
            if not psutil.pid_exists(reader.pid):
                self.leave(name)

    def is_needed(self, key: BlockKey) -> bool:
        """Return whether a window that is not dealt yet has a block."""
        return key in self._num_needed

    def needs(self) -> Needs:
        """Return the needs of all these readers."""
        if self._needs is None or self._needs[0] != self.version:
            distances: dict[BlockKey, int] = {}
            for reader in self._readers.values():
                for distance, window in enumerate(sorted(reader.windows)):
                    for key in reader.windows[window]:
                        distances[key] = min(distance, distances.get(key, distance))
            objects = frozenset[str]().union(*(reader.objects for reader in self._readers.values()))
            self._needs = self.version, Needs(distances, objects, self._kept_part())
        return self._needs[1]

    def _kept_part(self) -> float:
        """Return the part of all blocks that stays in the cache between epochs: current windows leave room for it."""
        by_objects = {reader.objects: reader for reader in self._readers.values()}
        total = sum(map(_total_on_disk, by_objects.values()))
        working = sum(map(self._working_bytes, by_objects.values()))
        return 1.0 if total <= self.max_bytes else max(0.0, 0.97 * (self.max_bytes - working) / total)

    def _working_bytes(self, reader: Reader) -> int:
        return 2 * reader.window_on_disk + self._connections * reader.block_on_disk

    def check(self, name: str) -> None:
        """Check that the cache holds two windows of a reader and the blocks in flight; of plain files, one window.

        Raises:
            ConfigError: the cache is too small.
        """
        reader = self._readers[name]
        working, window = self._working_bytes(reader), reader.window_on_disk
        found = f"max_bytes={self.max_bytes} ({self.max_bytes // _MIB} MiB)"
        if any(map(is_plain, reader.objects)):
            if self.max_bytes < window:
                raise ConfigError(
                    f"The cache is too small for this order: {found}, and the files of one window, which are fetched "
                    f"whole, are {window} bytes ({-(-window // _MIB)} MiB). Raise max_bytes of RemoteOptions, or "
                    f"block_records of ReadOptions to the examples of a file, or lower its shuffle_buffer."
                )
        elif self.max_bytes < min(working, _total_on_disk(reader)):
            raise ConfigError(
                f"The cache is too small for this order: {found}, and two windows of {window} bytes with "
                f"{self._connections} blocks of {reader.block_on_disk} in flight are {working} ({-(-working // _MIB)} "
                f"MiB). Raise max_bytes of RemoteOptions, or lower its connections, or shuffle_buffer or block_records "
                f"of ReadOptions."
            )

    def _release(self, blocks: Iterable[BlockKey]) -> None:
        for key in blocks:
            left = self._num_needed.get(key, 0) - 1
            if left > 0:
                self._num_needed[key] = left
            else:
                self._num_needed.pop(key, None)


def _total_on_disk(reader: Reader) -> int:
    """Return the bytes that all blocks of a reader take on the disk, estimated from its largest window."""
    return reader.total * reader.window_on_disk // max(1, reader.window_bytes)


def is_kept(key: BlockKey, part: float) -> bool:
    """Return whether a block belongs to the part that stays between epochs, which is the same on every machine."""
    folder, start, _ = key
    name = os.path.basename(folder)
    mixed = (int(name[:16], 16) ^ (start * 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 11) / (1 << 53) < part
