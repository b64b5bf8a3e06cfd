"""ShardFile: a shard in the making, with its checksum; there whole or not at all."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c

from tfds_torch.runtime.atomic_file import AtomicFile
from tfds_torch.runtime.metrics import StageMetrics

_BLOCK_BYTES = 2**20


class WriteRefusedError(OSError):
    """The system refused to write the export's own file; any other OSError may come from reading the samples."""


@contextmanager
def refusals_named() -> Iterator[None]:
    """Raises a block's OSError as a WriteRefusedError; also the decorator of a function."""
    try:
        yield
    except OSError as error:
        raise WriteRefusedError(error.errno, error.strerror or str(error)) from error


class ShardFile:
    """A file that is written from its beginning to its end, beside its place; there whole or not at all.

    `ShardFolder` removes what killed writers leave. All methods but `discard` raise WriteRefusedError.

    Attributes:
        beside: where the file lies until `commit`.
    """

    @refusals_named()
    def __init__(self, path: Path) -> None:
        self._file = AtomicFile(path, removes_left_behind=False)
        self.beside = self._file.beside
        self._parts: list[bytes] = []
        self._waiting = self._num_bytes = self._crc32c = 0

    def write(self, content: bytes) -> None:
        """Writes the next bytes."""
        self._parts.append(content)
        self._waiting += len(content)
        if self._waiting >= _BLOCK_BYTES:
            self._flush()

    def end(self) -> tuple[int, int]:
        """Writes the rest, and returns the file's size in bytes and its crc32c."""
        self._flush()
        return self._num_bytes, self._crc32c

    @refusals_named()
    def check_is_wanted(self) -> None:
        """Checks that the file has not been removed, as the end of an export does."""
        if not self.beside.exists():
            raise FileNotFoundError(errno.ENOENT, "the export was ended meanwhile")

    @refusals_named()
    def commit(self, *, syncs_folder: bool = True) -> None:
        """Puts the file in its place, for good; see `AtomicFile.commit`."""
        self._file.commit(syncs_folder=syncs_folder)

    def discard(self) -> None:
        """Leaves the place as it was; may be called twice, and after `commit`."""
        self._file.discard()

    @refusals_named()
    def _flush(self) -> None:
        block = b"".join(self._parts)
        self._file.write(block, self._num_bytes)
        self._crc32c = google_crc32c.extend(self._crc32c, block)
        self._num_bytes += len(block)
        self._parts, self._waiting = [], 0


def read_file(path: str | os.PathLike[str], metrics: StageMetrics | None = None) -> tuple[int, int] | None:
    """Returns a file's size in bytes and its crc32c; None: it cannot be read.

    `metrics` get the time of each part, so that the watch over workers sees a large file go on.
    """
    num_bytes = crc32c = 0
    began_s = time.monotonic()
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                num_bytes, crc32c = num_bytes + len(block), google_crc32c.extend(crc32c, block)
                if metrics is not None:
                    now_s = time.monotonic()
                    metrics.add("read", now_s - began_s)
                    began_s = now_s
    except OSError:
        return None
    return num_bytes, crc32c


def write_for_good(path: Path, content: bytes) -> None:
    """Puts content in the place of a file, also if the power fails afterwards; an OSError leaves what was there."""
    file = ShardFile(path)
    try:
        file.write(content)
        file.end()
        file.commit()
    finally:
        file.discard()
